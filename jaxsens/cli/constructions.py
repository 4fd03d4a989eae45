"""`jaxsens constructions`."""

from __future__ import annotations

from typing import Annotated

import tyro
from rich.console import Console

from jaxsens.cli.shared import Count, File, Flag, check_output, default, put_out
from jaxsens.errors import InputError, collecting


def constructions(
    name: tyro.conf.Positional[
        Annotated[str | None, tyro.conf.arg(metavar="[NAME]", help_behavior_hint="")]
    ] = None,
    /,
    *,
    measure: Flag = False,
    out: Annotated[File, default("printed")] = None,
    cap: Annotated[Count, default("4000")] = None,
    quiet: Flag = False,
) -> int:
    """List the constructions; with a name, print what one is in every condition; or measure them.

    Args:
        name: A construction: parity, majority, dyck, ...
        measure: Measure sensitivity and exactness, and print the table of results in Markdown. Minutes a construction.
        out: Write the table to this file.
        cap: The longest words to try exactness on; time grows as their square.
        quiet: Print no progress.
    """
    from jaxsens.analysis.constructions import details, markdown, overview

    if not measure:
        if out is not None or cap is not None or quiet:
            raise InputError("constructions: --out, --cap and --quiet belong to --measure")
        Console(highlight=False).print(overview() if name is None else details(name))
        return 0
    from jaxsens.experiments.constructions_table import ConstructionsJob, plan_of
    from jaxsens.experiments.job import run

    with collecting("constructions") as faults:
        check_output("--out", out, faults)
    plan = plan_of(name, cap)
    outcome = run(ConstructionsJob(plan), Console(stderr=True, quiet=quiet))
    return put_out(out, markdown(outcome.records, plan), outcome)
