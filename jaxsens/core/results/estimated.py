"""Estimated sensitivities, and statistics over all flips from the flips that were measured: those with the largest
estimates, and a simple random sample of the rest.

The mean of the rest uses the estimates as control variate. With x the exact norms of the sample, z the sizes of the
estimates, Z their mean over the rest, and b the slope of x on z, it is mean(x) + b (Z - mean(z)): the regression
estimator of survey sampling (Cochran 1977, Sampling Techniques, section 7.1).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int8

ESTIMATED, TOP, RANDOM = 0, 1, 2
"""The strata: flips with an estimate only, the largest estimates, and a random sample of the rest."""


@dataclass(frozen=True, eq=False)
class Estimated:
    """The estimates of a result, one entry per flip in the result's order.

    Attributes:
        estimates: of every flip's norm or, for a scalar function, of its signed change; float64.
        stratum: 0 if the flip was only estimated; 1 if it was measured as one of the largest estimates, all of which
            were; 2 if it was drawn at random from the rest and measured. int8.
        compared: what was measured and is compared with the estimate, float64: the exact norm, the norm in the
            combinations of a sketch, or the signed change; NaN where the stratum is 0.
        sketch: the number of random combinations of the outputs in which norms were estimated; None for all outputs.
    """

    estimates: Float[np.ndarray, " flips"]
    stratum: Int8[np.ndarray, " flips"]
    compared: Float[np.ndarray, " flips"]
    sketch: int | None = None

    @property
    def measured(self) -> Bool[np.ndarray, " flips"]:
        """Which flips were measured exactly."""
        return self.stratum != ESTIMATED

    def part(self, kept: Bool[np.ndarray, " flips"] | slice) -> Estimated:
        """Returns the estimates of some flips. Within them, the flips of stratum 2 are still a random sample."""
        return Estimated(self.estimates[kept], self.stratum[kept], self.compared[kept], self.sketch)


def strata(estimates: Float[np.ndarray, " flips"], verify: int, seed: int) -> Int8[np.ndarray, " flips"]:
    """Returns the stratum of every flip, of which `verify` are to be measured exactly.

    Half of them, rounded down, have the largest sizes among the estimates, earlier flips first if sizes are equal. The
    others are drawn from the remaining flips, uniformly without replacement, by `numpy.random.default_rng(seed)`. If
    there are no more flips than `verify`, all are measured.

    Args:
        estimates: finite numbers; their signs do not matter.
        verify: the number of flips to measure.
        seed: of the draw.
    """
    flips = len(estimates)
    verify = min(verify, flips)
    order = np.argsort(-np.abs(estimates), kind="stable")
    found = np.full(flips, ESTIMATED, np.int8)
    found[order[: verify // 2]] = TOP
    rest = np.sort(order[verify // 2 :])
    found[np.random.default_rng(seed).choice(rest, verify - verify // 2, replace=False)] = RANDOM
    return found


FEWEST = 4
"""The smallest sample in which a slope is fitted."""

ROUNDING = 1e-9
"""Relative differences below it count as rounding."""


def stratified_mean(estimated: Estimated, norms: Float[np.ndarray, " flips"]) -> float:
    """Returns the mean norm over these flips. A sample of fewer than four gets slope 1."""
    top, drawn = estimated.stratum == TOP, estimated.stratum == RANDOM
    sizes, exact = np.abs(estimated.estimates), np.asarray(norms, np.float64)
    n, share = len(sizes), float(np.mean(~top))
    rest = _rest_mean(exact[drawn], sizes[drawn], sizes[~top])
    # The fitted line may run below 0: the mean is at least what the measured flips alone make of it.
    return max(float(exact[top].sum()) / n + share * rest, float(exact[top | drawn].sum()) / n)


def quantile_bounds(
    estimated: Estimated, norms: Float[np.ndarray, " flips"], population: int, q: float, tail: float
) -> tuple[float, float]:
    """Returns a lower and an upper bound on the q-quantile of the norms over a population of flips, of which these are
    all, or a simple random sample.

    Each is wrong with probability at most `tail`, whatever the distribution. For a sample of flips, half of it is for
    the quantile's rank among them (binomial), and half for the norms of those ranks. Where nothing can be said, the
    bounds are 0 and infinity.
    """
    from scipy import stats

    n = len(estimated.estimates)
    if n == population:
        place = (n - 1) * q  # between two norms, which `numpy.quantile` interpolates
        return _rank_bounds(estimated, norms, math.floor(place) + 1, math.ceil(place) + 1, tail)
    low, high = (int(stats.binom.ppf(share, n, q)) for share in (tail / 2, 1 - tail / 2))
    return _rank_bounds(estimated, norms, low, high + 1, tail / 2)


def _rank_bounds(
    estimated: Estimated, norms: Float[np.ndarray, " flips"], low: int, high: int, tail: float
) -> tuple[float, float]:
    """Returns a lower bound on the norm of rank `low` (from 1) among these flips, and an upper one on that of `high`.

    For every measured norm, the number of flips up to it is known among the largest estimates. For the rest it is
    bounded by Clopper and Pearson's limits from the sample, which are conservative for draws without replacement.
    """
    from scipy import stats

    exact = np.asarray(norms, np.float64)
    top, drawn = np.sort(exact[estimated.stratum == TOP]), np.sort(exact[estimated.stratum == RANDOM])
    rest, m = len(exact) - len(top), len(drawn)
    at = np.unique(np.concatenate([[0.0], top, drawn]))
    known, count = np.searchsorted(top, at, side="right"), np.searchsorted(drawn, at, side="right")
    least, most = np.zeros(len(at)), np.full(len(at), float(rest))
    if m:
        some, missing = count > 0, count < m
        least[some] = rest * stats.beta.ppf(tail, count[some], m - count[some] + 1)
        most[missing] = rest * stats.beta.ppf(1 - tail, count[missing] + 1, m - count[missing])
        # The flips of the sample themselves are known.
        least, most = np.maximum(least, count), np.minimum(most, rest - (m - count))
    reaching_low, reaching_high = at[known + most >= low - ROUNDING], at[known + least >= high - ROUNDING]
    return float(reaching_low[0]), float(reaching_high[0]) if len(reaching_high) else math.inf


def _rest_mean(exact: np.ndarray, sizes: np.ndarray, every: np.ndarray) -> float:
    """Returns the regression estimate of the mean over the flips outside the largest estimates.

    Args:
        exact: the norms of the sample.
        sizes: the sizes of their estimates.
        every: the sizes of all estimates outside the largest.
    """
    m = len(exact)
    if m == len(every):
        return float(exact.mean()) if m else 0.0
    if m < FEWEST:
        return float(every.mean()) + (float(np.mean(exact - sizes)) if m else 0.0)
    centred = sizes - sizes.mean()
    flat = np.ptp(sizes) <= ROUNDING * np.max(sizes)
    slope = 0.0 if flat else float(centred @ exact) / float(centred @ centred)
    return float(exact.mean()) + slope * float(every.mean() - sizes.mean())
