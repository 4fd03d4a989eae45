"""What the points of a sweep are expected to take, before one is measured; and the state of a sweep, from its
directory alone: what is done and failed, and how long the rest takes.
"""

from __future__ import annotations

import os
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

from jaxsens.core.base.errors import InputError
from jaxsens.core.base.files import only_inside, there_are
from jaxsens.core.base.programs import PLATFORMS, Platform, compiled_for
from jaxsens.core.base.sealed import DamagedFile
from jaxsens.core.base.text import duration
from jaxsens.core.choose import PlannedRun, here
from jaxsens.core.engines.request import Request
from jaxsens.core.explain import planned_run
from jaxsens.core.sweeps.job import Failure, failure_of, read_failure, see_what_others_wrote
from jaxsens.core.sweeps.points import Point, read_point
from jaxsens.core.sweeps.progress import TimeLeft
from jaxsens.core.sweeps.sweep import PlannedPoint, SweepPlan, read_plan
from jaxsens.core.sweeps.tables import PointTable, SweepTable

START_SECONDS = 12.0
"""To import, to read the config, and to draw the report, on the reference machine."""

POINT_SECONDS = 0.15
"""To make a point's model and inputs, to check it, and to write its file."""


@dataclass(frozen=True)
class ExpectedPoints:
    """The points of one variant and length.

    Attributes:
        points: they differ in their seeds.
        run: what measures one input of them.
        inputs: the inputs of a point.
        flips: the flips of a point, all inputs together.
    """

    points: tuple[Point, ...]
    run: PlannedRun
    inputs: int
    flips: int

    @property
    def operations(self) -> float:
        """The floating-point operations of one point: each of its inputs is prepared once."""
        return self.run.cost.operations(self.inputs, self.flips)

    @cached_property
    def seconds(self) -> float:
        """The seconds of one point on this machine, without compilation."""
        return self.run.seconds_of(self.inputs, self.flips)

    def host_seconds(self, everything: bool) -> float:
        """The seconds of one point on a host: `everything`, or what tells the rounding of outputs."""
        return self.seconds if everything else self.run.cost.rounding(here(PLATFORMS["cpu"]), self.inputs)

    @property
    def programs(self) -> tuple[object, ...]:
        """What the programs are compiled for: points that agree in it share them."""
        return self.run.engine.shared, self.run.n, self.run.model.dtype


def expected_points(
    chosen: Iterable[Point], platform: Platform | None = None, refused: list[tuple[Point, str]] | None = None
) -> Iterator[ExpectedPoints]:
    """Yields what the chosen points take on a platform, by default JAX's, variant by variant and by rising n. Nothing
    is run. `refused` gets the first point of each variant and length that cannot be measured, and why."""
    groups: dict[tuple[str, int], list[Point]] = {}
    for point in chosen:
        groups.setdefault(point.group, []).append(point)
    order = list(dict.fromkeys(variant for variant, _ in groups))
    for group in sorted(groups, key=lambda one: (order.index(one[0]), one[1])):
        first = groups[group][0]
        try:
            measure, inputs = first.measure, len(first.tokens())
            flips, engine = measure.flips_at(first.n), measure.engine_at(first.n).shared_by(first.seeds)
            request = Request(flips.drawing(None), measure.measure, engine)
            run = planned_run(first.model(), first.n, request, platform)
        except InputError as error:
            if refused is not None:
                refused.append((first, str(error)))
            continue
        drawn, every = flips.sample, run.flips * inputs
        yield ExpectedPoints(tuple(groups[group]), run, inputs, every if drawn is None else min(every, drawn))


def expected_seconds(
    groups: Iterable[ExpectedPoints], tables: Iterable[SweepTable] = ()
) -> tuple[float, float]:
    """Returns the seconds of points on this machine, with compilation, and those of compilation alone; both include
    what each `PointTable` computes."""
    groups, on = list(groups), here(compiled_for())
    programs: dict[object, float] = {one.programs: one.run.compiling for one in groups}
    measuring = sum(len(one.points) * (one.seconds + POINT_SECONDS) for one in groups)
    for table in (one for one in tables if isinstance(one, PointTable)):
        for one in groups:
            cost = table.cost(one.run.model, one.run.n)
            programs[table, one.points[0].group] = cost.compilation(on)
            measuring += len(one.points) * cost.seconds(on, one.inputs, 0)
    compiling = sum(programs.values())
    return START_SECONDS + compiling + measuring, compiling


