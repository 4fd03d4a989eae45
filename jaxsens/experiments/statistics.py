"""Statistics of a point's flips: one number for all flips of all its inputs."""

from __future__ import annotations

import re
from collections.abc import Iterable

import numpy as np
from jaxtyping import Float

_QUANTILE = re.compile(r"q(\d{1,2}(?:\.\d+)?|100)")
_NAMED = ("mean", "max", "min", "median")

KNOWN = 'mean, max, min, median, or a quantile such as "q90"'
"""The names there are, for messages."""


def is_statistic(name: str) -> bool:
    """Whether `name` is a statistic: mean, max, min, median, or qP for the P % quantile, 0 <= P <= 100."""
    return name in _NAMED or _QUANTILE.fullmatch(name) is not None


def compute(name: str, norms: Float[np.ndarray, " flips"]) -> float:
    """The statistic of these norms, in float64. Quantiles interpolate linearly between flips.

    Raises:
        ValueError: if there is no such statistic.
    """
    values = np.asarray(norms, dtype=np.float64)
    if name == "median":
        return float(np.quantile(values, 0.5))
    if name in _NAMED:
        return float(getattr(values, name)())
    match = _QUANTILE.fullmatch(name)
    if match is None:
        raise ValueError(f"statistic = {name!r}: {KNOWN}")
    return float(np.quantile(values, float(match[1]) / 100))


def compute_all(names: Iterable[str], norms: Float[np.ndarray, " flips"]) -> dict[str, float]:
    """Every named statistic of these norms."""
    return {name: compute(name, norms) for name in names}
