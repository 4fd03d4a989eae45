"""`jaxsens plan`: what a sweep takes on devices that need not be at hand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import tyro
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from jaxsens.cli.shared import (
    Config,
    File,
    Flag,
    Only,
    OptionGroup,
    Text,
    check_output,
    default,
    one_of,
    write_output,
)
from jaxsens.core.base.errors import collecting
from jaxsens.core.base.files import write_text
from jaxsens.core.base.text import duration, in_words, print_text

if TYPE_CHECKING:
    from jaxsens.core.sweeps.planning.plan import Plan, PlannedPoints


@dataclass(frozen=True)
class PlanOptions(OptionGroup):
    """What is planned, and for which devices.

    Attributes:
        config: A TOML file of a sweep; see configs/.
        on: The devices: a100, b200, h100, h200, v5e, v5p, v6e, with their number, as h100x8 or v6e-8; or a TOML file
            that describes one, as docs/planning.md shows.
        only: Plan only these points: variant=NAME, n=LENGTH or seed=SEED; separate values by commas; repeatable.
        compile: Which programs are compiled: the longest input of each variant, all, or none. The others are
            estimated.
        allow_code: Import and call the functions that the config names.
        write: Write the job that is suggested: NAME.slurm or NAME.yaml.
    """

    config: Config
    on: Annotated[Text, default("", "DEVICES")] = None
    only: Only = ()
    compile: Annotated[str, one_of("longest", "all", "none"), default("longest")] = "longest"
    allow_code: Flag = False
    write: Annotated[File, default("not written", "FILE")] = None


def plan(asked: Annotated[PlanOptions, tyro.conf.arg(name="")]) -> int:
    """Say what a sweep takes on devices that need not be at hand: memory, programs, the least time, and a job.

    With the extra of the devices installed (tpu, cuda12 or cuda13) programs are compiled for them, which needs none.
    Exit code 1: something does not fit.

    Args:
        asked: What is planned.
    """
    from jaxsens.core.sweeps.config import load_sweep_config
    from jaxsens.core.sweeps.planning.devices import known_devices, target_called
    from jaxsens.core.sweeps.planning.job_files import check_job_file, job_file
    from jaxsens.core.sweeps.planning.plan import Plan, PlannedPoints, planned
    from jaxsens.core.sweeps.planning.topology import mesh_of, why_not_compiled
    from jaxsens.core.sweeps.points import select

    with collecting("plan") as problems:
        if asked.on is None:
            problems.add("--on", None, f"devices, such as {', '.join(known_devices())}, h100x8 or v6e-8")
        asked.check_choices(problems)
        if asked.write is not None:
            check_job_file(asked.write, problems)
            check_output("--write", asked.write, problems)
    target = target_called(asked.on or "")
    sweep = load_sweep_config(asked.config, asked.allow_code)
    console, why = Console(), why_not_compiled(target)
    console.width = max(console.width, 130)  # no cell is cut off: a file has no width, and a terminal wraps
    mesh = None if why or asked.compile == "none" else mesh_of(target)
    rows: list[PlannedPoints] = []
    failed = []
    found = planned(
        select(sweep.points, asked.only),
        target,
        mesh,
        sweep.placement.memory_budget,
        asked.compile,  # pyright: ignore[reportArgumentType] - checked above
    )
    with console.status("planning") as status:
        for one in found:
            if isinstance(one, PlannedPoints):
                rows.append(one)
                status.update(f"{one.first.variant} n={one.first.n}")
            else:
                failed.append(one)
    made = Plan(target, tuple(rows), tuple(failed))
    console.print(_table(made))
    for line in _told(made, why):
        print_text(console, line)
    if asked.write is not None:
        text = job_file(made, asked.write.suffix, asked.config)
        path = asked.write
        return write_output("--write", path, lambda: write_text(path, text), text)
    return 0 if made.fits else 1


def _table(made: Plan) -> Table:
    target = made.target
    table = Table(title=f"{target.name}: {target.count} x {target.device.description}", box=SIMPLE_HEAD)
    for name in ("variant", "engine"):
        table.add_column(name)
    for name in ("n", "points", "batch", "arguments", "temporary", "Gop", "GB", "least", "compile"):
        table.add_column(name, justify="right")
    for row in made.rows:
        sure = "" if row.compiled else "~"
        table.add_row(
            row.first.variant,
            row.expected.run.choice.name,
            str(row.first.n),
            str(len(row.expected.points)),
            f"{sure}{row.batch}",
            f"{sure}{in_words(row.arguments)}",
            "does not fit" if row.refused else f"{sure}{in_words(row.temporary)}",
            f"{row.expected.operations / 1e9:.4g}",
            f"{sure}{row.moved / 1e9:.3g}",
            "on the host" if row.seconds is None else duration(row.seconds),
            f"{sure}{duration(row.compiling)}",
        )
    return table


def _told(made: Plan, why: str | None) -> list[str]:
    """The lines below the table."""
    lines = [f"{point}: {said}" for point, said in made.unmeasurable]
    lines += [f"{row.first}: {row.refused}" for row in made.rows if row.refused]
    if why is not None:
        lines.append(f"Nothing was compiled, and ~ marks estimates: {why}")
    elif not all(row.compiled for row in made.rows):
        lines.append("~ marks what was estimated, and not compiled; --compile all compiles it")
    lines.append(
        f"All points: at least {duration(made.least_seconds)} by the rates of the devices, and about "
        f"{duration(made.compiling)} to compile, once"
    )
    lines.append(
        f"Suggested: {made.shards} shard{'s' if made.shards > 1 else ''} of at most {made.minutes} minutes, if a "
        f"tenth of the rates is reached: {made.device_hours:.2g} device-hours in all. A shard that runs out of time "
        "goes on where it was"
    )
    return lines
