"""What the Theorem 6 experiment measures and keeps: the plan, the cells, and the tables of them.

A cell is everything that is measured of one model at one length.

DIR/theorem6.toml       the config as it was given, when its models were trained last
DIR/theorem6.json       the plan of that config: every model, and every cell with its key
DIR/models/NAME/        the checkpoints and metrics of a trained model
DIR/cells/NAME/n=64.json    everything measured of one model at one length
DIR/cells/NAME/.n=64.parts.json     what is measured of it, as long as that is not everything
DIR/cross_entropy.csv, DIR/recognition.csv, DIR/sensitivity.csv    a row a model, length and seed
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, astuple, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from jaxtyping import Int

from jaxsens.base.errors import InputError
from jaxsens.base.sealed import DamagedFile, digest
from jaxsens.base.stopping import check
from jaxsens.experiments.jobs.job import Record, read_finished, write_table
from jaxsens.experiments.theorem6.config import Theorem6
from jaxsens.languages import Dyck, Language, language
from jaxsens.models.parts.initialisation import generator
from jaxsens.sensitivity.placement.placement import Progress
from jaxsens.training.config import Task
from jaxsens.training.data import with_boundary
from jaxsens.training.evaluation import accuracy, cross_entropy

FORMAT = 1
"""Raised when the meaning of a cell's key, or of the numbers behind it, changes."""


@dataclass(frozen=True)
class Subject:
    """A model ready to be evaluated.

    Attributes:
        name: in the experiment.
        task: what it was made for.
        language: of the words it is evaluated on.
        model: the module.
        fingerprint: of its parameters: the same text for the same ones.
    """

    name: str
    task: Task
    language: Language
    model: Any
    fingerprint: str

    def key(self, n: int, experiment: Theorem6) -> str:
        """SHA-256 of everything that determines the numbers of its cell at length n."""
        described = {
            "format": FORMAT,
            "model": self.fingerprint,
            "task": self.task,
            "language": self.language.settings,
            "n": n,
            **{name: getattr(experiment, name) for name in ("seeds", "words", "inputs")},
            **experiment.measure.expanded(n),
        }
        return digest(described)


@dataclass(frozen=True)
class _Row:
    model: str
    n: int
    seed: int


@dataclass(frozen=True)
class PredictionRow(_Row):
    """Cross-entropy of the symbol after prefixes of n symbols, in nats.

    Attributes:
        words: the number of prefixes.
        cross_entropy: the optimum, which is exact, and the excess.
        excess: the mean over the prefixes of the divergence from the law of the next symbol to its prediction.
        standard_error: of both.
        choice: the part of it that chooses the kind of a closing bracket, after prefixes that end in a closing bracket
            and are not balanced; None for languages without brackets.
        choice_error: the standard error of that.
    """

    words: int
    cross_entropy: float
    excess: float
    standard_error: float
    choice: float | None
    choice_error: float | None


@dataclass(frozen=True)
class RecognitionRow(_Row):
    """How well words of n symbols are told from near misses.

    Attributes:
        words: their number, half of them in the language.
        accuracy: the share that is labelled right.
        margin: the mean of the right label's logit minus the other's.
        accuracy_error, margin_error: their standard errors.
    """

    words: int
    accuracy: float
    accuracy_error: float
    margin: float
    margin_error: float


@dataclass(frozen=True)
class SensitivityRow(_Row):
    """Flip sensitivity of the logits on words of n symbols.

    Attributes:
        inputs: the number of words.
        flips: measured, of `population`.
        mean, max: over them.
    """

    inputs: int
    flips: int
    population: int
    mean: float
    max: float


@dataclass(frozen=True)
class Cell(Record):
    """What was measured of one model at one length: a row a seed in each tuple that suits its task.

    Attributes:
        key: see `Subject.key`.
        engine: which engine measured the flips, and why.
        dtype: of the arithmetic.
        versions: of Python, the packages that matter and the device.
        seconds: wall time, compilation included, over all runs that it took.
    """

    kind: ClassVar[str] = "cell of theorem6"
    key: str
    model: str
    n: int
    prediction: tuple[PredictionRow, ...]
    recognition: tuple[RecognitionRow, ...]
    sensitivity: tuple[SensitivityRow, ...]
    engine: str
    dtype: str
    versions: dict[str, str]
    seconds: float

    def summary(self) -> str:
        """One line for the progress."""
        parts = []
        if self.prediction:
            parts.append(f"cross-entropy {np.mean([row.cross_entropy for row in self.prediction]):.4g}")
        if self.recognition:
            parts.append(f"accuracy {np.mean([row.accuracy for row in self.recognition]):.3g}")
        return ", ".join([*parts, f"sensitivity {np.mean([row.mean for row in self.sensitivity]):.3g}"])


