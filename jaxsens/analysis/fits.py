"""How a statistic scales with the input length: fitted exponents, local slopes, and what they say in words.

Each seed gets a slope on log-log axes. The exponent is the mean over seeds of the least-squares slope of log(statistic)
on log(n); its interval is Student's t interval of that mean. Seeds are the independent repetitions: the lengths of one
seed share a model and are not independent. With five seeds this interval has the coverage it claims, where a bootstrap
falls short.

An exponent summarises a whole range of n. A true law of log(n)/n fits as about -0.85, and a sum of two powers as
something between the two, so look at `local_slopes` before reading an exponent as an asymptotic law.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike
from scipy.special import stdtrit

from jaxsens.analysis.data import check_points, chosen, statistic_columns
from jaxsens.errors import InputError

if TYPE_CHECKING:
    import pandas

MINIMUM_LENGTHS = 3
"""A seed has a slope if its values are positive at this many different lengths."""

TOLERANCE = 0.1
"""An exponent this close to 0 is called constant, and one this close to -1 is called about 1/n."""

STATISTIC_NAMES = {
    "mean": "mean change over all flips",
    "max": "largest change over all flips",
    "min": "smallest change over all flips",
    "median": "median change over all flips",
}


class Growth(enum.Enum):
    """How a statistic grows with the input length; the value completes the sentence "as n grows, it ..."."""

    FASTER = "falls faster than 1/n"
    INVERSE = "falls about as 1/n"
    SLOWER = "falls more slowly than 1/n"
    FALLS = "falls, perhaps as fast as 1/n"
    FLAT = "stays about constant"
    GROWS = "grows"
    UNCLEAR = "shows no clear trend"
    ZERO = "is exactly 0"
    UNKNOWN = "has no exponent"


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

    Attributes:
        variant, statistic: what was fitted.
        exponent, intercept: means over seeds of the slope and of log C (natural logarithm); NaN if no seed has a slope.
        ci_low, ci_high: Student's t interval of the exponent at level `confidence`; NaN with fewer than two seeds.
        points, seeds: the number of values and of seeds that entered the fit.
        slopes: the line of each of these seeds.
        confidence: the level of the interval, between 0 and 1.
        values, zeros: the number of values from the minimum length on, and how many of them are exactly 0. These have
            no logarithm and are left out.
        note: what was left out, and why a number is NaN; empty if there is nothing to say.
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
        """Whether every value is exactly 0, so that there is no exponent."""
        return 0 < self.values == self.zeros

    @property
    def growth(self) -> Growth:
        """What the fit supports.

        "Constant" and "about 1/n" need an exponent close to 0 or to -1, and an interval that excludes the other of the
        two. "Faster" and "more slowly than 1/n" need an interval that excludes -1. A falling statistic whose interval
        contains -1 just falls; one whose interval contains 0 shows no clear trend. Without an interval the exponent
        alone decides.
        """
        # Rounded as it is shown everywhere: otherwise two exponents that both read -0.90 could get different words.
        e = round(self.exponent, 2)
        if math.isnan(e):
            return Growth.ZERO if self.always_zero else Growth.UNKNOWN
        may_be_constant, may_be_inverse = (self.ci_low <= value <= self.ci_high for value in (0, -1))
        if abs(e) <= TOLERANCE + 1e-9 and not may_be_inverse:
            return Growth.FLAT
        if abs(e + 1) <= TOLERANCE + 1e-9 and not may_be_constant:
            return Growth.INVERSE
        if may_be_constant:
            return Growth.UNCLEAR
        if may_be_inverse:
            return Growth.FALLS
        if e < -1:
            return Growth.FASTER
        return Growth.SLOWER if e < 0 else Growth.GROWS

    def interval(self, digits: int = 2) -> str:
        """The interval as "[-1.01, -0.95]", or empty if there is none."""
        if math.isnan(self.ci_low):
            return ""
        return f"[{signed(self.ci_low, digits)}, {signed(self.ci_high, digits)}]"

    def __str__(self) -> str:
        """The fit in words, such as "softmax: mean falls about as 1/n (exponent -0.98 [-1.01, -0.95])"."""
        what = f"{self.variant}: {self.statistic} {self.growth.value}"
        if math.isnan(self.exponent):
            return what if self.always_zero else f"{what} ({self.note})"
        return f"{what} (exponent {signed(self.exponent)} {self.interval()}".rstrip() + ")"


def fit_exponents(
    points: pandas.DataFrame,
    *,
    statistics: Sequence[str] | None = None,
    variants: Sequence[str] | None = None,
    minimum_length: int = 1,
    confidence: float = 0.95,
) -> tuple[ExponentFit, ...]:
    """Fits every statistic of every variant: all statistics of the first variant, then of the next.

    Args:
        points: a table with the columns of points.csv.
        statistics, variants: which ones, and in which order; by default all of them, in the order of the table.
        minimum_length: shorter inputs do not enter the fits.
        confidence: of the intervals, between 0 and 1.

    Raises:
        InputError: for a table without these columns, a name that is not in it, or a `confidence` outside (0, 1).
    """
    check_points(points)
    statistics = chosen(statistics, statistic_columns(points), "statistics")
    fits = []
    for variant in chosen(variants, points["variant"], "variants"):
        rows = points[points["variant"] == variant]
        fits += [
            fit_exponent(
                rows["n"],
                rows[statistic],
                rows["seed"],
                variant=variant,
                statistic=statistic,
                minimum_length=minimum_length,
                confidence=confidence,
            )
            for statistic in statistics
        ]
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
    """Fits one statistic of one variant, given as three flat arrays with one entry per point.

    Values that are 0 or NaN are left out, and the note says how many. A seed with positive values at fewer than three
    lengths has no slope.

    Raises:
        InputError: for arrays of different shapes, or a `confidence` outside (0, 1).
    """
    n = np.asarray(lengths, dtype=np.float64)
    value = np.asarray(values, dtype=np.float64)
    seed = np.asarray(seeds)
    if not (n.ndim == 1 and n.shape == value.shape == seed.shape):
        raise InputError(
            f"lengths, values, seeds have shapes {n.shape}, {value.shape}, {seed.shape}: "
            "give one entry per point in each"
        )
    if not 0 < confidence < 1:
        raise InputError(f"confidence = {confidence}: give a number between 0 and 1, such as 0.95")

    long_enough = n >= minimum_length
    usable = long_enough & (value > 0)
    lines = []
    for one in np.unique(seed):
        of_seed = usable & (seed == one)
        if np.unique(n[of_seed]).size >= MINIMUM_LENGTHS:
            slope, intercept = least_squares(np.log(n[of_seed]), np.log(value[of_seed]))
            lines.append(SeedSlope(int(one), slope, intercept, int(np.sum(of_seed))))

    slopes = [line.slope for line in lines]
    low, high = _t_interval(slopes, confidence)
    zeros = int(np.sum(long_enough & (value == 0)))
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
        values=int(np.sum(long_enough)),
        zeros=zeros,
        note=_note(
            zeros=zeros,
            missing=int(np.sum(long_enough & np.isnan(value))),
            values=int(np.sum(long_enough)),
            seeds=np.unique(seed[long_enough]).size,
            fitted=len(lines),
        ),
    )


def local_slopes(points: pandas.DataFrame, *, statistics: Sequence[str] | None = None) -> pandas.DataFrame:
    """The slopes of log(statistic) on log(n) between successive lengths: do they agree, or is an exponent an average?

    Args:
        points: a table with the columns of points.csv.
        statistics: which ones; by default all of them.

    Returns:
        A row per variant, pair of successive lengths and seed, and a column per statistic: NaN unless the seed has a
        positive value at both lengths. Column "n" is the geometric mean of the lengths, which is their middle on a
        logarithmic axis.

    Raises:
        InputError: for a table without these columns, or a name that is not in it.
    """
    import pandas as pd

    check_points(points)
    columns = [*chosen(statistics, statistic_columns(points), "statistics")]
    found = []
    for variant in dict.fromkeys(points["variant"]):
        rows = points.query("variant == @variant").set_index(["n", "seed"])[columns].astype(float)
        logarithms = pd.DataFrame(np.log(rows.where(rows > 0)))
        for low, high in pairwise(sorted(set(logarithms.index.get_level_values("n")))):
            slopes = (logarithms.loc[high] - logarithms.loc[low]) / math.log(high / low)
            found.append(slopes.reset_index().assign(variant=variant, n=math.sqrt(low * high)))
    return pd.concat(found) if found else pd.DataFrame(columns=["variant", "n", "seed", *columns])


def least_squares(x: Float[np.ndarray, " points"], y: Float[np.ndarray, " points"]) -> tuple[float, float]:
    """Slope and intercept of the ordinary least-squares line of `y` on `x`. The values of `x` must not all be equal."""
    centred = x - x.mean()
    slope = float(centred @ (y - y.mean()) / (centred @ centred))
    return slope, float(y.mean() - slope * x.mean())


def _t_interval(values: Sequence[float], confidence: float) -> tuple[float, float]:
    """Student's t interval of the mean of independent values; (NaN, NaN) for fewer than two of them."""
    if len(values) < 2:
        return math.nan, math.nan
    centre = float(np.mean(values))
    error = float(np.std(values, ddof=1)) / math.sqrt(len(values))
    half = float(stdtrit(len(values) - 1, (1 + confidence) / 2)) * error
    return centre - half, centre + half


