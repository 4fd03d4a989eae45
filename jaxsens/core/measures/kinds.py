"""What is measured of a change beside norms: distances of the flipped output y' = y + dy from y (`Cosine`, `KL` and
`Decision`), and functions of the output (`Function` and `Comparison` of the user's, and `LogProbability`).

Distances are computed from y and dy, never from y' - y: their digits are those of dy, however small it is.
"""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeAlias

import numpy as np

from jaxsens.core.base import inputs
from jaxsens.core.base.errors import InputError, Problems
from jaxsens.core.base.registry import kind_of
from jaxsens.core.base.strict import checked_by
from jaxsens.core.measures.measure import Estimate, Measure, Outputs, formulas, jax, jnp

if TYPE_CHECKING:
    from jaxtyping import Array, Float

    Vector: TypeAlias = Float[Array, " outputs"]
    Scalar: TypeAlias = Float[Array, ""]


ROUNDINGS = 4.0
"""A distance is taken to be off by this many of its roundings, beside what the error of its change does."""

_LARGE = 50.0
"""A divergence above half of this is taken as the logarithm of a sum of exponentials, which does not overflow."""

_TERMS = {"float32": 9, "float64": 17}
"""The number of terms of the series of e^t - 1 - t for |t| <= 1: the next is below a rounding of the sum."""


class Distance(Measure, abc.ABC):
    """A distance of y' from y, by the formulas of one change."""

    @abc.abstractmethod
    def distance(self, y: Vector, dy: Vector, error: Scalar, u: float) -> tuple[Scalar, Scalar]:
        """Returns the distance of y + dy from y, and how far it may be off if dy is off by `error` in the l2 norm, and
        what is rounded by a part u."""

    def of_changes(self, y: Any, dy: Any, error: Any) -> tuple[Any, Any]:
        u = float(ROUNDINGS * jnp.finfo(dy.dtype).eps)
        values, bounds = jax.vmap(lambda change, e: self.distance(y, change, e, u))(dy, error)
        return formulas.where_finite(dy, values), bounds


@kind_of(Measure, "cosine")
class Cosine(Distance):
    """The cosine distance 1 - cos(y, y'), from 0 to 2; NaN if y or y' is 0, which has no direction.

    >>> import jaxsens
    >>> import jax
    >>> round(jaxsens.flip_sensitivity(lambda tokens: jax.nn.one_hot(tokens[0], 2), [0, 1], 2, Cosine()).max, 3)
    1.0
    """

    symbol: ClassVar[str] = "1 − cos(y(x), y(x′))"
    label: ClassVar[str] = "cosine distance of the outputs,{}1 − cos(y(x), y(x′))"
    unit: ClassVar[str] = "from 0 to 2"
    least_outputs: ClassVar[int] = 2
    largest: ClassVar[float] = 2.0
    finite: ClassVar[tuple[str, str]] = "the output, or its direction,", ". An output of 0 has no direction"
    outputs: Outputs = None

    def distance(self, y: Any, dy: Any, error: Any, u: float) -> tuple[Any, Any]:
        """With e = y / |y|, p = e dy and a = dy - p e, y' has the part |y| + p along y and a across it. So the angle is
        atan2(|a|, |y| + p), and the distance is 2 sin^2 of its half. Nothing is subtracted from 1.

        The slope of 1 - cos is sin / |y'|; it bends by no more than 1 / |y'|^2.
        """
        size = formulas.l2(y)
        e = y / jnp.where(size > 0, size, 1)
        along = jnp.dot(e, dy)
        across, forward = formulas.l2(dy - along * e), size + along
        value = 2 * jnp.sin(jnp.arctan2(across, forward) / 2) ** 2
        value = jnp.where((size > 0) & ((across > 0) | (forward != 0)), value, jnp.nan)
        step = error / jnp.maximum(formulas.l2(y + dy), jnp.finfo(y.dtype).tiny)
        return value, step * (jnp.sqrt(jnp.maximum(value * (2 - value), 0)) + step) + u * value


