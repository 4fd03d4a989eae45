"""Statistics over all flips: of estimates and of samples, from exact values of some flips.

The mean of estimates uses them as control variate. With x the exact norms of the random sample outside the largest
estimates, z the sizes of the estimates, Z their mean over the rest, and b the slope of x on z, it is
mean(x) + b (Z - mean(z)): the regression estimator of survey sampling (Cochran 1977, Sampling Techniques, section 7.1).

Each end of a confidence interval of a mean over a finite population, from a sample without replacement, is wrong with
probability at most `tail`, whatever the population: nothing is taken to be normal. An upper end needs a value that no
flip exceeds. Without one, no finite upper end can hold, however many flips agree (Bahadur and Savage 1956, Annals of
Mathematical Statistics 27): a share of them too small to be drawn may be arbitrarily large.
"""

from __future__ import annotations

import math
import zlib
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, replace

import numpy as np
import scipy  # its `stats` are loaded where they are used first: they take longer than all else here
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

    def part(self, chosen: Bool[np.ndarray, " flips"] | slice) -> Estimated:
        """Returns the estimates of some flips. Within them, the flips of stratum 2 are still a random sample."""
        return Estimated(self.estimates[chosen], self.stratum[chosen], self.compared[chosen], self.sketch)


FEWEST = 4
"""The smallest sample in which a slope is fitted."""

ROUNDING = 1e-9
"""Relative differences below it count as rounding."""


def stratified_mean(estimated: Estimated, norms: Float[np.ndarray, " flips"]) -> float:
    """Returns the mean norm over these flips. A sample of fewer than four gets slope 1."""
    top, drawn = estimated.stratum == TOP, estimated.stratum == RANDOM
    sizes, exact = np.abs(estimated.estimates), np.asarray(norms, np.float64)
    n, share = len(sizes), float(np.mean(~top))
    sample, drawn_sizes, every = exact[drawn], sizes[drawn], sizes[~top]
    if len(sample) == len(every):
        other_mean = float(sample.mean()) if len(sample) else 0.0
    elif len(sample) < FEWEST:
        other_mean = float(every.mean()) + (float(np.mean(sample - drawn_sizes)) if len(sample) else 0.0)
    else:
        centred = drawn_sizes - drawn_sizes.mean()
        flat = np.ptp(drawn_sizes) <= ROUNDING * np.max(drawn_sizes)
        slope = 0.0 if flat else float(centred @ sample) / float(centred @ centred)
        other_mean = float(sample.mean()) + slope * float(every.mean() - drawn_sizes.mean())
    # The fitted line may run below 0: the mean is at least what the measured flips alone make of it.
    return max(float(exact[top].sum()) / n + share * other_mean, float(exact[top | drawn].sum()) / n)


ORDERS = 8
"""The number of random orders that `least_mean` averages over."""


@dataclass(frozen=True, eq=False)
class MeasuredSample:
    """What was measured exactly, of flips that are all of a population or a simple random sample of it.

    Attributes:
        top: the norms of the largest estimates, all of which were measured, the largest estimate first; empty without
            estimates. float64.
        drawn: the norms of a simple random sample of the others. float64.
        flips: the number of flips from which both come.
        population: the number of all flips.
    """

    top: Float[np.ndarray, " top"]
    drawn: Float[np.ndarray, " drawn"]
    flips: int
    population: int

    @classmethod
    def of(
        cls, norms: Float[np.ndarray, " flips"], estimated: Estimated | None, population: int
    ) -> MeasuredSample:
        """Returns what was measured of a result with these norms and estimates, if any."""
        exact = np.asarray(norms, np.float64)
        if estimated is None or estimated.measured.all():
            return cls(exact[:0], exact, population, population)
        top = estimated.stratum == TOP
        order = np.argsort(-np.abs(estimated.estimates[top]), kind="stable")
        return cls(exact[top][order], exact[estimated.stratum == RANDOM], len(exact), population)


def mean_ends(measured: MeasuredSample, confidence: float, largest: float) -> tuple[float, float]:
    """Returns the ends of an interval for the mean over the population. With `largest` infinite so is the upper end,
    and the lower one alone has the confidence; otherwise no flip exceeds `largest`, and each end has half of the
    error."""
    if not (np.isfinite(measured.top).all() and np.isfinite(measured.drawn).all()):
        return math.nan, math.nan
    if math.isinf(largest):
        return _least(measured, 1 - confidence), math.inf
    tail = (1 - confidence) / 2
    missing = replace(measured, top=largest - measured.top, drawn=largest - measured.drawn)
    return _least(measured, tail), largest - _least(missing, tail)


def decision_ends(measured: MeasuredSample, confidence: float, largest: float) -> tuple[float, float]:
    """Returns the ends of an exact interval for the share of flips that change the decision, of a simple random sample.

    `largest` is 1, or 0 where no decision changes.
    """
    hits, drawn, size = int(measured.drawn.sum()), len(measured.drawn), measured.population
    least, most = count_limits(hits, drawn, size, (1 - confidence) / 2)
    return least / size, min(most / size, largest)


