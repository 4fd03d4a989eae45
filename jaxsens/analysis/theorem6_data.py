"""A directory of the Theorem 6 experiment read for its report."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from jaxsens.analysis.points_table import Spread, spread
from jaxsens.errors import InputError
from jaxsens.experiments.theorem6_cells import Cell, PredictionRow
from jaxsens.experiments.theorem6_results import Plan, PlannedModel, read_cells, read_plan
from jaxsens.languages import Dyck, Language

if TYPE_CHECKING:
    import pandas

Reading = Callable[[Any], float]
"""What is read off a row of a table, such as its cross-entropy."""


class Estimate(NamedTuple):
    """A mean over words and seeds, with its standard error."""

    mean: float
    error: float


@dataclass(frozen=True)
class Group:
    """The models that do one task on one language, and so stand in one picture."""

    task: str
    language: Language
    models: tuple[PlannedModel, ...]
    slug: str

    @property
    def title(self) -> str:
        """The language's name with its options."""
        settings = dict(self.language.settings)
        name = str(settings.pop("name"))
        if isinstance(self.language, Dyck):
            name = f"{settings.pop('kinds')}{name}"
        options = [f"{key.replace('_', ' ')} {value}" for key, value in settings.items()]
        return ", ".join([name.upper(), *options])

    @property
    def has_choice(self) -> bool:
        """Whether the kind of a closing bracket is to be chosen."""
        return self.task == "prediction" and isinstance(self.language, Dyck) and self.language.kinds > 1

    @property
    def gap(self) -> str:
        """What Theorem 6 says is left above the optimum, as a formula; where there is a choice of a bracket."""
        return f"P0 (1 \N{MINUS SIGN} p) log {self.language.settings['kinds']}"

    @property
    def names(self) -> tuple[str, ...]:
        """The models' names."""
        return tuple(model.name for model in self.models)

    @cached_property
    def bounded(self) -> dict[str, bool]:
        """By model, whether its position embeddings stay bounded."""
        return {model.name: model.bounded for model in self.models}


@dataclass(frozen=True)
class Theorem6Data:
    """Everything that the report shows."""

    plan: Plan
    cells: tuple[Cell, ...]

    @cached_property
    def groups(self) -> tuple[Group, ...]:
        """The groups that have a cell, in the order of the config."""
        measured = {cell.model for cell in self.cells}
        found: dict[tuple[str, str], list[PlannedModel]] = {}
        for model in self.plan.models:
            if model.name in measured:
                found.setdefault((model.task, str(sorted(model.language.items()))), []).append(model)
        return tuple(
            Group(task, models[0].made_language(), tuple(models), f"{task}-{k}")
            for k, ((task, _), models) in enumerate(found.items(), start=1)
        )

    @property
    def missing(self) -> tuple[tuple[str, int], ...]:
        """The models and lengths that have not been evaluated."""
        present = {(cell.model, cell.n) for cell in self.cells}
        return tuple((model.name, n) for model, n in self.plan.cells if (model.name, n) not in present)

    def lengths(self, group: Group) -> tuple[int, ...]:
        """The lengths at which some model of the group was evaluated."""
        return tuple(sorted({cell.n for cell in self.cells if cell.model in group.names}))

    def rows(self, model: str, n: int | None = None) -> list[Any]:
        """The rows of its task, of all lengths or of one."""
        return [
            row
            for cell in self.cells
            if cell.model == model and n in (None, cell.n)
            for row in (cell.prediction or cell.recognition)
        ]

    def spreads(self, model: str, reading: Reading) -> dict[int, Spread]:
        """The spread over seeds of what is read off a model's rows, by rising length."""
        lengths = sorted({cell.n for cell in self.cells if cell.model == model})
        return {n: spread([reading(row) for row in self.rows(model, n)]) for n in lengths}

    def cross_entropy(self, model: str, n: int) -> Estimate:
        """Of the symbol after n symbols, over all words of all seeds."""
        return _pooled(self.rows(model, n), "cross_entropy", "standard_error")

    def choice(self, model: str, n: int) -> Estimate:
        """The part of it that chooses the kind of a closing bracket."""
        return _pooled(self.rows(model, n), "choice", "choice_error")

    def longest(self, model: str) -> int:
        """The longest words on which a model was evaluated."""
        return max(cell.n for cell in self.cells if cell.model == model)

    def sensitivity(self, group: Group) -> pandas.DataFrame:
        """Flip sensitivity as the table of a sweep's points, a variant a model."""
        import pandas as pd

        rows = [
            (row.model, row.n, row.seed, row.inputs, row.flips, row.mean, row.max)
            for cell in self.cells
            if cell.model in group.names
            for row in cell.sensitivity
        ]
        return pd.DataFrame(rows, columns=["variant", "n", "seed", "inputs", "flips", "mean", "max"])


def load_theorem6(directory: str | os.PathLike[str]) -> Theorem6Data:
    """Everything that the report of a directory shows.

    Raises:
        InputError: if this is no directory of the experiment, or no cell of it is finished.
    """
    plan = read_plan(directory)
    cells = read_cells(directory, plan)
    if not cells:
        raise InputError(
            f"directory = {str(directory)!r}: no model was evaluated here yet; run `jaxsens theorem6` again"
        )
    return Theorem6Data(plan, tuple(cells))


def _pooled(rows: list[PredictionRow], value: str, error: str) -> Estimate:
    """The mean over seeds, which have equally many words each, and its standard error."""
    values, errors = ([getattr(row, name) for row in rows] for name in (value, error))
    if not values or None in values:
        return Estimate(math.nan, math.nan)
    return Estimate(sum(values) / len(values), math.sqrt(sum(e**2 for e in errors)) / len(errors))
