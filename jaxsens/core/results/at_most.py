"""What a statistic of a result is at most, where the rounding of flips that are not resolved may decide it.

There is one rule for every statistic S that grows with the norms, such as a mean, a maximum or a quantile. With u the
norms and r the resolutions of the flips that are not resolved (0 for all others), S lies between S(u - r) and S(u + r).
It is resolved if neither end is further from S(u) than `jaxsens.core.base.programs.RESOLVED` of it. Otherwise it is
said to be at most S(u + r), and S(u) is not shown: it may be rounding alone.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import TypeVar

import numpy as np

from jaxsens.core.base.programs import RESOLVED, SMALLEST
from jaxsens.core.results.measured import MeasuredFlips

Result = TypeVar("Result", bound=MeasuredFlips)


def ceiling(result: Result, statistic: Callable[[Result], float]) -> float | None:
    """Returns what a statistic of a result is at most; None if it is resolved. It is computed three times at most."""
    if result.resolved.all():
        return None
    value, highest = statistic(result), statistic(_moved(result, 1))
    if math.isnan(value) or highest <= SMALLEST:
        return None
    allowed = RESOLVED * abs(value)
    if highest - value <= allowed and value - statistic(_moved(result, -1)) <= allowed:
        return None
    return highest


def _moved(result: Result, sign: int) -> Result:
    """Returns the result with the norms of unresolved flips moved by their resolutions, up or down."""
    by = np.where(result.resolved, 0.0, sign * result.resolution.astype(np.float64))
    norms = np.clip(result.norms.astype(np.float64) + by, 0, result.measure.largest)
    return dataclasses.replace(result, values=norms, resolution=np.zeros(len(norms)))


def told(value: float, most: float | None, digits: int = 4) -> str:
    """Returns a statistic in words: its value, or "at most" and what it is at most."""
    return f"{value:.{digits}g}" if most is None else f"at most {most:.{digits}g}"
