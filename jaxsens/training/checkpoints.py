"""What of a training is kept: its state to go on with, and the trained model to measure."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxsens.errors import Faults, InputError
from jaxsens.languages import Language
from jaxsens.models.config_tables import build
from jaxsens.precision import numerics
from jaxsens.training import storage
from jaxsens.training.config import TrainConfig
from jaxsens.training.optimiser import TrainState, state_shapes
from jaxsens.training.storage import DamagedCheckpoint, Stored
from jaxsens.versions import versions

FOLDER = "checkpoints"
"""Where in the directory of a training its checkpoints lie."""

_FREE = ("evaluation", "checkpoint")  # tables of a config that do not change what the weights become


@dataclass(frozen=True)
class TrainedModel:
    """A model with the parameters that a checkpoint holds.

    Attributes:
        model: the module, such as a `jaxsens.Transformer`; its output is the logits at its readout. One trained for
            prediction reads the boundary symbol, number `config.boundary`, and then the word; one trained for
            recognition reads the word and then the boundary symbol.
        config: of the training.
        step: after so many steps of it.
        directory: of the checkpoint.
        fingerprint: SHA-256 of the step, of the config but for its evaluations and checkpoints, and of all weights and
            the optimiser's state. The same training gives the same one again.
    """

    model: Any
    config: TrainConfig
    step: int
    directory: Path
    fingerprint: str

    @property
    def language(self) -> Language:
        """What it was trained on."""
        return self.config.language


def load_checkpoint(directory: str | os.PathLike[str]) -> TrainedModel:
    """The trained model of a training's newest checkpoint, or of the one checkpoint whose folder is given.

    Raises:
        DamagedCheckpoint: if a file of it is missing or not as it was written; the message says which one.
        InputError: if there is no checkpoint, or its config cannot be read.
    """
    path = Path(directory)
    if not storage.is_checkpoint(path):
        path = _newest(path)
    try:
        stored = storage.read(path, _identity)
        config = _config(stored.config, path)
        state = _state(stored, config, parts=(".parameters",))
    except DamagedCheckpoint as error:
        older = [other for other in storage.found(path.parent) if other.name < path.name]
        remedy = f"; to go back to an older one, train again, or name {older[-1]}" if older else ""
        raise DamagedCheckpoint(f"{error}{remedy}") from error
    return TrainedModel(
        build(config.model, parameters=state.parameters), config, stored.step, path, stored.content
    )


def save(directory: Path, config: TrainConfig, step: int, state: TrainState) -> Path:
    """Writes the checkpoint of a step, and removes the oldest of those that are too many."""
    arrays = {name: np.asarray(leaf) for name, leaf in _named(state)}
    made_with = {**versions(), **{name: version(name) for name in ("optax", "orbax-checkpoint")}}
    table = config.table()
    path = storage.write(directory / FOLDER, step, arrays, table, _identity(table), made_with)
    for old in storage.found(directory / FOLDER)[: -config.checkpoint.keep]:
        storage.remove(old)
    return path


@dataclass(frozen=True)
class Resumed:
    """From where a training goes on: the newest sound checkpoint's step and state, and the config that it holds."""

    step: int
    state: TrainState
    config: TrainConfig


def resume(directory: Path, config: TrainConfig, note: Callable[[str], None]) -> Resumed | None:
    """The newest sound checkpoint, or None. Damaged ones are set aside with a note.

    Raises:
        InputError: if the checkpoints are of another training, saying in what the configs differ.
    """
    folder = directory / FOLDER
    storage.sweep_up(folder)
    for path in reversed(storage.found(folder)):
        try:
            stored = storage.read(path, _identity)
            _check_same(stored.config, stored.step, config, path)
            state = _state(stored, config)
        except DamagedCheckpoint as error:
            aside = storage.set_aside(path)
            note(f"{error}; set aside as {aside.name}, an older checkpoint is looked for")
            continue
        if stored.versions.get("jax") != version("jax"):
            note(f"written with jax {stored.versions.get('jax')}, gone on with under jax {version('jax')}")
        with numerics(config.model.dtype):
            copied = jax.tree.map(lambda leaf: jnp.array(leaf, copy=True), state)
        return Resumed(stored.step, copied, _config(stored.config, path))
    return None


def check_directory(directory: Path, config: TrainConfig) -> None:
    """Refuses a directory whose checkpoints are of another training, by the newest manifest that can be read.

    Nothing is changed, and no weights are read: a quick look before anything long.

    Raises:
        InputError: saying in what the configs differ.
    """
    for path in reversed(storage.found(directory / FOLDER)):
        try:
            manifest = storage.read_manifest(path)
        except DamagedCheckpoint:
            continue
        _check_same(manifest["config"], manifest["step"], config, path)
        return


def _newest(directory: Path) -> Path:
    paths = storage.found(directory / FOLDER) or storage.found(directory)
    if not paths:
        raise InputError(
            f"checkpoint {directory}: there is none; give the directory that `jaxsens train` wrote, or a step's folder "
            f"in its {FOLDER}"
        )
    return paths[-1]


def _identity(table: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in table.items() if key not in _FREE}


def _config(table: Mapping[str, Any], path: Path) -> TrainConfig:
    return TrainConfig.from_table(table, f"checkpoint {path}")


def _check_same(table: Mapping[str, Any], step: int, config: TrainConfig, path: Path) -> None:
    """Refuses a checkpoint of another training. A constant schedule may go on for longer than was planned."""
    then, now = (_flat(_identity(each.table())) for each in (_config(table, path), config))
    if config.optimiser.schedule == "constant" and config.optimiser.steps >= step:
        del then["optimiser.steps"], now["optimiser.steps"]
    faults = Faults(f"checkpoint {path}, of another training (name another directory)")
    missing = "nothing"
    for key in sorted(then.keys() | now.keys()):
        if then.get(key, missing) != now.get(key, missing):
            faults.messages.append(f"{key}: {then.get(key, missing)!r} there, {now.get(key, missing)!r} here")
    faults.raise_if_any()


def _flat(value: Any, path: str = "") -> dict[str, Any]:
    if not isinstance(value, dict):
        return {path: value}
    parts = [_flat(item, f"{path}.{key}" if path else key) for key, item in value.items()]
    return {key: item for part in parts for key, item in part.items()}


def _named(tree: Any) -> list[tuple[str, Any]]:
    return [
        (jax.tree_util.keystr(path), leaf) for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]
    ]


def _state(stored: Stored, config: TrainConfig, parts: tuple[str, ...] = ("",)) -> TrainState:
    """The stored arrays in the shape of the config's state, as NumPy arrays.

    Only the arrays whose names begin with one of `parts` are needed and checked; the others are left as shapes.
    """
    with numerics(config.model.dtype):
        expected = state_shapes(config)
    faults = Faults(f"checkpoint {stored.path}")
    leaves = []
    for name, wanted in _named(expected):
        array = stored.arrays.get(name)
        described = f"{wanted.dtype} of shape {wanted.shape}"
        if not name.startswith(parts):
            leaves.append(wanted)
        elif array is None:
            faults.messages.append(f"{name}: missing, its config needs {described}")
        elif (array.shape, array.dtype) != (wanted.shape, wanted.dtype):
            have = f"{array.dtype} of shape {array.shape}"
            faults.messages.append(f"{name}: {have}, its config needs {described}")
        else:
            leaves.append(array)
    if faults:
        try:
            faults.raise_if_any()
        except InputError as error:
            raise DamagedCheckpoint(str(error)) from None
    return jax.tree.unflatten(jax.tree.structure(expected), leaves)
