"""Which values to mark on a logarithmic axis, and how to write them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from matplotlib.ticker import MaxNLocator


def log_marks(low: float, high: float) -> list[float]:
    """Values to mark from `low` to `high`: powers of ten; 2 and 5 times these as well, or even steps, if few fit."""
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    step = max(1, math.ceil(len(exponents) / 10))
    for factors in ((1,), (1, 2, 5)):
        marks = [float(f"{factor}e{k}") for k in exponents if k % step == 0 for factor in factors]
        inside = [mark for mark in marks if low <= mark <= high]
        if len(inside) >= 3:
            return inside
    even = MaxNLocator(4, steps=[1, 2, 5, 10]).tick_values(low, high)
    return [float(f"{mark:.12g}") for mark in even if low <= mark <= high]


def minor_log_marks(low: float, high: float) -> list[float]:
    """The multiples of powers of ten between `low` and `high`, or none where they would run together."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    if len(decades) > 8:
        return []
    return [factor * 10.0**k for k in decades for factor in range(2, 10) if low <= factor * 10.0**k <= high]


def power_label(value: float) -> str:
    """A positive number for an axis: plain from 0.001 to 9999, else with a power of ten."""
    if 1e-3 <= value < 1e4:
        return f"{value:g}"
    exponent = math.floor(math.log10(value) + 1e-9)
    factor = value / 10.0**exponent
    if abs(factor - 1) < 1e-6:
        return f"$10^{{{exponent}}}$"
    return f"${factor:g}\\times10^{{{exponent}}}$"


def thinned(lengths: Sequence[int], at_most: int = 8) -> list[int]:
    """Lengths to mark: all of them if few, else the first and those at least an even share further on."""
    ordered = sorted(set(lengths))
    if len(ordered) < 2:
        return ordered
    share = math.log(ordered[-1] / ordered[0]) / at_most
    kept = [ordered[0]]
    for n in ordered[1:]:
        if math.log(n / kept[-1]) >= 0.999 * share:
            kept.append(n)
    return kept
