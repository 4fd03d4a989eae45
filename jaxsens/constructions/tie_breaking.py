"""Softmax that chooses one of several best scores: Lemma 8 of Yang et al. (arXiv 2412.09925), and its inverse."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Float, Num

from jaxsens.constructions.lemmas import BOOLEAN_ERROR
from jaxsens.errors import Faults, collecting
from jaxsens.inputs import checked_count, checked_number, is_count, is_real


@dataclass(frozen=True)
class TieBreak:
    """Lemma 8: terms that make softmax choose the rightmost (or leftmost) of several best scores.

    Let s have gap at least `gap`: every score is the largest or at least `gap` below it. With t = `terms`, softmax
    at temperature tau of s + t is within `error` of the one-hot vector of the rightmost (leftmost) best one. Any
    subset of the positions 1..n may be visible: under future masking, n may be the query's own position.

    Proof of the bound 2 e^-g, g = `fall_off` / tau, which halves the paper's 4 e^-g. Let the rightmost best be at j*.
    In units of g, a position k to its left is at least k below it (tied or not), and one k to its right, not being
    best, at least n / slope - k >= n - k, or n^2 / j >= n + (n - j) at position j for the reciprocal. As j* + k <= n,
    these are whole numbers from j* on; those on the left are from 1 to j* - 1, and none occurs twice. So all other
    weights are at most e^-g + e^-2g + ... = y = e^-g / (1 - e^-g) times that of j*, and the norm is 2 y / (1 + y),
    that is 2 e^-g. Nearly attained where many adjacent scores tie. Leftmost: the mirror image, or, for gap / j, left
    and right exchanged: a position j < j* is at least n^2 (1 - 1/j + 1/j*) >= n + (j - 1) below.

    Attributes:
        side: which of the best is chosen.
        slope: terms are slope gap j/n in size, 0 < slope <= 1; the paper has 1/2, and 1 is best. None: gap / j in
            size, which does not mention n.
    """

    side: Literal["rightmost", "leftmost"]
    slope: float | None

    def __post_init__(self) -> None:
        with collecting("TieBreak") as faults:
            if self.side not in ("rightmost", "leftmost"):
                faults.add("side", self.side, '"rightmost" or "leftmost"')
            if self.slope is not None and not (is_real(self.slope) and 0 < self.slope <= 1):
                faults.add("slope", self.slope, "above 0 and at most 1, or None for terms in 1/j")
        if self.slope is not None:
            object.__setattr__(self, "slope", float(self.slope))

    def terms(
        self, gap: float, j: Num[np.ndarray, "..."] | int, n: int | None = None
    ) -> Float[np.ndarray, "..."]:
        """What is added to the scores of the (1-based) positions j of n; n may be left out where slope is None."""
        position = np.asarray(j, np.float64)
        checked_number("TieBreak.terms", gap=gap, above=0)
        faults = Faults("TieBreak.terms")
        if self.slope is not None and not is_count(n, 1):
            faults.add("n", n, "the length, a whole number of at least 1")
        if np.any(position < 1) or (n is not None and np.any(position > n)):
            faults.add("j", j, "positions from 1 to n")
        faults.raise_if_any()
        sign = 1 if self.side == "rightmost" else -1
        return (
            -sign * gap / position
            if self.slope is None or n is None
            else sign * self.slope * gap * position / n
        )

    def fall_off(self, gap: float, n: int) -> float:
        """The linear gap that the terms leave, before the temperature: gap / n^2 for gap / j, else slope gap / n."""
        given, length = checked_number("TieBreak", gap=gap, above=0), checked_count("TieBreak", n=n, least=1)
        return given / length**2 if self.slope is None else self.slope * given / length

    def error(self, gap: float, n: int, tau: float) -> float:
        """2 e^-g, g = `fall_off` / tau: the largest 1-norm; a value in [0, 1] is retrieved within e^-g."""
        return 2 * math.exp(-self.fall_off(gap, n) / checked_number("TieBreak.error", tau=tau, above=0))

    def error_simple(self, gap: float, n: int, tau: float) -> float:
        """4 e^-g, as the paper has it, by Lemma 6."""
        return 2 * self.error(gap, n, tau)

    def temperature(self, gap: float, n: int, error: float = BOOLEAN_ERROR) -> float:
        """The warmest tau with which values in [0, 1] are retrieved within `error`, 0 < error < 1."""
        error = checked_number("TieBreak.temperature", error=error, above=0, below=1)
        return self.fall_off(gap, n) / -math.log(error)

    def temperature_simple(self, gap: float, n: int, error: float = BOOLEAN_ERROR) -> float:
        """The same by the paper's bound: `fall_off` / log(2 / error), which has `KAPPA` for an error of 1/8."""
        error = checked_number("TieBreak.temperature_simple", error=error, above=0, below=1)
        return self.fall_off(gap, n) / math.log(2 / error)


RIGHTMOST_RECIPROCAL = TieBreak("rightmost", None)
"""Lemma 8(a): -gap / j. Nothing depends on n, but the temperature must be of order gap / n^2."""

RIGHTMOST = TieBreak("rightmost", 1 / 2)
"""Lemma 8(b): gap j / (2 n)."""

LEFTMOST = TieBreak("leftmost", 1 / 2)
"""Lemma 8(c): -gap j / (2 n)."""

STEEP_RIGHTMOST = TieBreak("rightmost", 1.0)
"""gap j / n: half of Lemma 8(b)'s coldness for the same error."""

STEEP_LEFTMOST = TieBreak("leftmost", 1.0)
"""-gap j / n."""
