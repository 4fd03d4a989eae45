"""A sweep, checked and complete: its variants, points and plan, and the jobs that measure points and compute bounds."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path

from rich.console import Console

from jaxsens.experiments.bounds import BoundPoint, BoundRecord, Bounds, Shared, answer
from jaxsens.experiments.job import Failure, Job, Outcome, run
from jaxsens.experiments.points import Measurement, Point, PointMetadata, read_point, write_point
from jaxsens.experiments.progress import Reporter, say
from jaxsens.experiments.results import (
    PlannedPoint,
    PlannedVariant,
    SweepPlan,
    check_grows,
    plan_path,
    write_bounds_csv,
    write_config,
    write_points_csv,
)
from jaxsens.experiments.sources import EVERY, ModelSource
from jaxsens.experiments.words import Inputs, Symbols


@dataclass(frozen=True)
class SweepVariant:
    """A variant with the model it leads to."""

    name: str
    description: str
    source: ModelSource


@dataclass(frozen=True)
class Sweep:
    """A sweep, checked and with every default written out."""

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

    @cached_property
    def points(self) -> tuple[Point, ...]:
        """Every point: variant by variant, by rising n, by seed as listed."""
        return tuple(
            Point(variant.name, n, seed, variant.source, self.inputs, self.measure)
            for variant in self.variants
            for n in self.lengths
            for seed in self.seeds
        )

    @cached_property
    def bound_points(self) -> tuple[BoundPoint, ...]:
        """What is asked of all inputs, in the order of the points; nothing without a `[bounds]` table."""
        return () if self.bounds is None else tuple(BoundPoint(point, self.bounds) for point in self.points)

    @property
    def _symbols(self) -> Symbols:
        """What all variants read; without the end-of-sequence symbol where not all have it."""
        every = {variant.source.symbols for variant in self.variants}
        return every.pop() if len(every) == 1 else every.pop().without_end()

    @cached_property
    def plan(self) -> SweepPlan:
        """What a sweep directory says of the sweep."""
        return SweepPlan(
            config=self.text,
            title=self.title,
            claim=self.claim,
            lengths=self.lengths,
            seeds=self.seeds,
            statistics=self.statistics,
            norm=self.measure.norm,
            measure=asdict(self.measure),
            inputs={str(n): self.inputs.expanded(self._symbols, n) for n in self.lengths},
            variants=tuple(
                PlannedVariant(
                    variant.name,
                    variant.description,
                    variant.source.bounded,
                    variant.source.expanded(),
                    variant.source.weights == "constructed",
                    _measured(variant.source, self.measure.outputs),
                    variant.source.exact_length,
                    variant.source.weights == "trained",
                )
                for variant in self.variants
            ),
            points=tuple(_planned(point, point) for point in self.points),
            bounds=tuple(_planned(bound.point, bound) for bound in self.bound_points),
        )


def _planned(point: Point, kept: Point | BoundPoint) -> PlannedPoint:
    return PlannedPoint(point.variant, point.n, point.seed, kept.key, kept.path(Path()).as_posix())


def _measured(source: ModelSource, outputs: str | tuple[int, ...]) -> str:
    """In words, which coordinates of the output enter the norm."""
    if outputs == "designated":
        return source.designated
    return EVERY if outputs == "all" else f"coordinates {', '.join(map(str, outputs))}"


class PointsJob(Job[Point, PointMetadata]):
    """Measures the points of a sweep in a directory."""

    folders = ("points", "bounds")

    def __init__(self, sweep: Sweep, directory: Path) -> None:
        super().__init__(sweep.points, directory)
        self.sweep = sweep

    def prepare(self, console: Console, failures: list[Failure]) -> None:
        """Writes what the directory is for."""
        if write_config(self.directory / "sweep.toml", self.sweep.text):
            changed = (
                "the config has changed: the report of the one before is removed, and drawn again at the end"
            )
            say(console, changed)
        self.sweep.plan.write(plan_path(self.directory))

    def path(self, item: Point) -> Path:
        """Where a point's record is kept."""
        return item.path(self.directory)

    def read(self, item: Point) -> PointMetadata:
        """Reads a point's record, with the sweep's statistics."""
        return read_point(self.path(item), item.key, self.sweep.statistics)[0]

    def compute(self, item: Point, reporter: Reporter) -> PointMetadata:
        """Measures a point."""
        began = time.perf_counter()
        result = item.measure.flip_sensitivity(
            item.source.build(item.seed),
            item.tokens(),
            item.seed,
            progress=lambda flips, of: reporter.inside(str(item), flips, of),
        )
        return write_point(self.directory, item, result, self.sweep.statistics, time.perf_counter() - began)

    def write_tables(self, records: Sequence[PointMetadata]) -> None:
        """Writes points.csv."""
        write_points_csv(self.directory, records, self.sweep.plan)


class BoundsJob(Job[BoundPoint, BoundRecord]):
    """Computes what a sweep asks of all inputs."""

    folders = ("bounds",)

    def __init__(self, sweep: Sweep, directory: Path) -> None:
        super().__init__(sweep.bound_points, directory)
        self._shared = Shared()

    def path(self, item: BoundPoint) -> Path:
        """Where a bound's record is kept."""
        return item.path(self.directory)

    def read(self, item: BoundPoint) -> BoundRecord:
        """Reads a bound's record."""
        return BoundRecord.read(self.path(item), item.key)

    def compute(self, item: BoundPoint, reporter: Reporter) -> BoundRecord:
        """Searches and certifies."""

        def progress(done: int, of: int | None) -> None:
            reporter.inside(f"{item}: search", done, of, "measurements")

        record = answer(item, progress, self._shared)
        record.write(self.path(item))
        return record

    def write_tables(self, records: Sequence[BoundRecord]) -> None:
        """Writes bounds.csv."""
        write_bounds_csv(self.directory, records)


def run_sweep(sweep: Sweep, directory: Path, chosen: Sequence[Point], console: Console) -> Outcome:
    """Measures the points of `chosen` that have no sound file yet, in this order. See `run`.

    Raises:
        InputError: if the directory holds points of another config than one that this one adds to.
    """
    check_grows(sweep.plan, directory)
    return run(PointsJob(sweep, directory), console, chosen)


def run_bounds(sweep: Sweep, directory: Path, chosen: Sequence[Point], console: Console) -> Outcome:
    """Computes the bounds of the chosen points that have no sound file yet. See `run`."""
    wanted = {bound.point: bound for bound in sweep.bound_points}
    return run(BoundsJob(sweep, directory), console, [wanted[point] for point in chosen])
