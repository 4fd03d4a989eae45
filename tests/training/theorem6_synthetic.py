"""An experiment that was never run, with the numbers that theory lets one expect."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

from jaxsens.core.base.files import write_text
from jaxsens.core.sweeps.jobs.job import RowsJob
from jaxsens.core.sweeps.points import Measurement
from jaxsens.training.config import Task
from jaxsens.training.theorem6.report import Theorem6Data
from jaxsens.training.theorem6.results import (
    CONFIG,
    PLAN,
    ROWS_FOLDER,
    KeptRow,
    PlannedModel,
    PredictionRow,
    RecognitionRow,
    SensitivityRow,
    Theorem6Plan,
    lines_of,
    write_tables,
)

LENGTHS = (16, 64, 256, 1024)
SEEDS = (0, 1, 2)
PARITY = {"name": "parity", "end_probability": 0.5}
DYCK = {"name": "dyck", "kinds": 2, "open_probability": 0.5}

FALLING: Callable[[int], float] = lambda n: 3 / n  # noqa: E731
LEVEL: Callable[[int], float] = lambda n: 8.0  # noqa: E731


def planned(name: str, settings: dict, task: Task = "prediction", trained: int | None = 128) -> PlannedModel:
    """A model that could be trained."""
    return PlannedModel(
        name=name,
        description=f"what {name} is",
        task=task,
        language=settings,
        bounded=True,
        longest_trained=trained,
        steps=None if trained is None else 600,
        fingerprint=f"of {name}",
    )


def cell(model: PlannedModel, n: int, share: float, sensitivity: Callable[[int], float]) -> list[KeptRow]:
    """The rows of a length at which a model is this share of the way from the optimum to chance."""
    lines, found = lines_of(model.learned, n), []
    for seed in SEEDS:
        wobble = 1 + 0.002 * (seed - 1)
        if model.task == "prediction":
            ceiling = lines.unigram if lines.bound is None else lines.bound
            value = lines.optimum + share * (ceiling - lines.optimum)
            choice = None if lines.choice_bound is None else share * lines.choice_bound
            error = None if choice is None else 0.002
            value *= wobble
            excess = value - lines.optimum
            row = PredictionRow(model.name, n, seed, 64, value, excess, 0.01, choice, error)
        else:
            right = 1 - share / 2
            row = RecognitionRow(model.name, n, seed, 64, right, 0.01, 5 * (1 - share) * wobble, 0.1)
        changes = sensitivity(n) * (1 + 0.1 * seed), 2 * sensitivity(n)
        flips = SensitivityRow(model.name, n, seed, 1, 32, n - 1, *changes)
        versions = {"jax": "0.10.2", "device": "cpu: cpu"}
        found += [KeptRow(row, 0.5), KeptRow(flips, 0.0, "vmap (asked for)", "float32", versions)]
    return found


def experiment(tasks: Sequence[str] = ("parity", "2dyck", "recognition")) -> Theorem6Data:
    """Transformers that end at chance beside recurrent networks that stay at the optimum."""
    models, cells = [], []
    for task in tasks:
        settings = DYCK if task == "2dyck" else PARITY
        kind: Task = "recognition" if task == "recognition" else "prediction"
        soft, lstm = (
            planned(f"{task}-transformer", settings, kind),
            planned(f"{task}-lstm", settings, kind, 40),
        )
        pair = [(soft, 0.9, FALLING), (lstm, 0.0, LEVEL)]
        if task == "parity":
            pair.append((planned("exact", settings, kind, None), 0.0, LEVEL))
        models += [model for model, _, _ in pair]
        cells += [row for model, share, law in pair for n in LENGTHS for row in cell(model, n, share, law)]
    return _data(models, cells, LENGTHS)


def alone(settings: dict, lengths: Sequence[int], share: float = 0.5) -> Theorem6Data:
    """One model on a language, this share of the way from the optimum to chance."""
    model = planned("soft", settings)
    return _data([model], [row for n in lengths for row in cell(model, n, share, FALLING)], lengths)


def _data(
    models: Sequence[PlannedModel], measured: Sequence[KeptRow], lengths: Sequence[int]
) -> Theorem6Data:
    plan = Theorem6Plan(
        config="lengths = [16]\n",
        title="Synthetic",
        claim="Nothing was trained.",
        lengths=tuple(lengths),
        seeds=SEEDS,
        words=64,
        inputs=1,
        fit_from=2,
        measure=Measurement().table(),
        models=tuple(models),
    )
    return Theorem6Data(plan, tuple(measured))


def write(data: Theorem6Data, directory: Path) -> None:
    data.plan.write(directory / PLAN)
    write_text(directory / CONFIG, data.plan.config)
    made = {f"{one.row.model} n={one.row.n} seed={one.row.seed} {one.row.of}": one for one in data.measured}
    job = RowsJob(data.plan.items, None, KeptRow, {}, directory, ROWS_FOLDER)
    for item in job.items:
        if item.name in made:
            job.keep(item, made[item.name])
    write_tables(directory, data.measured, data.plan)


def without(data: Theorem6Data, model: str, n: int) -> Theorem6Data:
    left = tuple(one for one in data.measured if (one.row.model, one.row.n) != (model, n))
    return dataclasses.replace(data, measured=left)
