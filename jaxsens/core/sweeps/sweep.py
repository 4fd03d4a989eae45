"""A sweep, checked and complete: its variants, points and plan, what its directory holds, and the jobs that fill it.

DIR/sweep.toml      the config as it was given
DIR/sweep.json      the plan: the config with everything written out, and every point with its key and file
DIR/points/         one Parquet file a point
DIR/points.csv      a row a point
DIR/NAME/, DIR/NAME.csv     what the config's table [NAME] asks for (`jaxsens.core.sweeps.tables`)
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from rich.console import Console

from jaxsens.core.base.errors import InputError, collecting
from jaxsens.core.base.files import there_are, write_text
from jaxsens.core.base.registry import entries
from jaxsens.core.base.sealed import DamagedFile
from jaxsens.core.base.text import print_text
from jaxsens.core.placement.placement import Placement, ProcessGroup, cores
from jaxsens.core.results.result import FlipSensitivity
from jaxsens.core.sweeps.inputs import Inputs
from jaxsens.core.sweeps.job import Job, Outcome, Record, read_finished, run, write_table
from jaxsens.core.sweeps.points import (
    STATUS_COLUMN,
    Measurement,
    Point,
    PointMetadata,
    read_point,
    write_point,
)
from jaxsens.core.sweeps.progress import Reporter
from jaxsens.core.sweeps.sources import EVERY, ModelSource, Weights, coordinates
from jaxsens.core.sweeps.tables import PointTable, RecordTable, SweepTable, TablePoint, read_sweep_table

PLAN = "sweep.json"
_AGAIN = "run the sweep again: what is measured is kept"
REPORT_FILES = ("report.html", "summary.csv", "local_slopes.csv", "distances.csv", "distance_exponents.csv")

KEY_COLUMNS = ("variant", "n", "seed", "inputs", "flips", "unresolved")
"""The columns of points.csv before the statistics. `unresolved` is the number of flips that the arithmetic does not
resolve."""

ESTIMATE_COLUMNS = (
    *("measured", "mean_low", "mean_high"),
    *("median_error", "largest_error", "rank_correlation", "exceeding"),
)
"""The columns of points.csv after the statistics, if the config has estimates. Empty for points without."""


@dataclass(frozen=True)
class PlannedPoint:
    """A point of a sweep and where its numbers are or will be; `file` is relative to the sweep directory."""

    variant: str
    n: int
    seed: int
    key: str
    file: str


@dataclass(frozen=True)
class PlannedVariant:
    """A variant of a sweep.

    Attributes:
        name: unique within the sweep.
        description: one line on what it is.
        bounded: whether its position embeddings stay bounded; True where it has none, None where that is not known.
        model: with every default written out.
        weights: where its weights come from; "random" ones and "own" models depend on the seed.
        outputs: in words, which coordinates of its output are measured; empty if not known.
        exact_length: the longest input for which a construction is exact; None where there is none.
        temperature: of attention, as `ModelSource.temperature`.
    """

    name: str
    description: str
    bounded: bool | None
    model: dict[str, Any]
    weights: Weights
    outputs: str = ""
    exact_length: int | None = None
    temperature: str = ""


@dataclass(frozen=True)
class SweepPlan(Record):
    """What sweep.json says: everything about a sweep except its numbers. Points come in the order of the config.

    `config` is the config as it was given. `inputs` says what the inputs are, by length. By name, `tables` has the
    config's tables of packages with all defaults, and `records` where the records of those that have some are. Lengths
    below `fit_from` enter no fitted exponent.
    """

    kind: ClassVar[str] = "plan of a sweep"
    config: str
    title: str
    claim: str
    lengths: tuple[int, ...]
    seeds: tuple[int, ...]
    statistics: tuple[str, ...]
    measure: dict[str, Any]
    inputs: dict[str, dict[str, Any]]
    variants: tuple[PlannedVariant, ...]
    points: tuple[PlannedPoint, ...]
    tables: dict[str, dict[str, Any]] = field(default_factory=dict)
    records: dict[str, tuple[PlannedPoint, ...]] = field(default_factory=dict)
    fit_from: int = 1

    @cached_property
    def measurement(self) -> Measurement:
        """The `[measure]` table."""
        return Measurement.of_table(self.measure)

    @cached_property
    def sweep_tables(self) -> dict[str, SweepTable]:
        """The tables of `tables`."""
        with collecting("tables") as problems:
            read = {name: read_sweep_table(name, one, problems) for name, one in self.tables.items()}
        return {name: table for name, table in read.items() if table is not None}

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of points.csv."""
        estimates = self.measurement.estimates
        return (
            *KEY_COLUMNS,
            *self.statistics,
            *(STATUS_COLUMN.format(name) for name in self.statistics),
            *(ESTIMATE_COLUMNS if estimates else ()),
        )


