"""What a report is made from: a sweep directory, read once.

Numbers are in tables with the columns "variant", "n" and "seed": a row for each model, input length and seed. The
functions here that take a table take any such table.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy.typing import ArrayLike

from jaxsens.core.base.errors import InputError
from jaxsens.core.base.programs import resolved
from jaxsens.core.models.transformer.layered import readout_row
from jaxsens.core.results.result import FlipSensitivity
from jaxsens.core.sweeps.points import STATUS_COLUMN, PointMetadata, Status
from jaxsens.core.sweeps.sources import SEEDED
from jaxsens.core.sweeps.sweep import (
    ESTIMATE_COLUMNS,
    KEY_COLUMNS,
    PlannedVariant,
    SweepPlan,
    point_row,
    read_plan,
    read_points,
    read_records,
    table_rows,
)
from jaxsens.core.sweeps.tables import PointTable

if TYPE_CHECKING:
    import pandas

BINS = 32
"""The largest number of cells that a profile divides an input into."""


LARGEST_OCTAVE = 40
"""No input is as long as 2 to this power."""

DISTANCE_COLUMNS = ("variant", "n", "seed", "distance", "flips", "mean", "mean_is")
"""The columns of distances.csv. `mean_is` is "at most" where rounding may move the mean by over 1 %, else "exact"."""


class Spread(NamedTuple):
    """How a value varies over seeds: its median, minimum and maximum over `seeds` seeds. NaN if there are none."""

    median: float
    low: float
    high: float
    seeds: int


Profiles = Mapping[tuple[str, int], Float[np.ndarray, " cells"]]
"""The mean sensitivity in equal cells along the input, from first to last, by variant and length of the input.