@kind_of(Measure, "kl")
class KL(Distance):
    """The divergence KL(softmax(y) || softmax(y')) in nats.

    >>> import jaxsens
    >>> import jax
    >>> round(jaxsens.flip_sensitivity(lambda tokens: jax.nn.one_hot(tokens[0], 2), [0, 1], 2, KL()).max, 3)
    0.462
    """

    symbol: ClassVar[str] = "KL(softmax y(x) ‖ softmax y(x′))"
    label: ClassVar[str] = "divergence of the outputs (nats),{}KL(y(x) ‖ y(x′))"
    unit: ClassVar[str] = "in nats"
    least_outputs: ClassVar[int] = 2
    of_scores: ClassVar[bool] = True
    outputs: Outputs = None

    def distance(self, y: Any, dy: Any, error: Any, u: float) -> tuple[Any, Any]:
        """With p = softmax(y), the mean m of dy under p, and t = dy - m, whose mean is 0,

            KL = log(sum p e^t) = log(1 + sum p (e^t - 1 - t)) .

        No term of the sum is negative, so nothing cancels, and each is as accurate as t: see `excess`. For a small dy
        it is half the variance of dy under p. An error in m shifts both sides of the second equation alike and drops
        out.

        The slope is softmax(y') - softmax(y) = p (e^(t - KL) - 1), and bends by at most 1/2. The rounding of y changes
        p by a part eps |y|.
        """
        log_p = jax.nn.log_softmax(y)
        p = jnp.exp(log_p)
        t = dy - jnp.sum(p * dy)
        # Where t is large, p may be 0 in this dtype and e^t infinite, while their product is neither.
        grown = jnp.exp(jnp.minimum(log_p + t, _LARGE)) - p * (1 + t)
        near = jnp.log1p(jnp.sum(jnp.where(t <= 1, p * excess(jnp.minimum(t, 1)), grown)))
        far = jax.nn.logsumexp(log_p + t)
        value = jnp.where(jnp.max(log_p + t) > _LARGE / 2, far, near)
        s = t - value
        slope = jnp.where(s < 1, p * jnp.expm1(jnp.minimum(s, 1)), jnp.exp(jnp.minimum(log_p + s, 0)) - p)
        rounding = u * (1 + jnp.max(jnp.abs(y))) * value
        return value, error * formulas.l2(slope) + error**2 / 4 + rounding


