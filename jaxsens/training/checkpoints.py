"""What is kept of a training: the state from which it goes on, and the trained model to measure."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from flax.traverse_util import flatten_dict
from jax.tree_util import keystr, tree_leaves_with_path, tree_map_with_path

from jaxsens.core.base.errors import InputError, Problems
from jaxsens.core.base.programs import numerics, versions
from jaxsens.core.base.strict import typed_arguments
from jaxsens.core.base.told import facts
from jaxsens.core.models.config_tables import build
from jaxsens.formal.languages import Language
from jaxsens.training import storage
from jaxsens.training.config import TrainConfig
from jaxsens.training.optimiser import TrainState, state_shapes
from jaxsens.training.storage import DamagedCheckpoint

FOLDER = "checkpoints"
"""The folder of a training's directory that holds its checkpoints."""


@dataclass(frozen=True)
class TrainedModel:
    """A model with the parameters that a checkpoint holds.

    Attributes:
        model: The module, such as a `jaxsens.Transformer`. Its output is the logits at its readout. A model trained for
            prediction reads the boundary symbol, number `config.boundary`, and then the word; a model trained for
            recognition reads the word and then the boundary symbol.
        config: The config of the training.
        step: The number of training steps behind the model.
        directory: The directory of the checkpoint.
        fingerprint: SHA-256 of the step, of the config without its evaluations and checkpoints, and of all weights and
            the optimiser's state. The same training has the same fingerprint.
    """

    model: Any
    config: TrainConfig
    step: int
    directory: Path
    fingerprint: str

    @property
    def language(self) -> Language:
        """The language that it was trained on."""
        return self.config.language

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        rows: dict[str, object] = {
            "model": self.config.table()["model"]["kind"],
            "language": self.config.table()["language"]["name"],
            "task": self.config.task,
            "steps": self.step,
            "directory": self.directory,
        }
        return facts("Trained model", rows)


@typed_arguments
def load_checkpoint(directory: str | os.PathLike[str]) -> TrainedModel:
    """The trained model of a training's newest checkpoint, or of the checkpoint whose folder is given.

    Raises:
        DamagedCheckpoint: If one of its files is missing or was changed; the message names it.
        InputError: If there is no checkpoint, or its config cannot be read.
    """
    path = Path(directory)
    if not storage.is_checkpoint(path):
        paths = storage.found(path / FOLDER) or storage.found(path)
        if not paths:
            raise InputError(
                f"there is none; give the directory that `jaxsens train` wrote, or a step's folder in its {FOLDER}",
                subject=f"checkpoint {path}",
            )
        path = paths[-1]
    try:
        manifest, arrays = storage.read(path)
        config = TrainConfig.from_table(manifest["config"], f"checkpoint {path}")
        state = _state(arrays, config, path, parts=(".parameters",))
    except DamagedCheckpoint as error:
        older = [other for other in storage.found(path.parent) if other.name < path.name]
        remedy = f"; to go back to an older one, train again, or name {older[-1]}" if older else ""
        raise DamagedCheckpoint(f"{error}{remedy}") from error
    model = build(config.model, parameters=state.parameters)
    return TrainedModel(model, config, manifest["step"], path, manifest["content"])


def save(
    directory: Path,
    config: TrainConfig,
    step: int,
    state: TrainState,
    tables: Mapping[str, Any] | None = None,
) -> Path:
    """Writes the checkpoint of a step, and removes the oldest ones beyond `config.checkpoint.keep`.

    `tables` holds the rows of the training's tables by name.
    """
    arrays = {keystr(place): np.asarray(leaf) for place, leaf in tree_leaves_with_path(state)}
    made_with = {**versions(), **{name: version(name) for name in ("optax", "orbax-checkpoint")}}
    path = storage.write(directory / FOLDER, step, arrays, config.table(), made_with, tables)
    for old in storage.found(directory / FOLDER)[: -config.checkpoint.keep]:
        storage.remove(old)
    return path


def resume(
    directory: Path, config: TrainConfig, note: Callable[[str], None]
) -> tuple[int, TrainState, TrainConfig, dict[str, Any]] | None:
    """Step, state, config and tables of the newest sound checkpoint, or None. Damaged ones are set aside, with a note.

    Raises:
        InputError: If the checkpoints belong to another training, saying where the configs differ.
    """
    folder = directory / FOLDER
    storage.sweep_up(folder)
    for path in reversed(storage.found(folder)):
        try:
            manifest, arrays = storage.read(path)
            _check_same(manifest["config"], manifest["step"], config, path)
            state = _state(arrays, config, path)
        except DamagedCheckpoint as error:
            aside = storage.set_aside(path)
            note(f"{error}; set aside as {aside.name}, looking for an older checkpoint")
            continue
        if (then := manifest["versions"].get("jax")) != version("jax"):
            note(f"written with jax {then}, resumed with jax {version('jax')}")
        then_config = TrainConfig.from_table(manifest["config"], f"checkpoint {path}")
        return manifest["step"], state, then_config, manifest["tables"]
    return None


def check_directory(directory: Path, config: TrainConfig) -> None:
    """Refuses a directory whose checkpoints belong to another training, by the newest manifest that can be read.

    A quick look before any long work: it changes nothing and reads no weights.

    Raises:
        InputError: Saying where the configs differ.
    """
    for path in reversed(storage.found(directory / FOLDER)):
        try:
            manifest = storage.read_manifest(path)
        except DamagedCheckpoint:
            continue
        _check_same(manifest["config"], manifest["step"], config, path)
        return


def _check_same(table: Mapping[str, Any], step: int, config: TrainConfig, path: Path) -> None:
    """Refuses a checkpoint of another training. A constant schedule may go on for longer than planned."""
    there = TrainConfig.from_table(table, f"checkpoint {path}")
    then, now = (flatten_dict(storage.identity(each.table()), sep=".") for each in (there, config))
    if config.optimiser.schedule == "constant" and config.optimiser.steps >= step:
        del then["optimiser.steps"], now["optimiser.steps"]
    problems = Problems(f"checkpoint {path}, of another training (name another directory)")
    missing = "nothing"
    for key in sorted(then.keys() | now.keys()):
        if then.get(key, missing) != now.get(key, missing):
            problems.note(key, f"{then.get(key, missing)!r} there, {now.get(key, missing)!r} here")
    problems.raise_if_any()


def _state(
    arrays: Mapping[str, np.ndarray], config: TrainConfig, path: Path, parts: tuple[str, ...] = ("",)
) -> TrainState:
    """The arrays of the checkpoint at `path` in the structure of the config's state, as NumPy arrays.

    Only the arrays whose names begin with one of `parts` are needed and checked; the others stay shapes.
    """
    with numerics(config.model.dtype):
        expected = state_shapes(config)
    problems = Problems(f"checkpoint {path}")

    def restored(place: Any, wanted: Any) -> Any:
        name = keystr(place)
        if not name.startswith(parts):
            return wanted
        array = arrays.get(name)
        if array is None or (array.shape, array.dtype) != (wanted.shape, wanted.dtype):
            have = "missing" if array is None else f"{array.dtype} of shape {array.shape}"
            needs = f"{wanted.dtype} of shape {wanted.shape}"
            problems.note((name,), f"{have}, its config needs {needs}")
        return array

    state = tree_map_with_path(restored, expected)
    problems.raise_if_any(DamagedCheckpoint)
    return state
