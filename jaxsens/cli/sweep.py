"""`jaxsens sweep` and `jaxsens report`."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro
from rich.console import Console

from jaxsens.cli import theorem6
from jaxsens.cli.shared import say, use_all_cores

if TYPE_CHECKING:
    from jaxsens.experiments.sweep import Sweep


def sweep(
    config: tyro.conf.Positional[Path],
    /,
    *,
    out: Path,
    only: tyro.conf.UseAppendAction[tuple[str, ...]] = (),
    shard: Annotated[str | None, tyro.conf.arg(metavar="K/M")] = None,
    list_points: Annotated[bool, tyro.conf.arg(name="list"), tyro.conf.FlagCreatePairsOff] = False,
) -> int:
    """Measure every variant at every length with every seed, then write tables, plots and report.html.

    Run it again to resume: what is measured is kept.

    Args:
        config: A TOML file; see configs/.
        out: The directory for everything that is written.
        only: Take only these points: variant=NAME, n=LENGTH or seed=SEED; several values with commas; may be repeated.
        shard: Take part K of M of the points, such as 3/16, for job arrays. The last part to end writes the report.
        list_points: Print the points and which are done, and do nothing else.
    """
    from jaxsens.experiments.bounds_runner import run_bounds
    from jaxsens.experiments.runner import run_sweep, strangers
    from jaxsens.experiments.selection import select
    from jaxsens.experiments.sweep_config import load_sweep_config

    use_all_cores()
    loaded = load_sweep_config(config)
    chosen = select(loaded.points, only, shard)
    if list_points:
        return _list(loaded, chosen, out)
    console = Console(stderr=True)
    others = strangers(loaded.plan, out)
    if others:
        say(console, f"{others} points in {out} belong to another config; they are kept and not shown")
    outcome = run_sweep(loaded, out, chosen, console)
    if loaded.bounds is not None and outcome.stopped_by is None:
        say(console, "the points are measured; now the bounds over all inputs")
        outcome = outcome.plus(run_bounds(loaded, out, chosen, console))
    for failure in outcome.failures:
        say(console, f"failed: {failure.point}: {failure.message}")
    if outcome.stopped_by is not None:
        parts = [part for value in only for part in ("--only", value)] + (["--shard", shard] if shard else [])
        again = shlex.join(["jaxsens", "sweep", str(config), "--out", str(out), *parts])
        say(console, f"stopped; {outcome.finished} of {outcome.planned} points are done. To resume: {again}")
    elif outcome.finished == 0:
        say(console, "no point could be measured")
    elif shard is not None and outcome.finished < outcome.planned:
        done = f"{outcome.finished} of {outcome.planned} points are done"
        say(console, f"{done}; `jaxsens report {out}` draws what there is")
    else:
        _report(out)
    return outcome.exit_code


def report(directory: tyro.conf.Positional[Path], /) -> int:
    """Write the tables, the plots and report.html once more, from what there is.

    Args:
        directory: What `jaxsens sweep` or `jaxsens theorem6` was given as --out.
    """
    from jaxsens.experiments.bounds_runner import read_bounds, write_bounds_csv
    from jaxsens.experiments.results import read_metadata, read_plan, write_points_csv
    from jaxsens.experiments.theorem6_results import is_theorem6

    if is_theorem6(directory):
        theorem6.write_report(directory)
        return 0
    plan = read_plan(directory)
    write_points_csv(directory, read_metadata(directory), plan)
    if plan.bounds:
        write_bounds_csv(directory, read_bounds(directory, plan))
    _report(directory)
    return 0


def _list(loaded: Sweep, chosen: Sequence[Any], out: Path) -> int:
    from jaxsens.experiments.runner import state_of

    console, done = Console(), 0
    for point in chosen:
        state = state_of(point, out)
        done += state == "done"
        say(console, f"{state:8} {point}  {point.path(out)}")
    say(console, f"{done} of {len(chosen)} points are done")
    return 0


def _report(directory: Path) -> None:
    from jaxsens.analysis.fits import fit_exponents
    from jaxsens.analysis.report import write_report
    from jaxsens.analysis.tables import summary_table
    from jaxsens.experiments.results import read_points

    page = write_report(directory)
    console = Console()
    console.print(summary_table(fit_exponents(read_points(directory))))
    say(console, f"{page}")
