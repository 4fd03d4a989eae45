"""`jaxsens sharpness`: sharpness, layer-norm blow-up and sensitivity of trained models against the length."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from jaxsens.cli.compilation import CacheFolder
from jaxsens.cli.rows import run_rows
from jaxsens.cli.shared import Config, Flag, Out, check_folder


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
    from jaxsens.experiments.job import write_table_page
    from jaxsens.experiments.sharpness_table import (
        SharpnessRow,
        load_sharpness,
        markdown_table,
        sharpness_job,
        write_sharpness_table,
    )

    loaded = load_sharpness(config)

    def write(rows: Sequence[SharpnessRow]) -> tuple[str, Path]:
        from jaxsens.analysis.sharpness import write_sharpness_figure

        table = markdown_table(loaded, rows)
        write_sharpness_table(out / "sharpness.csv", rows)
        write_table_page(out / "sharpness.md", loaded.title, loaded.claim, table)
        return table, write_sharpness_figure(out, loaded, rows)

    job = sharpness_job(loaded, out)
    return run_rows("sharpness", config, out, job, "lengths", write, compilation_cache, quiet)
