"""`jaxsens theorem6`: trained models compared with Hahn's Theorem 6."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from jaxsens.cli.running import Running
from jaxsens.cli.shared import Config, check_folder, say

if TYPE_CHECKING:
    from jaxsens.experiments.job import Outcome


def theorem6(config: Config, /, *, given: Running) -> int:
    """Train models on a language and evaluate them on longer words: cross-entropy, accuracy, flip sensitivity.

    Writes tables, plots and report.html that compare the results with Hahn (2020), Theorem 6. Run it again to resume.

    Args:
        config: A TOML file; see configs/theorem6_quick.toml.
        given: Where, and how.
    """
    check_folder("theorem6", given.out)
    from jaxsens.experiments.theorem6 import run_theorem6
    from jaxsens.experiments.theorem6_config import load_theorem6_config

    def report(outcome: Outcome) -> None:
        if outcome.finished and not outcome.ended_early:
            write_report(given.out, given.quiet)
        elif not outcome.ended_early:
            say(Console(stderr=True), "nothing could be evaluated")

    compute = partial(run_theorem6, load_theorem6_config(config), given.out)
    return given.run(compute, report, "models and lengths", given.again("theorem6", config))


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
