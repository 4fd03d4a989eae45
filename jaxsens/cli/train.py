"""`jaxsens train`: one model on one language."""

from __future__ import annotations

from rich.console import Console

from jaxsens.cli.compilation import CacheFolder, again, programs_kept
from jaxsens.cli.shared import Config, Flag, Out, check_folder, flags_named, say


def train(config: Config, /, *, out: Out, compilation_cache: CacheFolder = None, quiet: Flag = False) -> int:
    """Train a model on a formal language; then measure it with `jaxsens measure OUT`.

    Writes checkpoints, metrics.csv, evaluation.csv and a plot of both. Run it again to resume.

    Args:
        config: A TOML file; see docs/learned.md.
        out: The output directory.
        compilation_cache: Where compiled programs are kept for later commands, in a folder for each version of jaxlib,
            backend and processor; off to keep none.
        quiet: Print only failures.
    """
    check_folder("train", out)
    from jaxsens.experiments.progress import watching
    from jaxsens.training.config import TrainConfig
    from jaxsens.training.events import TrainingDiverged, TrainingInterrupted
    from jaxsens.training.loop import train as run

    read = TrainConfig.from_toml(config)
    console = Console(stderr=True)
    try:
        progress = watching(Console(stderr=True, quiet=quiet), read.optimiser.steps)
        kept = programs_kept(compilation_cache)
        with flags_named({"directory": "--out"}), kept, progress as watch:
            trained = run(read, out, watch)
    except TrainingInterrupted as stop:
        done = f"{stop.step} of {read.optimiser.steps} steps are done"
        say(console, f"stopped; {done}. To resume: {again('train', config, out, compilation_cache)}")
        return stop.exit_code
    except TrainingDiverged as error:
        say(console, f"failed: {error}")
        return 1
    from jaxsens.analysis.training import training_summary, write_training_plot

    plot = write_training_plot(out)
    printed = Console(quiet=quiet)
    summary = training_summary(out)
    if summary is not None:
        printed.print(summary)
    say(printed, f"trained for {trained.step} steps; fingerprint {trained.fingerprint[:12]}")
    say(printed, f"{trained.directory}")
    say(printed, f"no plot: {out / 'metrics.csv'} is missing" if plot is None else f"{plot}")
    return 0
