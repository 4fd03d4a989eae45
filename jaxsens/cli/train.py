"""`jaxsens train`: one model on one language."""

from __future__ import annotations

from rich.console import Console

from jaxsens.cli.compilation import programs_kept
from jaxsens.cli.running import Running
from jaxsens.cli.shared import Config, check_folder, flags_named, say


def train(config: Config, /, *, given: Running) -> int:
    """Train a model on a formal language; then measure it with `jaxsens measure OUT`.

    Writes checkpoints, metrics.csv, evaluation.csv and a plot of both. Run it again to resume.

    Args:
        config: A TOML file; see docs/learned.md.
        given: Where, and how.
    """
    check_folder("train", given.out)
    from jaxsens.experiments.progress import watching
    from jaxsens.training.config import TrainConfig
    from jaxsens.training.events import TrainingDiverged, TrainingInterrupted
    from jaxsens.training.loop import train as run

    read = TrainConfig.from_toml(config)
    console = Console(stderr=True)
    try:
        progress = watching(Console(stderr=True, quiet=given.quiet), read.optimiser.steps)
        kept = programs_kept(given.compilation_cache)
        with flags_named({"directory": "--out"}), kept, progress as watch:
            trained = run(read, given.out, watch)
    except TrainingInterrupted as stop:
        done = f"{stop.step} of {read.optimiser.steps} steps are done"
        say(console, f"stopped; {done}. To resume: {given.again('train', config)}")
        return stop.exit_code
    except TrainingDiverged as error:
        say(console, f"failed: {error}")
        return 1
    from jaxsens.analysis.training import training_summary, write_training_plot

    plot = write_training_plot(given.out)
    printed = Console(quiet=given.quiet)
    summary = training_summary(given.out)
    if summary is not None:
        printed.print(summary)
    say(printed, f"trained for {trained.step} steps; fingerprint {trained.fingerprint[:12]}")
    say(printed, f"{trained.directory}")
    say(printed, f"no plot: {given.out / 'metrics.csv'} is missing" if plot is None else f"{plot}")
    return 0
