"""What is measured of the change in the output: the objects of `measure`."""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np

from jaxsens.core.base import inputs
from jaxsens.core.base.errors import NO_VALUE, InputError, Problems
from jaxsens.core.base.strict import checked_by
from jaxsens.core.base.value import Answer, kind_of, read

if TYPE_CHECKING:
    from jaxtyping import Array, Float

MEDIAN = "median"
"""The threshold that makes a decision balanced."""


def _formulas() -> Any:
    """Returns `jaxsens.core.measures.formulas`, which needs JAX, so that it is loaded only where something is
    measured."""
    from jaxsens.core.measures import formulas

    return formulas


def _outputs(name: str, value: Any, problems: Problems) -> Any:
    """Coordinates, sorted; "all"; or None for those that the model designates."""
    del name
    if value is None or (isinstance(value, str) and value == "all"):
        return value
    found = inputs.outputs(value, None, problems)
    return None if found is None else tuple(sorted(found))


def _threshold(name: str, value: Any, problems: Problems) -> float | str:
    if isinstance(value, str) and value == MEDIAN:
        return value
    if not inputs.is_real(value) or not math.isfinite(float(value)):
        problems.add(name, value, f'a finite number, or "{MEDIAN}"')
        return 0.0
    return float(value)


def _function(name: str, value: Any, problems: Problems, arguments: int, wanted: str) -> Any:
    if not callable(value) or not inputs.takes(value, arguments):
        problems.add(name, value, wanted)
        return value
    try:
        hash(value)
    except TypeError:
        given = ", ".join(("y", "new")[:arguments])
        remedy = f"it is not hashable, which compilation requires; wrap it: lambda {given}: f({given})"
        problems.add(name, type(value).__name__, remedy)
    return value


def _token(name: str, value: Any, problems: Problems) -> int | str:
    return value if isinstance(value, str) and value else inputs.count(name, value, problems)


def _name(name: str, value: Any, problems: Problems) -> str:
    if not isinstance(value, str):
        problems.add(name, value, "a text")
    return str(value)


Outputs = Annotated[Literal["all"] | Sequence[int] | np.ndarray | None, checked_by(_outputs)]
Threshold = Annotated[float | Literal["median"], checked_by(_threshold)]
OF_OUTPUT = (
    "a function from the model's output, a vector, to one number, such as lambda y: jax.nn.log_softmax(y)[3]"
)
OF_BOTH = (
    "a function from the model's output and that of the flipped input, two vectors, to one number, such as "
    "lambda y, new: jnp.abs(new - y)[3]"
)
Scalar = Annotated[Callable[..., Any], checked_by(_function, arguments=1, wanted=OF_OUTPUT)]
OfBoth = Annotated[Callable[..., Any], checked_by(_function, arguments=2, wanted=OF_BOTH)]
Token = Annotated[int | str, checked_by(_token)]
Name = Annotated[str, checked_by(_name)]


