"""Trained models as models of a sweep: `checkpoint` in a `[model]` table, a directory that `jaxsens train` wrote."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxsens.core.base.errors import InputError, Problems
from jaxsens.core.base.strict import did_you_mean
from jaxsens.core.sweeps.sources import ModelSource, SourceKind
from jaxsens.training.checkpoints import load_checkpoint


def _read_checkpoint(table: Mapping[str, Any], problems: Problems, folder: Path) -> ModelSource | None:
    """The model of a checkpoint. It is what its fingerprint says."""
    for key in table.keys() - {"checkpoint"}:
        hint = did_you_mean(key, ("checkpoint",)) or "; a checkpoint is measured as it was trained"
        problems.note((key,), f"unknown key{hint}")
    directory = table["checkpoint"]
    if not isinstance(directory, str):
        problems.add("checkpoint", directory, "the name of a directory that `jaxsens train` wrote")
        return None
    try:
        trained = load_checkpoint(folder / directory)
    except InputError as error:
        for one in error.problems:
            problems.add("checkpoint", directory, str(one))
        return None
    model, task = trained.model, trained.config.task
    determining = {"fingerprint": trained.fingerprint, "step": trained.step, "task": task}
    return ModelSource(
        weights="trained",
        network=model.config,
        expanded={"type": "CheckpointModel", **determining, "language": trained.language.name},
        build=lambda n, seed: model,
        given_names=trained.language.alphabet,
        end_first=task == "prediction",
        designated=f"the logits of {'the next symbol' if task == 'prediction' else 'the two labels'}",
        training={"step": trained.step, "steps": trained.config.optimiser.steps},
    )


CHECKPOINT = SourceKind(_read_checkpoint, ("checkpoint",), fixed="a checkpoint is as it was trained")
