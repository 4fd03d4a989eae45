"""A sweep, checked and complete: its variants, points and plan, what its directory holds, and the jobs that fill it.

DIR/sweep.toml      the config as it was given
DIR/sweep.json      the plan: the config with everything written out, and every point with its key and file
DIR/points/         one Parquet file a point
DIR/points.csv      a row a point
DIR/attention.csv   a row a point, layer and head, if the config asks for attention statistics
DIR/bounds/, DIR/bounds.csv     bounds over all inputs, if the config asks for them
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar

from rich.console import Console

from jaxsens.base.errors import InputError
from jaxsens.base.files import keep_text
from jaxsens.base.sealed import DamagedFile
from jaxsens.base.told import say
from jaxsens.experiments.jobs.job import Failure, Job, Outcome, Record, read_finished, run, write_table
from jaxsens.experiments.jobs.progress import Reporter
from jaxsens.experiments.sweep.attention import ATTENTION_COLUMNS, AttentionTable, attention_of, has_attention
from jaxsens.experiments.sweep.bounds import BoundPoint, BoundRecord, Bounds, Shared, answer
from jaxsens.experiments.sweep.points import (
    STATUS_COLUMN,
    Measurement,
    Point,
    PointMetadata,
    describe_point,
    read_point,
    write_point,
)
from jaxsens.experiments.sweep.sources import EVERY, ModelSource, Weights, coordinates
from jaxsens.experiments.sweep.words import Inputs
from jaxsens.sensitivity.placement.placement import Placement
from jaxsens.sensitivity.placement.process_group import ProcessGroup
from jaxsens.sensitivity.results.result import FlipSensitivity

PLAN = "sweep.json"
_AGAIN = "run the sweep again: what is measured is kept"
_REPORT = ("report.html", "summary.csv", "local_slopes.csv", "distances.csv", "distance_exponents.csv")

KEY_COLUMNS = ("variant", "n", "seed", "inputs", "flips", "unresolved")
"""The columns of points.csv before the statistics. `unresolved` is the number of flips that the arithmetic does not
resolve."""

ESTIMATE_COLUMNS = (
    *("measured", "mean_low", "mean_high"),
    *("median_error", "largest_error", "rank_correlation", "exceeding"),
)
"""The columns of points.csv after the statistics, if the config has estimates. Empty for points without."""

BOUND_COLUMNS = (
    *("variant", "n", "seed", "worst", "worst_exact", "certified", "ratio"),
    *("log_lemma5", "logit_bound", "matter", "free"),
)
"""The columns of bounds.csv."""


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

    `config` is the config as it was given. `inputs` says what the inputs are, by length; `bounds` where the bounds over
    all inputs are, and `attention` which attention statistics are shown, if they are asked for.
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
    bounds: tuple[PlannedPoint, ...] = ()
    attention: dict[str, Any] | None = None

    @cached_property
    def asked(self) -> Measurement:
        """The `[measure]` table."""
        return Measurement.of_table(self.measure)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of points.csv."""
        estimates = self.asked.estimates
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
    bounds: Bounds | None = None
    sampled: frozenset[str] = frozenset()
    attention: AttentionTable | None = None
    placement: Placement = field(default_factory=Placement)

    @cached_property
    def points(self) -> tuple[Point, ...]:
        """Every point: variant by variant, by rising n, by seed as listed."""
        return tuple(
            Point(variant.name, n, seed, variant.source, self.inputs, measure)
            for variant in self.variants
            for measure in [self.measure.of_variant(variant.name in self.sampled)]
            for n in self.lengths
            for seed in self.seeds
        )

    @cached_property
    def bound_points(self) -> tuple[BoundPoint, ...]:
        """What is asked of all inputs, in the order of the points; nothing without a `[bounds]` table."""
        return () if self.bounds is None else tuple(BoundPoint(point, self.bounds) for point in self.points)

    @cached_property
    def plan(self) -> SweepPlan:
        """What a sweep directory says of the sweep."""
        every = {variant.source.symbols for variant in self.variants}
        # What all variants read: without the end-of-sequence symbol where not all have it.
        read = every.pop() if len(every) == 1 else every.pop().without_end()
        return SweepPlan(
            config=self.text,
            **row_of(self, ("title", "claim", "lengths", "seeds", "statistics")),
            measure=self.measure.table(),
            inputs={str(n): self.inputs.expanded(read, n, self.seeds[0]) for n in self.lengths},
            variants=tuple(
                PlannedVariant(
                    variant.name,
                    variant.description,
                    variant.source.bounded,
                    variant.source.expanded,
                    variant.source.weights,
                    _measured(variant.source, self.measure.measure.outputs),
                    variant.source.exact_length,
                    variant.source.temperature,
                )
                for variant in self.variants
            ),
            points=tuple(_planned(point, point) for point in self.points),
            bounds=tuple(_planned(bound.point, bound) for bound in self.bound_points),
            attention=None if self.attention is None else asdict(self.attention),
        )


