"""Slopes between successive lengths: whether a fitted exponent is the law or only an average over the range of n."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from jaxsens.analysis.points_table import (
    Spread,
    check_points,
    chosen,
    column,
    lengths_of,
    rows_of,
    spread,
    statistic_columns,
)

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class LocalSlope:
    """The slope of log(statistic) on log(n) between two successive lengths, one value a seed.

    slopes: only the seeds with a positive value at both lengths; empty if there is none.
    """

    variant: str
    statistic: str
    n_low: int
    n_high: int
    slopes: tuple[float, ...]

    @property
    def middle(self) -> float:
        """The geometric mean of the two lengths: where on a logarithmic axis the slope belongs."""
        return math.sqrt(self.n_low * self.n_high)

    @property
    def spread(self) -> Spread:
        """Median, smallest and largest slope over seeds."""
        return spread(self.slopes)


def local_slopes(
    points: pandas.DataFrame,
    *,
    statistics: Sequence[str] | None = None,
    variants: Sequence[str] | None = None,
) -> tuple[LocalSlope, ...]:
    """The local slopes of every statistic of every variant, by rising length.

    points: a table with the columns of points.csv. statistics, variants: which; all by default.
    Raises InputError for a table without the columns or a name that is not in it.
    """
    check_points(points)
    statistics = chosen(statistics, statistic_columns(points), "statistics")
    variants = chosen(variants, points["variant"], "variants")
    found = []
    for variant in variants:
        rows = rows_of(points, variant)
        lengths = lengths_of(rows)
        for statistic in statistics:
            for low, high in pairwise(lengths):
                slopes = _between(rows, statistic, low, high)
                found.append(LocalSlope(variant, statistic, low, high, slopes))
    return tuple(found)


def _between(rows: pandas.DataFrame, statistic: str, low: int, high: int) -> tuple[float, ...]:
    at_low, at_high = _by_seed(rows, statistic, low), _by_seed(rows, statistic, high)
    distance = math.log(high / low)
    return tuple(
        math.log(at_high[seed] / at_low[seed]) / distance
        for seed in at_low
        if seed in at_high and at_low[seed] > 0 and at_high[seed] > 0
    )


def _by_seed(rows: pandas.DataFrame, statistic: str, n: int) -> dict[int, float]:
    at_length = column(rows, "n") == n
    return dict(zip(column(rows, "seed")[at_length], column(rows, statistic)[at_length], strict=True))
