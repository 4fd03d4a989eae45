"""`jaxsens generalisation` and `jaxsens sharpness`: train and measure in parts, then write a table and a figure."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from jaxsens.cli.compilation import CacheFolder, again, programs_kept
from jaxsens.cli.shared import Config, Flag, Out, check_folder, say, say_failures, say_why_ended
from jaxsens.files import only_inside

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from jaxsens.experiments.job import Outcome
    from jaxsens.experiments.table_experiment import TableExperiment


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
    from jaxsens.experiments.generalisation import Generalisation

    def draw(*shown: Any) -> Figure:
        from jaxsens.analysis.generalisation import generalisation_figure

        return generalisation_figure(*shown)

    resume = again("generalisation", config, out, compilation_cache)
    return _tabulated(Generalisation.load(config), draw, out, resume, compilation_cache, quiet)


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
    from jaxsens.experiments.sharpness_table import SharpnessExperiment

    def draw(*shown: Any) -> Figure:
        from jaxsens.analysis.sharpness import sharpness_figure

        return sharpness_figure(*shown)

    resume = again("sharpness", config, out, compilation_cache)
    return _tabulated(SharpnessExperiment.load(config), draw, out, resume, compilation_cache, quiet)


def _tabulated(
    experiment: TableExperiment[Any, Any],
    draw: Callable[..., Figure],
    out: Path,
    resume: str,
    cache: str | None,
    quiet: bool,
) -> int:
    """Runs an experiment, writes what is done, even if that is not all, and returns the exit code."""
    from jaxsens.experiments.job import run

    def report(outcome: Outcome) -> None:
        if not outcome.records or (outcome.unwritable and not out.is_dir()):
            return
        from jaxsens.analysis.panels import write_figure

        with only_inside(out):
            table = experiment.write(out, outcome.records)
            figure = write_figure(out, experiment.stem, draw(experiment, outcome.records))
        for text in (table, f"{figure}"):
            say(Console(quiet=quiet), text)

    def compute(progress: Console) -> Outcome:
        with only_inside(out):
            return run(experiment.job(out), progress)

    return run_in_parts(compute, report, experiment.parts, resume, cache, quiet)


def run_in_parts(
    compute: Callable[[Console], Outcome],
    report: Callable[[Outcome], None],
    parts: str,
    resume: str,
    cache: str | None,
    quiet: bool,
) -> int:
    """Runs a job, says how it ended, and returns the exit code.

    Args:
        compute: runs the job, whose progress is printed to the console that it is given.
        report: writes what is to be written after it.
        parts: what the job's items are called, such as "trainings".
        resume: the command that goes on with it.
        cache: --compilation-cache, as the command was given it.
        quiet: print only failures.
    """
    console = Console(stderr=True)
    with programs_kept(cache):
        outcome = compute(Console(stderr=True, quiet=quiet))
    say_failures(console, outcome)
    report(outcome)
    if outcome.ended_early:
        say_why_ended(console, outcome, f"{outcome.finished} of {outcome.planned} {parts} are done", resume)
    return outcome.exit_code