def _planned(point: Point, kept: Point | BoundPoint) -> PlannedPoint:
    return PlannedPoint(point.variant, point.n, point.seed, kept.key, kept.path(Path()).as_posix())


def _measured(source: ModelSource, outputs: str | tuple[int, ...] | None) -> str:
    """In words, which coordinates of the output enter the norm."""
    if outputs is None:
        return source.designated
    return EVERY if isinstance(outputs, str) else coordinates(outputs)


# The directory


def read_plan(directory: str | os.PathLike[str]) -> SweepPlan:
    """Reads the plan of a sweep directory.

    Raises:
        InputError: if it is no sweep directory, or the plan is damaged.
    """
    try:
        plan = SweepPlan.read(Path(directory) / PLAN)
    except OSError as error:
        raise InputError(f"directory = {str(directory)!r}: no sweep was run here ({error})") from error
    except DamagedFile as error:
        raise InputError(f"{error}; {_AGAIN}") from error
    try:
        plan.asked  # noqa: B018 - reads the table
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
    """Writes points.csv: a row a point, in the order given; and attention.csv, if the plan has attention statistics."""
    points = list(points)
    write_table(directory / "points.csv", plan.columns, [point_row(point) for point in points])
    if plan.attention is not None:
        rows = [row for point in points for row in attention_rows(point)]
        write_table(directory / "attention.csv", ATTENTION_COLUMNS, rows)


def attention_rows(point: PointMetadata) -> Iterator[dict[str, Any]]:
    """The rows of attention.csv that a point makes: one for each layer and head that it has."""
    known = point.attention or {"largest": []}
    for layer, heads in enumerate(known["largest"]):
        for head in range(len(heads)):
            values = {name: found[layer][head] for name, found in known.items()}
            if any(value is not None for value in values.values()):
                yield row_of(point, ("variant", "n", "seed")) | {"layer": layer, "head": head} | values


def read_bounds(directory: Path, plan: SweepPlan) -> list[BoundRecord]:
    """The bounds that are done, in the plan's order. Raises InputError if a file is damaged."""
    return [
        *read_finished(plan.bounds, lambda each: BoundRecord.read(directory / each.file, each.key), _AGAIN)
    ]


def write_bounds_csv(directory: Path, records: Iterable[BoundRecord]) -> None:
    """Writes bounds.csv: a row a record, in the order given."""
    rows = [row_of(record, BOUND_COLUMNS) for record in records]
    write_table(directory / "bounds.csv", BOUND_COLUMNS, rows)


def point_row(point: PointMetadata) -> dict[str, Any]:
    """The row of points.csv that a point makes, with more than a plan's columns. A statistic that is not resolved has
    what it is at most."""
    status = {STATUS_COLUMN.format(name): point.status(name) for name in point.statistics}
    return row_of(point, KEY_COLUMNS) | point.statistics | point.at_most | status | (point.estimated or {})