class Measure(Answer, abc.ABC):
    """What is measured of the change in the output y under a flip: a number for each flip.

    All keep the digits of a small change. `outputs`, which all but functions have, are the coordinates of y that are
    measured, or "all"; None stands for those that the model designates (`model.outputs` of a jaxsens transformer, as
    compiled ones have), or all if it designates none.

    Attributes:
        symbol: what the numbers are, as a formula. x is the input, x′ the input with a flip.
        unit: their unit, or their range.
        label: what they are on an axis, with a place between its two parts.
        least_outputs: the fewest outputs of which it says something.
        largest: the largest value there can be, whatever the model.
        signed: whether the numbers have signs.
        unflipped: what is told of the output without a flip, as a formula; None for nothing.
        smooth: whether first-order estimates of changes estimate it: it does not jump.
    """

    question: ClassVar[str] = "measure"
    example: ClassVar[str] = "jaxsens.L1(outputs=[0])"
    kinds: ClassVar[dict[str, type[Any]]] = {}
    symbol: ClassVar[str]
    unit: ClassVar[str]
    label: ClassVar[str]
    least_outputs: ClassVar[int] = 1
    largest: ClassVar[float] = math.inf
    signed: ClassVar[bool] = False
    smooth: ClassVar[bool] = True
    unflipped: ClassVar[str | None] = None
    outputs: Any = None

    @classmethod
    def _spoken(cls) -> tuple[str, ...]:
        return ("threshold", "f", "token")

    @abc.abstractmethod
    def values(
        self, y: Float[Array, " outputs"], dy: Float[Array, "flips outputs"]
    ) -> Float[Array, " flips"]:
        """Returns the number of each change. Numbers other than norms are NaN where the change is not finite."""

    @abc.abstractmethod
    def resolution(
        self, y: Float[Array, " outputs"], dy: Float[Array, "flips outputs"], error: Float[Array, " flips"]
    ) -> Float[Array, " flips"]:
        """Returns how far each number may be off if the change is off by `error` in the l2 norm."""

    def of_changes(
        self, y: Float[Array, " outputs"], dy: Float[Array, "flips outputs"], error: Float[Array, " flips"]
    ) -> tuple[Float[Array, " flips"], Float[Array, " flips"]]:
        """Returns `values` and `resolution`."""
        return self.values(y, dy), self.resolution(y, dy, error)

    def of_outputs(
        self,
        old: Float[Array, " outputs"],
        new: Float[Array, "flips outputs"],
        dy: Float[Array, "flips outputs"],
        error: Float[Array, " flips"],
    ) -> tuple[Float[Array, " flips"], Float[Array, " flips"]]:
        """Returns `of_changes` where both outputs are known, as the model returns them."""
        del new
        return self.of_changes(_formulas().as_vector(old).astype(dy.dtype), dy, error)

    def between(self, y: Float[Array, " outputs"], new: Float[Array, " outputs"]) -> Float[Array, ""]:
        """Returns the number of two outputs, whose difference is formed here."""
        return self.values(y, (new - y)[None])[0]

    def check(self, size: int, designated: tuple[int, ...] | None) -> None:
        """Rejects a model with `size` outputs that does not have those measured, or too few.

        Raises:
            InputError: with the remedy.
        """
        chosen = self.chosen(designated)
        if chosen is not None and max(chosen) >= size:
            raise InputError.of("measure.outputs", list(chosen), f"the model has the outputs 0 to {size - 1}")
        measured = size if chosen is None else len(chosen)
        if measured < self.least_outputs:
            raise InputError.of(
                "measure",
                self.kind,
                'it is 0 for nearly every change of a single output; give "l2", or more outputs',
            )

    def scale(self, y: Float[np.ndarray, " outputs"]) -> float | None:
        """Returns the value of `unflipped`, of the outputs that are measured: beside it changes are large or small."""
        del y
        return None

    def chosen(self, designated: tuple[int, ...] | None) -> tuple[int, ...] | None:
        """Returns the coordinates that are measured of a model that designates some; None means all."""
        if self.outputs is None:
            return designated
        return None if isinstance(self.outputs, str) else self.outputs


class Norm(Measure, abc.ABC):
    """A norm of the output's change.

    Attributes:
        order: as NumPy takes it.
    """

    unit: ClassVar[str] = "in the units of the output y"
    order: ClassVar[float]

    @abc.abstractmethod
    def of(self, dy: Float[Array, "*batch outputs"]) -> Float[Array, "*batch"]:
        """Returns the norm over the last axis."""

    def values(self, y: Any, dy: Any) -> Any:
        del y
        return self.of(dy)

    def resolution(self, y: Any, dy: Any, error: Any) -> Any:
        """`error`: a norm moves by no more than its argument."""
        del y, dy
        return error

    @abc.abstractmethod
    def combined(self, so_far: Any, part: Any) -> Any:
        """Returns the norm of the whole from those of two parts, in NumPy."""

    def scale(self, y: Float[np.ndarray, " outputs"]) -> float | None:
        return float(self.of_array(np.asarray(y, np.float64)))

    def of_array(self, change: Float[np.ndarray, "*batch outputs"]) -> Float[np.ndarray, "*batch"]:
        """Returns the norm over the last axis, by NumPy."""
        return np.linalg.norm(change, ord=self.order, axis=-1)


@kind_of(Measure, "l2")
class L2(Norm):
    """The l2 norm of the output's change."""

    symbol: ClassVar[str] = "‖y(x′) − y(x)‖₂"
    unflipped: ClassVar[str | None] = "‖y(x)‖₂"
    label: ClassVar[str] = "change of the output,{}‖y(x) − y(x′)‖₂"
    order: ClassVar[float] = 2
    outputs: Outputs = None

    def of(self, dy: Any) -> Any:
        return _formulas().l2(dy)

    def combined(self, so_far: Any, part: Any) -> Any:
        return np.hypot(so_far, part)


