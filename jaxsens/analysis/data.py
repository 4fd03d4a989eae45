"""What a report is made from: a sweep directory, read once.

Numbers are in tables with the columns "variant", "n" and "seed": a row for each model, input length and seed. The
functions here that take a table take any such table.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from jaxsens.errors import InputError
from jaxsens.experiments.bounds import BoundRecord
from jaxsens.experiments.points import PointMetadata
from jaxsens.experiments.results import (
    KEY_COLUMNS,
    PlannedVariant,
    SweepPlan,
    read_bounds,
    read_flips,
    read_plan,
)

if TYPE_CHECKING:
    import pandas

PointKey = tuple[str, int, int]
"""Variant, input length and seed: identifies a point of a sweep."""

BINS = 32
"""The largest number of cells that a profile divides an input into."""


class Spread(NamedTuple):
    """How a value varies over seeds: its median, minimum and maximum over `seeds` seeds. NaN if there are none."""

    median: float
    low: float
    high: float
    seeds: int

    def map(self, function: Callable[[float], float]) -> Spread:
        """The spread of an increasing function of the value."""
        return Spread(function(self.median), function(self.low), function(self.high), self.seeds)


@dataclass(frozen=True)
class Profile:
    """The mean sensitivity in equal cells along the input, from first to last; NaN where no flip was measured."""

    variant: str
    n: int
    means: Float[np.ndarray, " cells"]


class ProfileBuilder:
    """Accumulates profiles point by point, so that the flips of only one point are in memory at a time."""

    def __init__(self) -> None:
        self._totals: dict[tuple[str, int], np.ndarray] = {}

    def add(self, variant: str, n: int, positions: ArrayLike, norms: ArrayLike) -> None:
        """Adds flips of one variant at length n: their `positions`, from 0 to n - 1, and the `norms` they caused."""
        bins = min(BINS, n)
        cell = np.asarray(positions, dtype=np.int64) * bins // n
        sums = np.bincount(cell, weights=np.asarray(norms, dtype=np.float64), minlength=bins)
        total = self._totals.setdefault((variant, n), np.zeros((2, bins)))
        total += np.stack([sums, np.bincount(cell, minlength=bins)])

    def profiles(self) -> tuple[Profile, ...]:
        """The means over all flips added so far, sorted by variant and length."""
        with np.errstate(invalid="ignore"):  # a cell without flips is 0 / 0, which is the NaN that is wanted
            return tuple(
                Profile(variant, n, sums / counts)
                for (variant, n), (sums, counts) in sorted(self._totals.items())
            )


@dataclass(frozen=True)
class SweepData:
    """Everything that the report of a sweep shows.

    Attributes:
        plan: what the sweep's config asks for.
        metadata: of the points that have been measured, in the order of the plan.
        profiles: sensitivity by position.
        bounds: over all inputs, in the order of the plan; empty if the config asks for none.
    """

    plan: SweepPlan
    metadata: tuple[PointMetadata, ...]
    profiles: tuple[Profile, ...]
    bounds: tuple[BoundRecord, ...] = ()

    @cached_property
    def points(self) -> pandas.DataFrame:
        """The table of points.csv: a row for each point, the columns `KEY_COLUMNS` and the statistics."""
        import pandas as pd

        statistics = self.plan.statistics
        rows = [
            [*(getattr(point, key) for key in KEY_COLUMNS), *(point.statistics[name] for name in statistics)]
            for point in self.metadata
        ]
        return pd.DataFrame(rows, columns=[*KEY_COLUMNS, *statistics])

    @cached_property
    def variants(self) -> tuple[PlannedVariant, ...]:
        """The variants with at least one measured point, in the order of the config."""
        measured = {point.variant for point in self.metadata}
        return tuple(variant for variant in self.plan.variants if variant.name in measured)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of these variants."""
        return tuple(variant.name for variant in self.variants)

    @property
    def unseeded(self) -> frozenset[str]:
        """The names of the variants whose weights do not depend on the seed."""
        return frozenset(variant.name for variant in self.variants if weights(variant) != "random")

    @property
    def sampled(self) -> bool:
        """Whether some point measured only a random sample of its flips."""
        return any(point.flips < point.population for point in self.metadata)

    @property
    def inexact(self) -> dict[str, int]:
        """The variants measured at lengths for which rounding makes them inexact, with the longest exact length."""
        longest = {
            name: max(point.n for point in self.metadata if point.variant == name) for name in self.names
        }
        return {
            variant.name: variant.exact_length
            for variant in self.variants
            if variant.exact_length is not None and longest[variant.name] > variant.exact_length
        }

    @property
    def missing(self) -> tuple[PointKey, ...]:
        """The planned points that have not been measured."""
        measured = {(point.variant, point.n, point.seed) for point in self.metadata}
        planned = ((point.variant, point.n, point.seed) for point in self.plan.points)
        return tuple(key for key in planned if key not in measured)