State = Literal["finished", "failed", "unfinished"]

_SAMPLE = 100
"""The number of variants at a length, taken evenly, from which the time left is estimated."""


@dataclass(frozen=True)
class SweepStatus:
    """The state of a sweep.

    Attributes:
        directory: of the sweep.
        title: of the sweep.
        state: "finished": all is done; "failed": all that is left has failed; "unfinished": something else is left.
            Whether a process is at work is not known.
        points: how many points are done.
        of_points: how many there are.
        records: how many records of each `RecordTable` are done, and how many there are, by its name.
        report: whether report.html is there.
        failed: what failed and was not computed since.
        compute_seconds_left: seconds of computation that the missing points take together; None if not known.
    """

    directory: str
    title: str
    state: State
    points: int
    of_points: int
    records: dict[str, tuple[int, int]]
    report: bool
    failed: tuple[Failure, ...]
    compute_seconds_left: float | None

    def lines(self) -> list[str]:
        """Returns the state in words, a line each."""
        counts = {"points": (self.points, self.of_points)} | self.records
        lines = [f"{self.state}: {counts_text(counts)}: {self.title}"]
        if self.compute_seconds_left:
            lines.append(f"about {duration(self.compute_seconds_left)} of one process left")
        lines += [f"failed: {one}" for one in self.failed]
        if self.state == "finished" and not self.report:
            report = shlex.join(["jaxsens", "report", self.directory])
            lines.append(f"no report yet: `{report}` writes it")
        return lines


def counts_text(counts: Mapping[str, tuple[int, int]]) -> str:
    """Returns how much is done, in words: of each name how many, of how many."""
    return f"{' and '.join(f'{done} of {of} {name}' for name, (done, of) in counts.items())} are done"


def sweep_status(directory: str | os.PathLike[str]) -> SweepStatus:
    """Returns the state of a sweep that runs, was stopped or is finished.

    Raises:
        InputError: if no sweep was run in the directory, or its plan is damaged.
    """
    folder = Path(directory)
    plan = read_plan(folder)
    planned = {"": plan.points, **plan.records}
    table_of = {item: name for name, items in planned.items() for item in items}
    paths = {item: folder / item.file for item in table_of}

    def label(item: PlannedPoint) -> str:
        table = f"{table_of[item]} of " if table_of[item] else ""
        return f"{table}{item.variant} n={item.n} seed={item.seed}"

    with only_inside(folder):
        see_what_others_wrote(path.parent for path in paths.values())
    there = there_are(name for path in paths.values() for name in (path, failure_of(path)))
    missing = [item for item, path in paths.items() if path not in there]
    failed = []
    for item in missing:
        if failure_of(paths[item]) in there and (why := read_failure(paths[item])) is not None:
            failed.append(Failure(label(item), why))
    left = Counter(table_of[item] for item in missing)
    return SweepStatus(
        directory=str(directory),
        title=plan.title,
        state="finished" if not missing else "failed" if len(failed) == len(missing) else "unfinished",
        points=len(plan.points) - left[""],
        of_points=len(plan.points),
        records={name: (len(planned[name]) - left[name], len(planned[name])) for name in plan.records},
        report=(folder / "report.html").exists(),
        failed=tuple(failed),
        compute_seconds_left=None if plan.records else _time_left(folder, plan, {*missing}),
    )


def _time_left(folder: Path, plan: SweepPlan, missing: set[PlannedPoint]) -> float | None:
    """Seconds of computation that the missing points take together; None if that would be a guess."""
    groups: dict[tuple[str, int], list[PlannedPoint]] = {}
    for point in plan.points:
        if point not in missing:
            groups.setdefault((point.variant, point.n), []).append(point)
    left = TimeLeft()
    for points in [*groups.values()][:: max(1, len(groups) // _SAMPLE)]:
        for point in dict.fromkeys((points[0], *points[-2:])):  # the first one compiled the program
            with suppress(OSError, DamagedFile, InputError):
                seconds = read_point(folder / point.file, point.key, plan.statistics)[0].seconds
                left.add(point.variant, point.n, seconds)
    return left.of(Counter((point.variant, point.n) for point in plan.points if point in missing))
