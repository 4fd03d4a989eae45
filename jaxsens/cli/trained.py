"""`jaxsens train`, `theorem6` and `generalisation`: commands that train, in a folder until all is done."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro
from rich.console import Console

from jaxsens.cli.shared import (
    CacheFolder,
    Config,
    Flag,
    Out,
    check_folder,
    command_line,
    flags_named,
    print_text,
    programs_kept,
    say_failures,
    say_why_ended,
)
from jaxsens.core.base.files import only_inside

if TYPE_CHECKING:
    from jaxsens.core.sweeps.jobs.job import Outcome
    from jaxsens.training.tables.table_experiment import TableExperiment


@dataclass(frozen=True)
class RunOptions:
    """What such commands are given besides their config.

    Attributes:
        out: The output directory.
        quiet: Print only failures.
    """

    out: Out
    compilation_cache: CacheFolder = None
    quiet: Flag = False

    def run(
        self,
        compute: Callable[[Console], Outcome],
        report: Callable[[Outcome], None],
        parts: str,
    ) -> int:
        """Runs a job, says how it ended, and returns the exit code.

        Args:
            compute: runs the job, whose progress is printed to the console that it is given.
            report: writes what is to be written after it.
            parts: what the job's items are called, such as "trainings".
        """
        console = Console(stderr=True)
        with programs_kept(self.compilation_cache):
            outcome = compute(Console(stderr=True, quiet=self.quiet))
        say_failures(console, outcome)
        report(outcome)
        if outcome.ended_early:
            done = f"{outcome.finished} of {outcome.planned} {parts} are done"
            say_why_ended(console, outcome, done)
        return outcome.exit_code


Running = Annotated[RunOptions, tyro.conf.arg(name="")]
"""The type of a command's parameter that has these options."""


def train(config: Config, /, *, given: Running) -> int:
    """Train a model on a formal language; then measure it with `jaxsens measure OUT`.

    Writes checkpoints, metrics.csv, evaluation.csv and a plot of both. Run it again to resume.

    Args:
        config: A TOML file; see docs/learned.md.
        given: Where, and how.
    """
    check_folder("train", given.out)
    from jaxsens.core.sweeps.jobs.progress import watching
    from jaxsens.training.config import TrainConfig
    from jaxsens.training.events import TrainingDiverged, TrainingInterrupted
    from jaxsens.training.loop import train as run

    with flags_named({"path": "config"}):
        read = TrainConfig.from_toml(config)
    console = Console(stderr=True)
    try:
        progress = watching(Console(stderr=True, quiet=given.quiet), read.optimiser.steps)
        kept = programs_kept(given.compilation_cache)
        with flags_named({"directory": "--out"}), kept, progress as watch:
            trained = run(read, given.out, watch)
    except TrainingInterrupted as stop:
        done = f"{stop.step} of {read.optimiser.steps} steps are done"
        print_text(console, f"stopped; {done}. To resume: {command_line()}")
        return stop.exit_code
    except TrainingDiverged as error:
        print_text(console, f"failed: {error}")
        return 1
    from jaxsens.training.tables.curves import training_summary, write_training_plot

    plot = write_training_plot(given.out)
    printed = Console(quiet=given.quiet)
    summary = training_summary(given.out)
    if summary is not None:
        printed.print(summary)
    print_text(printed, f"trained for {trained.step} steps; fingerprint {trained.fingerprint[:12]}")
    print_text(printed, f"{trained.directory}")
    print_text(printed, f"no plot: {given.out / 'metrics.csv'} is missing" if plot is None else f"{plot}")
    return 0


def theorem6(config: Config, /, *, given: Running) -> int:
    """Train models on a language and evaluate them on longer words: cross-entropy, accuracy, flip sensitivity.

    Writes tables, plots and report.html that compare the results with Hahn (2020), Theorem 6. Run it again to resume.

    Args:
        config: A TOML file; see configs/theorem6_quick.toml.
        given: Where, and how.
    """
    check_folder("theorem6", given.out)
    from jaxsens.training.theorem6.config import load_theorem6_config
    from jaxsens.training.theorem6.results import complete, read_plan
    from jaxsens.training.theorem6.run import run_theorem6

    def report(outcome: Outcome) -> None:
        if outcome.ended_early:
            return
        if complete(outcome.records, read_plan(given.out)):
            write_report(given.out, given.quiet)
        else:
            print_text(Console(stderr=True), "nothing could be evaluated")

    compute = partial(run_theorem6, load_theorem6_config(config), given.out)
    return given.run(compute, report, "measurements")


def write_report(directory: Path, quiet: bool, format: str = "svg", width: str = "page") -> None:
    """Writes the report again from the existing results, and prints the findings."""
    from jaxsens.training.theorem6.report import write_theorem6_report

    page, findings, fits = write_theorem6_report(directory, format, width)
    console = Console(quiet=quiet)
    for text in (*findings, *map(str, fits)):
        print_text(console, text)
    print_text(console, f"{page}")


def generalisation(config: Config, /, *, given: Running) -> int:
    """Train models on short words of several languages, and tabulate their accuracy by bin of lengths.

    Writes accuracy.csv, accuracy.md and a heat map. Run it again to resume.

    Args:
        config: A TOML file; see configs/atlas/yang2025.toml.
        given: Where, and how.
    """
    check_folder("generalisation", given.out)
    from jaxsens.training.tables.generalisation import Generalisation

    return _tabulated(Generalisation, config, given)


def _tabulated(kind: type[TableExperiment[Any, Any]], config: Path, given: RunOptions) -> int:
    """Runs an experiment, writes what is done, even if that is not all, and returns the exit code."""
    from jaxsens.core.sweeps.jobs.job import run

    experiment = kind.load(config)

    def report(outcome: Outcome) -> None:
        if not outcome.records or (outcome.unwritable and not given.out.is_dir()):
            return
        with only_inside(given.out):
            written = experiment.write(given.out, outcome.records)
        for text in written:
            print_text(Console(quiet=given.quiet), f"{text}")

    def compute(progress: Console) -> Outcome:
        with only_inside(given.out):
            return run(experiment.job(given.out), progress)

    return given.run(compute, report, experiment.parts)
