"""How near softmax comes to hard attention: Lemmas 6, 7 and 8 of Yang et al. (arXiv 2412.09925), and their inverses.

Each lemma bounds the distance, in the 1-norm, between a softmax and a one-hot vector by a number that depends only on
how fast the scores fall off. Scores are what the softmax sees, already divided by any temperature, except in Lemma 8
(`TieBreak`), which chooses the temperature. Every bound has an inverse: the constant that a given error needs. Where a
better bound than the paper's is proved, both are here, and the paper's is called *simple*: `simple=True` asks for it.
All numbers are float64, all logarithms natural.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Float, Num

from jaxsens.core.base.errors import collecting
from jaxsens.core.base.inputs import checked_count, checked_number, choice, count, number

BOOLEAN_ERROR = 1 / 4
"""How far an approximate Boolean may be from 0 or 1 and still be rounded correctly (Lemma 9)."""

KAPPA = math.log(16)
"""The fall-off per position with which a value in [0, 1] is retrieved within 1/8, by the simple form of Lemma 6."""


def value_error(weight_error: float, spread: float = 1.0) -> float:
    """How far a weighted average moves if its weights change by `weight_error` in the 1-norm.

    At most `weight_error` / 2 times the spread max v - min v of the values. Both vectors of weights sum to 1, so the
    weight that some values lose equals the weight that others gain: half of the 1-norm. The bound is attained.
    """
    checked_number("value_error", weight_error=weight_error, spread=spread, least=0)
    return float(weight_error) * float(spread) / 2


def linear_gap_error(gap: float, simple: bool = False) -> float:
    """Lemma 6: ||onehot(j*) - softmax(s)||_1 <= 4 x / (1 + x), x = e^-gap, if s_j <= s_j* - gap |j - j*| for all j.

    The norm is 2 y / (1 + y), where y is the sum over j /= j* of e^(s_j - s_j*): at most two geometric series,
    2 x / (1 - x). The bound is attained in the limit of long inputs with j* in the middle. `value_error` halves it.
    The simple bound is 4 x.

    Raises:
        InputError: Unless gap > 0.
    """
    x = math.exp(-checked_number("linear_gap_error", gap=gap, above=0))
    return 4 * x if simple else 4 * x / (1 + x)


def linear_gap_for(error: float, simple: bool = False) -> float:
    """The least gap with `linear_gap_error(gap)` <= error, for 0 < error < 2. It is log 15 for an error of 1/4.

    By the simple bound, for 0 < error < 4; `KAPPA` for an error of 1/4.
    """
    allowed = checked_number("linear_gap_for", error=error, above=0, below=4 if simple else 2)
    return math.log(4 / allowed - (not simple))


def gap_error(gap: float, n: int, simple: bool = False) -> float:
    """||onehot(j*) - softmax(s)||_1 if all n - 1 other scores are at least `gap` >= 0 below s_j*.

    At most 2 y / (1 + y), y = (n - 1) e^-gap, attained if all of them are exactly `gap` below. This is Lemma 6 without
    distances. Elsewhere the simple bound 2 n e^-gap is in use (Edelman et al. 2022, Transformer Cookbook Lemma 5.3).

    Raises:
        InputError: Unless gap >= 0 and n is a whole number of at least 1.
    """
    n, gap = checked_count("gap_error", n=n, least=1), checked_number("gap_error", gap=gap, least=0)
    if simple:
        return 2 * n * math.exp(-gap)
    y = (n - 1) * math.exp(-gap)
    return 2 * y / (1 + y)


def gap_for(error: float, n: int, simple: bool = False) -> float:
    """The least gap >= 0 with `gap_error(gap, n)` <= error, for 0 < error < 2; log(8 n) for a simple error of 1/4."""
    n = checked_count("gap_for", n=n, least=1)
    allowed = checked_number("gap_for", error=error, above=0, below=2)
    if simple:
        return math.log(2 * n / allowed)
    return max(0.0, math.log((n - 1) * (2 - allowed) / allowed)) if n > 1 else 0.0


def lookup_scores(
    asked: Float[np.ndarray, "..."] | float, n: int, sharpness: float
) -> Float[np.ndarray, "... n"]:
    """The scores of a table look-up, sharpness (2 q j - j^2) for j = 1..n: largest at j = q, falling as (j - q)^2."""
    j = np.arange(1, n + 1, dtype=np.float64)
    return sharpness * (2 * np.asarray(asked)[..., None] * j - j**2)


def lookup_error(sharpness: float) -> float:
    """Lemma 7: the largest |sum_j a_j j - q| over all whole 1 <= q <= n, where a = softmax(`lookup_scores`(q)).

    With t_k = e^(-sharpness k^2), the error is (R - L) / (1 + T). R is the sum of k t_k over the rows right of q, L
    the same on the left, and T the sum of all t_k. The error is largest where the left is empty, q = 1 (or the right,
    q = n), and grows with n, since each row adds k > error. The supremum is therefore sum k t_k / (1 + sum t_k), which
    is returned: about e^-sharpness. `lookup_error_one_sided` and `lookup_error_simple` are closed forms above it.

    Raises:
        InputError: If sharpness < 1/2. The average is then far from any row of the table.
    """
    total, moment = _one_sided_sums(_sharp("lookup_error", sharpness))
    return moment / (1 + total)


def lookup_error_one_sided(sharpness: float) -> float:
    """(1 + 1/(2 sharpness)) e^-sharpness: the sum of k t_k on one side, bounded by its first term and an integral."""
    sharpness = _sharp("lookup_error_one_sided", sharpness)
    return (1 + 1 / (2 * sharpness)) * math.exp(-sharpness)


def lookup_error_simple(sharpness: float) -> float:
    """The paper's form of Lemma 7, which adds both sides: (2 + 1/sharpness) e^-sharpness; 3 e^-sharpness from 1 on."""
    sharpness = _sharp("lookup_error_simple", sharpness)
    return (2 + 1 / sharpness) * math.exp(-sharpness)


