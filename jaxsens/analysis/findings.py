"""What a fit says in words: how a statistic grows with n, and the sentences made from that."""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable, Sequence

from jaxsens.analysis.fits import ExponentFit

TOLERANCE = 0.1
"""An exponent this close to 0 or -1 is called flat, or about 1/n."""

STATISTIC_NAMES = {
    "mean": "mean change over all flips",
    "max": "largest change over all flips",
    "min": "smallest change over all flips",
    "median": "median change over all flips",
}


class Growth(enum.Enum):
    """How a statistic grows with the input length; the value finishes the sentence "as n grows, it ..."."""

    FASTER = "falls faster than 1/n"
    INVERSE = "falls about as 1/n"
    SLOWER = "falls slower than 1/n"
    FALLS = "falls, perhaps as fast as 1/n"
    FLAT = "stays about constant"
    GROWS = "grows"
    UNCLEAR = "shows no clear trend"
    ZERO = "is exactly 0"
    UNKNOWN = "has no exponent"


def growth(fit: ExponentFit) -> Growth:
    """What the fit supports.

    Constant, and about 1/n, need an exponent close to 0 or -1 and an interval without the other of the two. Slower and
    faster than 1/n need an interval without -1; a fall whose interval holds -1 just falls, and one that holds 0 is
    unclear. Without an interval the exponent alone decides.
    """
    # Two decimals, as shown everywhere: else -0.90 would be one thing in one row and another in the next.
    e = round(fit.exponent, 2)
    if math.isnan(e):
        return Growth.ZERO if fit.always_zero else Growth.UNKNOWN
    may_be_constant, may_be_inverse = (fit.ci_low <= value <= fit.ci_high for value in (0, -1))
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


def statistic_name(statistic: str) -> str:
    """A statistic in words: "mean" is "mean over all flips", "q90" is "90 % quantile of the change over all flips"."""
    if statistic in STATISTIC_NAMES:
        return STATISTIC_NAMES[statistic]
    if statistic.startswith("q") and statistic[1:].replace(".", "", 1).isdigit():
        return f"{statistic[1:]} % quantile of the change over all flips"
    return statistic


def signed(value: float, digits: int = 2) -> str:
    """A number with a fixed count of decimals and a true minus sign; never "-0.00"."""
    rounded = round(value, digits) + 0.0
    return f"{rounded:.{digits}f}".replace("-", "\N{MINUS SIGN}")


def interval(fit: ExponentFit, digits: int = 2) -> str:
    """The interval as "[-1.01, -0.95]", or empty where there is none."""
    if math.isnan(fit.ci_low):
        return ""
    return f"[{signed(fit.ci_low, digits)}, {signed(fit.ci_high, digits)}]"


def sentence(fit: ExponentFit) -> str:
    """One fit in words, such as "softmax: mean falls about as 1/n (exponent -0.98 [-1.01, -0.95])"."""
    what = f"{fit.variant}: {fit.statistic} {growth(fit).value}"
    if math.isnan(fit.exponent):
        return what if growth(fit) is Growth.ZERO else f"{what} ({fit.note})"
    return f"{what} (exponent {signed(fit.exponent)} {interval(fit)}".rstrip() + ")"


def by_growth(fits: Iterable[ExponentFit]) -> dict[Growth, tuple[str, ...]]:
    """The variants that share a way of growing, for the fits of one statistic, in the order of `Growth`."""
    fits = list(fits)
    grouped = {kind: tuple(fit.variant for fit in fits if growth(fit) is kind) for kind in Growth}
    return {kind: names for kind, names in grouped.items() if names}


def summary_sentence(fits: Sequence[ExponentFit], statistic: str) -> str:
    """All variants' growth of one statistic in one sentence, those that behave alike together, with exponents."""
    of_statistic = {fit.variant: fit for fit in fits if fit.statistic == statistic}

    def named(variant: str) -> str:
        fit = of_statistic[variant]
        if math.isnan(fit.exponent):
            return variant
        return f"{variant} ({signed(fit.exponent)}{', zeros left out' if fit.zeros else ''})"

    grouped = by_growth(of_statistic.values())
    parts = [
        f"{kind.value} for {enumeration([named(name) for name in names])}" for kind, names in grouped.items()
    ]
    return f"As n grows, the {statistic_name(statistic)} (exponent of n in brackets) {'; '.join(parts)}."


def enumeration(names: Sequence[str]) -> str:
    """Names as "a", "a and b" or "a, b and c"."""
    if len(names) < 2:
        return "".join(names)
    return f"{', '.join(names[:-1])} and {names[-1]}"
