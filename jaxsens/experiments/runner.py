"""Runs a sweep: measures the points whose files are missing, one by one, and keeps points.csv up to date.

There is no state beside the points' files, so a sweep that was killed is resumed by running it again, and several
processes may work on one directory.
"""

from __future__ import annotations

import os
import signal
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from jaxsens.errors import InputError
from jaxsens.experiments.claims import claim, clear_claims, is_claimed
from jaxsens.experiments.cost import Cost, CostModel
from jaxsens.experiments.own_config import check_grows, write_config
from jaxsens.experiments.points import Point
from jaxsens.experiments.progress import Reporter, reporting
from jaxsens.experiments.results import Plan, write_points_csv
from jaxsens.experiments.store import PointMetadata, read_point, write_point
from jaxsens.experiments.sweep import Sweep
from jaxsens.files import clear_leftovers, remedy, takes_no_more
from jaxsens.sealed import DamagedFile
from jaxsens.sensitivity.flip_sensitivity import flip_sensitivity
from jaxsens.sensitivity.flips import sample
from jaxsens.stopping import check, noting

_CSV_EVERY = 30.0


@dataclass(frozen=True)
class Failure:
    """A point that could not be measured, and why, in one line."""

    point: Point
    message: str


@dataclass(frozen=True)
class Outcome:
    """How a run ended.

    Attributes:
        chosen: how many points the run was to take care of.
        measured: how many of them it measured itself.
        finished: how many points of the whole sweep are done now.
        planned: how many points the whole sweep has.
        failures: the points that failed.
        stopped_by: the signal that ended it early, or None.
        unwritable: why nothing more can be kept in the directory, which ended it early; empty where that is not so.
    """

    chosen: int
    measured: int
    finished: int
    planned: int
    failures: tuple[Failure, ...]
    stopped_by: int | None
    unwritable: str = ""

    @property
    def ended_early(self) -> bool:
        """Whether there may be more to do that was not tried."""
        return self.stopped_by is not None or bool(self.unwritable)

    @property
    def exit_code(self) -> int:
        """0, 1 if a point failed or nothing more could be kept, 128 + the signal's number if a signal stopped it."""
        if self.stopped_by is not None:
            return 128 + self.stopped_by
        return 1 if self.failures or self.unwritable else 0


def run_sweep(sweep: Sweep, directory: Path, chosen: Sequence[Point], console: Console) -> Outcome:
    """Measures the points of `chosen` that have no sound file yet, in this order.

    A point that fails is reported and does not stop the others. Ctrl-C and SIGTERM leave what was finished, and so does
    a disk that takes no more.

    Raises:
        InputError: if the directory holds points of another config than one that this one adds to.
    """
    check_grows(sweep.plan, directory)
    unwritable = ""
    run = _Run(sweep, directory, chosen, console)
    with noting(signal.SIGINT, signal.SIGTERM) as request:
        interrupted = None
        try:
            if _write_plan(sweep, directory):
                say = "the config has changed: the report of the one before is removed, and drawn again at the end"
                console.print(say, markup=False, highlight=False, soft_wrap=True)
            run.measure_missing()
        except KeyboardInterrupt:
            interrupted = signal.SIGINT
        except OSError as error:
            unwritable = why_unwritable(error, directory)
        try:
            run.write_csv()
        except OSError as error:
            unwritable = unwritable or why_unwritable(error, directory)
        stopped_by = request.answer() or interrupted
    return Outcome(
        chosen=len(chosen),
        measured=run.measured,
        finished=run.finished,
        planned=len(sweep.points),
        failures=tuple(run.failures),
        stopped_by=stopped_by,
        unwritable=unwritable,
    )


def why_unwritable(error: OSError, directory: Path) -> str:
    """Why the directory takes no more, and the remedy. Raises the error again where it has another reason."""
    if error.errno is None or not takes_no_more(error):
        raise error
    return f"{os.strerror(error.errno)}: nothing more can be kept in {directory}; {remedy(error)}"


def state_of(point: Point, directory: Path) -> str:
    """ "done", "missing", or "damaged": what there is of a point."""
    try:
        read_point(point.path(directory), point.key, ())
    except FileNotFoundError:
        return "missing"
    except DamagedFile:
        return "damaged"
    return "done"


