"""`jaxsens plan`: what a sweep takes on devices that need not be at hand."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import tyro
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
    write_output,
)
from jaxsens.core.base.errors import collecting
from jaxsens.core.base.files import write_text
from jaxsens.core.base.text import duration, in_words

if TYPE_CHECKING:
    from jaxsens.core.sweeps.planning.plan import Plan


@dataclass(frozen=True)
class PlanOptions(OptionGroup):
    """What is planned, and for which devices.

    Attributes:
        config: A TOML file of a sweep; see configs/.
        on: The devices: a100, b200, h100, h200, v5e, v5p, v6e, with their number, as h100x8 or v6e-8; or a TOML file
            that describes one, as docs/planning.md shows.
        only: Plan only these points: variant=NAME, n=LENGTH or seed=SEED; separate values by commas; repeatable.
        allow_code: Import and call the functions that the config names.
        write: Write the job that is suggested: NAME.slurm or NAME.yaml.
    """

    config: Config
    on: Annotated[Text, default("", "DEVICES")] = None
    only: Only = ()
    allow_code: Flag = False
    write: Annotated[File, default("not written", "FILE")] = None


def plan(options: Annotated[PlanOptions, tyro.conf.arg(name="")]) -> int:
    """Estimate what a sweep takes on devices that you do not have.

    Prints memory and the least time, and writes a job. Exit code 1: something does not fit.

    For example: jaxsens plan configs/gpu.toml --on h100 --write job.slurm

    Args:
        options: What is planned.
    """
    from jaxsens.core.sweeps.config import load_sweep_config
    from jaxsens.core.sweeps.planning.plan import (
        TEMPLATES,
        Plan,
        PlannedPoints,
        job_file,
        known_devices,
        planned,
        target_called,
    )
    from jaxsens.core.sweeps.points import select

    path = options.write
    with collecting("plan") as problems:
        if options.on is None:
            problems.add("--on", None, f"devices, such as {', '.join(known_devices())}, h100x8 or v6e-8")
        if path is not None:
            if path.suffix not in TEMPLATES:
                remedy = f"a name with one of these endings: {', '.join(TEMPLATES)}"
                problems.add("--write", str(path), remedy)
            check_output("--write", path, problems)
    target = target_called(options.on or "")
    sweep = load_sweep_config(options.config, options.allow_code)
    console = Console()
    with console.status("planning"):
        rows = [*planned(select(sweep.points, options.only), target, sweep.placement.memory_budget)]
    points = tuple(row for row in rows if isinstance(row, PlannedPoints))
    plan = Plan(target, points, tuple(row for row in rows if not isinstance(row, PlannedPoints)))
    for part in (*_tables(plan), *_lines(plan)):
        console.print(part, highlight=False, markup=False)
    if path is not None:
        words = [word for value in options.only for word in ("--only", value)]
        words += ["--allow-code"] * options.allow_code
        text = job_file(plan, path.suffix, options.config, words)
        return write_output("--write", path, lambda: write_text(path, text), text)
    return 0 if plan.fits else 1


_COLUMNS = {
    "n": 7, "points": 6, "engine": 11, "batch": 7, "memory": 9, "Gop": 7, "GB": 7, "least": 9, "compile": 7,
}  # fmt: skip
"""The columns of the table and their widths, together within a terminal of 80 columns."""


def _tables(plan: Plan) -> Iterator[Table | str]:
    """Yields the parts of the table: variants whose numbers are the same stand above one part."""
    target = plan.target
    yield f"{target.name}: {target.count} x {target.device.description}"
    parts: dict[str, list[tuple[str, ...]]] = {}
    for row in plan.rows:
        cells = (
            str(row.first.n),
            str(len(row.expected.points)),
            row.expected.run.choice.name,
            str(row.batch),
            "too large" if row.refusal else in_words(row.arguments + row.temporary),
            f"{row.expected.operations / 1e9:.3g}",
            f"{row.moved / 1e9:.3g}",
            "on host" if row.seconds is None else duration(row.seconds),
            duration(row.expected.run.compiling),
        )
        parts.setdefault(row.first.variant, []).append(cells)
    variants: dict[tuple[tuple[str, ...], ...], list[str]] = {}
    for name, rows in parts.items():
        variants.setdefault(tuple(rows), []).append(name)
    for k, (rows, names) in enumerate(variants.items()):
        table = Table(box=None, padding=(0, 1, 0, 0), show_header=not k)
        for name, width in _COLUMNS.items():
            table.add_column(name, justify="left" if name == "engine" else "right", width=width, no_wrap=True)
        for row in rows:
            table.add_row(*row)
        yield f"\n{', '.join(names)}"
        yield table
    yield ""


def _lines(plan: Plan) -> list[str]:
    """The lines below the table."""
    return [
        *(f"{point}: {reason}" for point, reason in plan.unmeasurable),
        *(f"{row.first}: {row.refusal}" for row in plan.rows if row.refusal),
        f"All points: at least {duration(plan.least_seconds)} by the rates of the devices, and about "
        f"{duration(plan.compiling)} to compile, once",
        f"Suggested: {plan.shards} shard{'s' if plan.shards > 1 else ''} of at most {plan.minutes} minutes, if a "
        f"tenth of the rates is reached: {plan.device_hours:.2g} device-hours in all. A shard that runs out of time "
        "goes on where it was",
    ]
