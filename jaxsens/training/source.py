"""Trained models as models of a sweep: `checkpoint` in a `[model]` table, a directory that `jaxsens train` wrote."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxsens.core.base.errors import InputError, Problems
from jaxsens.core.base.strict import did_you_mean
from jaxsens.core.sweeps.inputs import Symbols
from jaxsens.core.sweeps.sources import ModelSource, SourceKind
from jaxsens.formal.languages import Language
from jaxsens.training.checkpoints import TrainedModel, load_checkpoint
from jaxsens.training.config import Task


@dataclass(frozen=True, eq=False, kw_only=True)
class LearnerSource(ModelSource):
    """A model that learned a language.

    Attributes:
        language: what it learned.
        task: what it is for.
        longest_trained: the largest number of symbols it was trained on; None for weights that were set by hand.
        own_words: whether it reads words that are drawn from its language (`jaxsens.training.theorem6`).
    """

    language: Language
    task: Task
    longest_trained: int | None = None
    own_words: bool = False

    @property
    def symbols(self) -> Symbols:
        symbols = super().symbols
        return (
            LanguageSymbols(**vars(symbols), language=self.language, task=self.task)
            if self.own_words
            else symbols
        )

    def summary(self) -> str:
        """Its steps."""
        return "set by hand" if self.training is None else f"trained for {self.training['step']} steps"


@dataclass(frozen=True, kw_only=True)
class LanguageSymbols(Symbols):
    """The symbols of words of a language, with the boundary symbol that the task has."""

    language: Language
    task: Task

    def table(self) -> dict[str, Any]:
        return {"task": self.task, "language": dict(self.language.settings)}


def trained_source(trained: TrainedModel, own_words: bool = False) -> LearnerSource:
    """The source of a trained model. It is what its fingerprint says."""
    model, config = trained.model, trained.config
    determining = {"fingerprint": trained.fingerprint, "step": trained.step, "task": config.task}
    return LearnerSource(
        weights="trained",
        network=model.config,
        expanded={"type": "CheckpointModel", **determining, "language": trained.language.name},
        build=lambda n, seed: model,
        given_names=trained.language.alphabet,
        end_first=config.task == "prediction",
        designated=f"the logits of {'the next symbol' if config.task == 'prediction' else 'the two labels'}",
        training={"step": trained.step, "steps": config.optimiser.steps},
        language=trained.language,
        task=config.task,
        longest_trained=config.data.lengths[1],
        own_words=own_words,
    )


def _read_checkpoint(table: Mapping[str, Any], problems: Problems, folder: Path) -> ModelSource | None:
    for key in table.keys() - {"checkpoint"}:
        hint = did_you_mean(key, ("checkpoint",)) or "; a checkpoint is measured as it was trained"
        problems.note((key,), f"unknown key{hint}")
    directory = table["checkpoint"]
    if not isinstance(directory, str):
        problems.add("checkpoint", directory, "the name of a directory that `jaxsens train` wrote")
        return None
    try:
        return trained_source(load_checkpoint(folder / directory))
    except InputError as error:
        for one in error.problems:
            problems.add("checkpoint", directory, str(one))
        return None


CHECKPOINT = SourceKind(_read_checkpoint, ("checkpoint",), fixed="a checkpoint is as it was trained")