def load_sweep(directory: str | os.PathLike[str]) -> SweepData:
    """Reads a sweep directory: each point's file once, with the flips of one point in memory at a time.

    Raises:
        InputError: if this is not a sweep directory, no point of it is finished, or a file is damaged.
    """
    plan = read_plan(directory)
    metadata, profiles = [], ProfileBuilder()
    for point, flips in read_flips(directory):
        metadata.append(point)
        profiles.add(point.variant, point.n, flips["position"], flips["norm"])
    if not metadata:
        raise InputError(
            f"directory = {str(directory)!r}: none of its {len(plan.points)} points is finished; run the sweep first"
        )
    return SweepData(plan, tuple(metadata), profiles.profiles(), tuple(read_bounds(Path(directory), plan)))


def weights(variant: PlannedVariant) -> str:
    """Where a variant's weights come from: "random", "constructed" or "trained"."""
    if variant.constructed:
        return "constructed"
    return "trained" if variant.trained else "random"


def check_points(points: pandas.DataFrame) -> None:
    """Raises `InputError` unless `points` has the key columns, a statistic, a row, and only values a norm can take."""
    absent = [column for column in KEY_COLUMNS if column not in points.columns]
    if absent:
        raise InputError(
            f"points: columns {absent} are missing from {list(points.columns)}: "
            "give a table with the columns of points.csv"
        )
    names = statistic_columns(points)
    if not names:
        raise InputError(
            f"points: there is no column besides {list(KEY_COLUMNS)}: "
            "give one column per statistic, such as mean or max"
        )
    if len(points) == 0:
        raise InputError("points: there are no rows: finish at least one point of the sweep first")
    values = points[list(names)].to_numpy(dtype=np.float64)
    if np.any(values < 0) or np.any(np.isinf(values)):
        raise InputError(
            "points: a statistic is negative or infinite, which no norm can be: measure that point again"
        )


def statistic_columns(points: pandas.DataFrame) -> tuple[str, ...]:
    """The names of the statistics in `points`, in the order of its columns."""
    return tuple(column for column in points.columns if column not in KEY_COLUMNS)


def chosen(asked: Sequence[str] | None, present: Iterable[str], argument: str) -> tuple[str, ...]:
    """`asked`, or all of `present` if it is None. Raises `InputError` for a name that is not present."""
    names = tuple(dict.fromkeys(present))
    unknown = [name for name in asked or () if name not in names]
    if unknown:
        raise InputError(f"{argument} = {list(asked or ())}: {unknown} not among {list(names)}")
    return names if asked is None else tuple(asked)


def spread(values: Iterable[float]) -> Spread:
    """The spread of the values that are not NaN. The median of an even number is the mean of the middle two."""
    kept = np.array([value for value in values if not np.isnan(value)], dtype=np.float64)
    if kept.size == 0:
        return Spread(np.nan, np.nan, np.nan, 0)
    return Spread(float(np.median(kept)), float(kept.min()), float(kept.max()), kept.size)


def spreads(table: pandas.DataFrame, variant: str, column: str) -> dict[Any, Spread]:
    """The spread over seeds of one column for one variant, by the value of column "n", smallest first."""
    rows = table.query("variant == @variant")
    n, values = np.asarray(rows["n"]), np.asarray(rows[column], dtype=np.float64)
    return {length.item(): spread(values[n == length]) for length in np.unique(n)}
