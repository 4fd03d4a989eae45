"""The norms of the change in the output: `L2`, `L1` and `LInf`."""

from __future__ import annotations

import abc
import math
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from jaxsens.core.base.errors import Problems
from jaxsens.core.base.registry import kind_of, read
from jaxsens.core.measures.deferred import formulas, jnp
from jaxsens.core.measures.measure import Estimate, Measure, Outputs

if TYPE_CHECKING:
    from jaxtyping import Array, Float


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
        return float(self.of_array(np.asarray(y, np.float64)))


@kind_of(Measure, "l2")
class L2(Norm):
    """The l2 norm of the output's change."""

    symbol: ClassVar[str] = "‖y(x′) − y(x)‖₂"
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
    """The l1 norm of the output's change."""

    symbol: ClassVar[str] = "‖y(x′) − y(x)‖₁"
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
    """The l-infinity norm of the output's change."""

    symbol: ClassVar[str] = "‖y(x′) − y(x)‖∞"
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