@dataclass(frozen=True)
class Parts(Record):
    """What is measured of a cell so far: a run that is stopped again and again still comes to the cell's end.

    parts: by name, what was found, and the seconds that it took.
    """

    kind: ClassVar[str] = "parts of a cell of theorem6"
    key: str = ""
    parts: dict[str, tuple[dict[str, Any], float]] = field(default_factory=dict)

    @classmethod
    def kept(cls, path: Path | None, key: str, note: Callable[[str], None]) -> Parts:
        """Those of the cell of this key that are kept at `path`, if any. A damaged file is noted, and counts for
        nothing."""
        try:
            return cls(key) if path is None else cls.read(path, key)
        except FileNotFoundError:
            pass
        except DamagedFile as error:
            note(f"damaged, computed again: {error}")
        return cls(key)

    def of(self, name: str, path: Path | None, compute: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """The part of this name; computed, and kept at `path`, if it is not there yet."""
        if name not in self.parts:
            check()
            began = time.perf_counter()
            found = compute()
            self.parts[name] = found, time.perf_counter() - began
            if path is not None:
                self.write(path)
        return self.parts[name][0]


def measure_cell(
    subject: Subject,
    n: int,
    experiment: Theorem6,
    progress: Progress | None = None,
    path: Path | None = None,
    note: Callable[[str], None] = lambda text: None,
) -> Cell:
    """Evaluates a model at one length, seed by seed.

    Args:
        subject: the model.
        n: symbols of a word.
        experiment: says what is evaluated.
        progress: called with the flips of the seed under way.
        path: where the parts of the cell are kept until it is whole; None for nowhere.
        note: called with what is wrong with that file, if it is damaged.
    """
    key = subject.key(n, experiment)
    parts = Parts.kept(path, key, note)
    predicts = subject.task == "prediction"
    answers, flips = [], []
    for seed in experiment.seeds:
        answer = partial(_answered, subject, n, seed, experiment)
        answers.append(parts.of(f"{subject.task}, seed {seed}", path, answer))
        measured = partial(_sensitivity, subject, n, seed, experiment, progress)
        flips.append(parts.of(f"sensitivity, seed {seed}", path, measured))
    return Cell(
        key=key,
        model=subject.name,
        n=n,
        prediction=tuple(PredictionRow(**row) for row in answers if predicts),
        recognition=tuple(RecognitionRow(**row) for row in answers if not predicts),
        sensitivity=tuple(SensitivityRow(**part["row"]) for part in flips),
        seconds=sum(seconds for _, seconds in parts.parts.values()),
        **{name: flips[-1][name] for name in ("engine", "dtype", "versions")},
    )


def _answered(subject: Subject, n: int, seed: int, experiment: Theorem6) -> dict[str, Any]:
    """A `PredictionRow` or `RecognitionRow` as a table."""
    predicts = subject.task == "prediction"
    evaluate, row = (cross_entropy, PredictionRow) if predicts else (accuracy, RecognitionRow)
    _, *found = astuple(evaluate(subject.model, subject.language, n, experiment.words, seed))
    return asdict(row(subject.name, n, seed, *found))


def _sensitivity(
    subject: Subject, n: int, seed: int, experiment: Theorem6, progress: Progress | None
) -> dict[str, Any]:
    """A `SensitivityRow` as a table, and how it was measured."""
    words = tokens_to_flip(subject.task, subject.language, n, experiment.inputs, seed)
    placement = experiment.placement.placement()
    result = experiment.measure.flip_sensitivity(subject.model, words, seed, progress, placement)
    numbers = (len(result), result.population, result.mean, result.max)
    row = asdict(SensitivityRow(subject.name, n, seed, experiment.inputs, *numbers))
    return {"row": row, "engine": str(result.engine), "dtype": result.dtype, "versions": result.run.versions}


def tokens_to_flip(
    task: Task, language: Language, n: int, count: int, seed: int
) -> Int[np.ndarray, "count n1"]:
    """Words of n symbols with the boundary symbol: prefixes to predict after, or labelled words to recognise.

    They depend on the seed and the length, never on the model: models of one task and language read the same.
    """
    draw = generator(seed, f"theorem6.{task}.n={n}")
    if task == "prediction":
        words = language.sample_prefixes(count, n, draw)
    else:
        words, _ = language.sample_labelled(count, n, draw)
    return with_boundary(words, language, task)


# The directory

_MODELS = "models"
PLAN = "theorem6.json"
CONFIG = "theorem6.toml"
_AGAIN = "run `jaxsens theorem6` again: what is trained and measured is kept"

_TABLES = {
    "cross_entropy.csv": "prediction",
    "recognition.csv": "recognition",
    "sensitivity.csv": "sensitivity",
}


@dataclass(frozen=True)
class PlannedModel:
    """A model of the experiment.

    Attributes:
        name, description: as in the config.
        task: "prediction" or "recognition".
        language: its settings, as `jaxsens.languages.language` takes them.
        bounded: whether its position embeddings stay bounded; True where it has none.
        longest_trained: the largest number of symbols it was trained on; None for the hand-set network.
        steps: how many steps it was trained; None where it was not trained, or could not be to the end.
        keys: of its cells by length; empty where it could not be trained.
        failure: why it could not; empty where it could.
    """

    name: str
    description: str
    task: str
    language: dict[str, Any]
    bounded: bool
    longest_trained: int | None
    steps: int | None
    keys: dict[int, str]
    failure: str = ""

    def made_language(self) -> Language:
        """The language."""
        return language(**self.language)


@dataclass(frozen=True)
class Theorem6Plan(Record):
    """Everything about the experiment except its numbers. `config` is the config as it was given."""

    kind: ClassVar[str] = "plan of theorem6"
    config: str
    title: str
    claim: str
    lengths: tuple[int, ...]
    seeds: tuple[int, ...]
    words: int
    inputs: int
    fit_from: int
    measure: dict[str, Any]
    models: tuple[PlannedModel, ...]

    @property
    def cells(self) -> tuple[tuple[PlannedModel, int], ...]:
        """Every model and length, by rising length: the whole picture is there early."""
        return tuple((model, n) for n in self.lengths for model in self.models)


class Lines(NamedTuple):
    """What cross-entropy after n symbols is held against, in nats: the last columns of cross_entropy.csv.

    Attributes:
        optimum: the least possible.
        unigram: the least of a prediction that does not depend on the prefix: chance, in Theorem 6.
        chance: of guessing uniformly among all outcomes.
        bound: of Theorem 6 for k kinds of brackets: optimum + P0 (1 - p) log k; None for languages without brackets.
        choice_bound: P0 (1 - p) log k itself.
    """

    optimum: float
    unigram: float
    chance: float
    bound: float | None
    choice_bound: float | None


def lines_of(learned: Language, n: int) -> Lines:
    """The lines of a language at one length. O(n)."""
    dyck = learned if isinstance(learned, Dyck) and learned.kinds > 1 else None
    return Lines(
        optimum=learned.optimal_cross_entropy(n),
        unigram=learned.unigram_cross_entropy(n),
        chance=learned.chance_cross_entropy(n),
        bound=None if dyck is None else dyck.theorem6_bound(n),
        choice_bound=None if dyck is None else dyck.theorem6_gap(n),
    )


def models_folder(directory: Path, name: str) -> Path:
    """Where the training of a model is kept."""
    return directory / _MODELS / name


def is_theorem6(directory: str | os.PathLike[str]) -> bool:
    """Whether a directory holds this experiment, or the trainings with which one began."""
    folder = Path(directory)
    begun = (folder / _MODELS).is_dir() and not (folder / "sweep.json").is_file()
    return begun or (folder / PLAN).is_file()


def read_plan(directory: str | os.PathLike[str]) -> Theorem6Plan:
    """Reads the plan of a directory.

    Raises:
        InputError: if there is none, or it is damaged.
    """
    try:
        return Theorem6Plan.read(Path(directory) / PLAN)
    except OSError as error:
        if is_theorem6(directory):
            why = "its models are not trained to the end; run `jaxsens theorem6` again to go on"
        else:
            why = f"no models were trained here ({error}); run `jaxsens theorem6` first"
        raise InputError(f"directory = {str(directory)!r}: {why}") from error
    except DamagedFile as error:
        raise InputError(f"{error}; {_AGAIN}") from error


def cell_path(directory: Path, model: str, n: int) -> Path:
    """Where a cell is kept."""
    return directory / "cells" / model / f"n={n}.json"


def read_cells(directory: str | os.PathLike[str], plan: Theorem6Plan) -> list[Cell]:
    """The finished cells of a plan, in its order. Raises InputError if a file is damaged."""

    def read(planned: tuple[PlannedModel, int]) -> Cell:
        model, n = planned
        return Cell.read(cell_path(Path(directory), model.name, n), model.keys[n])

    trained = [(model, n) for model, n in plan.cells if n in model.keys]
    return [*read_finished(trained, read, _AGAIN)]


def write_tables(directory: Path, cells: Iterable[Cell], plan: Theorem6Plan) -> None:
    """Writes the three CSV files, by model, length and seed.

    One without rows is not written, and one of an earlier config that stands in its place is removed.
    """
    cells = list(cells)
    order = {model.name: k for k, model in enumerate(plan.models)}
    languages = {model.name: model.made_language() for model in plan.models}
    lines = {(cell.model, cell.n): lines_of(languages[cell.model], cell.n) for cell in cells}
    for file, name in _TABLES.items():
        rows = [
            asdict(row) | (lines[cell.model, cell.n]._asdict() if name == "prediction" else {})
            for cell in cells
            for row in getattr(cell, name)
        ]
        rows.sort(key=lambda row: (order[row["model"]], row["n"], row["seed"]))
        if rows:
            write_table(directory / file, list(rows[0]), rows)
        else:
            (directory / file).unlink(missing_ok=True)
