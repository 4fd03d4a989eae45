"""How a statistic scales with the input length: fitted exponents, local slopes, and what they say in words.

Each seed gets a slope on log-log axes. The exponent is the mean over seeds of the least-squares slope of log(statistic)
on log(n); its interval is Student's t interval of that mean. Seeds are the independent repetitions: the lengths of one
seed share a model and are not independent. Where the slopes of the seeds are about normal, this interval has the
coverage it claims with five seeds, where a bootstrap falls short; skewed slopes cost it some (docs/measured/digits.md).

An exponent summarises a whole range of n. A true law of log(n)/n fits as about -0.85, and a sum of two powers as
something between the two. So every fit comes with the slopes between successive lengths, and an exponent that they do
not bear out is called not settled wherever it is told.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pandas
from jaxtyping import Bool, Float
from numpy.typing import ArrayLike
from scipy.special import stdtrit

from jaxsens.core.base.errors import InputError
from jaxsens.core.sweeps.points import (
    AVERAGE_SENSITIVITY,
    EXTREMES,
    PER_POSITION,
    STATUS_COLUMN,
    Status,
    share_of,
)
from jaxsens.core.sweeps.sweep import ESTIMATE_COLUMNS, KEY_COLUMNS

MINIMUM_LENGTHS = 3
"""A seed has a slope if its values are positive at this many different lengths."""

CONFIDENCE = 0.95
LEVEL = f"{100 * CONFIDENCE:g} %"
"""The level of every interval, as a number and for texts."""

TOLERANCE = 0.1
"""An exponent this close to 0, -1, 1/2 or 1 is about that power of n. A local slope this close to the exponent agrees
with it."""

SUMMARY_COLUMNS = (
    *("variant", "statistic", "exponent", "ci_low", "ci_high", "points", "seeds"),
    *("values", "zeros", "bounds", "unresolved", "settled"),
)
"""The columns of summary.csv. Of `values`, `points` entered the fit. `zeros` counts those left out because they are
exactly 0, `bounds` because they are only bounds, `unresolved` because the arithmetic does not resolve them."""

STATISTIC_NAMES = {
    "mean": "mean change over all flips",
    "max": "largest change over all flips",
    "min": "smallest change over all flips",
    "median": "median change over all flips",
    AVERAGE_SENSITIVITY: "average sensitivity",
    PER_POSITION: "average sensitivity per position",
    EXTREMES[0]: "smallest sensitivity of an input",
    EXTREMES[1]: "largest sensitivity of an input",
}


class Growth(enum.Enum):
    """How a statistic grows with the input length; the value completes the sentence "as n grows, it ..."."""

    INVERSE = "falls about as 1/n"
    FALLS = "falls"
    FLAT = "stays about constant"
    GROWS = "grows"
    UNCLEAR = "shows no clear trend"
    UNKNOWN = "has too few values for a trend"
    ZERO = "is exactly 0"
    LOWER = "is a lower bound at every length, as flips were sampled: no trend"
    UPPER = "is an upper bound at every length, as flips were sampled: no trend"


@dataclass(frozen=True)
class LocalSlope:
    """The slope of log(statistic) on log(n) between two successive lengths: the mean over seeds.

    `ci_low` and `ci_high` are Student's t interval over the `seeds`; NaN with fewer than two.
    """

    low: float
    high: float
    slope: float
    ci_low: float
    ci_high: float
    seeds: int


@dataclass(frozen=True)
class ExponentFit:
    """The exponent e of statistic ~ C n^e for one variant.

    Attributes:
        variant, statistic: what was fitted.
        exponent: the mean over seeds of the slope; NaN if no seed has a slope.
        ci_low, ci_high: Student's t interval of the exponent at level `CONFIDENCE`; NaN with fewer than two seeds.
        points, seeds: the number of values and of seeds that entered the fit.
        values: the number of values from the minimum length on, whether they entered or not.
        zeros: the number of values left out because they are exactly 0.
        bounds: the number of values left out because they are only lower or upper bounds: the largest, or the smallest,
            change of a random sample of flips.
        unresolved: the number of values left out because the arithmetic does not resolve them: what is known is only
            what they are at most.
        local: the slopes between successive lengths, of the seeds that have a slope over the whole range.
        drift: Student's t interval of how fast the local slopes of a seed rise with log(n); NaN with fewer than two
            seeds or two slopes.
        zero_shares: each length with the share of its values that are exactly 0.
        without: the lengths left out whole, since values at them, or between them and the fitted ones, are unresolved.
        place: what is written before a length in `note`.
    """

    variant: str
    statistic: str
    exponent: float
    ci_low: float
    ci_high: float
    points: int
    seeds: int
    values: int
    zeros: int
    bounds: int = 0
    unresolved: int = 0
    local: tuple[LocalSlope, ...] = ()
    drift: tuple[float, float] = (math.nan, math.nan)
    zero_shares: tuple[tuple[float, float], ...] = ()
    without: tuple[float, ...] = ()
    place: str = "n = "

    @property
    def always_zero(self) -> bool:
        """Whether every value is exactly 0, so that there is no exponent."""
        return 0 < self.values == self.zeros

    @property
    def vanishing(self) -> str:
        """Where most values are exactly 0, as "exactly 0 from n = 64 on"; empty if nowhere, or always."""
        at = [n for n, share in self.zero_shares if share > 0.5]
        if not at or self.always_zero:
            return ""
        last = at == [n for n, _ in self.zero_shares[-len(at) :]]
        where = f"from {self.place}{at[0]:.4g} on" if last else f"at {self.place}{_listed(at)}"
        most = any(0.5 < share < 1 for _, share in self.zero_shares)
        return f"exactly 0 {'for most seeds ' if most else ''}{where}"

    @property
    def law(self) -> float | None:
        """The power of n that the exponent is about: 0, -1, 1/2 or 1, where its interval excludes the nearest other
        one, and of a growing statistic 0; None if there is none."""
        # Rounded as it is shown everywhere: otherwise two exponents that both read -0.90 could get different words.
        e = round(self.exponent, 2)
        for law, other in ((0, -1), (-1, 0), (1, 0.5), (0.5, 1)):
            excluded = not self.may_be(other) and (law <= 0 or not self.may_be(0))
            if abs(e - law) <= TOLERANCE + 1e-9 and excluded:
                return law
        return None

    @property
    def growth(self) -> Growth:
        """What the fit supports. "Constant" and "about 1/n" are a `law`; otherwise a statistic whose interval contains
        0 shows no clear trend, and without an interval the exponent alone decides. Most values of the longest inputs
        that are exactly 0 decide before all of these, and before them that every value is a bound."""
        if 0 < self.values == self.bounds:
            return Growth.UPPER if share_of(self.statistic) == 0 else Growth.LOWER
        if self.always_zero or (self.zero_shares and self.zero_shares[-1][1] > 0.5):
            return Growth.ZERO
        if self.law == 0 or self.law == -1:
            return Growth.FLAT if self.law == 0 else Growth.INVERSE
        if math.isnan(self.exponent):
            return Growth.UNKNOWN
        if self.may_be(0):
            return Growth.UNCLEAR
        return Growth.FALLS if self.exponent < 0 else Growth.GROWS

    def may_be(self, exponent: float) -> bool:
        """Whether the interval contains an exponent; False without an interval."""
        return self.ci_low <= exponent <= self.ci_high

    @property
    def settled(self) -> bool:
        """Whether the local slopes bear the exponent out. False where there is no exponent, and where `vanishing`.

        They do if fewer than two exist, or all are within `TOLERANCE` of it. Of an exponent that follows a `law` they
        may also be further away, if they do not drift: noise then explains them. One in between has no such law.
        """
        return not (math.isnan(self.exponent) or self._contradictions)

    @property
    def _contradictions(self) -> list[str]:
        """What contradicts the exponent: zeros, and local slopes, from one extreme to the other in order."""
        slopes, parts = [one.slope for one in self.local], [self.vanishing] if self.vanishing else []
        near = all(abs(slope - self.exponent) <= TOLERANCE for slope in slopes)
        drifts = self.drift[0] > 0 or self.drift[1] < 0
        if len(slopes) > 1 and not near and (self.law is None or drifts):
            first, last = sorted((slopes.index(min(slopes)), slopes.index(max(slopes))))
            parts.append(f"local slopes from {signed(slopes[first])} to {signed(slopes[last])}")
        return parts

    @property
    def note(self) -> str:
        """What a reader must know beside the exponent: why it is not settled, why there is none, and how many values
        did not enter it; empty if there is nothing to say. "Others" are missing, at lengths where some are not
        resolved, or of seeds with too few."""
        if self.always_zero or self.growth in (Growth.LOWER, Growth.UPPER):
            return ""
        counts = {"zero": self.zeros, "bound": self.bounds, "unresolved": self.unresolved}
        counts["other"] = self.values - self.points - sum(counts.values())
        plural = {name: name if name == "unresolved" else f"{name}s" for name in counts}
        parts = [f"{count} {plural[name] if count > 1 else name}" for name, count in counts.items() if count]
        left_out = f"{enumeration(parts)} left out of {self.values} values" if parts else ""
        if counts["other"] == self.values:  # where there is no slope, nothing is left out of one
            left_out = ""
        missing = "" if self.seeds else f"no seed has {MINIMUM_LENGTHS} values for a slope"
        against = ", ".join(self._contradictions)
        if against and not math.isnan(self.exponent):
            against = f"not settled: {against}"
        return "; ".join(filter(None, (against, missing, left_out)))

    def interval(self, digits: int = 2) -> str:
        """The interval as "[-1.01, -0.95]", or empty if there is none."""
        if math.isnan(self.ci_low):
            return ""
        return f"[{signed(self.ci_low, digits)}, {signed(self.ci_high, digits)}]"

    @property
    def power(self) -> str:
        """The exponent with its interval as "-0.98 [-1.01, -0.95]"; empty if there is none."""
        return "" if math.isnan(self.exponent) else f"{signed(self.exponent)} {self.interval()}".rstrip()

    def __str__(self) -> str:
        """The fit in words, such as "softmax: mean falls about as 1/n (exponent -0.98 [-1.01, -0.95])", or
        "softmax: max falls more slowly than 1/n (exponent -0.73 [-0.85, -0.61]; not settled: local slopes from -0.41 to
        -0.96)"."""
        power = "" if math.isnan(self.exponent) else f"exponent {self.power}"
        note = "; ".join(filter(None, (power, self.note)))
        return f"{self.variant}: {self.statistic} {self.growth.value}{f' ({note})' if note else ''}"