@kind_of(Measure, "l1")
class L1(Norm):
    """The l1 norm of the output's change."""

    symbol: ClassVar[str] = "‖y(x′) − y(x)‖₁"
    unflipped: ClassVar[str | None] = "‖y(x)‖₁"
    label: ClassVar[str] = "change of the output,{}‖y(x) − y(x′)‖₁"
    order: ClassVar[float] = 1
    outputs: Outputs = None

    def of(self, dy: Any) -> Any:
        return _formulas().l1(dy)

    def resolution(self, y: Any, dy: Any, error: Any) -> Any:
        """The l1 norm of an error is at most sqrt(outputs) times its l2 norm."""
        del dy
        return error * y.shape[-1] ** 0.5

    def combined(self, so_far: Any, part: Any) -> Any:
        return np.add(so_far, part)


@kind_of(Measure, "linf")
class LInf(Norm):
    """The l-infinity norm of the output's change."""

    symbol: ClassVar[str] = "‖y(x′) − y(x)‖∞"
    unflipped: ClassVar[str | None] = "‖y(x)‖∞"
    label: ClassVar[str] = "change of the output,{}‖y(x) − y(x′)‖∞"
    order: ClassVar[float] = math.inf
    outputs: Outputs = None

    def of(self, dy: Any) -> Any:
        return _formulas().linf(dy)

    def combined(self, so_far: Any, part: Any) -> Any:
        return np.maximum(so_far, part)


class Distance(Measure, abc.ABC):
    """A distance of y' from y.

    Attributes:
        formula: the functions of `jaxsens.core.measures.formulas` for the distance, and for how far it may be off.
    """

    formula: ClassVar[tuple[str, str]]

    @property
    def options(self) -> dict[str, float]:
        """What the functions are given besides."""
        return {}

    def values(self, y: Any, dy: Any) -> Any:
        formulas = _formulas()
        return formulas.each(getattr(formulas, self.formula[0]), y, dy, **self.options)

    def resolution(self, y: Any, dy: Any, error: Any) -> Any:
        formulas = _formulas()
        return formulas.resolution_of_each(getattr(formulas, self.formula[1]), y, dy, error, **self.options)


@kind_of(Measure, "cosine")
class Cosine(Distance):
    """The cosine distance 1 - cos(y, y'), from 0 to 2."""

    formula: ClassVar[tuple[str, str]] = ("cosine_distance", "cosine_resolution")
    symbol: ClassVar[str] = "1 − cos(y(x), y(x′))"
    label: ClassVar[str] = "cosine distance of the outputs,{}1 − cos(y(x), y(x′))"
    unit: ClassVar[str] = "from 0 to 2"
    least_outputs: ClassVar[int] = 2
    largest: ClassVar[float] = 2.0
    outputs: Outputs = None


@kind_of(Measure, "kl")
class KL(Distance):
    """The divergence KL(softmax(y) || softmax(y')) in nats."""

    formula: ClassVar[tuple[str, str]] = ("kl_divergence", "kl_resolution")
    symbol: ClassVar[str] = "KL(softmax y(x) ‖ softmax y(x′))"
    label: ClassVar[str] = "divergence of the outputs (nats),{}KL(y(x) ‖ y(x′))"
    unit: ClassVar[str] = "in nats"
    least_outputs: ClassVar[int] = 2
    outputs: Outputs = None


@kind_of(Measure, "decision")
class Decision(Distance):
    """1 if the largest output is another one (the first of equals), otherwise 0.

    Its sum over the flips of an input is the Boolean sensitivity (`FlipSensitivity.sensitive_flips`). No first-order
    estimate is possible: it jumps.

    Args:
        threshold: of a single output, the decision is whether it is above this. "median" is that of the outputs on the
            inputs, for which the decision is as balanced as it can be (`balancing_threshold`).
        outputs: as for every measure (`Measure`).
    """

    formula: ClassVar[tuple[str, str]] = ("decision_changes", "decision_resolution")
    symbol: ClassVar[str] = "change of decision"
    label: ClassVar[str] = "share of flips that change{}the decision"
    unit: ClassVar[str] = "1 if the largest output y is another one, otherwise 0"
    largest: ClassVar[float] = 1.0
    smooth: ClassVar[bool] = False
    threshold: Threshold = 0.0
    outputs: Outputs = None

    def check(self, size: int, designated: tuple[int, ...] | None) -> None:
        """Rejects also a threshold for several outputs."""
        super().check(size, designated)
        chosen = self.chosen(designated)
        measured = size if chosen is None else len(chosen)
        if self.threshold and measured > 1:
            raise InputError.of(
                "measure.threshold",
                self.threshold,
                f"the decision of {measured} outputs is the largest of them; choose one, as outputs=[0]",
            )

    @property
    def options(self) -> dict[str, float]:
        if isinstance(self.threshold, str):
            raise TypeError("the threshold is not resolved")
        return {"threshold": self.threshold}

    def of_outputs(self, old: Any, new: Any, dy: Any, error: Any) -> tuple[Any, Any]:
        """The decisions of the outputs themselves: y + (y' - y) may be an ulp off y', and not tie with what y' ties
        with. Integers are compared exactly."""
        formulas = _formulas()
        changed = formulas.decided_otherwise(old, new, **self.options).astype(dy.dtype)
        values = formulas.where_finite(formulas.as_vector(new), changed)
        if formulas.is_whole(old):
            return values, 0 * changed
        return values, self.resolution(formulas.as_vector(old).astype(dy.dtype), dy, error)


