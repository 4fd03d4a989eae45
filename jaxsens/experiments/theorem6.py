"""Runs the Theorem 6 experiment: trains every model, or goes on with it, and evaluates each at every length.

There is no state beside the files: what was killed is resumed by running it again. Trainings go on from their newest
checkpoint, and what is evaluated is kept by model and length.
"""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console

from jaxsens.errors import Faults, InputError
from jaxsens.experiments.own_config import write_config
from jaxsens.experiments.progress import Reporter, reporting
from jaxsens.experiments.runner import one_line, why_unwritable
from jaxsens.experiments.theorem6_cells import Cell, Evaluation, Subject, measure_cell
from jaxsens.experiments.theorem6_config import Entry, ExactEntry, Theorem6, TrainedEntry
from jaxsens.experiments.theorem6_parts import parts_path
from jaxsens.experiments.theorem6_results import (
    CONFIG,
    Plan,
    PlannedModel,
    models_folder,
    read_cell,
    write_cell,
    write_tables,
)
from jaxsens.experiments.training_progress import watching
from jaxsens.files import clear_leftovers, takes_no_more
from jaxsens.models.config import TransformerConfig
from jaxsens.sealed import DamagedFile
from jaxsens.stopping import check, noting
from jaxsens.strict import messages
from jaxsens.training.checkpoints import check_directory
from jaxsens.training.events import TrainingInterrupted
from jaxsens.training.loop import train
from jaxsens.training.recurrent_parity import exact_parity_rnn


@dataclass(frozen=True)
class Outcome:
    """How a run ended.

    Attributes:
        finished: how many cells, models at lengths, are done now; of `planned`.
        failures: a line for every model that could not be trained and every cell that could not be measured.
        stopped_by: the signal that ended it early, or None.
        unwritable: why nothing more can be kept in the directory, which ended it early; empty where that is not so.
    """

    finished: int
    planned: int
    failures: tuple[str, ...]
    stopped_by: int | None
    unwritable: str = ""

    @property
    def exit_code(self) -> int:
        """0, 1 if something failed or nothing more could be kept, 128 + the signal's number if a signal stopped it."""
        if self.stopped_by is not None:
            return 128 + self.stopped_by
        return 1 if self.failures or self.unwritable else 0


def run_theorem6(experiment: Theorem6, directory: Path, console: Console) -> Outcome:
    """Trains what is not trained to the end, and evaluates what is not evaluated yet.

    A model or a cell that fails is reported and does not stop the others. Ctrl-C and SIGTERM leave what was finished,
    and so does a disk that takes no more.

    Raises:
        InputError: before any training, if the directory holds trainings by other configs: all of them.
    """
    _check_directory(experiment, directory)
    run = _Run(experiment, directory, console)
    unwritable = ""
    with noting(signal.SIGINT, signal.SIGTERM) as request:
        interrupted = None
        try:
            run.train()
            run.evaluate()
        except TrainingInterrupted as stop:
            interrupted = stop.signal
        except KeyboardInterrupt:
            interrupted = signal.SIGINT
        except OSError as error:
            unwritable = why_unwritable(error, directory)
        stopped_by = request.answer() or interrupted
    return Outcome(
        finished=len(run.done),
        planned=len(experiment.models) * len(experiment.lengths),
        failures=tuple(run.failures),
        stopped_by=stopped_by,
        unwritable=unwritable,
    )


def _check_directory(experiment: Theorem6, directory: Path) -> None:
    """Refuses trainings by other configs, before anything is trained."""
    faults = Faults(str(directory))
    for entry in experiment.models:
        if isinstance(entry, TrainedEntry):
            folder = models_folder(directory, entry.name)
            try:
                check_directory(folder, entry.config)
            except InputError as error:
                remedy = f"name another directory, or remove {folder} to train it anew"
                faults.messages.append(f'model "{entry.name}": {"; ".join(messages(error))}: {remedy}')
    faults.raise_if_any()


