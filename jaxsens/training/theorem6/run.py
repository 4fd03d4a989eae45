"""The Theorem 6 experiment: models are trained, or gone on with, in DIR/models/NAME; then DIR is a sweep of them.

All state is in the files: what was killed is resumed by running it again. Trainings go on from their newest checkpoint,
points and evaluations are kept one by one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from jaxsens.core.base.errors import InputError, Problems
from jaxsens.core.sweeps.jobs.job import Named, Outcome, RowsJob, run
from jaxsens.core.sweeps.jobs.progress import Reporter
from jaxsens.core.sweeps.points import select
from jaxsens.core.sweeps.sweep import Sweep, SweepVariant, row_of, run_whole
from jaxsens.training.checkpoints import TrainedModel, check_directory, load_checkpoint
from jaxsens.training.config import TrainConfig
from jaxsens.training.loop import train_shown
from jaxsens.training.source import LearnerSource, trained_source
from jaxsens.training.theorem6.config import ModelEntry, Theorem6
from jaxsens.training.theorem6.evaluation import Evaluation, LanguageWords

STATISTICS = ("mean", "max")


def run_theorem6(
    experiment: Theorem6,
    directory: Path,
    console: Console,
    only: Sequence[str] = (),
    shard: str | None = None,
) -> tuple[Sweep, list[Outcome]]:
    """Trains what is not trained to the end, then measures and evaluates what is not measured yet. See `run`.

    Part K of M trains every M-th model, from the K-th on, because one process trains a model. It measures its points
    only if all models are trained: before that no process knows the keys of the points of all.

    Args:
        experiment: the experiment.
        directory: for all of it.
        console: where to print.
        only, shard: which points are measured, as for `select`.

    Returns:
        The sweep, and how the trainings, the points and the evaluations ended.

    Raises:
        InputError: before any training, if the directory holds trainings by other configs: all of them; after it, if
            the directory holds points of another config.
    """
    trained = [(one.name, one.config) for one in experiment.models if one.config is not None]
    problems = Problems(str(directory))
    for name, config in trained:
        folder = models_folder(directory, name)
        try:
            check_directory(folder, config)
        except InputError as error:
            remedy = f"name another directory, or remove {folder} to train it again"
            for one in error.problems:
                problems.note(("model", name), f"{one}: {remedy}")
    problems.raise_if_any()
    select(_sweep(experiment, {}, {}).points, only, shard)  # refuses before anything is trained
    first, every = (0, 1) if shard is None else map(int, shard.split("/"))
    own = {name for name, _ in trained[first::every]}
    sources: dict[str, LearnerSource] = {}

    def compute(value: tuple[str, TrainConfig], reporter: Reporter) -> LearnerSource:
        name, config = value
        folder = models_folder(directory, name)
        model = train_shown(config, folder, name, reporter) if name in own else _trained(folder, config)
        sources[name] = trained_source(model, own_words=True)
        return sources[name]

    trained.sort(key=lambda one: one[0] not in own)  # the others may be trained meanwhile
    items = [Named(name, (name, config), (name, 1)) for name, config in trained]
    job = RowsJob(items, compute, LearnerSource, {}, None)
    job.directory = directory  # what takes no more if a training does not
    outcome = run(job, console)
    failures = {str(failure.item): failure.message for failure in outcome.failures}
    sweep = _sweep(experiment, sources, failures)
    if outcome.ended_early or (shard is not None and failures):
        return sweep, [outcome]
    return sweep, [outcome, *run_whole(sweep, directory, select(sweep.points, only, shard), console)]


def _trained(folder: Path, config: TrainConfig) -> TrainedModel:
    """The model that another part trains."""
    try:
        model = load_checkpoint(folder)
    except InputError:
        model = None
    if model is None or model.step < config.optimiser.steps:
        raise InputError("another part trains it: run this command again when that one has ended")
    return model


def models_folder(directory: Path, name: str) -> Path:
    """Where the training of a model is kept."""
    return directory / "models" / name


def _sweep(experiment: Theorem6, sources: Mapping[str, LearnerSource], failures: Mapping[str, str]) -> Sweep:
    """The sweep of the models that were trained. Points of the others fail, and say why."""
    made = {
        entry.name: sources.get(entry.name) or _untrained(entry, failures.get(entry.name, "not trained yet"))
        for entry in experiment.models
    }
    return Sweep(
        **row_of(experiment, ("title", "claim", "lengths", "seeds", "measure", "text", "fit_from")),
        variants=tuple(SweepVariant(one.name, one.description, made[one.name]) for one in experiment.models),
        statistics=STATISTICS,
        inputs=LanguageWords(experiment.inputs),
        tables={"evaluation": Evaluation(experiment.words)},
        placement=experiment.placement.placement(),
    )


def _untrained(entry: ModelEntry, failure: str) -> LearnerSource:
    """The network that is set by hand, or a model that could not be trained."""
    common: dict[str, Any] = {"language": entry.language, "task": entry.task, "own_words": True}
    if entry.config is None:
        model, p = entry.untrained(), entry.language.settings["end_probability"]
        made = {"type": "exact_parity_rnn", "end_probability": p, "dtype": model.config.dtype}
        return LearnerSource(
            "constructed", model.config, made, lambda n, seed: model, end_first=True, **common
        )

    def build(n: int, seed: int) -> Any:
        raise InputError(f"{entry.name} could not be trained: {failure}")

    made = {"type": "CheckpointModel", "training": entry.config.table()}
    end_first = entry.task == "prediction"
    return LearnerSource("trained", entry.config.model, made, build, end_first=end_first, **common)
