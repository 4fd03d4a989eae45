"""The Theorem 6 experiment: models are trained, or gone on with, in DIR/models/NAME; then DIR is a sweep of them.

All state is in the files: what was killed is resumed by running it again. Trainings go on from their newest checkpoint,
points and evaluations are kept one by one.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from jaxsens.core.base.errors import InputError, Problems
from jaxsens.core.sweeps.jobs.job import Job, Named, Outcome, run
from jaxsens.core.sweeps.jobs.progress import Reporter
from jaxsens.core.sweeps.points import select
from jaxsens.core.sweeps.sweep import Sweep, SweepVariant, row_of, run_whole
from jaxsens.training.checkpoints import check_directory
from jaxsens.training.events import Event
from jaxsens.training.loop import train
from jaxsens.training.source import LearnerSource, trained_source
from jaxsens.training.theorem6.config import ModelEntry, Theorem6
from jaxsens.training.theorem6.evaluation import LanguageWords
from jaxsens.training.theorem6.report import ReportedEvaluation

STATISTICS = ("mean", "max")


def run_theorem6(experiment: Theorem6, directory: Path, console: Console) -> tuple[Sweep, list[Outcome]]:
    """Trains what is not trained to the end, then measures and evaluates what is not measured yet. See `run`.

    Returns:
        The sweep, and how the trainings, the points and the evaluations ended.

    Raises:
        InputError: before any training, if the directory holds trainings by other configs: all of them; after it, if
            the directory holds points of another config.
    """
    problems = Problems(str(directory))
    for entry in experiment.models:
        if entry.config is not None:
            folder = models_folder(directory, entry.name)
            try:
                check_directory(folder, entry.config)
            except InputError as error:
                remedy = f"name another directory, or remove {folder} to train it again"
                for one in error.problems:
                    problems.note(("model", entry.name), f"{one}: {remedy}")
    problems.raise_if_any()
    trainings = TrainingsJob(experiment, directory)
    outcome = run(trainings, console)
    failures = {str(failure.item): failure.message for failure in outcome.failures}
    sweep = _sweep(experiment, trainings.sources, failures)
    if outcome.ended_early:
        return sweep, [outcome]
    return sweep, [outcome, *run_whole(sweep, directory, select(sweep.points), console)]


def models_folder(directory: Path, name: str) -> Path:
    """Where the training of a model is kept."""
    return directory / "models" / name


class TrainingsJob(Job[Named[ModelEntry], LearnerSource]):
    """Trains the models, each in its folder, which keeps what there is of it."""

    def __init__(self, experiment: Theorem6, directory: Path) -> None:
        trained = [entry for entry in experiment.models if entry.config is not None]
        super().__init__([Named(entry.name, entry, (entry.name, 1)) for entry in trained], directory)
        self.sources: dict[str, LearnerSource] = {}

    def compute(self, item: Named[ModelEntry], reporter: Reporter) -> LearnerSource:
        config = item.value.config
        if config is None:
            raise ValueError(f"{item}: not trained")

        def watch(event: Event) -> None:
            if event.done is not None:
                reporter.inside(item.name, event.done, config.optimiser.steps, f"steps, {event.text}")
            elif event.text:
                reporter.note(f"{item}: {event.text}")

        trained = train(config, models_folder(self.directory, item.name), watch)
        self.sources[item.name] = trained_source(trained, own_words=True)
        return self.sources[item.name]


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
        tables={"evaluation": ReportedEvaluation(experiment.words)},
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
