"""`jaxsens generalisation`: accuracy of trained models by bin of lengths."""

from __future__ import annotations

import shlex

from rich.console import Console

from jaxsens.cli.compilation import CacheFolder, cache_again, programs_kept
from jaxsens.cli.shared import Config, Flag, Out, check_folder, say, say_why_ended


def generalisation(
    config: Config, /, *, out: Out, compilation_cache: CacheFolder = None, quiet: Flag = False
) -> int:
    """Train models on short words of several languages, and tabulate their accuracy by bin of lengths.

    Writes accuracy.csv, accuracy.md and a heat map. Run it again to resume.

    Args:
        config: A TOML file; see configs/atlas/yang2025.toml.
        out: The output directory.
        compilation_cache: Where compiled programs are kept for later commands, in a folder for each version of jaxlib,
            backend and processor; off to keep none.
        quiet: Print only failures.
    """
    check_folder("generalisation", out)
    from jaxsens.experiments.generalisation import (
        generalisation_job,
        load_generalisation,
        markdown_table,
        write_accuracies,
    )
    from jaxsens.experiments.job import run
    from jaxsens.files import write_text

    loaded, console = load_generalisation(config), Console(stderr=True)
    with programs_kept(compilation_cache):
        outcome = run(generalisation_job(loaded, out), Console(stderr=True, quiet=quiet))
    for failure in outcome.failures:
        say(console, f"failed: {failure}")
    if outcome.records:
        from jaxsens.analysis.generalisation import write_generalisation_figure

        table = markdown_table(loaded, outcome.records)
        write_accuracies(out / "accuracy.csv", loaded, outcome.records)
        write_text(out / "accuracy.md", table + "\n")
        figure = write_generalisation_figure(out, loaded, outcome.records)
        printed = Console(quiet=quiet)
        say(printed, table)
        say(printed, f"{figure}")
    if outcome.ended_early:
        again = shlex.join(
            ["jaxsens", "generalisation", str(config), "--out", str(out), *cache_again(compilation_cache)]
        )
        say_why_ended(console, outcome, f"{outcome.finished} of {outcome.planned} trainings are done", again)
    return outcome.exit_code