def statistic_columns(points: pandas.DataFrame) -> tuple[str, ...]:
    """The names of the statistics in `points`, in the order of its columns."""
    others = {*KEY_COLUMNS, *ESTIMATE_COLUMNS}
    status = {STATUS_COLUMN.format(column) for column in points.columns}
    return tuple(column for column in points.columns if column not in others | status)


def having(points: pandas.DataFrame, statistic: str, *kinds: Status) -> Bool[np.ndarray, " points"]:
    """Whether each value of a statistic is of one of these kinds."""
    column = STATUS_COLUMN.format(statistic)
    if column not in points.columns:
        return np.zeros(len(points), bool)
    return np.array([kind in kinds for kind in points[column]], bool)


def fit_exponents(points: pandas.DataFrame, minimum_length: int = 1) -> tuple[ExponentFit, ...]:
    """Fits every statistic of every variant: all statistics of the first variant, then of the next.

    Args:
        points: a table with the columns of points.csv.
        minimum_length: shorter inputs do not enter the fits.

    Raises:
        InputError: for a value that no norm can take.
    """
    values = points[[*statistic_columns(points)]].to_numpy(dtype=np.float64)
    if np.any(values < 0) or np.any(np.isinf(values)):
        raise InputError.note(
            "points",
            "a statistic is negative or infinite, which no norm can be: measure that point again",
        )
    fits = []
    for variant in dict.fromkeys(points["variant"]):
        rows = points.query("variant == @variant")
        for statistic in statistic_columns(points):
            columns = (rows["n"], rows[statistic], rows["seed"])
            bounds = having(rows, statistic, "lower bound", "upper bound")
            blurred = having(rows, statistic, "at most")
            fits.append(fit_exponent(*columns, variant, statistic, minimum_length, bounds, blurred))
    return tuple(fits)