A cell has NaN if no flip was measured in it, or if rounding may move its mean by over 1 %.
"""


class ProfileBuilder:
    """Accumulates profiles point by point, so that the flips of only one point are in memory at a time."""

    def __init__(self) -> None:
        self._totals: dict[tuple[str, int], np.ndarray] = {}

    def add(
        self, variant: str, n: int, positions: ArrayLike, norms: ArrayLike, resolution: ArrayLike = 0.0
    ) -> None:
        """Adds flips of one variant at length n: their `positions`, from 0 to n - 1, the `norms` they caused, and how
        far rounding puts these off."""
        bins = min(BINS, n)
        cell = np.asarray(positions, dtype=np.int64) * bins // n
        weights = (np.asarray(norms, dtype=np.float64), _errors(norms, resolution), None)
        total = self._totals.setdefault((variant, n), np.zeros((3, bins)))
        total += np.stack([np.bincount(cell, each, minlength=bins) for each in weights])

    def profiles(self) -> Profiles:
        """The means over all flips added so far, sorted by variant and length."""
        with np.errstate(invalid="ignore"):  # a cell without flips is 0 / 0, which is the NaN that is wanted
            return {
                key: np.where(resolved(sums, errors), sums, np.nan) / counts
                for key, (sums, errors, counts) in sorted(self._totals.items())
            }


def _errors(norms: ArrayLike, resolution: ArrayLike) -> Float[np.ndarray, " flips"]:
    """The resolutions of the flips that are not resolved; 0 for the others, which hardly move a mean."""
    bounds = np.broadcast_to(np.asarray(resolution, np.float64), np.shape(norms))
    return np.where(resolved(np.asarray(norms, np.float64), bounds), 0.0, bounds)


def half_octave(distances: Int[np.ndarray, " flips"]) -> Int[np.ndarray, " flips"]:
    """The number of each distance's cell: 0 for distance 0, then one for each half octave; they begin at ceil(2^(k/2)).
    Distance 1 has a cell of its own, and so have 2 and 3."""
    starts = np.unique(np.ceil(2.0 ** (np.arange(2 * LARGEST_OCTAVE) / 2)))
    return np.searchsorted(starts, distances, side="right")


class DistanceBuilder:
    """Accumulates means by the distance from the flipped position to the row that is read, point by point.

    Distances are taken together in half octaves (1, 2, 3, 4 and 5, 6 and 7, 8 to 11, 12 to 15, ...), each at the
    geometric mean of the distances that were flipped in it.
    """

    def __init__(self) -> None:
        self._rows: list[tuple[Any, ...]] = []

    def add(
        self,
        variant: str,
        n: int,
        seed: int,
        readout: int | str | None,
        positions: ArrayLike,
        norms: ArrayLike,
        resolution: ArrayLike = 0.0,
    ) -> None:
        """Adds a point's flips: their `positions`, the `norms` they caused, and how far rounding puts these off. A
        model that reads no single row, or does not say which, has no distances."""
        moves = isinstance(readout, str) and readout != "last"  # with the word
        row = None if readout is None or moves else readout_row(readout, n)
        if row is None:
            return
        apart = np.abs(np.asarray(positions, np.int64) - row)
        values, errors, cells = np.asarray(norms, np.float64), _errors(norms, resolution), half_octave(apart)
        for cell, flips in zip(*np.unique(cells, return_counts=True), strict=True):
            inside = cells == cell
            mean, error = np.array(values[inside].mean()), np.array(errors[inside].mean())
            distance = 0.0 if cell == 0 else np.exp(np.log(apart[inside]).mean())
            value = (float(mean), "exact") if resolved(mean, error) else (float(mean + error), "at most")
            self._rows.append((variant, n, seed, distance, flips, *value, cell))

    def table(self) -> pandas.DataFrame:
        """A row for each point and cell. A cell has one distance in all seeds, so that they can be compared."""
        import pandas as pd

        table = pd.DataFrame(self._rows, columns=[*DISTANCE_COLUMNS, "cell"])
        of_cell = table.groupby(["variant", "n", "cell"])["distance"]
        return table.assign(distance=of_cell.transform("median")).drop(columns="cell")


def evenly(values: Sequence[int], most: int) -> tuple[int, ...]:
    """At most `most` of these values: the first and the last, and others evenly between them."""
    chosen = np.linspace(0, len(values) - 1, min(most, len(values))).round().astype(int)
    return tuple(values[k] for k in chosen)


MOST_LENGTHS = 4
"""The largest number of lengths in a figure of decisions."""

DECISION_COLUMNS = ("variant", "n", "seed", "average", "per_position", "smallest", "largest")
"""The columns of `Decisions.models`."""


@dataclass(frozen=True)
class Decisions:
    """The decisions of a sweep: s(f, x) is the number of flips of an input x that change the decision of a model f.

    Attributes:
        profiles: the share of inputs with s(f, x) = 0, 1, 2, ..., the mean over seeds, by variant and length of the
            input; without the points that measured a random sample of the flips.
        models: a row for each point, in the order of the config: its average sensitivity, that divided by the number of
            positions (NaN if the point does not say it), and the smallest and the largest s(f, x) of its inputs (NaN
            for a sample of the flips).
    """

    profiles: Mapping[tuple[str, int], Float[np.ndarray, " counts"]]
    models: pandas.DataFrame

    @property
    def variants(self) -> tuple[str, ...]:
        """The variants, in the order of the config."""
        return tuple(dict.fromkeys(self.models["variant"]))

    @property
    def lengths(self) -> tuple[int, ...]:
        """The lengths that are drawn: the longest, and others evenly between it and the shortest."""
        return evenly(sorted({int(n) for n in self.models["n"]}), MOST_LENGTHS)


class DecisionBuilder:
    """Accumulates `Decisions` point by point."""

    def __init__(self) -> None:
        self._shares: dict[tuple[str, int], list[np.ndarray]] = {}
        self._models: list[dict[str, Any]] = []

    def add(self, variant: str, n: int, seed: int, flips: FlipSensitivity) -> None:
        """Adds a point's flips; nothing, if they are of another measure than "decision"."""
        if not flips.measure.indicator:
            return
        smallest, largest = math.nan, math.nan
        if flips.exhaustive:
            shares = flips.sensitivity_distribution
            self._shares.setdefault((variant, n), []).append(shares)
            smallest, largest = np.flatnonzero(shares)[[0, -1]].astype(float)
        per_position = math.nan
        with suppress(InputError):  # a sample of flips that change the length does not say it
            per_position = flips.average_sensitivity_per_position
        values = (flips.average_sensitivity, per_position, smallest, largest)
        self._models.append(dict(zip(DECISION_COLUMNS, (variant, n, seed, *values), strict=True)))

    def data(self) -> Decisions | None:
        """What was added; None without decisions."""
        import pandas as pd

        if not self._models:
            return None
        profiles = {}
        for key, shares in sorted(self._shares.items()):
            longest = max(map(len, shares))
            profiles[key] = np.mean([np.pad(one, (0, longest - len(one))) for one in shares], axis=0)
        return Decisions(profiles, pd.DataFrame(self._models, columns=[*DECISION_COLUMNS]))


