"""The state of a sweep, from its directory alone: what is done, damaged and failed, and how long the rest takes.

It works from any machine that sees the directory, and writes nothing there. Every record is read and its seal checked,
which takes some milliseconds each; a quick look goes by names and times of files alone, and says so.
"""

from __future__ import annotations

import os
import shlex
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from jaxsens.core.base import stopping
from jaxsens.core.base.errors import InputError
from jaxsens.core.base.files import only_inside, there_are
from jaxsens.core.base.sealed import DamagedFile
from jaxsens.core.base.text import duration
from jaxsens.core.sweeps.jobs.job import Failure
from jaxsens.core.sweeps.jobs.notes import failure_of, read_failure, see_what_others_wrote
from jaxsens.core.sweeps.jobs.progress import TimeLeft
from jaxsens.core.sweeps.points import read_point
from jaxsens.core.sweeps.sweep import PlannedPoint, SweepPlan, read_plan

State = Literal["finished", "failed", "unfinished"]

_SAMPLE = 200
"""The number of points, taken evenly, from which the time left is estimated."""


@dataclass(frozen=True)
class SweepStatus:
    """The state of a sweep.

    Attributes:
        directory: of the sweep.
        title: of the sweep.
        state: "finished": all is done; "failed": all that is left has failed; "unfinished": something else is left.
            Whether a process is at work is not known.
        points: how many points are done; of those with a file that is not damaged, if seals were `checked`.
        of_points: how many there are.
        records: how many records of each `RecordTable` are done, and how many there are, by its name.
        report: whether report.html is there.
        failed: what failed and was not computed since.
        compute_seconds_left: seconds of computation that the missing points take together; None if not known.
        checked: how many records were read and their seals checked; the others count as done by their files.
        damaged: what there is a damaged record of, among those checked. It is not counted as done, and the sweep
            computes it again.
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
    checked: int
    damaged: tuple[Failure, ...]

    def lines(self) -> list[str]:
        """Returns the state in words, a line each."""
        lines = [f"{self.state}: {told_done(self.points, self.of_points, self.records)}: {self.title}"]
        if self.compute_seconds_left:
            lines.append(f"about {duration(self.compute_seconds_left)} of one process left")
        lines += [f"failed: {one}" for one in self.failed]
        lines += [f"damaged: {one}" for one in self.damaged]
        if self.damaged:
            lines.append(f"{len(self.damaged)} damaged: run the sweep again, which computes them again")
        done = self.points + sum(done for done, _ in self.records.values())
        if unchecked := done + len(self.damaged) - self.checked:
            lines.append(
                f"not checked: the seals of {unchecked} records, which are taken for sound by their names"
            )
        if self.state == "finished" and not self.report:
            report = shlex.join(["jaxsens", "report", self.directory])
            lines.append(f"no report yet: `{report}` writes it")
        return lines


def told_done(
    points: int, of_points: int, records: Mapping[str, tuple[int, int]] = MappingProxyType({})
) -> str:
    """Returns how much is done, in words: points, and records of each table by its name."""
    beside = "".join(f" and {done} of {of} {name}" for name, (done, of) in records.items())
    return f"{points} of {of_points} points{beside} are done"


def sweep_status(directory: str | os.PathLike[str], quick: bool = False) -> SweepStatus:
    """Returns the state of a sweep that runs, was stopped or is finished.

    Args:
        directory: of the sweep.
        quick: whether to take records for sound by their names, instead of reading each and checking its seal.

    Raises:
        InputError: if no sweep was run in the directory, its plan is damaged, or a table of it is not known.
    """
    folder = Path(directory)
    plan = read_plan(folder)
    tables: dict[str, Any] = dict(plan.sweep_tables)
    planned = {"": plan.points, **plan.records}
    table_of = {item: name for name, items in planned.items() for item in items}
    paths = {item: folder / item.file for item in table_of}

    def told(item: PlannedPoint) -> str:
        table = f"{table_of[item]} of " if table_of[item] else ""
        return f"{table}{item.variant} n={item.n} seed={item.seed}"

    def problem(item: PlannedPoint) -> str | None:
        """Reads a record; returns why it is damaged."""
        stopping.check()
        try:
            if table := table_of[item]:
                tables[table].record.read(paths[item], item.key)
            else:
                read_point(paths[item], item.key, plan.statistics)
        except (OSError, DamagedFile, InputError) as error:
            return " ".join(str(error).split())
        return None

    with only_inside(folder):
        see_what_others_wrote(path.parent for path in paths.values())
    there = there_are(name for path in paths.values() for name in (path, failure_of(path)))
    stored = [item for item, path in paths.items() if path in there]
    damaged = {} if quick else {item: why for item in stored if (why := problem(item)) is not None}
    missing = [item for item, path in paths.items() if path not in there or item in damaged]
    failed = []
    for item in missing:
        if failure_of(paths[item]) in there and (why := read_failure(paths[item])) is not None:
            failed.append(Failure(told(item), why))
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
        checked=0 if quick else len(stored),
        damaged=tuple(Failure(told(item), why) for item, why in damaged.items()),
    )


def _time_left(folder: Path, plan: SweepPlan, missing: set[PlannedPoint]) -> float | None:
    """Seconds of computation that the missing points take together; None if that would be a guess."""
    done = [point for point in plan.points if point not in missing]
    left = TimeLeft()
    for point in done[:: max(1, len(done) // _SAMPLE)]:
        try:
            seconds = read_point(folder / point.file, point.key, plan.statistics)[0].seconds
        except (OSError, DamagedFile, InputError):
            continue
        left.add(point.variant, point.n, seconds)
    return left.of([(point.variant, point.n) for point in plan.points if point in missing])
