"""How near softmax comes to hard attention: Lemmas 6 and 7 of Yang et al. (arXiv 2412.09925), and their inverses.

Each lemma bounds the distance between a softmax and a one-hot vector, in the 1-norm, by a number that depends only on
how fast scores fall off. Scores here are those the softmax sees: divided by the temperature already, where there is
one. Every bound has an inverse: the constant that a wanted error needs. Where a better bound than the paper's is
proved it stands beside the paper's, which is marked *simple*. All are plain float64 numbers, natural logarithms.
"""

from __future__ import annotations

import math

import numpy as np
from jaxtyping import Float

from jaxsens.inputs import checked_count, checked_number

BOOLEAN_ERROR = 1 / 4
"""How far an approximate Boolean may be from 0 or 1 and still be rounded right (Lemma 9)."""

KAPPA = math.log(16)
"""The fall-off per position with which a value in [0, 1] is retrieved within 1/8: Lemma 6's simple form, inverted."""


def value_error(weight_error: float, spread: float = 1.0) -> float:
    """How far a weighted average moves when its weights change by `weight_error` in the 1-norm.

    At most `weight_error` / 2 times the spread max v - min v of the values: both vectors of weights sum to 1, so as
    much weight is taken from some values as others get, and that is half of the 1-norm. Attained.
    """
    checked_number("value_error", weight_error=weight_error, spread=spread, least=0)
    return float(weight_error) * float(spread) / 2


def linear_gap_error(gap: float) -> float:
    """Lemma 6: ||onehot(j*) - softmax(s)||_1 <= 4 x / (1 + x), x = e^-gap, if s_j <= s_j* - gap |j - j*| for all j.

    The norm is 2 y / (1 + y) with y = sum over j /= j* of e^(s_j - s_j*), which is at most two geometric series,
    2 x / (1 - x). Attained in the limit of long inputs with j* in the middle. `value_error` halves it.

    Raises:
        InputError: unless gap > 0.
    """
    x = math.exp(-checked_number("linear_gap_error", gap=gap, above=0))
    return 4 * x / (1 + x)


def linear_gap_error_simple(gap: float) -> float:
    """Lemma 6 as the paper has it: 4 e^-gap."""
    return 4 * math.exp(-checked_number("linear_gap_error_simple", gap=gap, above=0))


def linear_gap_for(error: float) -> float:
    """The least gap with `linear_gap_error(gap)` <= error, for 0 < error < 2; log 15 for an error of 1/4."""
    return math.log(4 / checked_number("linear_gap_for", error=error, above=0, below=2) - 1)


def linear_gap_for_simple(error: float) -> float:
    """The least gap with `linear_gap_error_simple(gap)` <= error, for 0 < error < 4; `KAPPA` for an error of 1/4."""
    return math.log(4 / checked_number("linear_gap_for_simple", error=error, above=0, below=4))


def gap_error(gap: float, n: int) -> float:
    """||onehot(j*) - softmax(s)||_1 if all n - 1 other scores are at least `gap`, 0 or more, below s_j*.

    At most 2 y / (1 + y), y = (n - 1) e^-gap; attained where all are exactly `gap` below. The companion to Lemma 6
    that knows nothing of distances; the form in use elsewhere is 2 n e^-gap (`gap_error_simple`; Edelman et al. 2022,
    Transformer Cookbook Lemma 5.3).

    Raises:
        InputError: unless gap >= 0 and n is a whole number of at least 1.
    """
    n, gap = checked_count("gap_error", n=n, least=1), checked_number("gap_error", gap=gap, least=0)
    y = (n - 1) * math.exp(-gap)
    return 2 * y / (1 + y)


def gap_error_simple(gap: float, n: int) -> float:
    """2 n e^-gap, at least `gap_error`."""
    n = checked_count("gap_error_simple", n=n, least=1)
    return 2 * n * math.exp(-checked_number("gap_error_simple", gap=gap, least=0))


def gap_for(error: float, n: int) -> float:
    """The least gap, 0 or more, with `gap_error(gap, n)` <= error, for 0 < error < 2."""
    others = checked_count("gap_for", n=n, least=1) - 1
    allowed = checked_number("gap_for", error=error, above=0, below=2)
    return max(0.0, math.log(others * (2 - allowed) / allowed)) if others else 0.0


