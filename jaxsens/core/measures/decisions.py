"""`Decision`: whether the largest output is another one."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np

from jaxsens.core.base import inputs
from jaxsens.core.base.errors import InputError, Problems
from jaxsens.core.base.registry import kind_of
from jaxsens.core.base.strict import checked_by
from jaxsens.core.measures.distances import Distance
from jaxsens.core.measures.measure import Estimate, Measure, Outputs, formulas, jax, jnp

if TYPE_CHECKING:
    from jaxtyping import Float

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
