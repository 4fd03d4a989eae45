"""Functions of the output: `Function` and `Comparison` of the user's, and `LogProbability`."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from jaxsens.core.base import inputs
from jaxsens.core.base.errors import InputError, Problems
from jaxsens.core.base.registry import kind_of
from jaxsens.core.base.strict import checked_by
from jaxsens.core.measures.measure import Estimate, Measure, formulas, jax, jnp

if TYPE_CHECKING:
    import numpy as np
    from jaxtyping import Float

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