def row_of(record: object, columns: Iterable[str]) -> dict[str, Any]:
    """The row of a table that a record's attributes make."""
    return {name: getattr(record, name) for name in columns}


def strangers(plan: SweepPlan, directory: Path) -> int:
    """How many point files of the directory belong to another config; they are kept, and shown nowhere."""
    files = {path.relative_to(directory).as_posix() for path in (directory / "points").glob("*/*/*.parquet")}
    return len(files - {point.file for point in plan.points})


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
    wanted = {point.file for point in plan.points}
    lost = [
        point for point in before.points if point.file not in wanted and (directory / point.file).exists()
    ]
    if not lost:
        return
    own = sorted(
        {point.variant for point in lost} & {one.name for one in plan.variants if one.weights == "own"}
    )
    other = f"the models of {', '.join(own)}, or what JAX makes of them (its version), or " if own else ""
    differences = "; ".join(_differences(before, plan)) or f"{other}what its inputs are"
    raise InputError(
        f"directory = {str(directory)!r}: it holds {len(lost)} points that this config does not have, so its report "
        f"would mix two configs. There and here differ: {differences}. Name another directory, or keep in the config "
        "what this one holds: lengths, seeds, variants and statistics may be added, and --only takes a part"
    )


def write_config(path: Path, text: str) -> bool:
    """Writes a config next to its results. Removes the report of another config first; returns whether there was one.

    A report can be drawn again from the results at any time.
    """
    try:
        same = path.read_text(encoding="utf-8") == text
    except (OSError, UnicodeDecodeError):
        same = False
    stale = [] if same else [path.with_name(name) for name in _REPORT if path.with_name(name).exists()]
    for file in stale:
        file.unlink(missing_ok=True)
    keep_text(path, text)
    return bool(stale)


def _differences(before: SweepPlan, now: SweepPlan) -> list[str]:
    """The differences between two plans that decide which points there are, each in a few words."""
    found = []
    for name in ("lengths", "seeds"):
        missing = sorted(set(getattr(before, name)) - set(getattr(now, name)))
        if missing:
            found.append(f"{name}: {', '.join(map(str, missing))} there only")
    models = {variant.name: variant.model for variant in now.variants}
    found += [f'variant "{each.name}" there only' for each in before.variants if each.name not in models]
    kept = [each for each in before.variants if each.name in models]
    # A change of [model] shows in every variant, and is listed once.
    changes = [change for each in kept for change in _changed("model", each.model, models[each.name])]
    return list(dict.fromkeys([*found, *changes, *_changed("measure", before.measure, now.measure)]))


def _changed(table: str, before: dict[str, object], now: dict[str, object]) -> list[str]:
    keys = [key for key in {**before, **now} if before.get(key) != now.get(key)]
    return [f"{table}.{key}: {before.get(key)!r} there, {now.get(key)!r} here" for key in keys]


# The jobs


