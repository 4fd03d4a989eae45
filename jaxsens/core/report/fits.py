"""How a statistic scales with the input length: fitted exponents, local slopes, and what they say in words.

Each seed gets a slope on log-log axes. The exponent is the mean over seeds of the least-squares slope of log(statistic)
on log(n); its interval is Student's t interval of that mean. Seeds are the independent repetitions: the lengths of one
seed share a model and are not independent. Where the slopes of the seeds are about normal, this interval has the
coverage it claims with five seeds, where a bootstrap falls short; skewed slopes cost it some (docs/resolution.md).

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
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Bool, Float
from numpy.typing import ArrayLike
from scipy.special import stdtrit

from jaxsens.core.base.errors import InputError
from jaxsens.core.report.data import one_sided, statistic_columns, unresolved
from jaxsens.core.sweeps.points import AVERAGE_SENSITIVITY, EXTREMES, PER_POSITION

if TYPE_CHECKING:
    import pandas

MINIMUM_LENGTHS = 3
"""A seed has a slope if its values are positive at this many different lengths."""

CONFIDENCE = 0.95
LEVEL = f"{100 * CONFIDENCE:g} %"
"""The level of every interval, as a number and for texts."""

TOLERANCE = 0.1
"""An exponent this close to 0 is called constant, to -1 about 1/n, to 1/2 about the square root of n, and to 1 about n.
A local slope this close to the exponent agrees with it."""

STATISTIC_NAMES = {
    "mean": "mean change over all flips",
    "max": "largest change over all flips",
    "min": "smallest change over all flips",
    "median": "median change over all flips",
    AVERAGE_SENSITIVITY: "average sensitivity, the number of flips that change the decision",
    PER_POSITION: "average sensitivity divided by the number of positions",
    EXTREMES[0]: "smallest number of flips of an input that change the decision",
    EXTREMES[1]: "largest number of flips of an input that change the decision",
}


PLACES = {
    "length": ("n = ", "below what the arithmetic resolves"),
    "distance": ("distance ", "not resolved, or below 2e-16 of the largest"),
}
"""What a statistic is fitted along: what is written before a place, and of an unresolved value."""


class Growth(enum.Enum):
    """How a statistic grows with the input length; the value completes the sentence "as n grows, it ..."."""

    FASTER = "falls faster than 1/n"
    INVERSE = "falls about as 1/n"
    SLOWER = "falls more slowly than 1/n"
    FALLS = "falls, perhaps as fast as 1/n"
    FLAT = "stays about constant"
    LINEAR = "grows about as n"
    ROOT = "grows about as the square root of n"
    GROWS = "grows"
    UNCLEAR = "shows no clear trend"
    VANISHES = "becomes exactly 0"
    MOSTLY = "is exactly 0 for most seeds"
    ZERO = "is exactly 0"
    UNKNOWN = "has no exponent"


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
        note: what was left out, and why a number is NaN; empty if there is nothing to say.
        local: the slopes between successive lengths, of the seeds that have a slope over the whole range.
        drift: Student's t interval of how fast the local slopes of a seed rise with log(n); NaN with fewer than two
            seeds or two slopes.
        zero_shares: each length with the share of its values that are exactly 0.
        without: the lengths left out whole, since values at them, or between them and the fitted ones, are unresolved.
        place: what a statistic is fitted along: one of `PLACES`.
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
    note: str
    bounds: int = 0
    unresolved: int = 0
    local: tuple[LocalSlope, ...] = ()
    drift: tuple[float, float] = (math.nan, math.nan)
    zero_shares: tuple[tuple[float, float], ...] = ()
    without: tuple[float, ...] = ()
    place: str = "length"

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
        symbol, last = PLACES[self.place][0], at == [n for n, _ in self.zero_shares[-len(at) :]]
        where = f"from {symbol}{at[0]:.4g} on" if last else f"at {symbol}{_listed(at)}"
        most = any(0.5 < share < 1 for _, share in self.zero_shares)
        return f"exactly 0 {'for most seeds ' if most else ''}{where}"

    @property
    def growth(self) -> Growth:
        """What the fit supports.

        "Constant" and "about 1/n" need an exponent close to 0 or to -1, and an interval that excludes the other of the
        two; "about n" and "about the square root of n" one close to 1 or 1/2, and an interval that excludes the other
        and 0. "Faster" and "more slowly than 1/n" need an interval that excludes -1. A falling statistic whose interval
        contains -1 just falls; one whose interval contains 0 shows no clear trend. Without an interval the exponent
        alone decides. Most values of the longest inputs that are exactly 0 decide before all of these.
        """
        if self.always_zero:
            return Growth.ZERO
        if self.zero_shares and (share := self.zero_shares[-1][1]) > 0.5:
            return Growth.VANISHES if share == 1 and self.zero_shares[0][1] <= 0.5 else Growth.MOSTLY
        # Rounded as it is shown everywhere: otherwise two exponents that both read -0.90 could get different words.
        e = round(self.exponent, 2)
        if math.isnan(e):
            return Growth.UNKNOWN

        def about(law: float, other: float) -> bool:
            return abs(e - law) <= TOLERANCE + 1e-9 and not self.may_be(other)

        rules = (
            (Growth.FLAT, about(0, -1)),
            (Growth.INVERSE, about(-1, 0)),
            (Growth.UNCLEAR, self.may_be(0)),
            (Growth.FALLS, self.may_be(-1)),
            (Growth.FASTER, e < -1),
            (Growth.SLOWER, e < 0),
            (Growth.LINEAR, about(1, 0.5)),
            (Growth.ROOT, about(0.5, 1)),
        )
        return next((growth for growth, holds in rules if holds), Growth.GROWS)

    def may_be(self, exponent: float) -> bool:
        """Whether the interval contains an exponent; False without an interval."""
        return self.ci_low <= exponent <= self.ci_high

    @property
    def settled(self) -> bool:
        """Whether the local slopes bear the exponent out; True where there are fewer than two. False where `vanishing`.

        They do if all of them are within `TOLERANCE` of it. Of an exponent that is called constant, 1/n, the square
        root of n or n, they may also be further away, if they do not drift: noise then explains them. An exponent in
        between has no such law to be noise around.
        """
        return not self.vanishing and self._steady

    @property
    def _steady(self) -> bool:
        if len(self.local) < 2 or all(abs(one.slope - self.exponent) <= TOLERANCE for one in self.local):
            return True
        drifts = self.drift[0] > 0 or self.drift[1] < 0
        return self.growth in (Growth.FLAT, Growth.INVERSE, Growth.ROOT, Growth.LINEAR) and not drifts

    @property
    def unsettled(self) -> str:
        """What contradicts the exponent: zeros, and local slopes, from one extreme to the other in order; empty
        if nothing does."""
        if self.settled:
            return ""
        slopes = [one.slope for one in self.local]
        told = [self.vanishing] if self.vanishing else []
        if not self._steady:
            first, last = sorted((slopes.index(min(slopes)), slopes.index(max(slopes))))
            told.append(f"local slopes from {signed(slopes[first])} to {signed(slopes[last])}")
        return f"{'' if math.isnan(self.exponent) else 'not settled: '}{', '.join(told)}"

    @property
    def left_out(self) -> str:
        """How many values did not enter, and why: "3 zeros and 2 unresolved left out of 40 values"; empty if all did.
        "Others" are missing, at lengths where some are not resolved, or of seeds with too few."""
        counts = {"zero": self.zeros, "bound": self.bounds, "unresolved": self.unresolved}
        counts["other"] = self.values - self.points - sum(counts.values())
        plural = {name: name if name == "unresolved" else f"{name}s" for name in counts}
        told = [f"{count} {plural[name] if count > 1 else name}" for name, count in counts.items() if count]
        return f"{enumeration(told)} left out of {self.values} values" if told else ""

    @property
    def notes(self) -> str:
        """Why the exponent is not settled, and the note."""
        return "; ".join(filter(None, (self.unsettled, self.note)))

    @property
    def remarks(self) -> str:
        """The same in short, to be said beside an exponent wherever it is told; the notes where there is none."""
        if self.always_zero:
            return ""
        short = "; ".join(filter(None, (self.unsettled, self.left_out)))
        return self.notes if math.isnan(self.exponent) else short

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
        told = "; ".join(filter(None, (power, self.remarks)))
        return f"{self.variant}: {self.statistic} {self.growth.value}{f' ({told})' if told else ''}"


def fit_exponents(
    points: pandas.DataFrame, variants: Iterable[str] | None = None, minimum_length: int = 1
) -> tuple[ExponentFit, ...]:
    """Fits every statistic of every variant: all statistics of the first variant, then of the next.

    Args:
        points: a table with the columns of points.csv.
        variants: those to fit, in this order; None for all of them, in the order of the table.
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
    for variant in dict.fromkeys(points["variant"]) if variants is None else variants:
        rows = points.query("variant == @variant")
        for statistic in statistic_columns(points):
            columns = (rows["n"], rows[statistic], rows["seed"])
            sides = (one_sided(rows, statistic), unresolved(rows, statistic))
            fits.append(fit_exponent(*columns, variant, statistic, minimum_length, *sides))
    return tuple(fits)


