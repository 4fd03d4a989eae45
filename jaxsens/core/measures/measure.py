"""The base of the objects of `measure`, and the norms of the change: `L2`, `L1` and `LInf`."""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np

from jaxsens.core.base import inputs
from jaxsens.core.base.errors import InputError, Problems
from jaxsens.core.base.registry import Option, kind_of, read
from jaxsens.core.base.strict import checked_by


class _Deferred:
    """JAX, or a module that needs it, imported at its first use: help and the reading of arguments do without it."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(import_module(self._name), attribute)


if TYPE_CHECKING:
    import jax as jax
    import jax.numpy as jnp
    from jaxtyping import Array, Float

    from jaxsens.core.measures import formulas as formulas

    Output = Float[Array, " outputs"]
    Changes = Float[Array, "flips outputs"]
    Numbers = Float[Array, " flips"]
else:
    jax, jnp, formulas = map(_Deferred, ("jax", "jax.numpy", "jaxsens.core.measures.formulas"))

Estimate = Literal["parts", "outputs", "derivative"] | None


def _outputs(name: str, value: Any, problems: Problems) -> Any:
    """Coordinates, sorted; "all"; or None for those that the model designates."""
    del name
    if value is None or (isinstance(value, str) and value == "all"):
        return value
    coordinates = inputs.outputs(value, None, problems)
    return None if coordinates is None else tuple(sorted(coordinates))


Outputs = Annotated[Literal["all"] | Sequence[int] | np.ndarray | None, checked_by(_outputs)]


class Measure(Option, abc.ABC):
    """What is measured of the change in the output y under a flip: a number for each flip.

    All keep the digits of a small change.

    Attributes:
        outputs: the coordinates of y that are measured, or "all"; None stands for those that the model designates
            (`model.outputs` of a jaxsens transformer, as compiled ones have), or all if none. Functions have none.
        symbol: what the numbers are, as a formula. x is the input, x′ the input with a flip.
        unit: their unit, or their range.
        label: what they are on an axis, with a place between its two parts.
        unflipped: what `scale` returns, as a formula; None for nothing.
        signed: whether the numbers have signs.
        indicator: whether each number is 0 or 1, so that sums of them count flips.
        order: of the norm of the change, as NumPy takes it; None for what is no norm.
        least_outputs: the fewest outputs of which it says something.
        largest: the largest value there can be, whatever the model.
        estimate: what it is estimated from to first order: "parts", changes of some outputs at a time, which `combined`
            merges; "outputs", those of all outputs; "derivative", that of `function`. None if it jumps: it has none.
        finite: what must be finite for its numbers to be, and the end of a remedy.
        of_scores: whether it is of logits, or of the scores of labels; a hidden row is refused.
        published_output: what of a published model it is of, by default.
        portable: whether files and messages can hold it, unlike a Python function.
        function: the function that it is of; None for a formula of its own. `arguments`: 1, if it takes the output; 2,
            if it also takes that of the flipped input. `form`: which functions may be given, in words.
        program: of a saved result the SHA-256 of the function's program; None otherwise.
        threshold: of a decision on a single output; None for what is no decision.
    """

    argument: ClassVar[str] = "measure"
    example: ClassVar[str] = "jaxsens.L1(outputs=[0])"
    kinds: ClassVar[dict[str, type[Any]]] = {}
    symbol: ClassVar[str]
    unit: ClassVar[str]
    label: ClassVar[str]
    unflipped: ClassVar[str | None] = None
    signed: ClassVar[bool] = False
    indicator: ClassVar[bool] = False
    order: ClassVar[float | None] = None
    least_outputs: ClassVar[int] = 1
    largest: ClassVar[float] = math.inf
    estimate: ClassVar[Estimate] = "outputs"
    finite: ClassVar[tuple[str, str]] = "the output", ""
    of_scores: ClassVar[bool] = False
    published_output: ClassVar[Literal["hidden", "logits"]] = "hidden"
    portable: ClassVar[bool] = True
    arguments: ClassVar[int] = 0
    form: ClassVar[str] = ""
    outputs: Any = None
    function: Any = None
    threshold: Any = None
    program: Any = None

    @classmethod
    def _spoken(cls) -> tuple[str, ...]:
        fields: Any = cls  # the kinds are dataclasses
        return tuple(field.name for field in dataclasses.fields(fields) if field.name != "outputs")

    @abc.abstractmethod
    def of_changes(self, y: Output, dy: Changes, error: Numbers) -> tuple[Numbers, Numbers]:
        """Returns the number of each change, and how far it may be off if the change is off by `error` in the l2 norm.

        Numbers other than norms are NaN where the change is not finite.
        """

    def of_outputs(self, old: Output, new: Changes, dy: Changes, error: Numbers) -> tuple[Numbers, Numbers]:
        """Returns `of_changes` where both outputs are known, as the model returns them."""
        del new
        return self.of_changes(formulas.as_vector(old).astype(dy.dtype), dy, error)

    def combined(self, total: Any, part: Any) -> Any:
        """Returns the numbers of all outputs from those of two parts, in NumPy, if `estimate` is "parts"."""
        raise NotImplementedError(f"{self.kind} is of all outputs together")

    def of_array(self, change: Float[np.ndarray, "*batch outputs"]) -> Float[np.ndarray, "*batch"]:
        """Returns the norm over the last axis, by NumPy, if it has an `order`."""
        return np.linalg.norm(change, ord=self.order, axis=-1)

    def scale(self, y: Float[np.ndarray, " outputs"]) -> float | None:
        """Returns the value of `unflipped`, of the outputs that are measured: beside it changes are large or small."""
        del y
        return None

    def coordinates(self, designated: tuple[int, ...] | None) -> tuple[int, ...] | None:
        """Returns the coordinates that are measured of a model that designates some; None means all."""
        if self.outputs is None:
            return designated
        return None if isinstance(self.outputs, str) else self.outputs

    def check(self, size: int, designated: tuple[int, ...] | None) -> None:
        """Raises an InputError for a model of `size` outputs that lacks those measured, or has too few."""
        coordinates = self.coordinates(designated)
        if coordinates is not None and max(coordinates) >= size:
            raise InputError.of(
                "measure.outputs", list(coordinates), f"the model has the outputs 0 to {size - 1}"
            )
        if (size if coordinates is None else len(coordinates)) < self.least_outputs:
            raise InputError.of(
                "measure",
                self.kind,
                'it is 0 for nearly every change of a single output; give "l2", or more outputs',
            )

    def resolved(self, output_of: Callable[[int | str], tuple[int, str]] | None) -> Measure:
        """Returns the measure with the number of an output for its name, by `output_of` of a model that has names.
        Raises an InputError for another name."""
        del output_of
        return self

    def prepared(self, outputs: Callable[[], Any], designated: tuple[int, ...] | None, eps: float) -> Measure:
        """Returns the measure with what depends on the outputs without a flip, NumPy rows that `outputs` computes if
        they are needed. `eps` is that of their dtype. Raises as `check`."""
        del outputs, designated, eps
        return self

    def without_function(self, program: str) -> Measure:
        """Returns the measure for a result, which holds no function of the user's, but its program's SHA-256."""
        del program
        return self


class Norm(Measure, abc.ABC):
    """A norm of the output's change."""

    unit: ClassVar[str] = "in the units of the output y"
    estimate: ClassVar[Estimate] = "parts"

    @abc.abstractmethod
    def of(self, dy: Float[Array, "*batch outputs"]) -> Float[Array, "*batch"]:
        """Returns the norm over the last axis."""

    def of_changes(self, y: Any, dy: Any, error: Any) -> tuple[Any, Any]:
        """The norm, and `error`: a norm moves by no more than its argument."""
        del y
        return self.of(dy), error

    def scale(self, y: Float[np.ndarray, " outputs"]) -> float | None:
        return float(np.linalg.norm(np.asarray(y, np.float64), ord=self.order))