@dataclass(frozen=True)
class SweepVariant:
    """A variant with the model it leads to."""

    name: str
    description: str
    source: ModelSource


@dataclass(frozen=True)
class Sweep:
    """A sweep, checked and with every default written out.

    `sampled` names the variants of which flips are sampled beyond `measure.exact_up_to`; the others are estimated.
    Lengths below `fit_from` enter no fitted exponent.
    """

    title: str
    claim: str
    lengths: tuple[int, ...]
    seeds: tuple[int, ...]
    variants: tuple[SweepVariant, ...]
    statistics: tuple[str, ...]
    inputs: Inputs
    measure: Measurement
    text: str
    sampled: frozenset[str] = frozenset()
    tables: Mapping[str, SweepTable] = field(default_factory=dict)
    placement: Placement = field(default_factory=Placement)
    fit_from: int = 1

    @cached_property
    def points(self) -> tuple[Point, ...]:
        """Every point: variant by variant, by rising n, by seed as listed."""
        return tuple(
            Point(variant.name, n, seed, variant.source, self.inputs, measure, len(self.seeds))
            for variant in self.variants
            for measure in [self.measure.of_variant(variant.name in self.sampled)]
            for n in self.lengths
            for seed in self.seeds
        )

    @cached_property
    def table_points(self) -> dict[str, dict[Point, TablePoint]]:
        """What each `RecordTable` asks for, by its name and by point."""
        return {
            name: {point: TablePoint(name, table, point) for point in self.points}
            for name, table in self.tables.items()
            if isinstance(table, RecordTable)
        }

    def stored(self, directory: Path) -> dict[str, tuple[int, int]]:
        """How many points, and records of each table, have a file in a directory, of how many."""
        items: dict[str, Collection[Any]] = {"points": self.points}
        items |= {name: each.values() for name, each in self.table_points.items()}
        return {
            name: (len(there_are(item.path(directory) for item in each)), len(each))
            for name, each in items.items()
        }

    @cached_property
    def plan(self) -> SweepPlan:
        """What a sweep directory says of the sweep."""
        every = {variant.source.symbols for variant in self.variants}
        # What all variants read: without the end-of-sequence symbol where not all have it.
        read = every.pop() if len(every) == 1 else every.pop().without_end()
        own = self.measure.measure.outputs
        outputs = own if own is None else EVERY if isinstance(own, str) else coordinates(own)
        return SweepPlan(
            config=self.text,
            **row_of(self, ("title", "claim", "lengths", "seeds", "statistics", "fit_from")),
            measure=self.measure.table(),
            inputs={str(n): self.inputs.expanded(read, n, self.seeds[0]) for n in self.lengths},
            variants=tuple(
                PlannedVariant(
                    **row_of(one, ("name", "description")),
                    **row_of(one.source, ("bounded", "weights", "exact_length", "temperature")),
                    model=one.source.expanded,
                    outputs=one.source.designated if outputs is None else outputs,
                )
                for one in self.variants
            ),
            points=tuple(_planned(point, point) for point in self.points),
            tables={name: asdict(table) for name, table in self.tables.items()},  # pyright: ignore[reportArgumentType]
            records={
                name: tuple(_planned(point, item) for point, item in items.items())
                for name, items in self.table_points.items()
            },
        )