class PointsJob(Job[Point, PointMetadata]):
    """Measures the points of a sweep in a directory.

    Args:
        sweep: the sweep.
        directory: its directory.
        plans: whether this process writes what the directory is for, and points.csv.
        sharing: the processes that measure every point together, if they do; the first of them writes it.
    """

    folders = ("points", "bounds")

    def __init__(
        self, sweep: Sweep, directory: Path, plans: bool = True, sharing: ProcessGroup | None = None
    ) -> None:
        super().__init__(sweep.points, directory)
        self.sweep, self.plans, self.sharing = sweep, plans, sharing
        self.shared = sharing is not None

    def check(self) -> None:
        """Raises `Stopped` after a signal: in all processes that share the points, at the same point."""
        if self.sharing is None:
            super().check()
        else:
            self.sharing.check()

    def prepare(self, console: Console, failures: list[Failure]) -> None:
        if not self.plans:
            return
        if write_config(self.directory / "sweep.toml", self.sweep.text):
            changed = (
                "the config has changed: the report of the one before is removed, and drawn again at the end"
            )
            say(console, changed)
        self.sweep.plan.write(self.directory / PLAN)

    def path(self, item: Point) -> Path:
        return item.path(self.directory)

    def read(self, item: Point) -> PointMetadata:
        """Reads a point's record, with the sweep's statistics. One without the attention statistics that the sweep asks
        for is measured again."""
        found = read_point(self.path(item), item.key, self.sweep.statistics)[0]
        if self._asks_for_attention(item) and found.attention is None:
            raise FileNotFoundError(f"{self.path(item)}: without attention statistics")
        return found

    def _asks_for_attention(self, item: Point) -> bool:
        return self.sweep.attention is not None and has_attention(item.source)

    def compute(self, item: Point, reporter: Reporter) -> PointMetadata:
        """Measures a point."""
        placement = self.sweep.placement
        if self.sharing is None:
            return self._measured(item, reporter, placement, True)
        with self.sharing.together(item.key.encode()):
            shared = replace(placement, mesh=self.sharing.mesh)
            return self._measured(item, reporter, shared, self.sharing.rank == 0)

    def _measured(self, item: Point, reporter: Reporter, placement: Placement, writes: bool) -> PointMetadata:
        began = time.perf_counter()
        model, inside = item.model(), partial(reporter.inside, str(item))
        result = item.measure.flip_sensitivity(model, item.tokens(), item.seed, inside, placement)
        statistics, attention = self.sweep.statistics, None
        if not writes:
            return describe_point(item, result, statistics, time.perf_counter() - began)
        if self._asks_for_attention(item):
            attention = attention_of(model, result.tokens, result.inputs, result.positions)
        seconds = time.perf_counter() - began
        return write_point(self.directory, item, result, statistics, seconds, attention)

    def write_tables(self, records: Sequence[PointMetadata]) -> None:
        if self.plans:
            write_points_csv(self.directory, records, self.sweep.plan)


class BoundsJob(Job[BoundPoint, BoundRecord]):
    """Computes what a sweep asks of all inputs."""

    folders = ("bounds",)

    def __init__(self, sweep: Sweep, directory: Path, plans: bool = True) -> None:
        super().__init__(sweep.bound_points, directory)
        self._shared, self.plans, self._placement = Shared(), plans, sweep.placement

    def path(self, item: BoundPoint) -> Path:
        return item.path(self.directory)

    def read(self, item: BoundPoint) -> BoundRecord:
        return BoundRecord.read(self.path(item), item.key)

    def compute(self, item: BoundPoint, reporter: Reporter) -> BoundRecord:
        inside = partial(reporter.inside, f"{item}: search", unit="measurements")
        record = answer(item, inside, self._shared, self._placement)
        record.write(self.path(item))
        return record

    def write_tables(self, records: Sequence[BoundRecord]) -> None:
        if self.plans:
            write_bounds_csv(self.directory, records)


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
    """Measures the chosen points and, if the sweep asks for them, computes their bounds."""
    outcomes = [run_sweep(sweep, directory, chosen, console, plans)]
    if plans and (others := strangers(sweep.plan, directory)):
        say(console, f"{others} points in {directory} belong to another config; they are kept but not shown")
    if sweep.bounds is not None and not outcomes[0].ended_early:
        say(console, "points are measured; computing the bounds over all inputs")
        outcomes.append(run_bounds(sweep, directory, chosen, console, plans))
    return outcomes


def run_bounds(
    sweep: Sweep, directory: Path, chosen: Sequence[Point], console: Console, plans: bool = True
) -> Outcome:
    """Computes the bounds of the chosen points that have no sound file yet. See `run` and `BoundsJob`."""
    wanted = {bound.point: bound for bound in sweep.bound_points}
    return run(BoundsJob(sweep, directory, plans), console, [wanted[point] for point in chosen])