class _Run:
    """One run over a directory: what is done so far."""

    def __init__(self, sweep: Sweep, directory: Path, chosen: Sequence[Point], console: Console) -> None:
        self.sweep = sweep
        self.directory = directory
        self.chosen = chosen
        self.console = console
        self.done: dict[Point, PointMetadata] = {}
        self.failures: list[Failure] = []
        self.measured = 0
        self._looked = False
        self._cost = CostModel()
        self._compiled: set[tuple[str, int]] = set()
        self._csv_written = time.monotonic()
        self._warned: set[tuple[str, type[Warning]]] = set()

    def measure_missing(self) -> None:
        damaged = self._look(self.sweep.points, stoppable=True)
        self._looked = True
        rest = [point for point in self.chosen if point not in self.done]
        with reporting(self.console, len(self.chosen), len(self.chosen) - len(rest)) as reporter:
            for point, why in damaged.items():
                again = "measured again" if point in rest else "left, as this run is not to measure it"
                reporter.note(f"damaged, {again}: {point}: {why}")
            if len(rest) < len(self.chosen):
                reporter.note(f"{len(self.chosen) - len(rest)} of {len(self.chosen)} points were done before")
            # Points that another process has begun come last, in case it dies.
            while rest:
                check()
                free = (k for k, point in enumerate(rest) if not is_claimed(point.path(self.directory)))
                point = rest.pop(next(free, 0))
                self._take(point, rest, reporter)
                if time.monotonic() - self._csv_written >= _CSV_EVERY:
                    self.write_csv()

    @property
    def finished(self) -> int:
        """How many points of the sweep are done, as far as is known; where not all were looked at, by their files."""
        if self._looked:
            return len(self.done)
        return sum(point in self.done or point.path(self.directory).is_file() for point in self.sweep.points)

    def write_csv(self) -> None:
        """Writes points.csv with what is done, by other processes too: never with less than is known.

        A run that has not looked at all there is knows nothing that a points.csv does not hold, and writes none.
        """
        known = -1
        while self._looked and known < len(self.done):  # Others may have written while this one did.
            self._look([point for point in self.sweep.points if point not in self.done])
            known = len(self.done)
            write_points_csv(self.directory, self.done.values(), self.sweep.plan)
            self._csv_written = time.monotonic()
            self._look([point for point in self.sweep.points if point not in self.done])

    def _look(self, points: Sequence[Point], stoppable: bool = False) -> dict[Point, str]:
        """Notes which of the points are done; returns what is wrong with the damaged ones."""
        damaged = {}
        for point in points:
            if stoppable:
                check()
            try:
                self.done[point] = self._read(point)
            except FileNotFoundError:
                continue
            except DamagedFile as error:
                damaged[point] = str(error)
        return damaged

    def _read(self, point: Point) -> PointMetadata:
        return read_point(point.path(self.directory), point.key, self.sweep.statistics)[0]

    def _take(self, point: Point, rest: Sequence[Point], reporter: Reporter) -> None:
        if not self._look([point]) and point in self.done:  # Another process was quicker.
            reporter.finished(f"{point}: measured by another process", self._left(rest))
            return
        began = time.perf_counter()
        try:
            with claim(point.path(self.directory)):
                metadata = self._measure(point, reporter)
        except Exception as error:  # whatever a point raises, the others are measured
            if takes_no_more(error):
                raise
            self.failures.append(Failure(point, one_line(error)))
            reporter.note(f"failed: {point}: {one_line(error)}")
            reporter.finished(f"{point}: failed", self._left(rest))
            return
        self.done[point] = metadata
        self.measured += 1
        seconds = time.perf_counter() - began
        self._cost.add(Cost(point.variant, point.n, self._is_first(point), seconds))
        self._compiled.add((point.variant, point.n))
        values = ", ".join(f"{name} {value:.3g}" for name, value in metadata.statistics.items())
        reporter.finished(f"{point}: {values} ({metadata.seconds:.2g} s)", self._left(rest))

    def _measure(self, point: Point, reporter: Reporter) -> PointMetadata:
        began = time.perf_counter()
        measure = point.measure
        with self._noting_warnings(point, reporter):
            result = flip_sensitivity(
                point.source.build(point.seed),
                point.tokens(),
                positions=None if measure.sample is None else sample(measure.sample, point.seed),
                norm=measure.norm,
                outputs=None if measure.outputs == "designated" else measure.outputs,
                engine=measure.engine,  # pyright: ignore[reportArgumentType] - checked with the config
                batch_size=measure.batch_size,
                memory_budget=measure.memory_budget,
                progress=lambda flips, of: reporter.inside(str(point), flips, of),
            )
        seconds = time.perf_counter() - began
        return write_point(self.directory, point, result, self.sweep.statistics, seconds)

    @contextmanager
    def _noting_warnings(self, point: Point, reporter: Reporter) -> Iterator[None]:
        """Prints warnings beside the progress, those of one kind once a variant: every longer input repeats them."""
        with warnings.catch_warnings(record=True) as caught:
            yield
        for warning in caught:
            kind = (point.variant, warning.category)
            if kind not in self._warned:
                reporter.warn(f"warning: {point}: {warning.message}")
            self._warned.add(kind)

    def _is_first(self, point: Point) -> bool:
        return (point.variant, point.n) not in self._compiled

    def _left(self, rest: Sequence[Point]) -> float | None:
        ahead: set[tuple[str, int]] = set()
        features = []
        for point in rest:
            compiles = self._is_first(point) and (point.variant, point.n) not in ahead
            ahead.add((point.variant, point.n))
            features.append((point.variant, point.n, compiles))
        return self._cost.left(features)


def _write_plan(sweep: Sweep, directory: Path) -> bool:
    """Writes what the directory is for, and clears away what killed processes left. Returns whether a report of another
    config was there."""
    replaced = write_config(directory / "sweep.toml", sweep.text)
    sweep.plan.write(directory)
    for kind in ("points", "bounds"):
        clear_leftovers((directory / kind).glob("*/*/.*.tmp"))
        clear_claims((directory / kind).glob("*/*/.*.claim"))
    return replaced


def strangers(plan: Plan, directory: Path) -> int:
    """How many point files of the directory belong to another config; they are kept, and shown nowhere."""
    files = {path.relative_to(directory).as_posix() for path in (directory / "points").glob("*/*/*.parquet")}
    return len(files - {point.file for point in plan.points})


def one_line(error: Exception) -> str:
    """What went wrong, short enough for a line beside the progress, with the remedy where memory ran out."""
    text = " ".join(str(error).split())
    if not isinstance(error, InputError):
        text = f"{type(error).__name__}: {text}"
    if "RESOURCE_EXHAUSTED" in text or isinstance(error, MemoryError):
        text = f"out of memory; give [measure] a smaller memory_budget or batch_size ({text})"
    return text if len(text) <= 400 else text[:397] + "..."
