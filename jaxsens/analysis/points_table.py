"""The table of points, one row a (variant, n, seed): which columns it has, and spreads over seeds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from jaxsens.errors import InputError

if TYPE_CHECKING:
    import pandas

KEY_COLUMNS = ("variant", "n", "seed", "inputs", "flips")
"""The columns of `points.csv` that say what was measured; every other column is a statistic."""


def check_points(points: pandas.DataFrame) -> None:
    """Raises `InputError` unless `points` has the key columns, a statistic, a row, and no value below 0 or infinite."""
    absent = [column for column in KEY_COLUMNS if column not in points.columns]
    if absent:
        raise InputError(
            f"points: columns {absent} are missing from {list(points.columns)}: "
            "give a table with the columns of points.csv"
        )
    names = statistic_columns(points)
    if not names:
        raise InputError(
            f"points: no column beside {list(KEY_COLUMNS)}: give one column a statistic, such as mean or max"
        )
    if len(points) == 0:
        raise InputError("points: no row: finish at least one point of the sweep first")
    values = points[list(names)].to_numpy(dtype=np.float64)
    if np.any(values < 0) or np.any(np.isinf(values)):
        raise InputError(
            "points: a statistic is negative or infinite, which no norm can be: measure that point again"
        )


def statistic_columns(points: pandas.DataFrame) -> tuple[str, ...]:
    """The names of the statistics in `points`, in the order of its columns."""
    return tuple(column for column in points.columns if column not in KEY_COLUMNS)


def rows_of(points: pandas.DataFrame, variant: str) -> pandas.DataFrame:
    """The points of one variant."""
    return points.loc[column(points, "variant") == variant, :]


def column(points: pandas.DataFrame, name: str) -> np.ndarray:
    """One column as an array."""
    return np.asarray(points[name])


def lengths_of(points: pandas.DataFrame) -> list[int]:
    """The input lengths there are, rising."""
    return [int(n) for n in np.unique(column(points, "n"))]


def chosen(asked: Sequence[str] | None, present: Iterable[str], argument: str) -> tuple[str, ...]:
    """`asked`, or all of `present` where it is None. Raises `InputError` for a name that is not present."""
    names = tuple(dict.fromkeys(present))
    if asked is None:
        return names
    unknown = [name for name in asked if name not in names]
    if unknown:
        raise InputError(f"{argument} = {list(asked)}: {unknown} not among {list(names)}")
    return tuple(asked)


@dataclass(frozen=True)
class Spread:
    """How a value spreads over seeds: median, smallest, largest, and how many seeds there are. NaN without any."""

    median: float
    low: float
    high: float
    seeds: int


def spread(values: Iterable[float]) -> Spread:
    """The spread of the values that are not NaN. The median of an even number is the mean of the middle two."""
    kept = np.array([value for value in values if not np.isnan(value)], dtype=np.float64)
    if kept.size == 0:
        return Spread(float("nan"), float("nan"), float("nan"), 0)
    return Spread(float(np.median(kept)), float(kept.min()), float(kept.max()), kept.size)


def spreads(points: pandas.DataFrame, variant: str, statistic: str) -> dict[int, Spread]:
    """The spread over seeds of one statistic of one variant, by input length, in rising order of length."""
    rows = rows_of(points, variant)
    n, values = column(rows, "n"), column(rows, statistic)
    return {length: spread(values[n == length]) for length in lengths_of(rows)}
