"""`jaxsens constructions`."""

from __future__ import annotations

from typing import Annotated

import tyro
from rich.console import Console

from jaxsens.cli.compilation import CacheFolder, programs_kept
from jaxsens.cli.shared import Count, File, Flag, check_table, default, put_out, rows_folder
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
    compilation_cache: CacheFolder = None,
    quiet: Flag = False,
) -> int:
    """List the constructions, describe one under every condition, or measure them.

    Args:
        name: The construction to describe or measure: parity, majority, dyck, ...
        measure: Measure sensitivity and exactness, and print a Markdown table. Takes minutes per construction.
        out: Write the table to this file. If the command is stopped, running it again resumes it.
        cap: The longest words on which to test exactness; time grows quadratically.
        compilation_cache: Where compiled programs are kept for later commands, in a folder for each version of jaxlib,
            backend and processor; off to keep none.
        quiet: Do not print progress.
    """
    from jaxsens.analysis.constructions import details, markdown, overview

    if not measure:
        if out is not None or cap is not None or compilation_cache is not None or quiet:
            raise InputError("constructions: --out, --cap, --compilation-cache and --quiet require --measure")
        Console(highlight=False).print(overview() if name is None else details(name))
        return 0
    from jaxsens.experiments.constructions_table import CAP, constructions_job, plan_of
    from jaxsens.experiments.job import run

    with collecting("constructions") as problems:
        check_table("--out", out, problems)
    plan = plan_of(name, CAP if cap is None else cap)
    job = constructions_job(plan, rows_folder(out))
    with programs_kept(compilation_cache):
        outcome = run(job, Console(stderr=True, quiet=quiet))
    return put_out(out, markdown(outcome.records, plan), outcome, job)