def _planned(point: Point, item: Point | TablePoint) -> PlannedPoint:
    return PlannedPoint(point.variant, point.n, point.seed, item.key, item.path(Path()).as_posix())


# The directory


def read_plan(directory: str | os.PathLike[str]) -> SweepPlan:
    """Reads the plan of a sweep directory.

    Raises:
        InputError: if it is no sweep directory, or the plan is damaged.
    """
    try:
        plan = SweepPlan.read(Path(directory) / PLAN)
    except OSError as error:
        raise InputError.of("directory", str(directory), f"no sweep was run here ({error})") from error
    except DamagedFile as error:
        raise InputError(f"{error}; {_AGAIN}") from error
    try:
        plan.measurement  # noqa: B018 - reads the table
    except InputError as error:
        raise InputError(
            f"{Path(directory) / PLAN}: of another version of jaxsens ({error}); {_AGAIN}"
        ) from error
    return plan


def read_points(directory: Path, plan: SweepPlan) -> Iterator[tuple[PointMetadata, FlipSensitivity]]:
    """Yields every finished point, in the plan's order. Raises InputError if a file is damaged."""
    return read_finished(
        plan.points, lambda point: read_point(directory / point.file, point.key, plan.statistics), _AGAIN
    )


def write_points_csv(directory: Path, points: Iterable[PointMetadata], plan: SweepPlan) -> None:
    """Writes points.csv: a row a point, in the order given."""
    write_table(directory / "points.csv", plan.columns, [point_row(point) for point in points])


def table_rows(name: str, table: PointTable, points: Iterable[PointMetadata]) -> list[Mapping[str, Any]]:
    """The rows of the table of this name that points make, in their order."""
    stored = ((point, point.tables.get(name)) for point in points)
    return [row for point, values in stored if values is not None for row in table.table_rows(point, values)]


def read_records(directory: Path, plan: SweepPlan, name: str) -> list[Any]:
    """The records of a `RecordTable` that are done, in the plan's order. Raises InputError if a file is damaged."""
    table: Any = plan.sweep_tables[name]

    def read(place: PlannedPoint) -> Any:
        return table.record.read(directory / place.file, place.key)

    return [*read_finished(plan.records[name], read, _AGAIN)]


def write_results_csv(directory: Path, results: Iterable[Any], name: str, table: SweepTable) -> None:
    """Writes the table of this name: the rows of a `PointTable`, or a row for each record, in the order given."""
    rows = results if isinstance(table, PointTable) else [row_of(one, table.columns) for one in results]
    write_table(directory / f"{name}.csv", table.columns, rows)


def point_row(point: PointMetadata) -> dict[str, Any]:
    """The row of points.csv that a point makes, with more than a plan's columns. A statistic that is not resolved has
    what it is at most."""
    status = {STATUS_COLUMN.format(name): point.status(name) for name in point.statistics}
    return row_of(point, KEY_COLUMNS) | point.statistics | point.at_most | status | (point.estimated or {})


def row_of(record: object, columns: Iterable[str]) -> dict[str, Any]:
    """The row of a table that a record's attributes make."""
    return {name: getattr(record, name) for name in columns}


def check_grows(plan: SweepPlan, directory: Path) -> None:
    """Refuses a directory with finished points that are not in the plan, which came from another config.

    A config may add lengths, seeds, variants and statistics: points are found by their keys.

    Raises:
        InputError: saying in what the configs differ.
    """
    try:
        before = read_plan(directory)
    except InputError:  # Without a readable plan nothing says which config the points are of.
        return
    files = {point.file for point in plan.points}
    lost = [point for point in before.points if point.file not in files and (directory / point.file).exists()]
    if not lost:
        return
    own = sorted(
        {point.variant for point in lost} & {one.name for one in plan.variants if one.weights == "own"}
    )
    other = f"the models of {', '.join(own)}, or what JAX makes of them (its version), or " if own else ""
    differences = "; ".join(_differences(before, plan)) or f"{other}what its inputs are"
    raise InputError.of(
        "directory",
        str(directory),
        f"it holds {len(lost)} points that this config does not have, so its report "
        f"would mix two configs. There and here differ: {differences}. Name another directory, or keep in the config "
        "what this one holds: lengths, seeds, variants and statistics may be added, and --only takes a part",
    )