def _least(measured: MeasuredSample, tail: float) -> float:
    """Returns a lower limit of the mean over the population, of numbers of at least 0.

    If the flips are a sample themselves, those of the population whose estimates are below the smallest of the largest
    ones are a stratum, of which the random flips are a simple random sample; those above are another. How many there
    are is bounded from the sample, too: four limits, a quarter of the error each.
    """
    top, drawn, n = measured.top, measured.drawn, measured.flips
    if n == measured.population:
        return (float(top.sum()) + (n - len(top)) * least_mean(drawn, n - len(top), tail)) / n
    above, below = top[:-1], n - len(top)  # the flip that separates them is in neither
    total = 0.0
    for values, count in ((above, len(above)), (drawn, below)):
        least, _ = count_limits(count, n, measured.population, tail / 4)
        total += least * least_mean(values, math.inf, tail / 4)
    return total / measured.population


def count_limits(hits: int, drawn: int, size: int, tail: float) -> tuple[int, int]:
    """Returns the least and the largest number of flips of a kind, of `size` in all, that is not excluded where `found`
    of `drawn` flips are of that kind: exact tests of the hypergeometric distribution, inverted.

    A number is excluded from below if it gives at least `found` with probability at most `tail`, from above if it gives
    at most `found` so rarely. Cost: about 2 log2(size) sums of at most `drawn` terms.
    """
    numbers = range(hits, size - (drawn - hits) + 1)

    def reached(number: int) -> bool:
        return bool(scipy.stats.hypergeom.sf(hits - 1, size, number, drawn) > tail)

    def too_many(number: int) -> bool:
        return bool(scipy.stats.hypergeom.cdf(hits, size, number, drawn) <= tail)

    # At the ends of the range `found` is certain, also to a tail that rounding leaves short of 1.
    least = numbers[min(bisect_left(numbers, True, key=reached), len(numbers) - 1)]
    return least, numbers[max(bisect_right(numbers, False, key=too_many) - 1, 0)]


def least_mean(values: Float[np.ndarray, " drawn"], size: float, tail: float) -> float:
    """Returns a lower limit of the mean of a population of numbers of at least 0.

    A bet against each mean m in question (Waudby-Smith and Ramdas 2024, Estimating means of bounded random variables by
    betting): a share f of the capital is laid on the next value x at the price m' that is left for it, the mean of the
    flips not yet drawn if m is true. Capital grows by 1 - f + f x / m', by 1 on average, so it reaches 1 / tail with
    probability at most `tail`; every m where it does is excluded. It needs no bound from above. Shares 1, 1/2, 1/4, ...
    down to 1 / sqrt(drawn) get equal parts of the capital, and so do `ORDERS` random orders of the values, seeded by
    the values.

    Args:
        values: a simple random sample.
        size: of the population; math.inf if unknown, for a limit that holds for every size.
        tail: the probability that the limit may exceed the mean.
    """
    ordered = np.sort(np.asarray(values, np.float64))
    m, total = len(ordered), float(ordered.sum())
    if not m or not total or m == size:
        return total / size if m else 0.0
    floor = total / size
    rng = np.random.default_rng(zlib.crc32(ordered.tobytes()))
    orders = 1 if math.isinf(size) else ORDERS  # with a constant price the order does not matter
    x = rng.permuted(np.tile(ordered, (orders, 1)), axis=1)
    before, left = np.cumsum(x, axis=1) - x, size - np.arange(m)
    shares = 0.5 ** np.arange(1 + math.ceil(math.log2(m) / 2))

    def excluded(mean: float) -> bool:
        price = np.full_like(x, mean) if math.isinf(size) else np.maximum(size * mean - before, 0) / left
        gain = np.divide(x, price, out=np.where(x > 0, np.inf, 1.0), where=price > 0)
        with np.errstate(divide="ignore"):  # all is lost where f = 1 meets x = 0
            logs = np.array([np.log(1 - f + f * gain).sum(axis=1) for f in shares])
        return float(np.logaddexp.reduce(logs.ravel())) - math.log(logs.size) >= -math.log(tail)

    low, high = floor, total / m
    for _ in range(20 if tail else 0):  # six digits of the range
        middle = (low + high) / 2
        low, high = (middle, high) if excluded(middle) else (low, middle)
    return low


CONFIDENCE = 0.95
"""Of the bound on the flips that exceed the largest measured one."""