def fit_exponent(
    lengths: ArrayLike,
    values: ArrayLike,
    seeds: ArrayLike,
    variant: str = "",
    statistic: str = "",
    minimum_length: int = 1,
    bounds: ArrayLike = False,
    blurred: ArrayLike = False,
    place: str = "n = ",
) -> ExponentFit:
    """Fits one statistic of one variant, given as three flat arrays with one entry per point.

    Values that are 0 or NaN are left out, and so are those where `bounds` is True, which are only bounds on the value.
    Where `blurred` is True for some values, which are not resolved, lengths outside `resolved_run` are left out. A
    seed with positive values at fewer than three lengths has no slope.
    """
    n, value, seed = np.asarray(lengths, np.float64), np.asarray(values, np.float64), np.asarray(seeds)
    enough = n >= minimum_length
    not_resolved = enough & np.asarray(blurred, bool)
    one_sided_too = enough & np.asarray(bounds, bool) & ~not_resolved
    exact = enough & ~one_sided_too & ~not_resolved
    beside = exact & ~np.isnan(value) & ~resolved_run(n, not_resolved, exact & (value > 0))
    chosen, zero, measured = exact & ~beside, exact & (value == 0), enough & ~np.isnan(value)
    shares = tuple((at, float(np.mean(zero[measured & (n == at)]))) for at in np.unique(n[measured]).tolist())
    without = np.unique(n[not_resolved | beside]).tolist()
    n, value, seed = n[chosen], value[chosen], seed[chosen]
    slopes, fitted = [], np.zeros(n.shape, bool)
    for one in np.unique(seed):
        of_seed = (value > 0) & (seed == one)
        if np.unique(n[of_seed]).size >= MINIMUM_LENGTHS:
            slopes.append(least_squares(np.log(n[of_seed]), np.log(value[of_seed])))
            fitted |= of_seed
    low, high = t_interval(slopes)
    local, drift = _local(n[fitted], value[fitted], seed[fitted])
    return ExponentFit(
        variant=variant,
        statistic=statistic,
        exponent=float(np.mean(slopes)) if slopes else math.nan,
        ci_low=low,
        ci_high=high,
        points=int(np.sum(fitted)),
        seeds=len(slopes),
        values=int(np.sum(enough)),
        zeros=int(np.sum(zero)),
        bounds=int(np.sum(one_sided_too)),
        unresolved=int(np.sum(not_resolved)),
        local=local,
        drift=drift,
        zero_shares=shares,
        without=tuple(without),
        place=place,
    )


