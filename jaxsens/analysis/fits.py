"""How a statistic scales with the input length: a slope on log-log axes for each seed, then an interval over seeds.

The exponent is the mean over seeds of the least-squares slope of log(statistic) on log(n); its interval is
Student's t interval of that mean. Seeds are the independent repetitions here: the lengths of one seed share a model
and are not. Over five seeds this interval covers as often as it says, where a bootstrap falls short.

An exponent summarises a whole range of n. A truth of log(n)/n fits as about -0.85, and a sum of two powers as
something between them, so look at `local_slopes` too before reading an exponent as an asymptotic law.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import stdtrit

from jaxsens.analysis.points_table import check_points, chosen, column, rows_of, statistic_columns
from jaxsens.errors import InputError

if TYPE_CHECKING:
    import pandas

MINIMUM_LENGTHS = 3
"""A seed's slope needs positive values at this many different lengths."""


@dataclass(frozen=True)
class SeedSlope:
    """The least-squares line log(statistic) = intercept + slope log(n) of one seed, through `points` values."""

    seed: int
    slope: float
    intercept: float
    points: int


@dataclass(frozen=True)
class ExponentFit:
    """The exponent e of statistic ~ C n^e for one variant.

    exponent, intercept: means over seeds of slope and log C (natural logarithm); NaN where no seed has a slope.
    ci_low, ci_high: Student's t interval of the exponent at level `confidence`; NaN with fewer than two seeds.
    points, seeds: how many values and how many seeds entered.
    slopes: the line of each of these seeds.
    values, zeros: values from the minimum length on, and how many of these are exactly 0 and were left out, for they
        have no logarithm.
    note: why a value is NaN and what was left out; empty if there is nothing to say.
    """

    variant: str
    statistic: str
    exponent: float
    ci_low: float
    ci_high: float
    points: int
    seeds: int
    slopes: tuple[SeedSlope, ...]
    intercept: float
    confidence: float
    values: int
    zeros: int
    note: str

    @property
    def always_zero(self) -> bool:
        """Whether every value is exactly 0, so that there is no exponent to speak of."""
        return 0 < self.values == self.zeros


def fit_exponents(
    points: pandas.DataFrame,
    *,
    statistics: Sequence[str] | None = None,
    variants: Sequence[str] | None = None,
    minimum_length: int = 1,
    confidence: float = 0.95,
) -> tuple[ExponentFit, ...]:
    """Fits every statistic of every variant, variants outermost.

    points: a table with the columns of points.csv.
    statistics, variants: which, and in which order; all by default, in the order of the table.
    minimum_length: only lengths from this one on enter a fit.

    Raises InputError for a table without the columns, a name that is not in it, or a `confidence` outside (0, 1).
    """
    check_points(points)
    statistics = chosen(statistics, statistic_columns(points), "statistics")
    variants = chosen(variants, points["variant"], "variants")
    fits = []
    for variant in variants:
        rows = rows_of(points, variant)
        for statistic in statistics:
            fits.append(
                fit_exponent(
                    column(rows, "n"),
                    column(rows, statistic),
                    column(rows, "seed"),
                    variant=variant,
                    statistic=statistic,
                    minimum_length=minimum_length,
                    confidence=confidence,
                )
            )
    return tuple(fits)


def fit_exponent(
    lengths: ArrayLike,
    values: ArrayLike,
    seeds: ArrayLike,
    *,
    variant: str = "",
    statistic: str = "",
    minimum_length: int = 1,
    confidence: float = 0.95,
) -> ExponentFit:
    """Fits one statistic of one variant: three flat arrays, one entry a point.

    Values that are 0 or NaN are left out and the note says how many. A seed left with values at fewer than three
    lengths has no slope. Raises InputError for arrays of different shapes or a `confidence` outside (0, 1).
    """
    n = np.asarray(lengths, dtype=np.float64)
    value = np.asarray(values, dtype=np.float64)
    seed = np.asarray(seeds)
    if not (n.ndim == 1 and n.shape == value.shape == seed.shape):
        raise InputError(
            f"lengths, values, seeds have shapes {n.shape}, {value.shape}, {seed.shape}: give one entry a point in each"
        )
    if not 0 < confidence < 1:
        raise InputError(f"confidence = {confidence}: give a number between 0 and 1, such as 0.95")

    long_enough = n >= minimum_length
    values_there = int(np.sum(long_enough))
    zeros = int(np.sum(long_enough & (value == 0)))
    usable = long_enough & (value > 0)
    lines = []
    for one in np.unique(seed):
        of_seed = usable & (seed == one)
        if np.unique(n[of_seed]).size >= MINIMUM_LENGTHS:
            slope, intercept = least_squares(np.log(n[of_seed]), np.log(value[of_seed]))
            lines.append(SeedSlope(int(one), slope, intercept, int(np.sum(of_seed))))

    slopes = [line.slope for line in lines]
    low, high = t_interval(slopes, confidence)
    return ExponentFit(
        variant=variant,
        statistic=statistic,
        exponent=float(np.mean(slopes)) if slopes else math.nan,
        ci_low=low,
        ci_high=high,
        points=sum(line.points for line in lines),
        seeds=len(lines),
        slopes=tuple(lines),
        intercept=float(np.mean([line.intercept for line in lines])) if lines else math.nan,
        confidence=confidence,
        values=values_there,
        zeros=zeros,
        note=_note(
            zeros=zeros,
            missing=int(np.sum(long_enough & np.isnan(value))),
            values=values_there,
            seeds=np.unique(seed[long_enough]).size,
            fitted=len(lines),
        ),
    )


def least_squares(x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """Slope and intercept of the ordinary least-squares line of `y` on `x`. The values of `x` must not all agree."""
    centred = x - x.mean()
    slope = float(centred @ (y - y.mean()) / (centred @ centred))
    return slope, float(y.mean() - slope * x.mean())


def t_interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    """Student's t interval of the mean of independent values; NaN, NaN for fewer than two of them."""
    if len(values) < 2:
        return math.nan, math.nan
    centre = float(np.mean(values))
    error = float(np.std(values, ddof=1)) / math.sqrt(len(values))
    half = float(stdtrit(len(values) - 1, (1 + confidence) / 2)) * error
    return centre - half, centre + half


def _note(*, zeros: int, missing: int, values: int, seeds: int, fitted: int) -> str:
    """What a reader of the fit must know about values left out and NaN results."""
    if values and zeros == values:
        return "exactly 0 at every length: no exponent"
    parts = []
    if zeros:
        parts.append(f"{zeros} of {values} values exactly 0, left out")
    if missing:
        parts.append(f"{missing} of {values} values missing")
    if fitted == 0:
        parts.append(f"no seed has positive values at {MINIMUM_LENGTHS} or more lengths: no exponent")
    elif fitted < seeds:
        parts.append(f"{seeds - fitted} of {seeds} seeds have too few positive values for a slope")
    if fitted == 1:
        parts.append("one seed only: no interval")
    return "; ".join(parts)