def write_config(path: Path, text: str) -> bool:
    """Writes a config next to its results. Removes the report of another config first; returns whether there was one.

    A report can be drawn again from the results at any time.
    """
    try:
        same = path.read_text(encoding="utf-8") == text
    except (OSError, UnicodeDecodeError):
        same = False
    stale = [] if same else [path.with_name(name) for name in REPORT_FILES if path.with_name(name).exists()]
    for file in stale:
        file.unlink(missing_ok=True)
    write_text(path, text)
    return bool(stale)


def _differences(before: SweepPlan, now: SweepPlan) -> list[str]:
    """The differences between two plans that decide which points there are, each in a few words."""
    differences = []
    for name in ("lengths", "seeds"):
        missing = sorted(set(getattr(before, name)) - set(getattr(now, name)))
        if missing:
            differences.append(f"{name}: {', '.join(map(str, missing))} there only")
    models = {variant.name: variant.model for variant in now.variants}
    differences += [
        f'variant "{each.name}" there only' for each in before.variants if each.name not in models
    ]
    common = [each for each in before.variants if each.name in models]
    # A change of [model] shows in every variant, and is listed once.
    changes = [change for each in common for change in _changed("model", each.model, models[each.name])]
    return list(dict.fromkeys([*differences, *changes, *_changed("measure", before.measure, now.measure)]))


def _changed(table: str, before: dict[str, object], now: dict[str, object]) -> list[str]:
    keys = [key for key in {**before, **now} if before.get(key) != now.get(key)]
    return [f"{table}.{key}: {before.get(key)!r} there, {now.get(key)!r} here" for key in keys]


# The jobs


_SHORT = 2**20
"""The symbols of a point's inputs, times their length, up to which it takes little memory, and compiling most time."""