def _note(*, zeros: int, missing: int, values: int, seeds: int, fitted: int) -> str:
    """What a reader of the fit must know about omitted values and NaN results."""
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


def statistic_name(statistic: str) -> str:
    """A statistic in words: "mean change over all flips", "90 % quantile of the change over all flips"."""
    if statistic in STATISTIC_NAMES:
        return STATISTIC_NAMES[statistic]
    if statistic.startswith("q") and statistic[1:].replace(".", "", 1).isdigit():
        return f"{statistic[1:]} % quantile of the change over all flips"
    return statistic


def signed(value: float, digits: int = 2) -> str:
    """A number with a fixed number of decimals and a true minus sign; never "-0.00"."""
    rounded = round(value, digits) + 0.0
    return f"{rounded:.{digits}f}".replace("-", "\N{MINUS SIGN}")


def by_growth(fits: Iterable[ExponentFit]) -> dict[Growth, list[ExponentFit]]:
    """The fits of one statistic, grouped by their growth, in the order of `Growth`."""
    fits = list(fits)
    grouped = {kind: [fit for fit in fits if fit.growth is kind] for kind in Growth}
    return {kind: members for kind, members in grouped.items() if members}


def summary_sentence(fits: Iterable[ExponentFit], statistic: str) -> str:
    """The growth of one statistic for all variants in one sentence: variants that behave alike stand together."""

    def named(fit: ExponentFit) -> str:
        if math.isnan(fit.exponent):
            return fit.variant
        return f"{fit.variant} ({signed(fit.exponent)}{', zeros left out' if fit.zeros else ''})"

    grouped = by_growth(fit for fit in fits if fit.statistic == statistic)
    parts = [f"{kind.value} for {enumeration(map(named, members))}" for kind, members in grouped.items()]
    return f"As n grows, the {statistic_name(statistic)} (exponent of n in brackets) {'; '.join(parts)}."


def enumeration(names: Iterable[str]) -> str:
    """Names as "a", "a and b" or "a, b and c"."""
    *others, last = [*names] or [""]
    return f"{', '.join(others)} and {last}" if others else last
