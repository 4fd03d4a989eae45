"""Statistics over all flips, from estimates of every flip and exact values of some: the largest estimates, all of them,
and a simple random sample of the rest.

The mean of the rest uses the estimates as control variate. With x the exact norms of the sample, z the sizes of the
estimates, Z their mean over the rest, and b the slope of x on z, it is mean(x) + b (Z - mean(z)): the regression
estimator of survey sampling (Cochran 1977, Sampling Techniques, section 7.1).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from jaxsens.sensitivity.estimated import RANDOM, TOP, Estimated

FEWEST = 4
"""The smallest sample in which a slope and its error are fitted."""

ROUNDING = 1e-9
"""Relative differences below it count as rounding."""


@dataclass(frozen=True)
class MeanEstimate:
    """An estimated mean, with its variance and the degrees of freedom of Student's t for its interval.

    The variance is infinite if the sample is too small to tell.
    """

    mean: float
    variance: float
    freedom: float

    def half_width(self, confidence: float) -> float:
        """Returns half the width of the confidence interval."""
        from scipy import stats

        if self.variance in (0, math.inf):
            return math.sqrt(self.variance)
        return float(stats.t.ppf(0.5 + confidence / 2, self.freedom)) * math.sqrt(self.variance)


def combined_mean(parts: Sequence[tuple[MeanEstimate, int]]) -> MeanEstimate:
    """Returns the mean over several populations together, from the mean of each and its size.

    The parts are independent, so variances add, with Welch and Satterthwaite's degrees of freedom.
    """
    total = sum(size for _, size in parts)
    weighted = [(one, size / total) for one, size in parts if size]
    mean = float(sum(weight * one.mean for one, weight in weighted))
    variances = [weight**2 * one.variance for one, weight in weighted]
    variance = float(sum(variances))
    if variance in (0, math.inf):
        return MeanEstimate(mean, variance, math.inf)
    spread = sum(v**2 / one.freedom for v, (one, _) in zip(variances, weighted, strict=True) if v)
    return MeanEstimate(mean, variance, variance**2 / spread if spread else math.inf)


def stratified_mean(
    estimated: Estimated, norms: Float[np.ndarray, " flips"], population: int
) -> MeanEstimate:
    """Returns the mean norm over a population of flips, of which these are all, or a simple random sample.

    The variance is that of the sample of the rest, by HC3 (MacKinnon and White 1985; close to the jackknife), with the
    finite-population correction. The classical residual variance is too small here: strata by size leave a skewed rest
    whose errors grow with the estimate, and the few large values also determine the slope. Student's t has m - 2
    degrees of freedom, or fewer if a few residuals make up most of the variance (Satterthwaite's rule, 2 m / (kurtosis
    - 1)). A sample of fewer than four gets slope 1 and an infinite variance. If these flips are themselves a sample of
    the population, the variance of that draw is added (two-phase sampling).

    On synthetic populations with log-normal and Pareto norms and errors of about 20 %, a sample of 32 gave intervals at
    95 % that covered the mean in 93 to 96 % of 500 cases; with the classical variance it was 83 to 93 %. Coverage was
    84 to 90 % if estimates say nothing, or are far too small for a few per cent of the flips: the sample may have none.
    """
    top, drawn = estimated.stratum == TOP, estimated.stratum == RANDOM
    sizes, exact = np.abs(estimated.estimates), np.asarray(norms, np.float64)
    n, share = len(sizes), float(np.mean(~top))
    rest = _rest_mean(exact[drawn], sizes[drawn], sizes[~top])
    # The fitted line may run below 0: the mean is at least what the measured flips alone make of it.
    mean = max(float(exact[top].sum()) / n + share * rest.mean, float(exact[top | drawn].sum()) / n)
    variance, freedom = share**2 * rest.variance, rest.freedom
    if n < population:
        one = _variance_of_one(exact[top], exact[drawn], share, mean, rest.mean)
        variance, freedom = variance + (1 - n / population) * one / n, min(freedom, n - 1)
    return MeanEstimate(mean, variance, freedom)


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


def _rest_mean(exact: np.ndarray, sizes: np.ndarray, every: np.ndarray) -> MeanEstimate:
    """Returns the regression estimate of the mean over the flips outside the largest estimates.

    Args:
        exact: the norms of the sample.
        sizes: the sizes of their estimates.
        every: the sizes of all estimates outside the largest.
    """
    m, rest = len(exact), len(every)
    if m == rest:
        return MeanEstimate(float(exact.mean()) if m else 0.0, 0.0, math.inf)
    if m < FEWEST:
        offset = float(np.mean(exact - sizes)) if m else 0.0
        return MeanEstimate(float(every.mean()) + offset, math.inf, math.inf)
    centred, apart = sizes - sizes.mean(), float(every.mean() - sizes.mean())
    square = float(centred @ centred)
    flat = np.ptp(sizes) <= ROUNDING * np.max(sizes)
    slope = 0.0 if flat else float(centred @ exact) / square
    residual = exact - exact.mean() - slope * centred
    weight, leverage = np.full(m, 1 / m), np.full(m, 1 / m)
    if not flat:
        weight, leverage = weight + centred * apart / square, leverage + centred**2 / square
    # A point that alone determines the slope has leverage 1: without it, the slope is 0.
    alone = leverage > 1 - ROUNDING
    left = np.where(alone, (exact - exact.mean()) * m / (m - 1), residual / np.where(alone, 1, 1 - leverage))
    parts = (weight * left) ** 2
    total = float(parts.sum())
    kurtosis = m * float(parts @ parts) / total**2 if total else 1.0
    freedom = min(m - 2.0, max(2.0, 2 * m / max(kurtosis - 1, 1e-9)))
    return MeanEstimate(float(exact.mean()) + slope * apart, (1 - m / rest) * total, freedom)


def _variance_of_one(
    top: np.ndarray, drawn: np.ndarray, share: float, mean: float, rest_mean: float
) -> float:
    """Returns the variance of the norm of one flip of the population: within the two strata and between them."""
    within_rest = float(np.var(drawn, ddof=1)) if len(drawn) > 1 else (math.inf if share else 0.0)
    of_top = float(top.mean()) if len(top) else 0.0
    within_top = float(np.var(top, ddof=1)) if len(top) > 1 else 0.0
    between = (1 - share) * (of_top - mean) ** 2 + share * (rest_mean - mean) ** 2
    return share * within_rest + (1 - share) * within_top + between