def fit_exponent(
    lengths: ArrayLike,
    values: ArrayLike,
    seeds: ArrayLike,
    variant: str = "",
    statistic: str = "",
    minimum_length: int = 1,
    bounds: ArrayLike | None = None,
    blurred: ArrayLike | None = None,
    place: str = "length",
) -> ExponentFit:
    """Fits one statistic of one variant, given as three flat arrays with one entry per point.

    Values that are 0 or NaN are left out, and so are those where `bounds` is True, which are only bounds on the value.
    Where `blurred` is True for some values, which are not resolved, lengths outside `resolved_run` are left out. The
    note says how many. A seed with positive values at fewer than three lengths has no slope. place: of `PLACES`.
    """
    n, value, seed = np.asarray(lengths, np.float64), np.asarray(values, np.float64), np.asarray(seeds)
    enough, none = n >= minimum_length, np.zeros(n.shape, bool)
    not_resolved = enough & np.asarray(none if blurred is None else blurred, bool)
    one_sided_too = enough & np.asarray(none if bounds is None else bounds, bool) & ~not_resolved
    exact = enough & ~one_sided_too & ~not_resolved
    beside = exact & ~np.isnan(value) & ~resolved_run(n, not_resolved, exact & (value > 0))
    chosen, zero, told = exact & ~beside, exact & (value == 0), enough & ~np.isnan(value)
    shares = tuple((at, float(np.mean(zero[told & (n == at)]))) for at in np.unique(n[told]).tolist())
    without = np.unique(n[not_resolved | beside]).tolist()
    counted = {
        "values": int(np.sum(enough)),
        "zeros": int(np.sum(zero)),
        "bounds": int(np.sum(one_sided_too)),
        "unresolved": int(np.sum(not_resolved)),
    }
    sizes = [int(np.sum(enough & np.isnan(value))), *(np.unique(each[enough]).size for each in (n, seed))]
    n, value, seed = n[chosen], value[chosen], seed[chosen]
    slopes, kept = [], np.zeros(n.shape, bool)
    for one in np.unique(seed):
        of_seed = (value > 0) & (seed == one)
        if np.unique(n[of_seed]).size >= MINIMUM_LENGTHS:
            slopes.append(least_squares(np.log(n[of_seed]), np.log(value[of_seed])))
            kept |= of_seed
    low, high = t_interval(slopes)
    local, drift = _local(n[kept], value[kept], seed[kept])
    return ExponentFit(
        variant=variant,
        statistic=statistic,
        exponent=float(np.mean(slopes)) if slopes else math.nan,
        ci_low=low,
        ci_high=high,
        points=int(np.sum(kept)),
        seeds=len(slopes),
        note=_note([*counted.values(), *sizes, len(slopes)], without, place),
        local=local,
        drift=drift,
        zero_shares=shares,
        without=tuple(without),
        place=place,
        **counted,
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


def local_slopes(points: pandas.DataFrame) -> pandas.DataFrame:
    """The slopes of log(statistic) on log(n) between successive lengths: do they agree, or is an exponent an average?

    Args:
        points: a table with the columns of points.csv.

    Returns:
        A row per variant, pair of successive lengths and seed, and a column per statistic: NaN unless the seed has a
        positive value at both lengths that is no bound, in `resolved_run`. Column "n" is the geometric mean of the
        lengths, which is their middle on a logarithmic axis.
    """
    import pandas as pd

    columns = [*statistic_columns(points)]
    found = []
    for variant in dict.fromkeys(points["variant"]):
        own = points.query("variant == @variant")
        n, omitted = own["n"].to_numpy(float), []
        for name in columns:
            bound, blurred = one_sided(own, name), unresolved(own, name)
            positive = ~bound & ~blurred & (own[name].to_numpy(float) > 0)
            omitted.append(bound | blurred | ~resolved_run(n, blurred, positive))
        rows = own.set_index(["n", "seed"])[columns].astype(float).mask(np.stack(omitted, axis=1))
        logarithms = pd.DataFrame(np.log(rows.where(rows > 0)))
        for low, high in pairwise(sorted(set(logarithms.index.get_level_values("n")))):
            slopes = (logarithms.loc[high] - logarithms.loc[low]) / math.log(high / low)
            found.append(slopes.reset_index().assign(variant=variant, n=math.sqrt(low * high)))
    return pd.concat(found) if found else pd.DataFrame(columns=["variant", "n", "seed", *columns])


def _local(
    n: Float[np.ndarray, " points"], value: Float[np.ndarray, " points"], seed: np.ndarray
) -> tuple[tuple[LocalSlope, ...], tuple[float, float]]:
    """The slopes between successive lengths, of positive values; and the interval of their drift."""
    import pandas as pd

    rows = pd.DataFrame({"n": n, "seed": seed, "logarithm": np.log(value)})
    logarithms = rows.pivot_table("logarithm", "seed", "n")  # means
    lengths = np.asarray(logarithms.columns, np.float64)
    slopes = np.diff(logarithms.to_numpy(), axis=1) / np.log(lengths[1:] / lengths[:-1])
    known = ~np.isnan(slopes)
    middles = np.log(lengths[1:] * lengths[:-1]) / 2
    each = zip(slopes, known, strict=True)
    rising = [least_squares(middles[has], own[has]) for own, has in each if has.sum() >= 2]
    found = []
    for pair, own, has in zip(pairwise(lengths.tolist()), slopes.T, known.T, strict=True):
        if some := own[has].tolist():
            found.append(LocalSlope(*pair, float(np.mean(some)), *t_interval(some), len(some)))
    return tuple(found), t_interval(rising)


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


def _note(counted: Sequence[int], without: Sequence[float], place: str) -> str:
    """What a reader of the fit must know about omitted values and NaN results. counted: in the order of the first
    line; `fitted` seeds have a slope. without: the lengths left out for values that are not resolved."""
    values, zeros, bounds, blurred, missing, lengths, seeds, fitted = counted
    unresolved = f"values are {PLACES[place][1]}"
    if values and values == bounds:
        return f"all {bounds} values are the extremes of samples, which are only bounds: no exponent"
    if values and values == blurred:
        return f"all {blurred} {unresolved}: no exponent"
    if values and values == zeros:
        return f"exactly 0 at every {place}: no exponent"
    parts = []
    if blurred:
        told = f"{len(without)} of {lengths} {place}s left out, {_listed(without)}"
        parts.append(f"{blurred} of {values} {unresolved}: {told}")
    if bounds:
        parts.append(f"{bounds} of {values} values are the extremes of samples, only bounds, left out")
    if zeros:
        parts.append(f"{zeros} of {values} values exactly 0, left out")
    if missing:
        parts.append(f"{missing} of {values} values missing")
    if fitted == 0:
        parts.append(f"no seed has enough values for a slope, which takes {MINIMUM_LENGTHS} {place}s")
    elif fitted < seeds:
        parts.append(f"{seeds - fitted} of {seeds} seeds have too few positive values for a slope")
    if fitted == 1:
        parts.append("one seed only: no interval")
    return "; ".join(parts)


def _listed(places: Sequence[float]) -> str:
    """Lengths or distances in a text: all of a few, of many the first two and the last."""
    names = [f"{place:.4g}" for place in places]
    return ", ".join(names if len(names) < 6 else (*names[:2], "...", names[-1]))


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
        exponent = "" if math.isnan(fit.exponent) else signed(fit.exponent)
        told = ", ".join(filter(None, (exponent, fit.remarks)))
        return f"{fit.variant} ({told})" if told else fit.variant

    grouped = by_growth(fit for fit in fits if fit.statistic == statistic)
    parts = [f"{kind.value} for {enumeration(map(named, members))}" for kind, members in grouped.items()]
    return f"As n grows, the {statistic_name(statistic)} (exponent of n in brackets) {'; '.join(parts)}."


def enumeration(names: Iterable[str]) -> str:
    """Names as "a", "a and b" or "a, b and c"."""
    *others, last = [*names] or [""]
    return f"{', '.join(others)} and {last}" if others else last
