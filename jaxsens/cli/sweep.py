"""`jaxsens sweep`, `jaxsens report` and `jaxsens status`."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro
from rich.console import Console

from jaxsens.cli import trained
from jaxsens.cli.distributed import NO_JOB, InJob, sweep_in_job
from jaxsens.cli.shared import (
    Directory,
    Flag,
    check_folder,
    flags_named,
    print_text,
    programs_kept,
    say_failures,
    say_why_ended,
)
from jaxsens.cli.sweeping import SweepOptions, report_all, told_time
from jaxsens.core.base import stopping

if TYPE_CHECKING:
    from jaxsens.core.sweeps.jobs.job import Job
    from jaxsens.core.sweeps.points import Point
    from jaxsens.core.sweeps.sweep import Sweep


WATCH_SECONDS = 10.0
"""The seconds between two looks at a sweep."""


def sweep(
    asked: Annotated[SweepOptions, tyro.conf.arg(name="")],
    job: Annotated[InJob, tyro.conf.arg(name="")] = NO_JOB,
) -> int:
    """Measure every variant at every length with every seed, then write tables, plots and report.html.

    Run it again to resume: finished points are kept.

    Args:
        asked: What is measured, and where it is kept.
        job: Options of a job of several processes.
    """
    out, quiet, resume = asked.out, asked.quiet, asked.again
    if not asked.list_points:
        check_folder("sweep", out)
    job.check()
    if job.asked and not asked.list_points:
        return sweep_in_job(job, asked)
    from jaxsens.core.sweeps.jobs.job import why_unwritable
    from jaxsens.core.sweeps.status import told_done
    from jaxsens.core.sweeps.sweep import PointsJob, RecordsJob, run_whole

    loaded, chosen = asked.load()
    if asked.list_points:
        return _list(loaded, chosen, out)
    console = Console(stderr=True)
    progress = Console(stderr=True, quiet=quiet)
    with flags_named({"directory": "--out"}), programs_kept(asked.compilation_cache) as programs:
        outcomes = run_whole(loaded, out, chosen, progress)
    if any(outcome.computed for outcome in outcomes):
        print_text(progress, f"{programs}")
    say_failures(console, *outcomes)
    first, last = outcomes[0], outcomes[-1]
    finished, ended = first.finished, dict(zip(loaded.table_points, outcomes[1:], strict=False))
    records = {
        name: (ended[name].finished if name in ended else _count(RecordsJob(loaded, name, out)), len(items))
        for name, items in loaded.table_points.items()
    }
    if ended and finished < first.planned:
        finished = _count(PointsJob(loaded, out))  # other processes measured while this one computed records
    done = told_done(finished, first.planned, records)
    if last.ended_early:
        say_why_ended(console, last, done, resume)
    elif finished == 0:
        print_text(console, "no point could be measured")
    elif asked.shard is not None and any(
        number < of for number, of in ((finished, first.planned), *records.values())
    ):
        print_text(progress, f"{done}; `{shlex.join(['jaxsens', 'report', str(out)])}` plots them")
    else:
        try:
            report_all(out, quiet)
        except OSError as error:
            print_text(console, f"stopped: {why_unwritable(error, out)}. {done}. To resume: {resume}")
            return 1
    return next((outcome.exit_code for outcome in outcomes[::-1] if outcome.exit_code), 0)


def report(directory: Directory, /, *, quiet: Flag = False) -> int:
    """Write the tables, plots and report.html again from the existing results.

    Args:
        directory: The --out of `jaxsens sweep` or `jaxsens theorem6`.
        quiet: Print only errors.
    """
    from jaxsens.training.theorem6.results import is_theorem6

    if is_theorem6(directory):
        trained.write_report(directory, quiet)
        return 0
    report_all(directory, quiet)
    return 0


def _list(loaded: Sweep, chosen: Sequence[Point], out: Path) -> int:
    from jaxsens.core.sweeps.status import told_done
    from jaxsens.core.sweeps.sweep import PointsJob, RecordsJob

    listed: dict[str, tuple[Job[Any, Any], Sequence[Any]]] = {"": (PointsJob(loaded, out), chosen)}
    for name, items in loaded.table_points.items():
        listed[name] = RecordsJob(loaded, name, out), [items[point] for point in chosen]
    console, counts, missing = Console(), {}, []
    for name, (job, items) in listed.items():
        states = [job.state(item) for item in items]
        for state, item in zip(states, items, strict=True):
            print_text(console, f"{state:8} {item}  {job.path(item)}")
        counts[name] = states.count("done"), len(states)
        if isinstance(job, PointsJob):
            missing = [item for state, item in zip(states, items, strict=True) if state != "done"]
    done, planned = counts.pop("")
    print_text(console, told_done(done, planned, counts))
    if missing:
        beside = f"; {', '.join(counts)}, which may take far longer, are not counted" if counts else ""
        print_text(console, told_time(missing, loaded.tables.values()) + beside)
    return 0


def _count(job: Job[Any, Any]) -> int:
    """Returns how many items of a job are done."""
    return [job.state(item) for item in job.items].count("done")


def status(
    directory: Directory,
    /,
    *,
    json_output: Annotated[Flag, tyro.conf.arg(name="json", help_behavior_hint="")] = False,
    quick: Flag = False,
    watch: Flag = False,
) -> int:
    """Print the state of a sweep, running or not, from any machine that sees its directory.

    Every record is read, and its seal checked.

    Args:
        directory: The --out of `jaxsens sweep`.
        json_output: Print JSON, for scripts; its "state" is finished, failed or unfinished.
        quick: Go by the names of files, without checking seals; the last line says how many were not checked.
        watch: Print the state again every 10 s, as long as it is unfinished.
    """
    from jaxsens.core.sweeps.status import sweep_status

    while True:
        found = sweep_status(directory, quick)
        if json_output:
            print(json.dumps(asdict(found), indent=None if watch else 1), flush=True)
        else:
            print_text(Console(), "\n".join(found.lines()))
        if not watch or found.state != "unfinished":
            return 0
        _pause(WATCH_SECONDS)


def _pause(seconds: float) -> None:
    """Waits, and raises `Stopped` soon after a signal."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        stopping.check()
        time.sleep(0.1)
