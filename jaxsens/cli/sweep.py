"""`jaxsens sweep`, `jaxsens report` and `jaxsens status`."""

from __future__ import annotations

import json
import shlex
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
    command_line,
    flags_named,
    print_text,
    programs_kept,
    say_failures,
    say_why_ended,
)
from jaxsens.cli.sweeping import SweepOptions, report_all, time_text

if TYPE_CHECKING:
    from jaxsens.core.sweeps.jobs.job import Job
    from jaxsens.core.sweeps.points import Point
    from jaxsens.core.sweeps.sweep import Sweep


def sweep(
    options: Annotated[SweepOptions, tyro.conf.arg(name="")],
    job: Annotated[InJob, tyro.conf.arg(name="")] = NO_JOB,
) -> int:
    """Measure every variant at every length with every seed, then write tables, plots and report.html.

    Run it again to resume: finished points are kept.

    Args:
        options: What is measured, and where it is kept.
        job: Options of a job of several processes.
    """
    out, quiet = options.out, options.quiet
    if options.list_points:
        return _list(*options.load(), out)
    check_folder("sweep", out)
    job.check()
    if job.requested:
        return sweep_in_job(job, options)
    from jaxsens.core.sweeps.jobs.job import why_unwritable
    from jaxsens.core.sweeps.status import counts_text
    from jaxsens.core.sweeps.sweep import run_whole

    sweep, chosen = options.load()
    console, progress = Console(stderr=True), Console(stderr=True, quiet=quiet)
    with flags_named({"directory": "--out"}), programs_kept(options.compilation_cache) as programs:
        outcomes = run_whole(sweep, out, chosen, progress)
    if any(outcome.computed for outcome in outcomes):
        print_text(progress, f"{programs}")
    say_failures(console, *outcomes)
    counts = sweep.stored(out)
    done = counts_text(counts)
    if outcomes[-1].ended_early:
        say_why_ended(console, outcomes[-1], done)
    elif counts["points"][0] == 0:
        print_text(console, "no point could be measured")
    elif options.shard is not None and any(stored < of for stored, of in counts.values()):
        print_text(progress, f"{done}; `{shlex.join(['jaxsens', 'report', str(out)])}` plots them")
    else:
        try:
            report_all(out, quiet)
        except OSError as error:
            print_text(console, f"stopped: {why_unwritable(error, out)}. {done}. To resume: {command_line()}")
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


def _list(sweep: Sweep, chosen: Sequence[Point], out: Path) -> int:
    """Prints the chosen points and records with their state, and how long the missing points take."""
    from jaxsens.core.sweeps.status import counts_text
    from jaxsens.core.sweeps.sweep import PointsJob, RecordsJob

    jobs: dict[str, tuple[Job[Any, Any], Sequence[Any]]] = {"points": (PointsJob(sweep, out), chosen)}
    for name, items in sweep.table_points.items():
        jobs[name] = RecordsJob(sweep, name, out), [items[point] for point in chosen]
    console, counts, missing = Console(), {}, {}
    for name, (job, items) in jobs.items():
        states = {item: job.state(item) for item in items}
        for item, state in states.items():
            print_text(console, f"{state:8} {item}  {job.path(item)}")
        missing[name] = [item for item, state in states.items() if state != "done"]
        counts[name] = len(items) - len(missing[name]), len(items)
    print_text(console, counts_text(counts))
    if missing["points"]:
        others = ", ".join(sweep.table_points)
        beside = f"; {others}, which may take far longer, are not counted" if others else ""
        print_text(console, time_text(missing["points"], sweep.tables.values()) + beside)
    return 0


def status(
    directory: Directory,
    /,
    *,
    json_output: Annotated[Flag, tyro.conf.arg(name="json", help_behavior_hint="")] = False,
) -> int:
    """Print the state of a sweep, running or not, from any machine that sees its directory.

    Args:
        directory: The --out of `jaxsens sweep`.
        json_output: Print JSON, for scripts; its "state" is finished, failed or unfinished.
    """
    from jaxsens.core.sweeps.status import sweep_status

    state = sweep_status(directory)
    if json_output:
        print(json.dumps(asdict(state), indent=1), flush=True)
    else:
        print_text(Console(), "\n".join(state.lines()))
    return 0