class PointsJob(Job[Point, PointMetadata]):
    """Measures the points of a sweep in a directory.

    Args:
        sweep: the sweep.
        directory: its directory.
        plans: whether this process writes what the directory is for, and points.csv.
        sharing: the processes that measure every point together, if they do; the first of them writes it.
    """

    def __init__(
        self, sweep: Sweep, directory: Path, plans: bool = True, sharing: ProcessGroup | None = None
    ) -> None:
        super().__init__(sweep.points, directory)
        self.folders = ("points", *entries("sweep_tables"))  # also of a config before this one
        self._tables = {name: one for name, one in sweep.tables.items() if isinstance(one, PointTable)}
        self.sweep, self.plans, self.sharing = sweep, plans, sharing
        self.shared = sharing is not None

    def check(self) -> None:
        """Raises `Stopped` after a signal: in all processes that share the points, at the same point."""
        if self.sharing is None:
            super().check()
        else:
            self.sharing.check()

    def prepare(self, console: Console) -> None:
        if not self.plans:
            return
        if write_config(self.directory / "sweep.toml", self.sweep.text):
            changed = (
                "the config has changed: the report of the one before is removed, and drawn again at the end"
            )
            print_text(console, changed)
        self.sweep.plan.write(self.directory / PLAN)

    def path(self, item: Point) -> Path:
        return item.path(self.directory)

    def read(self, item: Point) -> PointMetadata:
        """Reads a point's record, with the sweep's statistics. One without what a table asks for is measured again."""
        metadata = read_point(self.path(item), item.key, self.sweep.statistics)[0]
        for name, table in self._tables.items():
            if table.applies(item.source) and metadata.tables.get(name) is None:
                raise FileNotFoundError(f"{self.path(item)}: without [{name}]")
        return metadata

    def compute(self, item: Point, reporter: Reporter) -> PointMetadata:
        """Measures a point."""
        if self.sharing is None:
            return self._measured(item, reporter, self.sweep.placement)
        with self.sharing.together(item.key.encode()):
            return self._measured(item, reporter, replace(self.sweep.placement, mesh=self.sharing.mesh))

    def compile_ahead(self, item: Point) -> None:
        """Compiles for a short point, if there is a core to spare. Code and folders of others are left to the main
        thread, and a budget to one point."""
        source, placement, tokens = item.source, self.sweep.placement, item.tokens()
        known = source.network is not None and source.weights not in ("own", "published")
        short = tokens.size * item.n <= _SHORT and placement.memory_budget is None
        if known and short and self.sharing is None and cores() > 1:
            with np.errstate(all="ignore"):  # its warnings would be taken for those of the point in progress
                item.measure.compile_ahead(item.model(), tokens, item.seed, placement, item.seeds)

    def _measured(self, item: Point, reporter: Reporter, placement: Placement) -> PointMetadata:
        began = time.perf_counter()
        model, inside = item.model(), partial(reporter.inside, str(item))
        arguments = model, item.tokens(), item.seed, inside, placement, item.seeds
        result = item.measure.flip_sensitivity(*arguments)
        writes = self.sharing is None or self.sharing.rank == 0
        tables = {
            name: table.of_point(model, result) if table.applies(item.source) else None
            for name, table in (self._tables.items() if writes else ())
        }
        seconds, directory = time.perf_counter() - began, self.directory if writes else None
        return write_point(directory, item, result, self.sweep.statistics, seconds, tables)

    def write_tables(self, records: Sequence[PointMetadata]) -> None:
        if self.plans:
            write_points_csv(self.directory, records, self.sweep.plan)
            for name, table in self._tables.items():
                write_results_csv(self.directory, table_rows(name, table, records), name, table)


class RecordsJob(Job[TablePoint, Any]):
    """Computes what the `RecordTable` of a name asks for."""

    def __init__(self, sweep: Sweep, name: str, directory: Path, plans: bool = True) -> None:
        super().__init__(tuple(sweep.table_points[name].values()), directory)
        self.folders, self.plans, self._shared, self._placement = (name,), plans, {}, sweep.placement

    def path(self, item: TablePoint) -> Path:
        return item.path(self.directory)

    def read(self, item: TablePoint) -> Any:
        return item.table.record.read(self.path(item), item.key)

    def compute(self, item: TablePoint, reporter: Reporter) -> Any:
        record = item.table.answer(item, reporter, self._shared, self._placement)
        record.write(self.path(item))
        return record

    def write_tables(self, records: Sequence[Any]) -> None:
        if self.plans:
            write_results_csv(self.directory, records, self.items[0].name, self.items[0].table)


def run_sweep(
    sweep: Sweep, directory: Path, chosen: Sequence[Point], console: Console, plans: bool = True
) -> Outcome:
    """Measures the points of `chosen` that have no sound file yet, in this order. See `run` and `PointsJob`.

    Raises:
        InputError: if the directory holds points of another config than one that this one adds to.
    """
    check_grows(sweep.plan, directory)
    return run(PointsJob(sweep, directory, plans), console, chosen)


def run_whole(
    sweep: Sweep, directory: Path, chosen: Sequence[Point], console: Console, plans: bool = True
) -> list[Outcome]:
    """Measures the chosen points and then computes the records that the sweep's tables ask for."""
    outcomes = [run_sweep(sweep, directory, chosen, console, plans)]
    for name, table in sweep.tables.items():
        if isinstance(table, RecordTable) and not outcomes[-1].ended_early:
            print_text(console, f"points are measured; computing {table.task}")
            items = [sweep.table_points[name][point] for point in chosen]
            outcomes.append(run(RecordsJob(sweep, name, directory, plans), console, items))
    return outcomes
