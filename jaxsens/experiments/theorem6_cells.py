"""Cells of the Theorem 6 experiment: everything that is measured of one model at one length."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Int

from jaxsens.experiments.points import Measurement
from jaxsens.experiments.record import Record
from jaxsens.languages import Language
from jaxsens.models.initialisation import generator
from jaxsens.sealed import DamagedFile, digest
from jaxsens.sensitivity.placement import Progress
from jaxsens.stopping import check
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

    @property
    def network(self) -> tuple[Any, Any]:
        """The model as a config and its parameters."""
        return self.model.config, self.model.parameters


@dataclass(frozen=True)
class Evaluation:
    """What is evaluated of every model; see `Theorem6`."""

    seeds: tuple[int, ...]
    words: int
    inputs: int
    measure: Measurement

    def key(self, subject: Subject, n: int) -> str:
        """SHA-256 of everything that determines a cell's numbers."""
        described = {
            "format": FORMAT,
            "model": subject.fingerprint,
            "task": subject.task,
            "language": subject.language.settings,
            "n": n,
            "seeds": self.seeds,
            "words": self.words,
            "inputs": self.inputs,
            **self.measure.expanded(),
        }
        return digest(described)


@dataclass(frozen=True)
class PredictionRow:
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

    model: str
    n: int
    seed: int
    words: int
    cross_entropy: float
    excess: float
    standard_error: float
    choice: float | None
    choice_error: float | None


@dataclass(frozen=True)
class RecognitionRow:
    """How well words of n symbols are told from near misses.

    Attributes:
        words: their number, half of them in the language.
        accuracy: the share that is labelled right.
        margin: the mean of the right label's logit minus the other's.
        accuracy_error, margin_error: their standard errors.
    """

    model: str
    n: int
    seed: int
    words: int
    accuracy: float
    accuracy_error: float
    margin: float
    margin_error: float


@dataclass(frozen=True)
class SensitivityRow:
    """Flip sensitivity of the logits on words of n symbols.

    Attributes:
        inputs: the number of words.
        flips: measured, of `population`.
        mean, max: over them.
    """

    model: str
    n: int
    seed: int
    inputs: int
    flips: int
    population: int
    mean: float
    max: float


@dataclass(frozen=True)
class Cell(Record):
    """What was measured of one model at one length: a row a seed in each tuple that suits its task.

    Attributes:
        key: see `Evaluation.key`.
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
class _Part:
    found: dict[str, Any]
    seconds: float


@dataclass(frozen=True)
class Parts(Record):
    """What is measured of a cell so far: a run that is stopped again and again still comes to the cell's end."""

    kind: ClassVar[str] = "parts of a cell of theorem6"
    key: str = ""
    parts: dict[str, _Part] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """What all parts took, in earlier runs too."""
        return sum(part.seconds for part in self.parts.values())

    def of(self, name: str, path: Path | None, compute: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """The part of this name; computed, and kept at `path`, if it is not there yet."""
        if name not in self.parts:
            check()
            began = time.perf_counter()
            found = compute()
            self.parts[name] = _Part(found, time.perf_counter() - began)
            if path is not None:
                self.write(path)
        return self.parts[name].found


def read_parts(path: Path, key: str, note: Callable[[str], None]) -> Parts:
    """The parts of the cell of this key that are kept at `path`, if any. A damaged file is noted, and counts for
    nothing."""
    try:
        return Parts.read(path, key)
    except FileNotFoundError:
        pass
    except DamagedFile as error:
        note(f"damaged, computed again: {error}")
    return Parts(key)


def measure_cell(
    subject: Subject,
    n: int,
    evaluation: Evaluation,
    progress: Progress | None = None,
    path: Path | None = None,
    note: Callable[[str], None] = lambda text: None,
) -> Cell:
    """Evaluates a model at one length, seed by seed.

    Args:
        subject: the model.
        n: symbols of a word.
        evaluation: what is evaluated.
        progress: called with the flips of the seed under way.
        path: where the parts of the cell are kept until it is whole; None for nowhere.
        note: called with what is wrong with that file, if it is damaged.
    """
    key = evaluation.key(subject, n)
    parts = Parts(key) if path is None else read_parts(path, key, note)
    predicts = subject.task == "prediction"
    answers, flips = [], []
    for seed in evaluation.seeds:
        answer = partial(_predicted if predicts else _recognised, subject, n, seed, evaluation)
        answers.append(parts.of(f"{subject.task}, seed {seed}", path, answer))
        measured = partial(_sensitivity, subject, n, seed, evaluation, progress)
        flips.append(parts.of(f"sensitivity, seed {seed}", path, measured))
    return Cell(
        key=key,
        model=subject.name,
        n=n,
        prediction=tuple(PredictionRow(**row) for row in answers if predicts),
        recognition=tuple(RecognitionRow(**row) for row in answers if not predicts),
        sensitivity=tuple(SensitivityRow(**part["row"]) for part in flips),
        engine=flips[-1]["engine"],
        dtype=flips[-1]["dtype"],
        versions=flips[-1]["versions"],
        seconds=parts.seconds,
    )


def _predicted(subject: Subject, n: int, seed: int, evaluation: Evaluation) -> dict[str, Any]:
    """A `PredictionRow` as a table."""
    found = cross_entropy(subject.network, subject.language, n, words=evaluation.words, seed=seed)
    numbers = (found.mean, found.excess, found.standard_error, found.choice, found.choice_standard_error)
    return asdict(PredictionRow(subject.name, n, seed, evaluation.words, *numbers))


def _recognised(subject: Subject, n: int, seed: int, evaluation: Evaluation) -> dict[str, Any]:
    """A `RecognitionRow` as a table."""
    told = accuracy(subject.network, subject.language, n, words=evaluation.words, seed=seed)
    numbers = (told.accuracy, told.accuracy_standard_error, told.margin, told.margin_standard_error)
    return asdict(RecognitionRow(subject.name, n, seed, evaluation.words, *numbers))


def _sensitivity(
    subject: Subject, n: int, seed: int, evaluation: Evaluation, progress: Progress | None
) -> dict[str, Any]:
    """A `SensitivityRow` as a table, and how it was measured."""
    words = tokens_to_flip(subject.task, subject.language, n, evaluation.inputs, seed)
    result = evaluation.measure.flip_sensitivity(subject.model, words, seed, progress)
    numbers = (len(result), result.population, result.mean, result.max)
    row = asdict(SensitivityRow(subject.name, n, seed, evaluation.inputs, *numbers))
    return {"row": row, "engine": str(result.engine), "dtype": result.dtype, "versions": result.versions}


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
