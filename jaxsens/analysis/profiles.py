"""Where in the input a flip matters: the mean sensitivity by position, added up point by point."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

BINS = 32
"""At most this many cells along the positions of an input; an input shorter than that has one a position."""


@dataclass(frozen=True)
class Profile:
    """The mean sensitivity of the flips in each of `means.size` equal parts of the input; NaN without a flip."""

    variant: str
    n: int
    means: np.ndarray


class ProfileBuilder:
    """Adds up flips point by point, so that no more than one point's flips are in memory."""

    def __init__(self) -> None:
        self._sums: dict[tuple[str, int], np.ndarray] = {}
        self._counts: dict[tuple[str, int], np.ndarray] = {}

    def add(self, variant: str, n: int, positions: ArrayLike, norms: ArrayLike) -> None:
        """Takes in flips of one variant at length n: `positions` from 0 to n - 1, and the `norms` they caused."""
        bins = min(BINS, n)
        cell = np.asarray(positions, dtype=np.int64) * bins // n
        key = (variant, n)
        nothing = np.zeros(bins)
        self._sums[key] = self._sums.get(key, nothing) + np.bincount(
            cell, weights=np.asarray(norms, dtype=np.float64), minlength=bins
        )
        self._counts[key] = self._counts.get(key, nothing) + np.bincount(cell, minlength=bins)

    def profiles(self) -> tuple[Profile, ...]:
        """The means over all flips taken in, by variant and rising length."""
        found = []
        for variant, n in sorted(self._sums):
            counts = self._counts[variant, n]
            means = np.full(counts.size, math.nan)
            np.divide(self._sums[variant, n], counts, out=means, where=counts > 0)
            found.append(Profile(variant, n, means))
        return tuple(found)