@kind_of(Measure, "l2")
class L2(Norm):
    """The l2 norm of the output's change.

    >>> L2(outputs="all").outputs
    'all'
    """

    symbol: ClassVar[str] = "‖y(x) − y(x′)‖₂"
    unflipped: ClassVar[str | None] = "‖y(x)‖₂"
    label: ClassVar[str] = "change of the output,{}‖y(x) − y(x′)‖₂"
    order: ClassVar[float | None] = 2
    outputs: Outputs = None

    def of(self, dy: Any) -> Any:
        return formulas.l2(dy)

    def combined(self, total: Any, part: Any) -> Any:
        return np.hypot(total, part)


@kind_of(Measure, "l1")
class L1(Norm):
    """The l1 norm of the output's change.

    >>> L1(outputs=[0, 3]).outputs
    (0, 3)
    """

    symbol: ClassVar[str] = "‖y(x) − y(x′)‖₁"
    unflipped: ClassVar[str | None] = "‖y(x)‖₁"
    label: ClassVar[str] = "change of the output,{}‖y(x) − y(x′)‖₁"
    order: ClassVar[float | None] = 1
    outputs: Outputs = None

    def of(self, dy: Any) -> Any:
        return jnp.sum(jnp.abs(dy), axis=-1)

    def of_changes(self, y: Any, dy: Any, error: Any) -> tuple[Any, Any]:
        """The l1 norm of an error is at most sqrt(outputs) times its l2 norm."""
        return self.of(dy), error * y.shape[-1] ** 0.5

    def combined(self, total: Any, part: Any) -> Any:
        return np.add(total, part)


@kind_of(Measure, "linf")
class LInf(Norm):
    """The l-infinity norm of the output's change.

    >>> LInf().kind
    'linf'
    """

    symbol: ClassVar[str] = "‖y(x) − y(x′)‖∞"
    unflipped: ClassVar[str | None] = "‖y(x)‖∞"
    label: ClassVar[str] = "change of the output,{}‖y(x) − y(x′)‖∞"
    order: ClassVar[float | None] = math.inf
    outputs: Outputs = None

    def of(self, dy: Any) -> Any:
        return jnp.max(jnp.abs(dy), axis=-1, initial=0)

    def combined(self, total: Any, part: Any) -> Any:
        return np.maximum(total, part)


def read_norm(value: Any, problems: Problems) -> Any:
    """Returns the `Norm` that a value stands for (`jaxsens.core.base.registry.read`); None after adding an error."""
    measure = read(Measure, value, problems)
    if measure is None or measure.order is not None:
        return measure
    problems.add("measure", measure, "a norm: l2, l1 or linf")
    return None
