"""The Theorem 6 experiment as a job: trains every model, or goes on with it, and evaluates each at every length.

All state is in the files: what was killed is resumed by running it again. Trainings go on from their newest checkpoint,
and what is evaluated is kept by model and length.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from rich.console import Console

from jaxsens.base.errors import InputError, Problems
from jaxsens.base.files import takes_no_more
from jaxsens.base.stopping import check
from jaxsens.base.strict import messages
from jaxsens.base.told import say
from jaxsens.experiments.jobs.job import Failure, Job, Outcome, one_line, run
from jaxsens.experiments.jobs.progress import Reporter, watching
from jaxsens.experiments.sweep.sweep import row_of, write_config
from jaxsens.experiments.theorem6.config import ModelEntry, Theorem6
from jaxsens.experiments.theorem6.results import (
    CONFIG,
    PLAN,
    Cell,
    PlannedModel,
    Subject,
    Theorem6Plan,
    cell_path,
    measure_cell,
    models_folder,
    write_tables,
)
from jaxsens.models.transformer.config import TransformerConfig
from jaxsens.training.checkpoints import check_directory
from jaxsens.training.loop import train


def run_theorem6(experiment: Theorem6, directory: Path, console: Console) -> Outcome:
    """Trains what is not trained to the end, and evaluates what is not evaluated yet. See `run`.

    Raises:
        InputError: before any training, if the directory holds trainings by other configs: all of them.
    """
    problems = Problems(str(directory))
    for entry in experiment.models:
        if entry.config is not None:
            folder = models_folder(directory, entry.name)
            try:
                check_directory(folder, entry.config)
            except InputError as error:
                remedy = f"name another directory, or remove {folder} to train it again"
                problems.messages.append(f'model "{entry.name}": {"; ".join(messages(error))}: {remedy}')
    problems.raise_if_any()
    return run(Theorem6Job(experiment, directory), console)


class CellPlace(NamedTuple):
    """A model, by its name, at a length."""

    model: str
    n: int

    @property
    def group(self) -> tuple[str, int]:
        """The model and the length."""
        return self.model, self.n

    def __str__(self) -> str:
        return f"{self.model} n={self.n}"


class Theorem6Job(Job[CellPlace, Cell]):
    """Makes the models ready, then measures their cells, short words first."""

    folders = ("cells",)

    def __init__(self, experiment: Theorem6, directory: Path) -> None:
        every = [CellPlace(entry.name, n) for n in experiment.lengths for entry in experiment.models]
        super().__init__(every, directory)
        self.experiment = experiment
        self._subjects: dict[str, Subject] = {}

    def prepare(self, console: Console, failures: list[Failure]) -> None:
        """Trains the models. Only the cells of those that could be trained are left to measure."""
        for entry in self.experiment.models:
            check()
            try:
                self._subjects[entry.name] = self._subject(entry, console)
            except Exception as error:  # whatever one training raises, the others are done
                if takes_no_more(error):
                    raise
                failures.append(Failure(entry.name, one_line(error)))
                say(console, f"failed: {failures[-1]}")
        self.items = [place for place in self.items if place.model in self._subjects]
        told = {str(failure.item): failure.message for failure in failures}
        self._plan = Theorem6Plan(
            config=self.experiment.text,
            **row_of(self.experiment, ("title", "claim", "lengths", "seeds", "words", "inputs", "fit_from")),
            measure=self.experiment.measure.table(),
            models=tuple(self._planned(entry, told.get(entry.name, "")) for entry in self.experiment.models),
        )
        # Together, and after the training: what was there before stays as it is for as long as nothing replaces it.
        write_config(self.directory / CONFIG, self.experiment.text)
        self._plan.write(self.directory / PLAN)

    def path(self, item: CellPlace) -> Path:
        """Where a cell is kept."""
        return cell_path(self.directory, item.model, item.n)

    def read(self, item: CellPlace) -> Cell:
        """Reads a cell."""
        return Cell.read(self.path(item), self._subjects[item.model].key(item.n, self.experiment))

    def compute(self, item: CellPlace, reporter: Reporter) -> Cell:
        """Measures a cell, part by part."""
        parts = self.path(item).with_name(f".n={item.n}.parts.json")
        subject, inside = self._subjects[item.model], partial(reporter.inside, str(item))
        cell = measure_cell(subject, item.n, self.experiment, inside, parts, reporter.note)
        cell.write(self.path(item))
        parts.unlink(missing_ok=True)
        return cell

    def write_tables(self, records: Sequence[Cell]) -> None:
        """Writes the three CSV files."""
        write_tables(self.directory, records, self._plan)

    def _subject(self, entry: ModelEntry, console: Console) -> Subject:
        if entry.config is None:
            model, p = entry.untrained(), entry.language.settings["end_probability"]
            fingerprint = f"exact_parity_rnn({p!r}, {model.config.dtype})"
        else:
            with watching(console, entry.config.optimiser.steps, entry.name) as watch:
                trained = train(entry.config, models_folder(self.directory, entry.name), watch)
            model, fingerprint = trained.model, trained.fingerprint
        return Subject(entry.name, entry.task, entry.language, model, fingerprint)

    def _planned(self, entry: ModelEntry, failure: str) -> PlannedModel:
        config, subject = entry.config, self._subjects.get(entry.name)
        network = None if config is None else config.model
        return PlannedModel(
            name=entry.name,
            description=entry.description,
            task=entry.task,
            language=dict(entry.language.settings),
            bounded=network.bounded if isinstance(network, TransformerConfig) else True,
            longest_trained=None if config is None else config.data.lengths[1],
            steps=None if config is None or subject is None else config.optimiser.steps,
            keys={n: subject.key(n, self.experiment) for n in self.experiment.lengths} if subject else {},
            failure=failure,
        )
