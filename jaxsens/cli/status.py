"""How far a sweep is: by its config, for `jaxsens sweep --list`, and by its directory alone, for `jaxsens status`."""

from __future__ import annotations

import os
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from jaxsens.core.base.errors import InputError
from jaxsens.core.base.files import only_inside, there_are
from jaxsens.core.base.programs import compiled_for
from jaxsens.core.base.sealed import DamagedFile
from jaxsens.core.base.text import duration
from jaxsens.core.choose import here
from jaxsens.core.sweeps.distributed import POINT_SECONDS, START_SECONDS, expected_points
from jaxsens.core.sweeps.job import Failure, Job, failure_of, read_failure, see_what_others_wrote
from jaxsens.core.sweeps.points import Point, read_point
from jaxsens.core.sweeps.progress import TimeLeft
from jaxsens.core.sweeps.sweep import PlannedPoint, PointsJob, RecordsJob, Sweep, SweepPlan, read_plan
from jaxsens.core.sweeps.tables import PointTable

_NAMED = 8  # variants, lengths, ... that are named


def listing(sweep: Sweep, chosen: Sequence[Point], out: Path) -> list[str]:
    """Returns a summary of the chosen points and records, their states, and how long the missing points take."""
    jobs: dict[str, tuple[Job[Any, Any], Sequence[Any]]] = {"points": (PointsJob(sweep, out), chosen)}
    for name, items in sweep.table_points.items():
        jobs[name] = RecordsJob(sweep, name, out), [items[point] for point in chosen]
    lines, counts, missing = [sweep.title] * bool(sweep.title), {}, {}
    for axis in ("variant", "n", "seed"):
        values = list(dict.fromkeys(str(getattr(point, axis)) for point in chosen))
        lines.append(f"{axis:8} {len(values):5}: {_enumerated(values)}")
    for name, (job, items) in jobs.items():
        states = {item: job.state(item) for item in items}
        missing[name] = [item for item, state in states.items() if state != "done"]
        counts[name] = len(items) - len(missing[name]), len(items)
        damaged = [item for item, state in states.items() if state == "damaged"]
        if damaged:
            lines.append(f"damaged  {len(damaged):5}: {_enumerated(damaged)}; computed again by the sweep")
    lines.append(counts_text(counts))
    if missing["points"]:
        groups, on = list(expected_points(missing["points"])), here(compiled_for())
        compiling: dict[object, float] = {one.programs: one.run.compiling for one in groups}
        measuring = sum(len(one.points) * (one.seconds + POINT_SECONDS) for one in groups)
        for table in (one for one in sweep.tables.values() if isinstance(one, PointTable)):
            for one in groups:
                cost = table.cost(one.run.model, one.run.n)
                compiling[table, one.points[0].group] = cost.compilation(on)
                measuring += len(one.points) * cost.seconds(on, one.inputs, 0)
        once = sum(compiling.values())
        left = duration(START_SECONDS + once + measuring)
        told = f"the missing points take about {left} on this machine if idle, {duration(once)} of it to compile, once"
        others = ", ".join(sweep.table_points)
        lines.append(told + f"; {others}, which may take far longer, are not counted" * bool(others))
    return lines


def _enumerated(items: Sequence[object]) -> str:
    """The items; of many, the first ones and the last."""
    texts = [str(item) for item in items]
    return ", ".join(texts if len(texts) <= _NAMED else [*texts[: _NAMED - 2], "...", texts[-1]])


_SAMPLE = 100
"""The number of variants at a length, taken evenly, from which the time left is estimated."""


@dataclass(frozen=True)
class SweepStatus:
    """The state of a sweep: how many points are done, of how many.

    Attributes:
        state: "finished": all is done; "failed": all that is left has failed; "unfinished": something else is left.
            Whether a process is at work is not known.
        records: how many records of each `RecordTable` are done, and how many there are, by its name.
        report: whether report.html is there.
        failed: what failed and was not computed since.
        compute_seconds_left: seconds of computation that the missing points take together; None if not known.
    """

    directory: str
    title: str
    state: Literal["finished", "failed", "unfinished"]
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
    """Returns the state of a sweep that runs, was stopped or is finished. Raises InputError if no sweep was run in the
    directory, or its plan is damaged."""
    folder = Path(directory)
    plan = read_plan(folder)
    planned = {"": plan.points, **plan.records}
    table_of = {item: name for name, items in planned.items() for item in items}
    paths = {item: folder / item.file for item in table_of}
    with only_inside(folder):
        see_what_others_wrote(path.parent for path in paths.values())
    there = there_are(name for path in paths.values() for name in (path, failure_of(path)))
    missing = [item for item, path in paths.items() if path not in there]
    failed = []
    for item in missing:
        if failure_of(paths[item]) in there and (why := read_failure(paths[item])) is not None:
            table = f"{table_of[item]} of " if table_of[item] else ""
            failed.append(Failure(f"{table}{item.variant} n={item.n} seed={item.seed}", why))
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