@dataclasses.dataclass(frozen=True)
class Forgotten:
    """A function of a saved result: its program's SHA-256 is known, and nothing can be computed."""

    program: str

    def __call__(self, *outputs: Any) -> Any:
        """Raises an InputError: files hold no functions."""
        raise InputError.of("measure", NO_VALUE, "the function of a saved result is not kept; give it again")


class OfFunction(Measure, abc.ABC):
    """A user's function of the outputs."""

    unit: ClassVar[str] = "in the units of f"
    signed: ClassVar[bool] = True
    arguments: ClassVar[int]
    wanted: ClassVar[str]
    chosen_by: ClassVar[str]

    @property
    @abc.abstractmethod
    def function(self) -> Callable[..., Any]:
        """The function."""

    def chosen(self, designated: tuple[int, ...] | None) -> tuple[int, ...] | None:
        """None: f gets the whole output."""
        return None

    def scale(self, y: Float[np.ndarray, " outputs"]) -> float | None:
        """f of the output; None for a function of two."""
        if self.arguments > 1:
            return None
        return float(_formulas().value_of(self.function, _formulas().as_vector(y)))

    @abc.abstractmethod
    def _of_new(self, y: Any) -> tuple[Callable[[Any], Any], Any]:
        """Returns a function of the new output, and what its change is added to."""

    def values(self, y: Any, dy: Any) -> Any:
        import jax.numpy as jnp

        return self.of_changes(y, dy, jnp.zeros(dy.shape[:1], dy.dtype))[0]

    def resolution(self, y: Any, dy: Any, error: Any) -> Any:
        return self.of_changes(y, dy, error)[1]

    def of_changes(self, y: Any, dy: Any, error: Any) -> tuple[Any, Any]:
        """f's change, with the digits of dy where f is smooth (`change_of`)."""
        import jax

        from jaxsens.core.measures.change_of import change_and_doubt

        f, start = self._of_new(y)
        found, doubt = jax.vmap(lambda change, e: change_and_doubt(f, y, change, e))(dy, error)
        return _formulas().where_finite(dy, start + found), doubt

    def of_outputs(self, old: Any, new: Any, dy: Any, error: Any) -> tuple[Any, Any]:
        """f of the outputs themselves: y + (y' - y) may be an ulp off y', on the other side of a step."""
        import jax

        from jaxsens.core.measures.change_of import rounding_of, slope_error

        formulas = _formulas()
        y, after = formulas.as_exact_vector(old), formulas.as_exact_vector(new)
        f, start = self._of_new(y)
        values = formulas.where_finite(after, jax.vmap(f)(after) + (start - f(y)))
        doubt = jax.vmap(lambda at, e: rounding_of(f, at, e) + slope_error(f, at, e))(after, error)
        return values, doubt + rounding_of(f, y)

    def table(self) -> dict[str, Any]:
        """The kind, and of a result's measure the function's program: a function has no JSON value."""
        return {"kind": self.kind} | ({"program": self.program} if self.program is not None else {})

    @property
    def program(self) -> str | None:
        """SHA-256 of the function's program, if the measure is that of a result (`without_function`)."""
        return self.function.program if isinstance(self.function, Forgotten) else None

    def without_function(self, program: str) -> Measure:
        """Returns the measure for a result, which holds no function of the user's: programs go with their functions."""
        made: Any = type(self)
        return made(Forgotten(program))


@kind_of(Measure, "function")
class Function(OfFunction):
    """The signed change f(y(x')) - f(y(x)) of a function of the output.

    `Difference` keeps the digits of small changes where f is smooth, and subtracts elsewhere. Reuse function objects: a
    new one for each call is compiled for each call.

    Args:
        f: gets the whole output, a vector in the model's dtype (or float64, where an engine measures in it), and
            returns one floating-point number. It is written with jax.numpy.
    """

    symbol: ClassVar[str] = "f(y(x′)) − f(y(x))"
    unflipped: ClassVar[str | None] = "f(y(x))"
    label: ClassVar[str] = "change of f,{}f(y(x′)) − f(y(x))"
    arguments: ClassVar[int] = 1
    wanted: ClassVar[str] = OF_OUTPUT
    chosen_by: ClassVar[str] = "lambda y: f(y[outputs])"
    f: Scalar

    @property
    def function(self) -> Callable[..., Any]:
        return self.f

    def _of_new(self, y: Any) -> tuple[Callable[[Any], Any], Any]:
        import jax.numpy as jnp

        return (lambda at: _formulas().value_of(self.function, at)), jnp.zeros((), y.dtype)

    def between(self, y: Any, new: Any) -> Any:
        value_of = _formulas().value_of
        return value_of(self.function, new) - value_of(self.function, y)


