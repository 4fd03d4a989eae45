"""What the Theorem 6 experiment measures and keeps: the plan, the rows, and the tables of them.

DIR/theorem6.toml       the config as it was given, when its models were trained last
DIR/theorem6.json       the plan of that config: every model with its fingerprint, and what is measured of it
DIR/models/NAME/        the checkpoints and metrics of a trained model
DIR/rows/               a file a row: what was measured of one model at one length with one seed
DIR/cross_entropy.csv, DIR/recognition.csv, DIR/sensitivity.csv    a row a model, length and seed
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, astuple, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from jaxtyping import Int

from jaxsens.core.base.errors import InputError
from jaxsens.core.base.sealed import DamagedFile
from jaxsens.core.models.parts.initialisation import generator
from jaxsens.core.placement.run import Progress
from jaxsens.core.sweeps.jobs.job import Named, Record, RowsJob, read_finished, write_table
from jaxsens.formal.languages import Dyck, Language, language
from jaxsens.training.config import Task
from jaxsens.training.data import with_boundary
from jaxsens.training.evaluation import accuracy, cross_entropy
from jaxsens.training.theorem6.config import Theorem6


@dataclass(frozen=True)
class _Row:
    of: ClassVar[str]
    file: ClassVar[str]
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

    of, file = "prediction", "cross_entropy.csv"
    words: int
    cross_entropy: float
    excess: float
    standard_error: float
    choice: float | None
    choice_error: float | None

    def __str__(self) -> str:
        return f"cross-entropy {self.cross_entropy:.4g}"


@dataclass(frozen=True)
class RecognitionRow(_Row):
    """How well words of n symbols are told from near misses.

    Attributes:
        words: their number, half of them in the language.
        accuracy: the share that is labelled right.
        margin: the mean of the right label's logit minus the other's.
        accuracy_error, margin_error: their standard errors.
    """

    of, file = "recognition", "recognition.csv"
    words: int
    accuracy: float
    accuracy_error: float
    margin: float
    margin_error: float

    def __str__(self) -> str:
        return f"accuracy {self.accuracy:.3g}"


@dataclass(frozen=True)
class SensitivityRow(_Row):
    """Flip sensitivity of the logits on words of n symbols.

    Attributes:
        inputs: the number of words.
        flips: measured, of `population`.
        mean, max: over them.
    """

    of, file = "sensitivity", "sensitivity.csv"
    inputs: int
    flips: int
    population: int
    mean: float
    max: float

    def __str__(self) -> str:
        return f"sensitivity {self.mean:.3g}"


Row = PredictionRow | RecognitionRow | SensitivityRow

ROWS: dict[str, type[Row]] = {kind.of: kind for kind in (PredictionRow, RecognitionRow, SensitivityRow)}
"""What a row may be of: the task of its model, or the sensitivity."""


@dataclass(frozen=True)
class KeptRow:
    """A row as it is kept.

    Attributes:
        row: the numbers.
        seconds: wall time, compilation included.
        engine: which engine measured the flips, and why; empty for other rows.
        dtype: of the arithmetic that measured the flips.
        versions: of Python, the packages that matter and the device that measured the flips.
    """

    row: Row
    seconds: float
    engine: str = ""
    dtype: str = ""
    versions: dict[str, str] = field(default_factory=dict)

    def summary(self) -> str:
        """One line for the progress."""
        return str(self.row)


@dataclass(frozen=True)
class PlannedModel:
    """A model of the experiment.

    Attributes:
        name, description: as in the config.
        task: what it is for: "prediction" or "recognition".
        language: the name and options of what it learns.
        bounded: whether its position embeddings stay bounded as n grows; True where it has none.
        longest_trained: the largest number of symbols it was trained on; None for the hand-set network.
        steps: how many steps it was trained; None where it was not trained, or could not be to the end.
        fingerprint: of its parameters: the same text for the same ones; empty where it could not be trained.
        failure: why it could not; empty where it could.
    """

    name: str
    description: str
    task: Task
    language: dict[str, Any]
    bounded: bool = True
    longest_trained: int | None = None
    steps: int | None = None
    fingerprint: str = ""
    failure: str = ""

    @cached_property
    def learned(self) -> Language:
        """The language."""
        return language(**self.language)


class RowPlace(NamedTuple):
    """What a row is of: a model at a length, with a seed, and one of `ROWS`."""

    model: PlannedModel
    n: int
    seed: int
    of: str


def measure(place: RowPlace, model: Any, experiment: Theorem6, progress: Progress | None = None) -> KeptRow:
    """Evaluates a model, or measures its flips.

    Args:
        place: at which length, with which seed, and what of it.
        model: the module that the place names.
        experiment: says what is evaluated.
        progress: called with the flips under way.
    """
    planned, n, seed, of = place
    began = time.perf_counter()
    told: dict[str, Any] = {}
    if of == "sensitivity":
        words = tokens_to_flip(planned.task, planned.learned, n, experiment.inputs, seed)
        placement = experiment.placement.placement()
        given = model, words, seed, progress, placement, len(experiment.seeds)
        result = experiment.measure.flip_sensitivity(*given)
        numbers = (experiment.inputs, len(result), result.population, result.mean, result.max)
        told = {"engine": str(result.engine), "dtype": result.dtype, "versions": result.run.versions}
    else:
        evaluate = cross_entropy if of == "prediction" else accuracy
        numbers = astuple(evaluate(model, planned.learned, n, experiment.words, seed))[1:]
    row: Any = ROWS[of](planned.name, n, seed, *numbers)  # pyright: ignore[reportArgumentType] - its columns
    return KeptRow(row, time.perf_counter() - began, **told)


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


# The directory

_MODELS = "models"
ROWS_FOLDER = "rows"
PLAN = "theorem6.json"
CONFIG = "theorem6.toml"
_AGAIN = "run `jaxsens theorem6` again: what is trained and measured is kept"


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

    @property
    def items(self) -> list[Named[RowPlace]]:
        """The rows of all models that could be trained, by model and length as in `cells`."""
        return [
            self._item(RowPlace(model, n, seed, of))
            for model, n in self.cells
            if not model.failure
            for seed in self.seeds
            for of in (model.task, "sensitivity")
        ]

    def _item(self, place: RowPlace) -> Named[RowPlace]:
        """A row, with everything else that determines its numbers."""
        model, n, seed, of = place
        settings = {"model": model.fingerprint, "language": model.language, "task": model.task}
        flips = {"inputs": self.inputs, "measure": self.measure}
        settings |= flips if of == "sensitivity" else {"words": self.words}
        return Named(f"{model.name} n={n} seed={seed} {of}", place, (f"{model.name} {of}", n), settings)


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
        raise InputError.of("directory", str(directory), why) from error
    except DamagedFile as error:
        raise InputError(f"{error}; {_AGAIN}") from error


def read_rows(directory: str | os.PathLike[str], plan: Theorem6Plan) -> list[KeptRow]:
    """The finished rows of a plan, in its order. Raises InputError if a file is damaged."""
    job = RowsJob(plan.items, None, KeptRow, {}, Path(directory), ROWS_FOLDER)
    return [*read_finished(job.items, job.read, _AGAIN)]


def complete(measured: Sequence[KeptRow], plan: Theorem6Plan) -> tuple[KeptRow, ...]:
    """Those of models at lengths at which every row of the plan is there."""
    had = Counter((one.row.model, one.row.n) for one in measured)
    return tuple(one for one in measured if had[one.row.model, one.row.n] == 2 * len(plan.seeds))


def write_tables(directory: Path, measured: Iterable[KeptRow], plan: Theorem6Plan) -> None:
    """Writes the three CSV files, by model, length and seed.

    One without rows is not written, and one of an earlier config that stands in its place is removed.
    """
    models, every = {model.name: model for model in plan.models}, [one.row for one in measured]
    order = [*models]
    every.sort(key=lambda row: (order.index(row.model), row.n, row.seed))
    lines = {(row.model, row.n): lines_of(models[row.model].learned, row.n)._asdict() for row in every}
    for kind in ROWS.values():
        added = lines if kind is PredictionRow else {}
        rows = [asdict(row) | added.get((row.model, row.n), {}) for row in every if isinstance(row, kind)]
        if rows:
            write_table(directory / kind.file, list(rows[0]), rows)
        else:
            (directory / kind.file).unlink(missing_ok=True)
