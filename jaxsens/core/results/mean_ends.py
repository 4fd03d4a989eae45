"""The ends of confidence intervals of a mean over a finite population of flips, from a sample without replacement.

Each end is wrong with probability at most `tail`, whatever the population: nothing is taken to be normal. An upper end
needs a value that no flip exceeds. Without one, no finite upper end can hold, however many flips agree (Bahadur and
Savage 1956, Annals of Mathematical Statistics 27): a share of them too small to be drawn may be arbitrarily large.
"""

from __future__ import annotations

import math
import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float

from jaxsens.core.results.estimated import RANDOM, TOP, Estimated

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
    found, drawn, size = int(measured.drawn.sum()), len(measured.drawn), measured.population
    least, most = count_limits(found, drawn, size, (1 - confidence) / 2)
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


def count_limits(found: int, drawn: int, size: int, tail: float) -> tuple[int, int]:
    """Returns the least and the largest number of flips of a kind, of `size` in all, that is not excluded where `found`
    of `drawn` flips are of that kind: exact tests of the hypergeometric distribution, inverted.

    A number is excluded from below if it gives at least `found` with probability at most `tail`, from above if it gives
    at most `found` so rarely. Cost: about 2 log2(size) sums of at most `drawn` terms.
    """
    from scipy import stats

    numbers = range(found, size - (drawn - found) + 1)

    def reached(number: int) -> bool:
        return bool(stats.hypergeom.sf(found - 1, size, number, drawn) > tail)

    def too_many(number: int) -> bool:
        return bool(stats.hypergeom.cdf(found, size, number, drawn) <= tail)

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

    return _boundary(excluded, floor, total / m) if tail else floor


def _boundary(excluded: Callable[[float], bool], low: float, high: float) -> float:
    """Returns where a statement that holds below and not above changes, from below, to six digits of the range."""
    for _ in range(20):
        middle = (low + high) / 2
        low, high = (middle, high) if excluded(middle) else (low, middle)
    return low
