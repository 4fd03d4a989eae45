"""The state of a sweep, from its directory alone: what is done, damaged and failed, and how long the rest takes.

It works from any machine that sees the directory, and writes nothing there. Every record is read and its seal checked,
which takes some milliseconds each; a quick look goes by names and times of files alone, and says so.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from jaxsens.base import stopping
from jaxsens.base.errors import InputError
from jaxsens.base.files import only_inside, there_are
from jaxsens.base.sealed import DamagedFile
from jaxsens.base.told import duration
from jaxsens.experiments.jobs.job import Failure
from jaxsens.experiments.jobs.notes import failure_of, read_failure, see_what_others_wrote
from jaxsens.experiments.jobs.progress import TimeLeft
from jaxsens.experiments.sweep.bounds import BoundRecord
from jaxsens.experiments.sweep.points import read_point
from jaxsens.experiments.sweep.sweep import PlannedPoint, SweepPlan, read_plan

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
        bounds: how many bounds over all inputs are done.
        of_bounds: how many there are.
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
    bounds: int
    of_bounds: int
    report: bool
    failed: tuple[Failure, ...]
    compute_seconds_left: float | None
    checked: int
    damaged: tuple[Failure, ...]

    def lines(self) -> list[str]:
        """Returns the state in words, a line each."""
        bounds = f" and {self.bounds} of {self.of_bounds} bounds" if self.of_bounds else ""
        lines = [f"{self.state}: {self.points} of {self.of_points} points{bounds} are done: {self.title}"]
        if self.compute_seconds_left:
            lines.append(f"about {duration(self.compute_seconds_left)} of one process left")
        lines += [f"failed: {one}" for one in self.failed]
        lines += [f"damaged: {one}" for one in self.damaged]
        if self.damaged:
            lines.append(f"{len(self.damaged)} damaged: run the sweep again, which computes them again")
        if unchecked := self.points + self.bounds + len(self.damaged) - self.checked:
            lines.append(
                f"not checked: the seals of {unchecked} records, which are taken for sound by their names"
            )
        if self.state == "finished" and not self.report:
            report = shlex.join(["jaxsens", "report", self.directory])
            lines.append(f"no report yet: `{report}` writes it")
        return lines


def sweep_status(directory: str | os.PathLike[str], quick: bool = False) -> SweepStatus:
    """Returns the state of a sweep that runs, was stopped or is finished.

    Args:
        directory: of the sweep.
        quick: whether to take records for sound by their names, instead of reading each and checking its seal.

    Raises:
        InputError: if no sweep was run in the directory, or its plan is damaged.
    """
    folder = Path(directory)
    plan = read_plan(folder)
    items = {item: folder / item.file for item in (*plan.points, *plan.bounds)}
    with only_inside(folder):
        see_what_others_wrote(path.parent for path in items.values())
    there = there_are(name for path in items.values() for name in (path, failure_of(path)))
    kept = [item for item, path in items.items() if path in there]
    damaged = {} if quick else _damaged(folder, plan, kept)
    missing = [item for item, path in items.items() if path not in there or item in damaged]
    failed = []
    for path, name in ((items[item], _name(item)) for item in missing):
        if failure_of(path) in there and (why := read_failure(path)) is not None:
            failed.append(Failure(name, why))
    missing_points = sum(map(_is_point, missing))
    return SweepStatus(
        directory=str(directory),
        title=plan.title,
        state="finished" if not missing else "failed" if len(failed) == len(missing) else "unfinished",
        points=len(plan.points) - missing_points,
        of_points=len(plan.points),
        bounds=len(plan.bounds) - len(missing) + missing_points,
        of_bounds=len(plan.bounds),
        report=(folder / "report.html").exists(),
        failed=tuple(failed),
        compute_seconds_left=_time_left(folder, plan, {*missing}) if not plan.bounds else None,
        checked=0 if quick else len(kept),
        damaged=tuple(Failure(_name(item), why) for item, why in damaged.items()),
    )


def _damaged(folder: Path, plan: SweepPlan, kept: Sequence[PlannedPoint]) -> dict[PlannedPoint, str]:
    """Returns why records are damaged, after reading all of them."""
    found = {}
    for item in kept:
        stopping.check()
        try:
            if _is_point(item):
                read_point(folder / item.file, item.key, plan.statistics)
            else:
                BoundRecord.read(folder / item.file, item.key)
        except (OSError, DamagedFile, InputError) as error:
            found[item] = " ".join(str(error).split())
    return found


def _is_point(item: PlannedPoint) -> bool:
    return item.file.startswith("points")


def _name(item: PlannedPoint) -> str:
    bound = "" if _is_point(item) else "bounds of "
    return f"{bound}{item.variant} n={item.n} seed={item.seed}"


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