class _Run:
    """One run over a directory: what is done so far."""

    def __init__(self, experiment: Theorem6, directory: Path, console: Console) -> None:
        self.experiment = experiment
        self.directory = directory
        self.console = console
        self.subjects: dict[str, Subject] = {}
        self.untrained: dict[str, str] = {}
        self.done: dict[tuple[str, int], Cell] = {}
        self.failures: list[str] = []
        self.evaluation = Evaluation(
            experiment.seeds, experiment.words, experiment.inputs, experiment.measure, directory
        )

    def train(self) -> None:
        """Makes every model ready; notes those that cannot be."""
        for entry in self.experiment.models:
            check()
            try:
                self.subjects[entry.name] = self._subject(entry)
            except Exception as error:  # whatever one training raises, the others are done
                if takes_no_more(error):
                    raise
                self.untrained[entry.name] = one_line(error)
                self.failures.append(f"{entry.name}: {one_line(error)}")
                _say(self.console, f"failed: {entry.name}: {one_line(error)}")

    def _subject(self, entry: Entry) -> Subject:
        if isinstance(entry, ExactEntry):
            p = entry.language.end_probability
            model = exact_parity_rnn(p)
            fingerprint = f"exact_parity_rnn({p!r}, {model.config.dtype})"
            return Subject(entry.name, entry.task, entry.language, model, fingerprint)
        with watching(self.console, entry.name) as reporter:
            trained = train(entry.config, models_folder(self.directory, entry.name), reporter)
        return Subject(entry.name, entry.task, entry.language, trained.model, trained.fingerprint)

    def evaluate(self) -> None:
        """Measures the cells that are missing, short words first; keeps the plan and the tables up to date."""
        plan = self._plan()
        # Together, and after the training: what was there before stays as it is for as long as nothing replaces it.
        write_config(self.directory / CONFIG, self.experiment.text)
        plan.write(self.directory)
        clear_leftovers((self.directory / "cells").glob("*/.*.tmp"))
        cells = [(model.name, n) for model, n in plan.cells if n in model.keys]
        damaged = self._look(cells)
        rest = [cell for cell in cells if cell not in self.done]
        seconds: dict[str, list[tuple[int, float]]] = {}
        with reporting(self.console, len(cells), len(cells) - len(rest)) as reporter:
            for note in damaged:
                reporter.note(f"measured again: {note}")
            if len(rest) < len(cells):
                reporter.note(f"{len(cells) - len(rest)} of {len(cells)} cells were done before")
            for k, (name, n) in enumerate(rest):
                check()
                began = time.perf_counter()
                text = self._measure(name, n, reporter)
                seconds.setdefault(name, []).append((n, time.perf_counter() - began))
                reporter.finished(text, seconds_left(seconds, rest[k + 1 :]))
                write_tables(self.directory, self.done.values(), plan)
        write_tables(self.directory, self.done.values(), plan)

    def _measure(self, name: str, n: int, reporter: Reporter) -> str:
        """Measures a cell, and keeps it; returns what to say of it."""
        title = f"{name} n={n}"
        try:
            cell = measure_cell(
                self.subjects[name],
                n,
                self.evaluation,
                lambda flips, of: reporter.inside(title, flips, of),
            )
        except Exception as error:  # whatever one cell raises, the others are measured
            if takes_no_more(error):
                raise
            self.failures.append(f"{title}: {one_line(error)}")
            reporter.note(f"failed: {title}: {one_line(error)}")
            return f"{title}: failed"
        write_cell(self.directory, cell)
        parts_path(self.directory, name, n).unlink(missing_ok=True)
        self.done[name, n] = cell
        return f"{cell} ({cell.seconds:.2g} s)"

    def _look(self, cells: list[tuple[str, int]]) -> list[str]:
        """Notes which cells are done; returns what is wrong with the damaged ones."""
        damaged = []
        for name, n in cells:
            check()
            key = self.evaluation.key(self.subjects[name], n)
            try:
                self.done[name, n] = read_cell(self.directory, name, n, key)
            except FileNotFoundError:
                continue
            except DamagedFile as error:
                damaged.append(str(error))
        return damaged

    def _plan(self) -> Plan:
        experiment = self.experiment
        return Plan(
            config=experiment.text,
            title=experiment.title,
            claim=experiment.claim,
            lengths=experiment.lengths,
            seeds=experiment.seeds,
            words=experiment.words,
            inputs=experiment.inputs,
            fit_from=experiment.fit_from,
            measure=asdict(experiment.measure),
            models=tuple(self._planned(entry) for entry in experiment.models),
        )

    def _planned(self, entry: Entry) -> PlannedModel:
        config = entry.config if isinstance(entry, TrainedEntry) else None
        network = None if config is None else config.model
        subject = self.subjects.get(entry.name)
        return PlannedModel(
            name=entry.name,
            description=entry.description,
            task=entry.task,
            language=dict(entry.language.settings),
            bounded=network.bounded if isinstance(network, TransformerConfig) else True,
            origin="exact" if config is None else "trained",
            longest_trained=None if config is None else config.data.lengths[1],
            steps=None if config is None or subject is None else config.optimiser.steps,
            keys={}
            if subject is None
            else {n: self.evaluation.key(subject, n) for n in self.experiment.lengths},
            failure=self.untrained.get(entry.name, ""),
        )


def seconds_left(
    seconds: Mapping[str, Sequence[tuple[int, float]]], rest: Sequence[tuple[str, int]]
) -> float | None:
    """Seconds that the cells (model, n) of `rest` will take, from those (n, seconds) that each model took so far.

    A model's cells are taken to grow on with the power of n by which they grew from its first one to its last, from 0
    to 2: short words cost compilation only. None until that is known for lengths eight times apart: less says nothing.
    """
    total = 0.0
    for name, n in rest:
        taken = seconds.get(name, ())
        if not taken or taken[-1][0] < 8 * taken[0][0]:
            return None
        (n1, first), (n2, last) = taken[0], taken[-1]
        power = math.log(max(last, 1e-6) / max(first, 1e-6)) / math.log(n2 / n1)
        total += last * (n / n2) ** min(max(power, 0.0), 2.0)
    return total


def _say(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)
