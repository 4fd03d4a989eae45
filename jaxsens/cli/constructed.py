"""`jaxsens constructions` and `jaxsens restrictions`: the papers' networks, described, restricted and measured."""

from __future__ import annotations

from typing import Annotated

import tyro
from rich.console import Console

from jaxsens.base.errors import InputError, Problems, collecting
from jaxsens.cli.compilation import CacheFolder, programs_kept
from jaxsens.cli.shared import Count, File, Flag, check_table, default, put_out, rows_folder


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
    from jaxsens.experiments.constructed.report import details, markdown, overview

    if not measure:
        if out is not None or cap is not None or compilation_cache is not None or quiet:
            raise InputError("constructions: --out, --cap, --compilation-cache and --quiet require --measure")
        Console(highlight=False).print(overview() if name is None else details(name))
        return 0
    from jaxsens.experiments.constructed.constructions_table import CAP, constructions_job, plan_of
    from jaxsens.experiments.jobs.job import run

    with collecting("constructions") as problems:
        check_table("--out", out, problems)
    plan = plan_of(name, CAP if cap is None else cap)
    job = constructions_job(plan, rows_folder(out))
    with programs_kept(compilation_cache):
        outcome = run(job, Console(stderr=True, quiet=quiet))
    return put_out(out, markdown(outcome.records, plan), outcome, job)


def restrictions(
    *,
    models: Annotated[Count, default("all ten")] = None,
    longest: Annotated[Count, default("1024")] = None,
    free_fraction: float = 0.5,
    out: Annotated[File, default("printed")] = None,
    compilation_cache: CacheFolder = None,
    quiet: Flag = False,
) -> int:
    """Restrict random hard-attention models (Hahn 2020, Theorem 1), check the result, and print a Markdown table.

    For each model, at depths 1 and 2 and lengths 64, 128, ..., the table gives the share of inputs left free, how many
    of them may still matter, the checker's verdict, the largest change caused by the other inputs, and misclassified
    pairs of words for PARITY and 1DYCK (Corollary 2). All ten models take a few minutes.

    Args:
        models: The number of models to use, from 1 to 10.
        longest: The greatest input length.
        free_fraction: The smallest share of inputs to leave free.
        out: Write the table to this file. If the command is stopped, running it again resumes it.
        compilation_cache: Where compiled programs are kept for later commands, in a folder for each version of jaxlib,
            backend and processor; off to keep none.
        quiet: Do not print progress.
    """
    from jaxsens.experiments.constructed.restrictions_table import LENGTHS, MODELS, restrictions_job, table
    from jaxsens.experiments.jobs.job import run

    problems = Problems("restrictions")
    if models is not None and not 1 <= models <= MODELS:
        problems.add("--models", models, f"a number from 1 to {MODELS}")
    lengths = tuple(n for n in LENGTHS if longest is None or n <= longest)
    if not lengths:
        problems.add("--longest", longest, f"at least {LENGTHS[0]}")
    if not 0 < free_fraction < 1:
        problems.add("--free-fraction", free_fraction, "a share between 0 and 1")
    check_table("--out", out, problems)
    problems.raise_if_any()
    job = restrictions_job(range(models or MODELS), lengths, free_fraction, rows_folder(out))
    with programs_kept(compilation_cache):
        outcome = run(job, Console(stderr=True, quiet=quiet))
    sound = all(row.accepted and row.largest_change == 0 for row in outcome.records)
    code = put_out(out, table(outcome.records) + "\n", outcome, job)
    return code if sound else 1