def resolved_run(n: np.ndarray, blurred: np.ndarray, positive: np.ndarray) -> Bool[np.ndarray, " points"]:
    """Which values are at a length of the longest run of lengths without an unresolved value, the first of several;
    all, if all are resolved. Lengths at which nothing is positive or blurred do not count.

    Of a length with values below a floor the larger ones are left, and a length beyond it is above the floor by chance:
    either would bend the slope.
    """
    if not blurred.any():
        return np.ones(n.shape, bool)
    lengths = np.unique(n[blurred | positive])
    gone = np.isin(lengths, n[blurred])
    runs = [lengths[(np.cumsum(gone) == k) & ~gone] for k in range(int(gone.sum()) + 1)]
    return np.isin(n, max(runs, key=len))


def _local(
    n: Float[np.ndarray, " points"], value: Float[np.ndarray, " points"], seed: np.ndarray
) -> tuple[tuple[LocalSlope, ...], tuple[float, float]]:
    """The slopes between successive lengths, of positive values; and the interval of their drift."""
    rows = pandas.DataFrame({"n": n, "seed": seed, "logarithm": np.log(value)})
    logarithms = rows.pivot_table("logarithm", "seed", "n")  # means
    lengths = np.asarray(logarithms.columns, np.float64)
    slopes = np.diff(logarithms.to_numpy(), axis=1) / np.log(lengths[1:] / lengths[:-1])
    defined = ~np.isnan(slopes)
    middles = np.log(lengths[1:] * lengths[:-1]) / 2
    each = zip(slopes, defined, strict=True)
    rising = [least_squares(middles[has], own[has]) for own, has in each if has.sum() >= 2]
    local = []
    for pair, own, has in zip(pairwise(lengths.tolist()), slopes.T, defined.T, strict=True):
        if some := own[has].tolist():
            local.append(LocalSlope(*pair, float(np.mean(some)), *t_interval(some), len(some)))
    return tuple(local), t_interval(rising)


