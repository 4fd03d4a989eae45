"""The Theorem 6 experiment as a job: trains every model, or goes on with it, and evaluates each at every length.

All state is in the files: what was killed is resumed by running it again. Trainings go on from their newest checkpoint,
and what is evaluated is kept row by row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from jaxsens.core.base.errors import InputError, Problems
from jaxsens.core.base.files import takes_no_more
from jaxsens.core.base.stopping import check
from jaxsens.core.base.text import print_text
from jaxsens.core.models.transformer.config import TransformerConfig
from jaxsens.core.sweeps.jobs.job import Failure, Named, Outcome, RowsJob, one_line, run
from jaxsens.core.sweeps.jobs.progress import Reporter, watching
from jaxsens.core.sweeps.sweep import row_of, write_config
from jaxsens.training.checkpoints import check_directory
from jaxsens.training.loop import train
from jaxsens.training.theorem6 import results
from jaxsens.training.theorem6.config import ModelEntry, Theorem6


def run_theorem6(experiment: Theorem6, directory: Path, console: Console) -> Outcome:
    """Trains what is not trained to the end, and evaluates what is not evaluated yet. See `run`.

    Raises:
        InputError: before any training, if the directory holds trainings by other configs: all of them.
    """
    problems = Problems(str(directory))
    for entry in experiment.models:
        if entry.config is not None:
            folder = results.models_folder(directory, entry.name)
            try:
                check_directory(folder, entry.config)
            except InputError as error:
                remedy = f"name another directory, or remove {folder} to train it again"
                for one in error.problems:
                    problems.note(("model", entry.name), f"{one}: {remedy}")
    problems.raise_if_any()
    return run(Theorem6Job(experiment, directory), console)


class Theorem6Job(RowsJob[results.RowPlace, results.KeptRow]):
    """Makes the models ready, then measures their rows, short words first."""

    def __init__(self, experiment: Theorem6, directory: Path) -> None:
        told = ("title", "claim", "lengths", "seeds", "words", "inputs", "fit_from")
        self.experiment, self._models = experiment, dict[str, Any]()
        self.plan = results.Theorem6Plan(
            config=experiment.text,
            **row_of(experiment, told),
            measure=experiment.measure.table(),
            models=tuple(map(_planned, experiment.models)),
        )
        super().__init__(self.plan.items, None, results.KeptRow, {}, directory, results.ROWS_FOLDER)

    def prepare(self, console: Console, failures: list[Failure]) -> None:
        """Trains the models. Only the rows of those that could be trained are left to measure."""
        models = []
        for entry, planned in zip(self.experiment.models, self.plan.models, strict=True):
            check()
            try:
                model, found = self._made(entry, console)
            except Exception as error:  # whatever one training raises, the others are done
                if takes_no_more(error):
                    raise
                failures.append(Failure(entry.name, one_line(error)))
                print_text(console, f"failed: {failures[-1]}")
                model, found = None, {"failure": failures[-1].message}
            self._models[entry.name] = model
            models.append(replace(planned, **found))
        self.plan = replace(self.plan, models=tuple(models))
        self.items = self.plan.items
        # Together, and after the training: what was there before stays as it is for as long as nothing replaces it.
        write_config(self.directory / results.CONFIG, self.experiment.text)
        self.plan.write(self.directory / results.PLAN)

    def measure(self, item: Named[results.RowPlace], reporter: Reporter) -> results.KeptRow:
        model, inside = self._models[item.value.model.name], partial(reporter.inside, str(item))
        return results.measure(item.value, model, self.experiment, inside)

    def write_tables(self, records: Sequence[results.KeptRow]) -> None:
        results.write_tables(self.directory, records, self.plan)

    def _made(self, entry: ModelEntry, console: Console) -> tuple[Any, dict[str, Any]]:
        """A model, trained to the end, and what the plan says of it."""
        if entry.config is None:
            model, p = entry.untrained(), entry.language.settings["end_probability"]
            return model, {"fingerprint": f"exact_parity_rnn({p!r}, {model.config.dtype})"}
        steps = entry.config.optimiser.steps
        with watching(console, steps, entry.name) as watch:
            trained = train(entry.config, results.models_folder(self.directory, entry.name), watch)
        return trained.model, {"fingerprint": trained.fingerprint, "steps": steps}


def _planned(entry: ModelEntry) -> results.PlannedModel:
    """What is known of a model before it is trained."""
    config, settings = entry.config, dict(entry.language.settings)
    planned = results.PlannedModel(entry.name, entry.description, entry.task, settings)
    if config is None:
        return planned
    bounded = config.model.bounded if isinstance(config.model, TransformerConfig) else True
    return replace(planned, bounded=bounded, longest_trained=config.data.lengths[1])
