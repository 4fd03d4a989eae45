"""Feed-forward networks that round and compare: Lemma 9 of Yang et al. (arXiv 2412.09925)."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from jaxtyping import Float


@dataclass(frozen=True)
class Unit:
    """One hidden unit, coefficient * relu(slope * z + bias)."""

    coefficient: float
    slope: float
    bias: float


@dataclass(frozen=True)
class ReluForm:
    """A piecewise linear function of one number z as a sum of hidden units, which a feed-forward layer can compute."""

    units: tuple[Unit, ...]

    def __call__(self, z: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
        """The function at each z, in the dtype of z."""
        parts = [unit.coefficient * np.maximum(unit.slope * z + unit.bias, 0) for unit in self.units]
        return np.sum(parts, axis=0)

    @property
    def lipschitz(self) -> float:
        """The steepest slope. An error in z grows by at most this factor."""
        kinks = sorted(self.units, key=lambda unit: -unit.bias / unit.slope)
        falling = sum(unit.coefficient * unit.slope for unit in kinks if unit.slope < 0)
        changes = (unit.coefficient * abs(unit.slope) for unit in kinks)
        return max(abs(slope) for slope in accumulate(changes, initial=falling))


ROUND = ReluForm((Unit(1, 2, -1 / 2), Unit(-1, 2, -3 / 2)))
"""Lemma 9: relu(2 z - 1/2) - relu(2 z - 3/2), which is 0 for z <= 1/4 and 1 for z >= 3/4.

This is exact in float32 and float64 up to z = 2^21, since both subtracted numbers are multiples of the spacing of z."""

AT_LEAST_ZERO = ReluForm((Unit(1, 2, 3 / 2), Unit(-1, 2, 1 / 2)))
"""[k >= 0] for z within 1/4 of the whole number k."""

EQUALS_ZERO = ReluForm((Unit(1, 2, 3 / 2), Unit(-1, 2, 1 / 2), Unit(-1, 2, -1 / 2), Unit(1, 2, -3 / 2)))
"""[k = 0] for z within 1/4 of the whole number k."""