def least_squares(x: Float[np.ndarray, " points"], y: Float[np.ndarray, " points"]) -> float:
    """Slope of the ordinary least-squares line of `y` on `x`. The values of `x` must not all be equal."""
    centred = x - x.mean()
    return float(centred @ (y - y.mean()) / (centred @ centred))


def t_interval(values: Sequence[float]) -> tuple[float, float]:
    """Student's t interval of the mean of independent values; (NaN, NaN) for fewer than two of them."""
    if len(values) < 2:
        return math.nan, math.nan
    centre = float(np.mean(values))
    error = float(np.std(values, ddof=1)) / math.sqrt(len(values))
    half = float(stdtrit(len(values) - 1, (1 + CONFIDENCE) / 2)) * error
    return centre - half, centre + half


def _listed(places: Sequence[float]) -> str:
    """Lengths or distances in a text: all of a few, of many the first two and the last."""
    names = [f"{place:.4g}" for place in places]
    return ", ".join(names if len(names) < 6 else (*names[:2], "...", names[-1]))


def statistic_name(statistic: str) -> str:
    """A statistic in words: "mean change over all flips", "90 % quantile of the change over all flips"."""
    if statistic in STATISTIC_NAMES or share_of(statistic) is None:
        return STATISTIC_NAMES.get(statistic, statistic)
    return f"{statistic[1:]} % quantile of the change over all flips"


def signed(value: float, digits: int = 2) -> str:
    """A number with a fixed number of decimals and a true minus sign; never "-0.00"."""
    rounded = round(value, digits) + 0.0
    return f"{rounded:.{digits}f}".replace("-", "\N{MINUS SIGN}")


def summary_sentence(fits: Iterable[ExponentFit], statistic: str) -> str:
    """The growth of one statistic for all variants in one sentence: variants that behave alike stand together."""
    groups: dict[str, list[str]] = {}
    for fit in fits:
        if fit.statistic == statistic:
            exponent = "" if math.isnan(fit.exponent) else signed(fit.exponent)
            details = ", ".join(filter(None, (exponent, fit.note)))
            name = f"{fit.variant} ({details})" if details else fit.variant
            groups.setdefault(fit.growth.value, []).append(name)
    parts = [f"{kind.value} for {enumeration(groups[kind.value])}" for kind in Growth if kind.value in groups]
    return f"As n grows, the {statistic_name(statistic)} (exponent of n in brackets) {'; '.join(parts)}."


def enumeration(names: Iterable[str]) -> str:
    """Names as "a", "a and b" or "a, b and c"."""
    *others, last = [*names] or [""]
    return f"{', '.join(others)} and {last}" if others else last