@dataclass(frozen=True)
class SweepData:
    """Everything that the report of a sweep shows.

    Attributes:
        plan: what the sweep's config asks for.
        metadata: of the points that have been measured, in the order of the plan.
        profiles: sensitivity by position.
        results: of each table of the plan, by its name: the rows of a `PointTable`, the records of a `RecordTable`.
        distances: the means by distance to the row that is read: `DistanceBuilder.table`; None if not known.
        decisions: of a sweep with measure = "decision"; otherwise None.
    """

    plan: SweepPlan
    metadata: tuple[PointMetadata, ...]
    profiles: Profiles
    results: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    distances: pandas.DataFrame | None = None
    decisions: Decisions | None = None

    @cached_property
    def points(self) -> pandas.DataFrame:
        """The table of points.csv: a row for each point, and the columns of the plan."""
        import pandas as pd

        return pd.DataFrame([point_row(point) for point in self.metadata], columns=[*self.plan.columns])

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
        return frozenset(variant.name for variant in self.variants if variant.weights not in SEEDED)

    @property
    def sampled(self) -> bool:
        """Whether some point measured only a random sample of its flips."""
        return any(point.flips < point.population for point in self.metadata)

    @property
    def estimated(self) -> tuple[PointMetadata, ...]:
        """The points with estimates of flips."""
        return tuple(point for point in self.metadata if point.estimated is not None)

    @property
    def inexact(self) -> dict[str, int]:
        """The variants measured at lengths for which rounding makes them inexact, with the longest exact length."""
        # Of equal keys a dictionary keeps the last, which is the largest length here.
        longest = dict(sorted((point.variant, point.n) for point in self.metadata))
        lengths = {each.name: each.exact_length for each in self.variants if each.exact_length is not None}
        return {name: exact for name, exact in lengths.items() if longest[name] > exact}

    @property
    def missing(self) -> tuple[tuple[str, int, int], ...]:
        """The planned points that have not been measured: variant, input length and seed."""
        measured = {(point.variant, point.n, point.seed) for point in self.metadata}
        planned = ((point.variant, point.n, point.seed) for point in self.plan.points)
        return tuple(key for key in planned if key not in measured)


def load_sweep(directory: str | os.PathLike[str]) -> SweepData:
    """Reads a sweep directory: each point's file once, with the flips of one point in memory at a time.

    Raises:
        InputError: if this is not a sweep directory, no point of it is finished, or a file is damaged.
    """
    folder, plan = Path(directory), read_plan(directory)
    metadata, profiles, distances, decisions = [], ProfileBuilder(), DistanceBuilder(), DecisionBuilder()
    for point, flips in read_points(folder, plan):
        metadata.append(point)
        measured = (flips.positions, flips.norms, flips.resolution)
        if flips.n == point.n:  # a boundary symbol that does not count in n moves the positions
            profiles.add(point.variant, point.n, *measured)
            distances.add(point.variant, point.n, point.seed, flips.readout, *measured)
        decisions.add(point.variant, point.n, point.seed, flips)
    if not metadata:
        raise InputError.of(
            "directory",
            str(directory),
            f"none of its {len(plan.points)} points is finished; run the sweep first",
        )
    results = {
        name: table_rows(name, table, metadata)
        if isinstance(table, PointTable)
        else read_records(folder, plan, name)
        for name, table in plan.sweep_tables.items()
    }
    return SweepData(plan, tuple(metadata), profiles.profiles(), results, distances.table(), decisions.data())


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


class InexactLengths(NamedTuple):
    """The lengths of a variant with values of a statistic that are not exact.

    Attributes:
        lengths: all of them.
        bounds: those where it is a "lower bound" or an "upper bound", or not resolved, "at most", with which of them.
        intervals: of the mean of points estimated to first order: from the lowest to the highest end over seeds.
    """

    lengths: frozenset[float]
    bounds: dict[float, str]
    intervals: dict[float, tuple[float, float]]


def inexact(table: pandas.DataFrame, variant: str, statistic: str) -> InexactLengths:
    """The lengths at which a statistic of one variant is not exact; intervals only for the statistic "mean"."""
    column = STATUS_COLUMN.format(statistic)
    if column not in table.columns:
        return InexactLengths(frozenset(), {}, {})
    rows = table.query("variant == @variant")
    status = {float(n): str(kind) for n, kind in zip(rows["n"], rows[column], strict=True) if kind != "exact"}
    bounds = {n: kind for n, kind in status.items() if kind != "estimated"}
    if statistic != "mean" or "mean_low" not in table.columns:
        return InexactLengths(frozenset(status), bounds, {})
    ends = rows.query("mean_low.notna()").groupby("n").agg({"mean_low": "min", "mean_high": "max"})
    intervals = {float(n): (float(low), float(high)) for n, low, high in ends.itertuples()}
    return InexactLengths(frozenset(status), bounds, intervals)


def spreads(table: pandas.DataFrame, variant: str, column: str) -> dict[Any, Spread]:
    """The spread over seeds of one column for one variant, by the value of column "n", smallest first.

    The median of an even number of values is the mean of the middle two.
    """
    values = table.query("variant == @variant").astype({column: float}).groupby("n")[column]
    table_of_spreads = values.agg(["median", "min", "max", "count"])
    return {n: Spread(*row) for n, *row in table_of_spreads.itertuples()}  # pyright: ignore[reportArgumentType]
