"""`jaxsens sweep` and `jaxsens report`."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro
from rich.console import Console

from jaxsens.base.files import only_inside
from jaxsens.cli import trained
from jaxsens.cli.compilation import CacheFolder, again, programs_kept
from jaxsens.cli.distributed import NO_JOB, InJob, sweep_in_job
from jaxsens.cli.shared import (
    Config,
    Directory,
    Flag,
    Out,
    Text,
    check_folder,
    default,
    flags_named,
    say,
    say_failures,
    say_why_ended,
)

if TYPE_CHECKING:
    from jaxsens.experiments.jobs.job import Job
    from jaxsens.experiments.sweep.points import Point
    from jaxsens.experiments.sweep.sweep import Sweep


def sweep(
    config: Config,
    /,
    *,
    out: Out,
    only: tyro.conf.UseAppendAction[
        Annotated[tuple[str, ...], tyro.conf.arg(metavar="KEY=VALUE", help_behavior_hint="(default: all)")]
    ] = (),
    shard: Annotated[Text, default("all", "K/M")] = None,
    list_points: Annotated[Flag, tyro.conf.arg(name="list", help_behavior_hint="")] = False,
    allow_code: Flag = False,
    compilation_cache: CacheFolder = None,
    quiet: Flag = False,
    job: Annotated[InJob, tyro.conf.arg(name="")] = NO_JOB,
) -> int:
    """Measure every variant at every length with every seed, then write tables, plots and report.html.

    Run it again to resume: finished points are kept.

    Args:
        config: A TOML file; see configs/.
        out: The output directory. To extend a sweep, reuse its directory with a config that adds lengths, seeds,
            variants or statistics.
        only: Measure only these points: variant=NAME, n=LENGTH or seed=SEED; separate values by commas; repeatable.
        shard: Measure part K of M of the points, for job arrays. Parts count from 0: 0/16 to 15/16. The last part to
            finish writes the report.
        list_points: List the points and bounds, with their state, and exit.
        allow_code: Import and call the functions that the config names, as [model] python = "module:make" does.
        compilation_cache: Where compiled programs are kept for later commands, in a folder for each version of jaxlib,
            backend and processor; off to keep none.
        quiet: Print only failures and warnings.
        job: Options of a job of several processes.
    """
    if not list_points:
        check_folder("sweep", out)
    parts = [part for value in only for part in ("--only", value)] + (["--shard", shard] if shard else [])
    parts += ["--allow-code"] if allow_code else []
    resume = again("sweep", config, out, compilation_cache, *parts)
    if job.asked and not list_points:
        load, report = partial(_load, config, only, shard, allow_code), partial(_report_all, out, quiet)
        return sweep_in_job(job, load, out, resume, quiet, compilation_cache, report)
    from jaxsens.experiments.jobs.job import why_unwritable
    from jaxsens.experiments.sweep.sweep import BoundsJob, PointsJob, run_whole

    loaded, chosen = _load(config, only, shard, allow_code)
    if list_points:
        return _list(loaded, chosen, out)
    console = Console(stderr=True)
    progress = Console(stderr=True, quiet=quiet)
    with flags_named({"directory": "--out"}), programs_kept(compilation_cache) as programs:
        outcomes = run_whole(loaded, out, chosen, progress)
    if any(outcome.computed for outcome in outcomes):
        say(progress, f"{programs}")
    say_failures(console, *outcomes)
    first, last = outcomes[0], outcomes[-1]
    bounds, finished = BoundsJob(loaded, out), first.finished
    bounded = last.finished if len(outcomes) > 1 else _count(bounds)
    if len(outcomes) > 1 and finished < first.planned:
        finished = _count(PointsJob(loaded, out))  # other processes measured while this one computed bounds
    done = _done(finished, first.planned, bounded, len(bounds.items))
    if last.ended_early:
        say_why_ended(console, last, done, resume)
    elif finished == 0:
        say(console, "no point could be measured")
    elif shard is not None and (finished < first.planned or bounded < len(bounds.items)):
        say(progress, f"{done}; `{shlex.join(['jaxsens', 'report', str(out)])}` plots them")
    else:
        try:
            _report_all(out, quiet)
        except OSError as error:
            say(console, f"stopped: {why_unwritable(error, out)}. {done}. To resume: {resume}")
            return 1
    return next((outcome.exit_code for outcome in outcomes[::-1] if outcome.exit_code), 0)


def _load(
    config: Path, only: Sequence[str], shard: str | None, allow_code: bool
) -> tuple[Sweep, Sequence[Point]]:
    """Returns the sweep of a config, and the points that are chosen of it."""
    from jaxsens.experiments.sweep.config import load_sweep_config
    from jaxsens.experiments.sweep.points import select

    loaded = load_sweep_config(config, allow_code)
    return loaded, select(loaded.points, only, shard)


def report(directory: Directory, /, *, quiet: Flag = False) -> int:
    """Write the tables, plots and report.html again from the existing results.

    Args:
        directory: The --out of `jaxsens sweep` or `jaxsens theorem6`.
        quiet: Print only errors.
    """
    from jaxsens.experiments.theorem6.results import is_theorem6

    if is_theorem6(directory):
        trained.write_report(directory, quiet)
        return 0
    _report_all(directory, quiet)
    return 0


def _list(loaded: Sweep, chosen: Sequence[Point], out: Path) -> int:
    from jaxsens.experiments.sweep.sweep import BoundsJob, PointsJob

    asked = {bound.point: bound for bound in loaded.bound_points}
    listed: list[tuple[Job[Any, Any], Sequence[Any]]] = [
        (PointsJob(loaded, out), chosen),
        (BoundsJob(loaded, out), [asked[point] for point in chosen if asked]),
    ]
    console, counts = Console(), []
    for job, items in listed:
        states = [job.state(item) for item in items]
        for state, item in zip(states, items, strict=True):
            say(console, f"{state:8} {item}  {job.path(item)}")
        counts += [states.count("done"), len(states)]
    say(console, _done(*counts))
    return 0


def _count(job: Job[Any, Any]) -> int:
    """Returns how many items of a job are done."""
    return [job.state(item) for item in job.items].count("done")


def _done(points: int, of_points: int, bounds: int, of_bounds: int) -> str:
    """Describes how much is done."""
    beside = f" and {bounds} of {of_bounds} bounds" if of_bounds else ""
    return f"{points} of {of_points} points{beside} are done"


def _report_all(directory: Path, quiet: bool) -> None:
    """Writes the tables and the report of all that a sweep directory holds."""
    from jaxsens.experiments.report.data import load_sweep
    from jaxsens.experiments.report.page import summary_table
    from jaxsens.experiments.report.report import write_report
    from jaxsens.experiments.sweep.sweep import write_bounds_csv, write_points_csv

    data = load_sweep(directory)
    with only_inside(directory):
        write_points_csv(directory, data.metadata, data.plan)
        if data.plan.bounds:
            write_bounds_csv(directory, data.bounds)
    page, fits = write_report(data, directory)
    console = Console(quiet=quiet)
    console.print(summary_table(fits))
    say(console, f"{page}")
