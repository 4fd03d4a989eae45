"""`jaxsens constructions` and `jaxsens restrictions`: the papers' networks, described, restricted and measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro
from rich.console import Console

from jaxsens.cli import shared
from jaxsens.core.base.errors import InputError, Problems, collecting
from jaxsens.core.base.files import write_text
from jaxsens.core.base.stopping import Stopped

if TYPE_CHECKING:
    from jaxsens.core.sweeps.job import RowsJob


def constructions(
    name: tyro.conf.Positional[Annotated[shared.Text, shared.default("", "[NAME]")]] = None,
    /,
    *,
    measure: shared.Flag = False,
    out: Annotated[shared.File, shared.default("printed")] = None,
    cap: Annotated[shared.Count, shared.default("4000")] = None,
    compilation_cache: shared.CacheFolder = None,
    quiet: shared.Flag = False,
) -> int:
    """List the constructions, describe one, or measure them.

    For example: jaxsens constructions parity

    Args:
        name: The construction to describe or measure: parity, majority, dyck, ...
        measure: Measure sensitivity and exactness, and print a Markdown table. Takes minutes per construction.
        out: Write the table to this file. If the command is stopped, running it again resumes it.
        cap: The longest words on which to test exactness; time grows quadratically.
        quiet: Do not print progress.
    """
    from jaxsens.formal.constructions import table

    if not measure:
        if out is not None or cap is not None or compilation_cache is not None or quiet:
            raise InputError("constructions: --out, --cap, --compilation-cache and --quiet require --measure")
        Console(highlight=False).print(table.overview() if name is None else table.details(name))
        return 0
    with collecting("constructions") as problems:
        _check_table(out, problems)
    plan = table.plan_of(name, table.CAP if cap is None else cap)
    with shared.programs_kept(compilation_cache):
        job = table.constructions_job(plan, _rows_folder(out))
        return _tabulate(job, lambda rows: table.markdown(rows, plan), out, quiet)[0]


def restrictions(
    *,
    models: Annotated[shared.Count, shared.default("all ten")] = None,
    longest: Annotated[shared.Count, shared.default("1024")] = None,
    free_fraction: float = 0.5,
    out: Annotated[shared.File, shared.default("printed")] = None,
    compilation_cache: shared.CacheFolder = None,
    quiet: shared.Flag = False,
) -> int:
    """Restrict random hard-attention models (Hahn 2020, Theorem 1).

    Prints a Markdown table: for each model, at depths 1 and 2 and lengths 64, 128, ..., the share of inputs left free,
    how many of them may still matter, the checker's verdict, the largest change caused by the other inputs, and
    misclassified pairs of words for PARITY and 1DYCK (Corollary 2). All ten models take a few minutes.

    For example: jaxsens restrictions --models 2 --longest 128

    Args:
        models: The number of models to use, from 1 to 10.
        longest: The greatest input length.
        free_fraction: The smallest share of inputs to leave free.
        out: Write the table to this file. If the command is stopped, running it again resumes it.
        quiet: Do not print progress.
    """
    from jaxsens.theory.tables.restrictions import LENGTHS, MODELS, restrictions_job, table

    problems = Problems("restrictions")
    if models is not None and not 1 <= models <= MODELS:
        problems.add("--models", models, f"a number from 1 to {MODELS}")
    lengths = tuple(n for n in LENGTHS if longest is None or n <= longest)
    if not lengths:
        problems.add("--longest", longest, f"at least {LENGTHS[0]}")
    if not 0 < free_fraction < 1:
        problems.add("--free-fraction", free_fraction, "a share between 0 and 1")
    _check_table(out, problems)
    problems.raise_if_any()
    with shared.programs_kept(compilation_cache):
        job = restrictions_job(range(models or MODELS), lengths, free_fraction, _rows_folder(out))
        code, rows = _tabulate(job, lambda rows: f"{table(rows)}\n", out, quiet)
    return code if all(row.accepted and row.largest_change == 0 for row in rows) else 1


def _rows_folder(out: Path | None) -> Path | None:
    """The folder that keeps the finished rows of a table until it is written to the --out file."""
    return None if out is None else out.with_name(f"{out.name}.rows")


def _check_table(out: Path | None, problems: Problems) -> None:
    """Collects an error if a table cannot be written to --out, or its rows cannot be kept next to it until then."""
    shared.check_output("--out", out, problems)
    folder = _rows_folder(out) if out and out.name else None
    if folder is not None and folder.exists() and not folder.is_dir():
        problems.add("--out", str(out), f"another name: {folder}, where rows would be kept, is a file")


def _tabulate(
    job: RowsJob[Any, Any], table: Callable[[Sequence[Any]], str], out: Path | None, quiet: bool
) -> tuple[int, Sequence[Any]]:
    """Computes a table, and prints it or writes it to --out. Returns the exit code and the rows.

    A job that ended early leaves its rows, and no table. Once the table is written, the rows are no longer kept.

    Raises:
        Stopped: if a signal ended a job early that keeps no rows.
    """
    from jaxsens.core.sweeps.job import run

    outcome = run(job, Console(stderr=True, quiet=quiet))
    code, rows = outcome.exit_code, outcome.records
    if out is None and outcome.stopped_by is not None:
        raise Stopped(outcome.stopped_by)
    kept = f"{outcome.finished} of {outcome.planned} rows are kept in {_rows_folder(out)}"
    if shared.say_end(Console(stderr=True), [outcome], kept) and out is not None:
        return code, rows
    text = table(rows)
    if out is None:
        print(text, end="")
    elif shared.write_output("--out", out, lambda: write_text(out, text), text):
        code = 1
    elif code == 0:
        job.forget()
    return code, rows