def lookup_weight_error(sharpness: float) -> float:
    """Lemma 7: the largest ||onehot(q) - a||_1 of a table look-up.

    It is 2 y / (1 + y), where y = 2 sum over k >= 1 of e^(-sharpness k^2). It is attained in the limit of long tables
    with q in the middle, and is below the paper's 4 e^-sharpness (the simple `linear_gap_error`, as
    (j - q)^2 >= |j - q|). For a table of values in [0, 1], `value_error` halves it.
    """
    y = 2 * _one_sided_sums(_sharp("lookup_weight_error", sharpness))[0]
    return 2 * y / (1 + y)


def lookup_sharpness(weight: int) -> float:
    """GAMMA_H = log(12 H), with which every count is retrieved within 1/(4 H), and H counts within 1/4 (Theorem 20).

    It solves 3 e^-sharpness = 1/(4 H), by the simple form of Lemma 7. `lookup_sharpness_for` needs only about log(4 H).

    Raises:
        InputError: Unless `weight` = H is a whole number of at least 1.
    """
    return math.log(12 * checked_count("lookup_sharpness", weight=weight, least=1))


def lookup_sharpness_for(error: float) -> float:
    """The least sharpness of at least 1/2 with `lookup_error` <= error, by bisection, rounded up by 1e-12.

    Raises:
        InputError: Unless 0 < error < 1.
    """
    error = checked_number("lookup_sharpness_for", error=error, above=0, below=1)
    low, high = 0.5, max(1.0, math.log(3 / error))
    if lookup_error(low) <= error:
        return low
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if lookup_error(middle) <= error else (middle, high)
    return high


def _one_sided_sums(sharpness: float) -> tuple[float, float]:
    """The sums over k >= 1 of t_k and of k t_k, t_k = e^(-sharpness k^2), up to the last term above 1e-323."""
    k = np.arange(1, math.isqrt(int(745 / sharpness)) + 2, dtype=np.float64)
    terms = np.exp(-sharpness * k**2)
    return float(terms.sum()), float((k * terms).sum())


def _sharp(subject: str, sharpness: float) -> float:
    return checked_number(subject, sharpness=sharpness, least=0.5)  # Lemma 7 needs at least 1/2


