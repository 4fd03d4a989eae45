"""What a directory of the Theorem 6 experiment holds: the plan, the cells that are done, and the tables of them.

DIR/theorem6.toml       the config as it was given, when its models were trained last
DIR/theorem6.json       the plan of that config: every model, and every cell with its key
DIR/models/NAME/        the checkpoints and metrics of a trained model
DIR/cells/NAME/n=64.json    everything measured of one model at one length
DIR/cells/NAME/.n=64.parts.json     what is measured of it, as long as that is not everything
DIR/cross_entropy.csv, DIR/recognition.csv, DIR/sensitivity.csv    a row a model, length and seed
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, ClassVar

from jaxsens.errors import InputError
from jaxsens.experiments.record import Record, read_finished, write_table
from jaxsens.experiments.theorem6_cells import Cell, PredictionRow, RecognitionRow, SensitivityRow
from jaxsens.languages import Dyck, Language, language
from jaxsens.sealed import DamagedFile

_MODELS = "models"
PLAN = "theorem6.json"
CONFIG = "theorem6.toml"
_AGAIN = "run `jaxsens theorem6` again: what is trained and measured is kept"

_TABLES: dict[str, tuple[str, type]] = {
    "cross_entropy.csv": ("prediction", PredictionRow),
    "recognition.csv": ("recognition", RecognitionRow),
    "sensitivity.csv": ("sensitivity", SensitivityRow),
}
_LINES = ("optimum", "unigram", "chance", "bound", "choice_bound")
"""Columns of cross_entropy.csv after the measured ones: see `Lines`."""


@dataclass(frozen=True)
class PlannedModel:
    """A model of the experiment.

    Attributes:
        name, description: as in the config.
        task: "prediction" or "recognition".
        language: its settings, as `jaxsens.languages.language` takes them.
        bounded: whether its position embeddings stay bounded; True where it has none.
        origin: "trained", or "exact" for the hand-set network.
        longest_trained: the largest number of symbols it was trained on; None where it was not trained.
        steps: how many steps it was trained; None where it was not trained, or could not be to the end.
        keys: of its cells by length; empty where it could not be trained.
        failure: why it could not; empty where it could.
    """

    name: str
    description: str
    task: str
    language: dict[str, Any]
    bounded: bool
    origin: str
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


@dataclass(frozen=True)
class Lines:
    """What cross-entropy after n symbols is held against, in nats.

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
    return [cell for _, cell in read_finished(trained, read, _AGAIN)]


def write_tables(directory: Path, cells: Iterable[Cell], plan: Theorem6Plan) -> None:
    """Writes the three CSV files, by model, length and seed.

    One without rows is not written, and one of an earlier config that stands in its place is removed.
    """
    cells = list(cells)
    order = {model.name: k for k, model in enumerate(plan.models)}
    languages = {model.name: model.made_language() for model in plan.models}
    lines = {(cell.model, cell.n): lines_of(languages[cell.model], cell.n) for cell in cells}
    for file, (name, kind) in _TABLES.items():
        rows = [
            {**asdict(row), **asdict(lines[cell.model, cell.n])}
            for cell in cells
            for row in getattr(cell, name)
        ]
        rows.sort(key=lambda row: (order[row["model"]], row["n"], row["seed"]))
        columns = [field.name for field in fields(kind)]
        if rows:
            write_table(directory / file, [*columns, *(_LINES if name == "prediction" else ())], rows)
        else:
            (directory / file).unlink(missing_ok=True)
