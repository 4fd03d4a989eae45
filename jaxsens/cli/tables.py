"""`jaxsens generalisation` and `jaxsens sharpness`: train and measure in parts, then write a table and a figure."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from jaxsens.cli.running import Running, RunOptions
from jaxsens.cli.shared import Config, check_folder, say
from jaxsens.files import only_inside

if TYPE_CHECKING:
    from jaxsens.experiments.job import Outcome
    from jaxsens.experiments.table_experiment import TableExperiment


def generalisation(config: Config, /, *, given: Running) -> int:
    """Train models on short words of several languages, and tabulate their accuracy by bin of lengths.

    Writes accuracy.csv, accuracy.md and a heat map. Run it again to resume.

    Args:
        config: A TOML file; see configs/atlas/yang2025.toml.
        given: Where, and how.
    """
    check_folder("generalisation", given.out)
    from jaxsens.experiments.generalisation import Generalisation

    return _tabulated("generalisation", Generalisation, config, given)


def sharpness(config: Config, /, *, given: Running) -> int:
    """Train models of functions at each length; measure their sharpness, layer-norm blow-up and sensitivity.

    Writes sharpness.csv, sharpness.md and a figure. Run it again to resume.

    Args:
        config: A TOML file; see configs/atlas/hahn_rofin2024.toml.
        given: Where, and how.
    """
    check_folder("sharpness", given.out)
    from jaxsens.experiments.sharpness_table import SharpnessExperiment

    return _tabulated("sharpness", SharpnessExperiment, config, given)


def _tabulated(command: str, kind: type[TableExperiment[Any, Any]], config: Path, given: RunOptions) -> int:
    """Runs an experiment, writes what is done, even if that is not all, and returns the exit code."""
    from jaxsens.experiments.job import run

    experiment = kind.load(config)

    def report(outcome: Outcome) -> None:
        if not outcome.records or (outcome.unwritable and not given.out.is_dir()):
            return
        from jaxsens.analysis.panels import write_figure
        from jaxsens.analysis.trained import figure_of

        with only_inside(given.out):
            table = experiment.write(given.out, outcome.records)
            figure = write_figure(given.out, experiment.stem, figure_of(experiment, outcome.records))
        for text in (table, f"{figure}"):
            say(Console(quiet=given.quiet), text)

    def compute(progress: Console) -> Outcome:
        with only_inside(given.out):
            return run(experiment.job(given.out), progress)

    return given.run(compute, report, experiment.parts, given.again(command, config))