@dataclass(frozen=True)
class TieBreak:
    """Lemma 8: terms that make softmax choose the rightmost (or leftmost) of several best scores.

    Let s have a gap of at least `gap`: every score is the largest, or at least `gap` below it. With t = `terms`,
    softmax at temperature tau of s + t is within `error` of the one-hot vector of the rightmost (leftmost) best score.
    Any subset of the positions 1..n may be visible. Under future masking, n may be the query's own position.

    Proof of the bound 2 e^-g, g = `fall_off` / tau, half of the paper's 4 e^-g. Let the rightmost best score be at j*,
    and measure scores in units of g. A position k to the left of j* is at least k below it, tied or not. A
    position k to the right is not best, so it is at least n / slope - k >= n - k below it; for terms in 1/j, at least
    n^2 / j >= n + (n - j) at position j. As j* + k <= n, the bounds on the right are whole numbers from j* on, those on
    the left are 1 to j* - 1, and none occurs twice. All other weights together are therefore at most
    e^-g + e^-2g + ... = y = e^-g / (1 - e^-g) times the weight of j*, and the norm is 2 y / (1 + y) = 2 e^-g. Many
    adjacent ties nearly attain it. Leftmost is the mirror image. For gap / j, left and right are exchanged: a position
    j < j* is at least n^2 (1 - 1/j + 1/j*) >= n + (j - 1) below.

    Attributes:
        side: Which of the best scores is chosen.
        slope: Terms have size slope gap j/n, 0 < slope <= 1. The paper has 1/2, and 1 is best: it needs only half the
            inverse temperature for the same error. None means terms of size gap / j, which do not depend on n.

    Raises:
        InputError: If the side or the slope cannot be used.
    """

    side: Literal["rightmost", "leftmost"]
    slope: float | None

    def __post_init__(self) -> None:
        with collecting("TieBreak") as problems:
            choice("side", self.side, ("rightmost", "leftmost"), problems)
            if self.slope is not None:
                object.__setattr__(self, "slope", number("slope", self.slope, problems, above=0, most=1))

    def terms(
        self, gap: float, j: Num[np.ndarray, "..."] | int, n: int | None = None
    ) -> Float[np.ndarray, "..."]:
        """What is added to the scores of the (1-based) positions j of n; n may be left out if the slope is None."""
        position = np.asarray(j, np.float64)
        with collecting("TieBreak.terms") as problems:
            number("gap", gap, problems, above=0)
            if self.slope is not None:
                count("n", n, problems, least=1)
            if np.any(position < 1) or (n is not None and np.any(position > n)):
                problems.add("j", j, "positions from 1 to n")
        sign = 1 if self.side == "rightmost" else -1
        if self.slope is None or n is None:
            return -sign * gap / position
        return sign * self.slope * gap * position / n

    def fall_off(self, gap: float, n: int) -> float:
        """The linear gap that the terms leave, before the temperature: slope gap / n, or gap / n^2 for gap / j."""
        gap, n = checked_number("TieBreak", gap=gap, above=0), checked_count("TieBreak", n=n, least=1)
        return gap / n**2 if self.slope is None else self.slope * gap / n

    def error(self, gap: float, n: int, tau: float, simple: bool = False) -> float:
        """2 e^-g, g = `fall_off` / tau: the largest 1-norm. A value in [0, 1] is retrieved within e^-g.

        The simple bound, by Lemma 6, is 4 e^-g.
        """
        fall_off = self.fall_off(gap, n) / checked_number("TieBreak.error", tau=tau, above=0)
        return (4 if simple else 2) * math.exp(-fall_off)

    def temperature(self, gap: float, n: int, error: float = BOOLEAN_ERROR, simple: bool = False) -> float:
        """The warmest tau at which values in [0, 1] are retrieved within `error`, 0 < error < 1.

        By the simple bound `fall_off` / log(2 / error), which is `fall_off` / `KAPPA` for 1/8.
        """
        error = checked_number("TieBreak.temperature", error=error, above=0, below=1)
        return self.fall_off(gap, n) / (math.log(2 / error) if simple else -math.log(error))


RIGHTMOST_RECIPROCAL = TieBreak("rightmost", None)
"""Lemma 8(a): -gap / j. Nothing depends on n, but the temperature must be of order gap / n^2."""

RIGHTMOST = TieBreak("rightmost", 1 / 2)
"""Lemma 8(b): gap j / (2 n)."""

LEFTMOST = TieBreak("leftmost", 1 / 2)
"""Lemma 8(c): -gap j / (2 n)."""