def excess(t: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Returns e^t - 1 - t, which is at least 0, with all digits of t: for |t| <= 1 by its series."""
    small, series = jnp.clip(t, -1, 1), jnp.ones_like(t)
    for k in range(_TERMS[str(t.dtype)] + 2, 2, -1):
        series = 1 + small / k * series
    return jnp.where(jnp.abs(t) <= 1, small * small / 2 * series, jnp.exp(t) - 1 - t)


MEDIAN = "median"
"""The threshold that makes a decision balanced."""

SAME_OUTPUT = 256
"""Outputs are the same to `balancing_threshold` if they differ by no more than this many roundings of the largest."""


def _threshold(name: str, value: Any, problems: Problems) -> float | str:
    if isinstance(value, str) and value == MEDIAN:
        return value
    if not inputs.is_real(value) or not math.isfinite(float(value)):
        problems.add(name, value, f'a finite number, or "{MEDIAN}"')
        return 0.0
    return float(value)


@kind_of(Measure, "decision")
class Decision(Distance):
    """1 if the largest output is another one (the first of equals), otherwise 0.

    Its sum over the flips of an input is the Boolean sensitivity (`FlipSensitivity.sensitive_flips`). No first-order
    estimate is possible: it jumps.

    Args:
        threshold: of a single output, the decision is whether it is above this. "median" is that of the outputs on the
            inputs, for which the decision is as balanced as it can be (`balancing_threshold`).
        outputs: as for every measure (`Measure`).

    >>> import jaxsens
    >>> jaxsens.flip_sensitivity(lambda tokens: tokens.sum() - 1.5, [0, 1, 1], 2, Decision()).sensitive_flips
    array([1.])
    """

    symbol: ClassVar[str] = "change of decision"
    label: ClassVar[str] = "share of flips that change{}the decision"
    unit: ClassVar[str] = "1 if the largest output y is another one, otherwise 0"
    indicator: ClassVar[bool] = True
    largest: ClassVar[float] = 1.0
    estimate: ClassVar[Estimate] = None
    of_scores: ClassVar[bool] = True
    threshold: Annotated[float | Literal["median"], checked_by(_threshold)] = 0.0
    outputs: Outputs = None

    def check(self, size: int, designated: tuple[int, ...] | None) -> None:
        """Rejects also a threshold for several outputs."""
        super().check(size, designated)
        coordinates = self.coordinates(designated)
        measured = size if coordinates is None else len(coordinates)
        if self.threshold and measured > 1:
            raise InputError.of(
                "measure.threshold",
                self.threshold,
                f"the decision of {measured} outputs is the largest of them; choose one, as outputs=[0]",
            )

    def prepared(self, outputs: Any, designated: tuple[int, ...] | None, eps: float) -> Measure:
        """Replaces a median by its value."""
        if not isinstance(self.threshold, str):
            return self
        rows = outputs()
        self.check(rows.shape[1], designated)
        if len(rows) < 2:
            remedy = "needs at least 2 inputs: that of one is its own output; give more, or a number"
            raise InputError.of("measure.threshold", self.threshold, remedy)
        k = (self.coordinates(designated) or (0,))[0]
        return dataclasses.replace(self, threshold=balancing_threshold(rows[:, k], eps))

    def distance(self, y: Any, dy: Any, error: Any, u: float) -> tuple[Any, Any]:
        """Two outputs are compared by (y_j - y_k) + (dy_j - dy_k): those that tie in y are told apart by dy. A single
        output is compared with the threshold t by (y - t) + dy. The bound is 1 where another decision is within the
        error and the rounding of y, otherwise 0."""
        error = error + u * jnp.max(jnp.abs(y))
        if y.shape[0] == 1:
            above = y[0] - self.threshold
            changed, close = (above > 0) != (above + dy[0] > 0), jnp.abs(above + dy[0]) <= error
        else:
            k, numbers = jnp.argmax(y), jnp.arange(y.shape[0])
            ahead = (y - y[k]) + (dy - dy[k])
            changed = jnp.any((ahead > 0) | ((ahead == 0) & (numbers < k)))
            close = jnp.abs(jnp.max(jnp.where(numbers == k, -jnp.inf, ahead))) <= 2 * error
        return changed.astype(y.dtype), close.astype(y.dtype)

    def of_outputs(self, old: Any, new: Any, dy: Any, error: Any) -> tuple[Any, Any]:
        """The decisions of the outputs themselves: y + (y' - y) may be an ulp off y', and not tie with what y' ties
        with. Integers are compared exactly, and with an integer."""
        limit: Any = self.threshold
        if formulas.is_whole(old) and old.dtype.itemsize >= 4:
            bounds = jnp.iinfo(old.dtype)
            limit = min(max(math.floor(limit), int(bounds.min)), int(bounds.max))

        def decision(y: Any) -> Any:
            return (y[0] > limit).astype(int) if y.shape[0] == 1 else jnp.argmax(y)

        changed = (jax.vmap(decision)(new) != decision(old)).astype(dy.dtype)
        values = formulas.where_finite(formulas.as_vector(new), changed)
        if formulas.is_whole(old):
            return values, 0 * changed
        return values, self.of_changes(formulas.as_vector(old).astype(dy.dtype), dy, error)[1]


def balancing_threshold(outputs: Float[np.ndarray, " inputs"], eps: float) -> float:
    """Returns the threshold between two outputs that as nearly as possible half of them exceed: their median, where no
    two tie.

    Outputs that differ by rounding alone (`eps` is that of their dtype) are not told apart. If all are the same, it is
    above them by more than rounding: the decision is constant, and no flip of vanishing effect changes it.
    """
    ordered = np.sort(outputs)
    same = SAME_OUTPUT * eps * (float(np.abs(ordered).max()) or 1.0)
    gaps = np.flatnonzero(np.diff(ordered) > same)
    if not gaps.size:
        return float(ordered[-1]) + same
    middle = gaps[np.argmin(np.abs(2 * (gaps + 1) - len(ordered)))]
    return float(ordered[middle : middle + 2].mean())


OF_OUTPUT = (
    "a function from the model's output, a vector, to one number, such as lambda y: jax.nn.log_softmax(y)[3]"
)
OF_BOTH = (
    "a function from the model's output and that of the flipped input, two vectors, to one number, such as "
    "lambda y, new: jnp.abs(new - y)[3]"
)


def _function(name: str, value: Any, problems: Problems, arguments: int, remedy: str) -> Any:
    if not callable(value) or not inputs.takes(value, arguments):
        problems.add(name, value, remedy)
        return value
    try:
        hash(value)
    except TypeError:
        names = ", ".join(("y", "new")[:arguments])
        remedy = f"it is not hashable, which compilation requires; wrap it: lambda {names}: f({names})"
        problems.add(name, type(value).__name__, remedy)
    return value


def _token(name: str, value: Any, problems: Problems, optional: bool = False) -> int | str | None:
    if optional and value is None:
        return None
    return value if isinstance(value, str) and value else inputs.count(name, value, problems)


@dataclasses.dataclass(frozen=True)
class Forgotten:
    """A function of a saved result: its program's SHA-256 is known, and nothing can be computed."""

    program: str = dataclasses.field(repr=False)

    def __call__(self, *outputs: Any) -> Any:
        """Raises an InputError: files hold no functions."""
        raise InputError.note("measure", "the function of a saved result is not kept; give it again")


class OfFunction(Measure, abc.ABC):
    """A function of the output, or of both outputs."""

    unit: ClassVar[str] = "in the units of f"
    signed: ClassVar[bool] = True
    estimate: ClassVar[Estimate] = "derivative"
    arguments: ClassVar[int] = 1
    form: ClassVar[str] = OF_OUTPUT
    finite: ClassVar[tuple[str, str]] = (
        "the output, or the function of it,",
        ", a function that is finite everywhere, or floats where the model returns integers beyond 2^24",
    )

    @property
    @abc.abstractmethod
    def function(self) -> Callable[..., Any]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The function."""

    def coordinates(self, designated: tuple[int, ...] | None) -> tuple[int, ...] | None:
        """None: f gets the whole output."""
        return None

    def scale(self, y: Float[np.ndarray, " outputs"]) -> float | None:
        """f of the output."""
        return float(formulas.value_of(self.function, formulas.as_vector(y)))

    def of_new(self, y: Any) -> tuple[Callable[[Any], Any], Any]:
        """Returns a function of the new output, and what its change is added to."""
        return (lambda at: formulas.value_of(self.function, at)), jnp.zeros((), y.dtype)

    def of_changes(self, y: Any, dy: Any, error: Any) -> tuple[Any, Any]:
        """f's change, with the digits of dy where f is smooth (`change_of`)."""
        f, start = self.of_new(y)
        change, bound = jax.vmap(lambda step, e: formulas.change_and_error(f, y, step, e))(dy, error)
        return formulas.where_finite(dy, start + change), bound

    def of_outputs(self, old: Any, new: Any, dy: Any, error: Any) -> tuple[Any, Any]:
        """f of the outputs themselves: y + (y' - y) may be an ulp off y', on the other side of a step."""
        y, after = formulas.as_exact_vector(old), formulas.as_exact_vector(new)
        f, start = self.of_new(y)
        values = formulas.where_finite(after, jax.vmap(f)(after) + (start - f(y)))
        rounding, slope = formulas.rounding_of, formulas.slope_error
        bound = jax.vmap(lambda at, e: rounding(f, at, e) + slope(f, at, e))(after, error)
        return values, bound + rounding(f, y)


class UserFunction(OfFunction, abc.ABC):
    """A function of the user's. Files and messages do not hold it, but its program's SHA-256."""

    portable: ClassVar[bool] = False
    f: Any

    @property
    def function(self) -> Callable[..., Any]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.f

    @property
    def program(self) -> str | None:  # pyright: ignore[reportIncompatibleVariableOverride]
        """That of a saved result's function."""
        return self.f.program if isinstance(self.f, Forgotten) else None

    def without_function(self, program: str) -> Measure:
        made: Any = type(self)
        return made(Forgotten(program))

    def table(self) -> dict[str, Any]:
        """The kind, and the function's program if it is known: a function has no JSON value."""
        return {"kind": self.kind} | ({"program": self.program} if self.program is not None else {})

    def __str__(self) -> str:
        return f"{type(self).__name__}({getattr(self.f, '__name__', None) or repr(self.f)})"


@kind_of(Measure, "function")
class Function(UserFunction):
    """The signed change f(y(x')) - f(y(x)) of a function of the output.

    `Difference` keeps the digits of small changes where f is smooth, and subtracts elsewhere. Reuse function objects: a
    new one for each call is compiled for each call.

    Args:
        f: gets the whole output, a vector in the model's dtype (or float64, where an engine measures in it), and
            returns one floating-point number. It is written with jax.numpy.

    >>> import jaxsens
    >>> jaxsens.flip_sensitivity(lambda tokens: tokens / 4.0, [0, 1], 2, Function(lambda y: y[0]), readout=None).max
    0.25
    """

    symbol: ClassVar[str] = "f(y(x′)) − f(y(x))"
    unflipped: ClassVar[str | None] = "f(y(x))"
    label: ClassVar[str] = "change of f,{}f(y(x′)) − f(y(x))"
    f: Annotated[Callable[..., Any], checked_by(_function, arguments=1, remedy=OF_OUTPUT)]


@kind_of(Measure, "comparison")
class Comparison(UserFunction):
    """The value f(y(x), y(x')) of a function of both outputs.

    `Difference` gives f the sum of y and the change, and keeps the digits of small changes where f is smooth.
    `FirstOrder` gives it y and the estimated change of every output. Reuse function objects.

    Args:
        f: gets both outputs, two vectors, and returns one floating-point number, such as
            `lambda y, new: jnp.linalg.norm(new - y)`.

    >>> import jaxsens
    >>> largest = Comparison(lambda old, new: abs(new - old).max())
    >>> jaxsens.flip_sensitivity(lambda tokens: tokens / 4.0, [0, 1], 2, largest, readout=None).max
    0.25
    """

    symbol: ClassVar[str] = "f(y(x), y(x′))"
    label: ClassVar[str] = "comparison of the outputs,{}f(y(x), y(x′))"
    estimate: ClassVar[Estimate] = "outputs"
    arguments: ClassVar[int] = 2
    form: ClassVar[str] = OF_BOTH
    f: Annotated[Callable[..., Any], checked_by(_function, arguments=2, remedy=OF_BOTH)]

    def scale(self, y: Any) -> float | None:
        """None: f is of two outputs."""
        return None

    def of_new(self, y: Any) -> tuple[Callable[[Any], Any], Any]:
        of_new = lambda new: formulas.value_of(lambda at: self.f(y, at), new)  # noqa: E731 - a closure over y
        return of_new, of_new(y)

    def of_outputs(self, old: Any, new: Any, dy: Any, error: Any) -> tuple[Any, Any]:
        """f of both outputs, without a sum of changes."""
        y, after = formulas.as_exact_vector(old), formulas.as_exact_vector(new)
        values = formulas.where_finite(after, jax.vmap(self.of_new(y)[0])(after))
        return values, super().of_outputs(old, new, dy, error)[1]


@kind_of(Measure, "log-probability")
class LogProbability(OfFunction):
    """The signed change of log softmax(y)[token], in nats: of a next token's log-probability, or of a label's. With
    `against`, of that less the log-probability of another one: of their log-odds, y[token] - y[against].

    Args:
        token: the token's id; for a model that encodes text, also a text of a single token; for a classifier, a label's
            number or name.
        name: what it is called in tables and pictures; a model that knows its tokens or labels says it.
        against: the other token or label, as `token`; None for no comparison.
        against_name: what the other one is called.

    >>> LogProbability(7, against=3).token
    7
    """

    label: ClassVar[str] = "change of the log-probability (nats),{}log p(x′) − log p(x)"
    unit: ClassVar[str] = "in nats"
    of_scores: ClassVar[bool] = True
    published_output: ClassVar[Literal["hidden", "logits"]] = "logits"
    token: Annotated[int | str, checked_by(_token)]
    name: str = ""
    against: Annotated[int | str | None, checked_by(_token, optional=True)] = None
    against_name: str = ""

    def __post_init__(self) -> None:
        if self.against == self.token:
            raise InputError.of("against", self.against, "another token than `token`", "LogProbability")

    @property
    def symbol(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The change of log p, with the name."""
        return f"{self._at('x′')} − {self._at('x')}"

    @property
    def unflipped(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        """log p, with the name."""
        return self._at("x")

    def _at(self, x: str) -> str:
        own = f"log p({self.name.strip() or 'token'} | {x})"
        if self.against is None:
            return own
        return f"[{own} − log p({self.against_name.strip() or f'token {self.against}'} | {x})]"

    @property
    def function(self) -> Callable[..., Any]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self._log_softmax

    def _log_softmax(self, y: Any) -> Any:
        for name in ("token", "against"):
            token: Any = getattr(self, name)
            if token is not None and token >= y.shape[-1]:
                raise InputError.of(
                    name,
                    token,
                    f"the output has {y.shape[-1]} numbers; give a token below that, "
                    'and the logits of all tokens: load_pretrained(folder, output="logits")',
                    subject="LogProbability",
                )
        token, against = self.token, self.against
        return jax.nn.log_softmax(y)[token] if against is None else y[token] - y[against]

    def resolved(self, output_of: Callable[[int | str], tuple[int, str]] | None) -> Measure:
        if output_of is not None:
            other = (None, "") if self.against is None else output_of(self.against)
            return LogProbability(*output_of(self.token), *other)
        for name in ("token", "against"):
            if isinstance(getattr(self, name), str):
                remedy = f"this model encodes no text; give the id of `{name}`"
                raise InputError.of("measure", self, remedy, subject="flip_sensitivity")
        return self

    def table(self) -> dict[str, Any]:
        table = {"kind": self.kind, "token": self.token}
        others = {"name": self.name, "against": self.against, "against_name": self.against_name}
        return table | {name: value for name, value in others.items() if value not in ("", None)}
