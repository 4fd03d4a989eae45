"""What commands share that train and measure in parts, one row each, and then write a table and a figure."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from jaxsens.cli.compilation import cache_again, programs_kept
from jaxsens.cli.shared import say, say_why_ended
from jaxsens.files import only_inside


def run_rows(
    command: str,
    config: Path,
    out: Path,
    job: Any,
    parts: str,
    write: Callable[[Sequence[Any]], tuple[str, Path]],
    compilation_cache: str | None,
    quiet: bool,
) -> int:
    """Runs a job, writes what is done, and returns the exit code.

    Args:
        command: its name.
        config: the config's file.
        out: the output directory.
        job: a `RowsJob`.
        parts: what the job's items are called, such as "trainings".
        write: writes the tables and the figure of the rows so far; returns a table in words, and the figure's path.
        compilation_cache: as the command was given it.
        quiet: print only failures.
    """
    from jaxsens.experiments.job import run

    console = Console(stderr=True)
    with only_inside(out), programs_kept(compilation_cache):
        outcome = run(job, Console(stderr=True, quiet=quiet))
    for failure in outcome.failures:
        say(console, f"failed: {failure}")
    if outcome.records and (out.is_dir() or not outcome.unwritable):
        with only_inside(out):
            table, figure = write(outcome.records)
        printed = Console(quiet=quiet)
        say(printed, table)
        say(printed, str(figure))
    if outcome.ended_early:
        again = shlex.join(
            ["jaxsens", command, str(config), "--out", str(out), *cache_again(compilation_cache)]
        )
        say_why_ended(console, outcome, f"{outcome.finished} of {outcome.planned} {parts} are done", again)
    return outcome.exit_code