@kind_of(Measure, "comparison")
class Comparison(OfFunction):
    """The value f(y(x), y(x')) of a function of both outputs.

    `Difference` gives f the sum of y and the change, and keeps the digits of small changes where f is smooth.
    `FirstOrder` gives it y and the estimated change of every output. Reuse function objects.

    Args:
        f: gets both outputs, two vectors, and returns one floating-point number, such as
            `lambda y, new: jnp.linalg.norm(new - y)`.
    """

    symbol: ClassVar[str] = "f(y(x), y(x′))"
    label: ClassVar[str] = "comparison of the outputs,{}f(y(x), y(x′))"
    arguments: ClassVar[int] = 2
    wanted: ClassVar[str] = OF_BOTH
    chosen_by: ClassVar[str] = "lambda y, new: f(y[outputs], new[outputs])"
    f: OfBoth

    @property
    def function(self) -> Callable[..., Any]:
        return self.f

    def _of_new(self, y: Any) -> tuple[Callable[[Any], Any], Any]:
        of_new = lambda new: _formulas().value_of(lambda at: self.f(y, at), new)  # noqa: E731 - a closure over y
        return of_new, of_new(y)

    def of_outputs(self, old: Any, new: Any, dy: Any, error: Any) -> tuple[Any, Any]:
        """f of both outputs, without a sum of changes."""
        import jax

        formulas = _formulas()
        y, after = formulas.as_exact_vector(old), formulas.as_exact_vector(new)
        values = formulas.where_finite(after, jax.vmap(self._of_new(y)[0])(after))
        return values, super().of_outputs(old, new, dy, error)[1]

    def between(self, y: Any, new: Any) -> Any:
        return self._of_new(y)[0](new)


@kind_of(Measure, "log-probability")
class LogProbability(OfFunction):
    """The signed change of log softmax(y)[token], in nats: of a next token's log-probability, or of a label's.

    Args:
        token: the token's id; for a model that encodes text, also a text of a single token; for a classifier, a label's
            number or name.
        name: what it is called in tables and pictures; a model that knows its tokens or labels says it.
    """

    label: ClassVar[str] = "change of the log-probability (nats),{}log p(x′) − log p(x)"
    unit: ClassVar[str] = "in nats"
    arguments: ClassVar[int] = 1
    wanted: ClassVar[str] = OF_OUTPUT
    chosen_by: ClassVar[str] = ""
    token: Token
    name: Name = ""

    @property
    def symbol(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The change of log p, with the name."""
        return f"log p({self.name.strip() or 'token'} | x′) − {self.unflipped}"

    @property
    def unflipped(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        """log p, with the name."""
        return f"log p({self.name.strip() or 'token'} | x)"

    @property
    def function(self) -> Callable[..., Any]:
        return self._log_softmax

    def _log_softmax(self, y: Any) -> Any:
        import jax

        if isinstance(self.token, str):
            raise TypeError("the token is not resolved")
        if self.token >= y.shape[-1]:
            raise InputError.of(
                "token",
                self.token,
                f"the output has {y.shape[-1]} numbers; give a token below that, "
                'and the logits of all tokens: load_pretrained(folder, output="logits")',
                subject="LogProbability",
            )
        return jax.nn.log_softmax(y)[self.token]

    _of_new = Function._of_new
    between = Function.between

    def without_function(self, program: str) -> Measure:
        """The measure: its function is this package's."""
        del program
        return self

    def table(self) -> dict[str, Any]:
        return {"kind": self.kind, "token": self.token} | ({"name": self.name} if self.name else {})


def read_norm(value: Any, problems: Problems) -> Any:
    """Returns the `Norm` that a value stands for (`jaxsens.core.base.value.read`); None after adding an error."""
    found = read(Measure, value, problems)
    if found is not None and not isinstance(found, Norm):
        problems.add("measure", found, "a norm: l2, l1 or linf")
    return found


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


SAME_OUTPUT = 256
"""Outputs are the same to `balancing_threshold` if they differ by no more than this many roundings of the largest."""