@dataclass(frozen=True)
class Accuracy:
    """The accuracy of estimates, from the random sample of flips outside the largest estimates; and of these.

    A flip's error is |estimate - exact| / |exact|: 0 if both are 0, infinite if only the exact value is. With a sketch,
    exact is the norm in its combinations. A statistic for which the sample is too small, or has no two different
    values, is NaN: no flip for the errors, fewer than three for correlation and slope.

    Attributes:
        count: the number of flips in the sample.
        median_error: the median error.
        error_90: an error that 90 % of the flips outside the largest estimates keep below, on average over samples: the
            ceil(0.9 (count + 1))-th smallest of the sample. NaN for fewer than 9 flips.
        rank_correlation: Spearman's, between estimates and exact values.
        slope: of the least-squares line of the exact values on the estimates, with intercept: 1 for unbiased estimates.
        sketch_error: the median of |norm in the sketch - norm| / norm; None without a sketch.
        exceeding: an upper bound at 95 % confidence, by Clopper and Pearson (1934), on the share of flips outside the
            largest estimates whose norm exceeds the largest norm among those: 0.089 if none of 32 did. It is
            conservative, because the sample was drawn without replacement. NaN if none of the largest was measured.
        exceeding_count: the bound as a number of flips, of those that were not measured; None if `exceeding` is NaN.
        largest_count: the number of the largest estimates, all of which were measured.
        largest_error: the median of their error.
        largest_error_90: the 90 % quantile of their error.
    """

    count: int
    median_error: float
    error_90: float
    rank_correlation: float
    slope: float
    sketch_error: float | None
    exceeding: float
    exceeding_count: int | None
    largest_count: int
    largest_error: float
    largest_error_90: float

    def __str__(self) -> str:
        drawn = f"{self.count} random flip{'' if self.count == 1 else 's'}"
        if not self.count:
            return "estimates not compared with any random flip"
        tenth = "" if math.isnan(self.error_90) else f", {self.error_90:.2g} (90%)"
        text = (
            f"estimates against {drawn} measured: error {self.median_error:.2g} (median){tenth}, "
            f"rank correlation {self.rank_correlation:.3g}, slope {self.slope:.3g}"
        )
        if self.largest_count:
            text += (
                f"; against the {self.largest_count} largest, all measured: error {self.largest_error:.2g} (median), "
                f"{self.largest_error_90:.2g} (90%)"
            )
        return text + ("" if self.sketch_error is None else f"; the sketch itself {self.sketch_error:.2g}")

    @property
    def exceeding_told(self) -> str:
        """The bound on the flips that exceed the largest measured one, in words."""
        if self.exceeding_count is None:
            return "any of them may exceed the largest measured"
        if not self.exceeding_count:
            return "none of them exceeds the largest measured"
        return (
            f"at most {self.exceeding_count} of these ({self.exceeding:.1%}) exceed the largest measured, with 95% "
            "confidence"
        )


def accuracy_of(estimated: Estimated, norms: Float[np.ndarray, " flips"]) -> Accuracy:
    """Returns the accuracy of estimates.

    Args:
        estimated: the estimates.
        norms: a result's, exact where flips were measured.
    """
    drawn = estimated.stratum == RANDOM
    estimates, compared = estimated.estimates[drawn], estimated.compared[drawn]
    errors, top = _relative(estimates, compared), estimated.stratum == TOP
    largest = _relative(estimated.estimates[top], estimated.compared[top])
    covering = math.ceil(0.9 * (len(errors) + 1))  # of one more flip, 90 % are at most so large
    sketch = None
    if estimated.sketch is not None:
        sketch = _quantile(_relative(compared, np.asarray(norms[drawn], np.float64)), 0.5)
    rank, slope, spread = math.nan, math.nan, np.ptp(estimates) if len(estimates) >= 3 else 0.0
    if spread:
        centred = (estimates - estimates.mean()) / spread
        slope = float(centred @ compared / (centred @ centred) / spread)
    if spread and np.ptp(compared):
        rank = float(scipy.stats.spearmanr(estimates, compared).statistic)  # pyright: ignore[reportAttributeAccessIssue]
    share, number, random = math.nan, None, norms[drawn]
    if top.any():
        unmeasured, m = int((estimated.stratum == ESTIMATED).sum()), len(random)
        k = int((random > norms[top].max()).sum())
        if unmeasured:
            share = float(scipy.stats.beta.ppf(CONFIDENCE, k + 1, m - k)) if k < m else 1.0
            number = min(unmeasured, math.floor(share * (unmeasured + m)) - k)
        else:
            share, number = k / m if m else 0.0, 0
    return Accuracy(
        count=len(estimates),
        median_error=_quantile(errors, 0.5),
        error_90=float(np.sort(errors)[covering - 1]) if covering <= len(errors) else math.nan,
        rank_correlation=rank,
        slope=slope,
        sketch_error=sketch,
        exceeding=share,
        exceeding_count=number,
        largest_count=int(top.sum()),
        largest_error=_quantile(largest, 0.5),
        largest_error_90=_quantile(largest, 0.9),
    )


def _relative(estimates: np.ndarray, exact: np.ndarray) -> np.ndarray:
    difference, size = np.abs(estimates - exact), np.abs(exact)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(difference == 0, 0, difference / size)


def _quantile(errors: np.ndarray, q: float) -> float:
    if not len(errors):
        return math.nan
    finite = bool(np.all(np.isfinite(errors)))  # between two infinite errors nothing can be interpolated
    return float(np.quantile(errors, q, method="linear" if finite else "higher"))
