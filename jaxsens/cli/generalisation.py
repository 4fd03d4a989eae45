"""`jaxsens generalisation`: accuracy of trained models by bin of lengths."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from jaxsens.cli.compilation import CacheFolder
from jaxsens.cli.rows import run_rows
from jaxsens.cli.shared import Config, Flag, Out, check_folder


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
        GeneralisationRow,
        generalisation_job,
        load_generalisation,
        markdown_table,
        write_accuracies,
    )
    from jaxsens.experiments.job import write_table_page

    loaded = load_generalisation(config)

    def write(rows: Sequence[GeneralisationRow]) -> tuple[str, Path]:
        from jaxsens.analysis.generalisation import write_generalisation_figure

        table = markdown_table(loaded, rows)
        write_accuracies(out / "accuracy.csv", loaded, rows)
        write_table_page(out / "accuracy.md", loaded.title, loaded.claim, table)
        return table, write_generalisation_figure(out, loaded, rows)

    job = generalisation_job(loaded, out)
    return run_rows("generalisation", config, out, job, "trainings", write, compilation_cache, quiet)