def gap_for_simple(error: float, n: int) -> float:
    """The least gap with `gap_error_simple(gap, n)` <= error, 0 < error < 2: log(8 n) for an error of 1/4."""
    n = checked_count("gap_for_simple", n=n, least=1)
    return math.log(2 * n / checked_number("gap_for_simple", error=error, above=0, below=2))


def lookup_scores(
    asked: Float[np.ndarray, "..."] | float, n: int, sharpness: float
) -> Float[np.ndarray, "... n"]:
    """The scores of a table look-up, sharpness (2 q j - j^2) for j = 1..n: largest at j = q, falling as (j - q)^2."""
    j = np.arange(1, n + 1, dtype=np.float64)
    return sharpness * (2 * np.asarray(asked)[..., None] * j - j**2)


def lookup_error(sharpness: float) -> float:
    """Lemma 7: the largest |sum_j a_j j - q| over all whole 1 <= q <= n, where a = softmax(`lookup_scores`(q)).

    With t_k = e^(-sharpness k^2) the error is (R - L) / (1 + T): R = sum of k t_k over the rows right of q, L the same
    on the left, T the sum of all t_k. It is largest where the left is empty, q = 1 (or the right, q = n), and grows
    with n, for each row adds k > error. So the supremum is sum k t_k / (1 + sum t_k), which is returned: about
    e^-sharpness. `lookup_error_one_sided` and `lookup_error_simple` are the closed forms above it.

    Raises:
        InputError: if sharpness < 1/2: what is returned is then far from any row of the table.
    """
    total, moment = _one_sided_sums(_sharp("lookup_error", sharpness))
    return moment / (1 + total)


def lookup_error_one_sided(sharpness: float) -> float:
    """(1 + 1/(2 sharpness)) e^-sharpness: one side's sum of k t_k, by its first term and an integral."""
    given = _sharp("lookup_error_one_sided", sharpness)
    return (1 + 1 / (2 * given)) * math.exp(-given)


def lookup_error_simple(sharpness: float) -> float:
    """Lemma 7 as the paper has it, both sides added: (2 + 1/sharpness) e^-sharpness; 3 e^-sharpness from 1 on."""
    given = _sharp("lookup_error_simple", sharpness)
    return (2 + 1 / given) * math.exp(-given)


def lookup_weight_error(sharpness: float) -> float:
    """Lemma 7: the largest ||onehot(q) - a||_1 of a table look-up.

    It is 2 y / (1 + y), y = 2 sum over k >= 1 of e^(-sharpness k^2), attained in the limit of long tables with q in
    the middle. Below the paper's 4 e^-sharpness (`linear_gap_error_simple`, as (j - q)^2 >= |j - q|). For a table of
    values in [0, 1], `value_error` halves it.
    """
    y = 2 * _one_sided_sums(_sharp("lookup_weight_error", sharpness))[0]
    return 2 * y / (1 + y)


def lookup_sharpness(weight: int) -> float:
    """GAMMA_H = log(12 H): retrieves every count within 1/(4 H), so that H of them add up to 1/4 (Theorem 20).

    By Lemma 7's 3 e^-sharpness = 1/(4 H). `lookup_sharpness_for` needs only about log(4 H).

    Raises:
        InputError: unless `weight` = H is a whole number of at least 1.
    """
    return math.log(12 * checked_count("lookup_sharpness", weight=weight, least=1))


def lookup_sharpness_for(error: float) -> float:
    """The least sharpness, 1/2 or more, with `lookup_error` <= error; by bisection, rounded up by 1e-12.

    Raises:
        InputError: unless 0 < error < 1.
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
    """The sums over k >= 1 of t_k and of k t_k, t_k = e^(-sharpness k^2), to the last term above 1e-323."""
    k = np.arange(1, math.isqrt(int(745 / sharpness)) + 2, dtype=np.float64)
    terms = np.exp(-sharpness * k**2)
    return float(terms.sum()), float((k * terms).sum())


def _sharp(subject: str, sharpness: float) -> float:
    return checked_number(subject, sharpness=sharpness, least=0.5)  # Lemma 7 needs at least 1/2
