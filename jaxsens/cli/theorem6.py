"""`jaxsens theorem6`: trained models compared with Hahn's Theorem 6."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from jaxsens.cli.compilation import CacheFolder, again
from jaxsens.cli.shared import Config, Flag, Out, check_folder, say
from jaxsens.cli.tables import run_in_parts

if TYPE_CHECKING:
    from jaxsens.experiments.job import Outcome


def theorem6(
    config: Config, /, *, out: Out, compilation_cache: CacheFolder = None, quiet: Flag = False
) -> int:
    """Train models on a language and evaluate them on longer words: cross-entropy, accuracy, flip sensitivity.

    Writes tables, plots and report.html that compare the results with Hahn (2020), Theorem 6. Run it again to resume.

    Args:
        config: A TOML file; see configs/theorem6_quick.toml.
        out: The output directory.
        compilation_cache: Where compiled programs are kept for later commands, in a folder for each version of jaxlib,
            backend and processor; off to keep none.
        quiet: Print only failures.
    """
    check_folder("theorem6", out)
    from jaxsens.experiments.theorem6 import run_theorem6
    from jaxsens.experiments.theorem6_config import load_theorem6_config

    def report(outcome: Outcome) -> None:
        if outcome.finished and not outcome.ended_early:
            write_report(out, quiet)
        elif not outcome.ended_early:
            say(Console(stderr=True), "nothing could be evaluated")

    resume = again("theorem6", config, out, compilation_cache)
    compute = partial(run_theorem6, load_theorem6_config(config), out)
    return run_in_parts(compute, report, "models and lengths", resume, compilation_cache, quiet)


def write_report(directory: Path, quiet: bool) -> None:
    """Writes the report again from the existing results, and prints the findings."""
    from jaxsens.analysis.page import summary_table
    from jaxsens.analysis.theorem6 import write_theorem6_report

    page, findings, fits = write_theorem6_report(directory)
    console = Console(quiet=quiet)
    for text in findings:
        say(console, text)
    console.print(summary_table(fits))
    say(console, f"{page}")
