"""`jaxsens sharpness`: sharpness, layer-norm blow-up and sensitivity of trained models against the length."""

from __future__ import annotations

import shlex

from rich.console import Console

from jaxsens.cli.compilation import CacheFolder, cache_again, programs_kept
from jaxsens.cli.shared import Config, Flag, Out, check_folder, say, say_why_ended


def sharpness(
    config: Config, /, *, out: Out, compilation_cache: CacheFolder = None, quiet: Flag = False
) -> int:
    """Train models of functions at each length; measure their sharpness, layer-norm blow-up and sensitivity.

    Writes sharpness.csv, sharpness.md and a figure. Run it again to resume.

    Args:
        config: A TOML file; see configs/atlas/hahn_rofin2024.toml.
        out: The output directory.
        compilation_cache: Where compiled programs are kept for later commands, in a folder for each version of jaxlib,
            backend and processor; off to keep none.
        quiet: Print only failures.
    """
    check_folder("sharpness", out)
    from jaxsens.experiments.job import run
    from jaxsens.experiments.sharpness_table import (
        load_sharpness,
        markdown_table,
        sharpness_job,
        write_sharpness_table,
    )
    from jaxsens.files import write_text

    loaded, console = load_sharpness(config), Console(stderr=True)
    with programs_kept(compilation_cache):
        outcome = run(sharpness_job(loaded, out), Console(stderr=True, quiet=quiet))
    for failure in outcome.failures:
        say(console, f"failed: {failure}")
    if outcome.records:
        from jaxsens.analysis.sharpness import write_sharpness_figure

        table = markdown_table(loaded, outcome.records)
        write_sharpness_table(out / "sharpness.csv", outcome.records)
        write_text(out / "sharpness.md", table + "\n")
        figure = write_sharpness_figure(out, loaded, outcome.records)
        printed = Console(quiet=quiet)
        say(printed, table)
        say(printed, f"{figure}")
    if outcome.ended_early:
        again = shlex.join(
            ["jaxsens", "sharpness", str(config), "--out", str(out), *cache_again(compilation_cache)]
        )
        say_why_ended(console, outcome, f"{outcome.finished} of {outcome.planned} lengths are done", again)
    return outcome.exit_code
