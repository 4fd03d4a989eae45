"""`jaxsens train` and `theorem6`: commands that train, in a folder until all is done."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import tyro
from rich.console import Console

from jaxsens.cli import shared
from jaxsens.cli.shared import CacheFolder, Config, Flag, Out
from jaxsens.cli.sweep import MeasuredOptions, finish
from jaxsens.core.base.text import print_text
from jaxsens.core.sweeps.progress import reporting


def train(config: Config, /, *, out: Out, compilation_cache: CacheFolder = None, quiet: Flag = False) -> int:
    """Train a model on a formal language.

    `jaxsens measure OUT` measures it. Writes checkpoints, metrics.csv, evaluation.csv and a plot of both. Run it
    again to resume.

    For example: jaxsens train parity.toml --out trained/parity

    Args:
        config: A TOML file; see docs/learned.md.
        out: The output directory.
        quiet: Print only failures.
    """
    shared.check_folder("train", out)
    from jaxsens.training.config import TrainConfig
    from jaxsens.training.loop import (
        TrainingDiverged,
        TrainingInterrupted,
        training_summary,
        write_training_plot,
    )
    from jaxsens.training.loop import train as run

    with shared.flags_named({"path": "config"}):
        read = TrainConfig.from_toml(config)
    console = Console(stderr=True)
    try:
        progress = watching(Console(stderr=True, quiet=quiet), read.optimiser.steps)
        kept = shared.programs_kept(compilation_cache)
        with shared.flags_named({"directory": "--out"}), kept, progress as watch:
            trained = run(read, out, watch)
    except TrainingInterrupted as stop:
        done = f"{stop.step} of {read.optimiser.steps} steps are done"
        print_text(console, f"stopped; {done}. To resume: {shared.command_line()}")
        return stop.exit_code
    except TrainingDiverged as error:
        print_text(console, f"failed: {error}")
        return 1
    plot, printed = write_training_plot(out), Console(quiet=quiet)
    printed.print(training_summary(out))
    print_text(printed, f"trained for {trained.step} steps; fingerprint {trained.fingerprint[:12]}")
    print_text(printed, f"{trained.directory}")
    print_text(printed, f"{plot}")
    return 0


def theorem6(options: Annotated[MeasuredOptions, tyro.conf.arg(name="")]) -> int:
    """Train models and evaluate them on longer words (Theorem 6).

    Writes cross-entropy, accuracy and flip sensitivity, beside Hahn (2020), Theorem 6: tables, plots,
    report.html. Run it again to resume. Of M parts, each trains every M-th model; once all models are trained, the
    same commands measure.

    For example: jaxsens theorem6 configs/theorem6_quick.toml --out results/theorem6

    Args:
        options: As of a sweep.
    """
    config, out = options.places
    shared.check_folder("theorem6", out)
    from jaxsens.training.theorem6.run import load_theorem6_config, run_theorem6

    experiment, console = load_theorem6_config(config), Console(stderr=True, quiet=options.quiet)
    with shared.flags_named({"directory": "--out"}), shared.programs_kept(options.compilation_cache):
        sweep, outcomes = run_theorem6(experiment, out, console, options.only, options.shard)
    return finish(sweep, outcomes, options)


@contextmanager
def watching(console: Console, steps: int, name: str = "") -> Iterator[Callable[[Any], None]]:
    """Shows work of `steps` steps, which take about equally long. Yields the function to call with each event: its
    `text` is one line, "" for an event that is not shown; `done` steps are done, or None for a note."""
    start: list[float] = []

    def watch(event: Any) -> None:
        now = time.monotonic()
        if event.done is not None:
            first, began = start or (event.done, now)
            start[:] = first, began
            left = (now - began) / (event.done - first) * (steps - event.done) if event.done > first else None
            reporter.reached(event.done, event.text, left)
        elif event.text:
            reporter.note(event.text)

    with reporting(console, steps, name=name, at_once=True) as reporter:
        yield watch
