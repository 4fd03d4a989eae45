"""`jaxsens theorem6`: trained models compared with Hahn's Theorem 6."""

from __future__ import annotations

import shlex
from pathlib import Path

from rich.console import Console

from jaxsens.cli.compilation import CacheFolder, cache_again, programs_kept
from jaxsens.cli.shared import Config, Flag, Out, check_folder, say, say_why_ended


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

    console = Console(stderr=True)
    loaded = load_theorem6_config(config)
    with programs_kept(compilation_cache):
        outcome = run_theorem6(loaded, out, Console(stderr=True, quiet=quiet))
    for failure in outcome.failures:
        say(console, f"failed: {failure}")
    again = shlex.join(
        ["jaxsens", "theorem6", str(config), "--out", str(out), *cache_again(compilation_cache)]
    )
    done = f"{outcome.finished} of {outcome.planned} models and lengths are done"
    if outcome.ended_early:
        say_why_ended(console, outcome, done, again)
    elif outcome.finished == 0:
        say(console, "nothing could be evaluated")
    else:
        write_report(out, quiet)
    return outcome.exit_code


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
