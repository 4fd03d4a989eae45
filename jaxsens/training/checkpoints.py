"""What is kept of a training, with a digest: the state from which it goes on, and the trained model to measure,
in a sweep by `checkpoint` in a `[model]` table.

DIR/checkpoints/step_00001000/state/         the arrays, by Orbax
DIR/checkpoints/step_00001000/manifest.json  sealed: the step, the config, versions, the tables so far; as "files" the
                                             SHA-256 of all other files; as "content" that of the step, the config's
                                             identity and all arrays

Orbax writes the state of a step whole or not at all. The manifest follows, and a step without one is passed over. A
checkpoint is read only if every byte is as it was written. Old ones are removed here, since Orbax follows links.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax.traverse_util import flatten_dict
from jax.tree_util import keystr, tree_leaves_with_path
from orbax import checkpoint as orbax

from jaxsens.core.base.errors import InputError, Problems
from jaxsens.core.base.files import made_place, named_failures, never_a_link, takes_no_more
from jaxsens.core.base.programs import numerics, versions
from jaxsens.core.base.sealed import DamagedFile, digest, read_sealed, write_sealed
from jaxsens.core.base.strict import did_you_mean, typed_arguments
from jaxsens.core.models.transformer.module import build
from jaxsens.core.sweeps.inputs import Symbols
from jaxsens.core.sweeps.sources import ModelSource, SourceKind
from jaxsens.formal.languages import Language
from jaxsens.training.config import Task, TrainConfig
from jaxsens.training.steps import TrainState, initial_state

FOLDER = "checkpoints"
"""The folder of a training's directory that holds its checkpoints."""

MANIFEST = "manifest.json"
_KIND = "manifest of a checkpoint"
_STATE = "state"
_UNFINISHED = ".orbax-checkpoint-tmp"
_NAME = re.compile(r"step_(\d{8,})")
_NO_LOCKS = (errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK)  # from file systems that lock nothing
_STEPS = orbax.CheckpointManagerOptions(
    step_prefix="step", step_format_fixed_length=8, enable_async_checkpointing=False
)


class DamagedCheckpoint(InputError):
    """A checkpoint that is not what was written. The message says what is wrong with it."""


@dataclass(frozen=True)
class TrainedModel:
    """A model with the parameters that a checkpoint holds.

    Attributes:
        model: The module, such as a `jaxsens.Transformer`. Its output is the logits at its readout. The boundary
            symbol, `config.boundary`, stands before a word for prediction, and after it for recognition.
        config, step, directory: The training's config, the steps behind the model, the checkpoint's directory.
        fingerprint: SHA-256 of the step, the config without evaluations and checkpoints, all weights and the
            optimiser's state.

    >>> trained = jaxsens.training.load_checkpoint("results/parity")  # doctest: +SKIP
    >>> jaxsens.flip_sensitivity(trained.model, [trained.config.boundary, 0, 1, 1])  # doctest: +SKIP
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


@typed_arguments
def load_checkpoint(directory: str | os.PathLike[str]) -> TrainedModel:
    """The trained model of a training's newest checkpoint, or of the checkpoint whose folder is given.

    Raises:
        DamagedCheckpoint: If it is not what was written.
        InputError: If there is no checkpoint, or its config cannot be read.

    >>> trained = load_checkpoint("trained")  # doctest: +SKIP
    """
    path = Path(directory)
    paths = _found(path / FOLDER) or _found(path)
    if not paths and (path / MANIFEST).is_file() | (path / _STATE).is_dir():
        paths = [path]
    if not paths:
        raise InputError(
            f"there is none; give the directory that `jaxsens train` wrote, or a step's folder in its {FOLDER}",
            subject=f"checkpoint {directory}",
        )
    path = ([one for one in paths if (one / MANIFEST).is_file()] or paths)[-1]
    try:
        manifest, state = _read(path)
    except DamagedCheckpoint as error:
        known = _found(path.parent)
        older = known[: known.index(path)] if path in known else []
        remedy = f"; to go back to an older one, train again, or name {older[-1]}" if older else ""
        raise DamagedCheckpoint(f"{error}{remedy}") from error
    config = TrainConfig.from_table(manifest["config"], f"checkpoint {path}")
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

    Of a step whose state is there, only the manifest is written. `tables` holds the rows of the training's tables by
    name.

    Raises:
        OSError: naming the checkpoint, if it cannot be written.
    """
    folder, table = directory / FOLDER, config.table()
    arrays = {keystr(place): np.asarray(leaf) for place, leaf in tree_leaves_with_path(state)}
    path = folder / f"step_{step:08d}"
    made_place(path)
    try:
        with named_failures(path, folder):
            if not path.is_dir():
                room = folder / f"room-{secrets.token_hex(4)}{_UNFINISHED}"
                with orbax.CheckpointManager(folder.absolute(), options=_STEPS) as manager:
                    _reserve(room, sum(array.nbytes for array in arrays.values()))
                    manager.save(step, args=orbax.args.Composite(**{_STATE: orbax.args.PyTreeSave(arrays)}))
                for place in (*path.rglob("*"), path, folder):
                    _flush(place)  # before the manifest that seals it
            manifest = {
                "step": step,
                "config": table,
                "versions": {**versions(), **{name: version(name) for name in ("optax", "orbax-checkpoint")}},
                "tables": dict(tables or {}),
                "content": _content(step, table, arrays),
                "files": _of_files(path),
            }
            write_sealed(path / MANIFEST, _KIND, manifest)
            for place in (path, folder):
                _flush(place)  # before older ones go
            for old in _found(folder)[: -config.checkpoint.keep]:
                _remove(old)
    except OSError:
        _remove_unfinished(folder)
        if not (path / MANIFEST).exists():
            _remove(path)
        raise
    return path


def resume(
    directory: Path, config: TrainConfig, note: Callable[[str], None]
) -> tuple[int, TrainState, TrainConfig, dict[str, Any]] | None:
    """Step, state, config and tables of the newest sound checkpoint, or None. Damaged ones are set aside, with a note.

    Raises:
        InputError: If the checkpoints belong to another training, saying where the configs differ.
    """
    folder = directory / FOLDER
    _remove_unfinished(folder)  # of killed processes: the lock is held
    for path in reversed(_found(folder)):
        try:
            manifest, state = _read(path)
        except DamagedCheckpoint as error:
            aside = path.with_name(f"damaged-{path.name}-{secrets.token_hex(4)}")
            os.replace(path, aside)
            note(f"{error}; set aside as {aside.name}, looking for an older checkpoint")
            continue
        there = _check_same(manifest["config"], manifest["step"], config, path)
        if (then := manifest["versions"].get("jax")) != version("jax"):
            note(f"written with jax {then}, resumed with jax {version('jax')}")
        return manifest["step"], state, there, manifest["tables"]
    return None


def check_directory(directory: Path, config: TrainConfig) -> None:
    """Refuses a directory whose checkpoints belong to another training, by the newest manifest that can be read.

    A quick look before any long work: it changes nothing and reads no weights.

    Raises:
        InputError: Saying where the configs differ.
    """
    for path in reversed(_found(directory / FOLDER)):
        try:
            manifest = _manifest(path)
        except DamagedCheckpoint:
            continue
        _check_same(manifest["config"], manifest["step"], config, path)
        return


def _check_same(table: Mapping[str, Any], step: int, config: TrainConfig, path: Path) -> TrainConfig:
    """Returns the config of a checkpoint, and refuses that of another training. A constant schedule may go on for
    longer than planned."""
    there = TrainConfig.from_table(table, f"checkpoint {path}")
    then, now = (flatten_dict(_identity(each.table()), sep=".") for each in (there, config))
    if config.optimiser.schedule == "constant" and config.optimiser.steps >= step:
        del then["optimiser.steps"], now["optimiser.steps"]
    problems = Problems(f"checkpoint {path}, of another training (name another directory)")
    missing = "nothing"
    for key in sorted(then.keys() | now.keys()):
        if then.get(key, missing) != now.get(key, missing):
            problems.note(key, f"{then.get(key, missing)!r} there, {now.get(key, missing)!r} here")
    problems.raise_if_any()
    return there


def _found(folder: Path) -> list[Path]:
    """The checkpoints in a folder, sound or not, by rising step."""
    steps = {path: match for path in folder.glob("step_*") if (match := _NAME.fullmatch(path.name))}
    return sorted(steps, key=lambda path: int(steps[path][1]))


def _remove_unfinished(folder: Path) -> None:
    """Removes the states that Orbax began and did not finish."""
    for place in folder.glob(f"*{_UNFINISHED}"):
        _remove(place)


def _remove(place: Path) -> None:
    """Removes a checkpoint under another name first, so that none is there in part; of a link, only the link."""
    if place.is_symlink() or not place.is_dir():
        place.unlink(missing_ok=True)
        return
    hidden = place.with_name(f"removed-{secrets.token_hex(4)}{_UNFINISHED}")
    os.replace(place, hidden)
    shutil.rmtree(hidden)


def _manifest(path: Path) -> dict[str, Any]:
    """The manifest of a checkpoint, whose other files are not looked at.

    Raises:
        DamagedCheckpoint: if it is missing, or not as it was written.
    """
    subject = f"checkpoint {path}"
    try:
        manifest = read_sealed(path / MANIFEST, _KIND)
    except FileNotFoundError as error:
        raise DamagedCheckpoint(f"{MANIFEST}: missing", subject=subject) from error
    except DamagedFile as error:
        raise DamagedCheckpoint(f"{MANIFEST}: {error.why}", subject=subject) from error
    if _NAME.fullmatch(path.name) and path.name != f"step_{manifest['step']:08d}":
        why = f"{MANIFEST}: of step {manifest['step']}, which is not the one in the name"
        raise DamagedCheckpoint(why, subject=subject)
    return manifest


def _of_files(folder: Path) -> str:
    """The SHA-256 of all files of a checkpoint but its manifest, and one that was not finished: their names, sizes and
    bytes."""
    sha256, files = hashlib.sha256(), (path for path in folder.rglob("*") if not path.is_dir())
    for file in sorted(path for path in files if not path.name.lstrip(".").startswith(MANIFEST)):
        sha256.update(f"{file.relative_to(folder).as_posix()} {file.stat().st_size} ".encode())
        with open(file, "rb") as opened:
            while block := opened.read(2**20):
                sha256.update(block)
    return sha256.hexdigest()


def _read(path: Path) -> tuple[dict[str, Any], TrainState]:
    """The manifest of a checkpoint and its state, as NumPy arrays.

    Raises:
        DamagedCheckpoint: if they are not what was written, or not what the config needs.
    """
    manifest, subject = _manifest(path), f"checkpoint {path}"
    if _of_files(path) != manifest["files"]:
        raise DamagedCheckpoint("its files are not those that were written", subject=subject)
    try:
        with orbax.PyTreeCheckpointer() as checkpointer:
            restored = checkpointer.restore((path / _STATE).absolute())
    except (OSError, ValueError, KeyError, TypeError) as error:
        why = f"{_STATE}: Orbax {version('orbax-checkpoint')} cannot restore it ({error})"
        raise DamagedCheckpoint(why, subject=subject) from error
    arrays = {name: np.asarray(value) for name, value in restored.items()}
    if _content(manifest["step"], manifest["config"], arrays) != manifest["content"]:
        why = f"{_STATE}: the arrays restored from it are not those that were saved"
        raise DamagedCheckpoint(why, subject=subject)
    config = TrainConfig.from_table(manifest["config"], subject)
    with numerics(config.model.dtype):
        expected = jax.eval_shape(partial(initial_state, config))
    shapes = {keystr(place): (one.shape, one.dtype) for place, one in tree_leaves_with_path(expected)}
    if {name: (array.shape, array.dtype) for name, array in arrays.items()} != shapes:
        why = f"{_STATE}: its arrays are not those of its config by optax {version('optax')}"
        raise DamagedCheckpoint(f"{why}; written with {manifest['versions']}", subject=subject)
    return manifest, jax.tree.structure(expected).unflatten([arrays[name] for name in shapes])


def _identity(config: Mapping[str, Any]) -> dict[str, Any]:
    """The tables of a config that change the weights."""
    return {key: value for key, value in config.items() if key not in ("evaluation", "checkpoint")}


def _content(step: int, config: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> str:
    names = sorted(arrays)
    described = {"step": step, "identity": _identity(config), "arrays": names}
    return digest(described, (np.asarray(arrays[name]) for name in names))


def _reserve(place: Path, size: int) -> None:
    """Raises OSError if there is no room for `size` bytes.

    Orbax says so as well, but leaves threads behind that complain of it later.
    """
    try:
        with open(place, "wb", opener=never_a_link) as file:
            os.posix_fallocate(file.fileno(), 0, max(size, 1))
    except OSError as error:
        if takes_no_more(error):  # Other errors come from file systems that cannot reserve.
            raise
    finally:
        place.unlink(missing_ok=True)


@contextmanager
def lock(directory: Path) -> Iterator[None]:
    """Keeps other processes from training in the same directory; it ends with the process, however that ends.

    Raises:
        InputError: if another process holds it, or the file system cannot lock.
    """
    directory.mkdir(parents=True, exist_ok=True)
    with open(directory / ".lock", "w", encoding="utf-8", opener=never_a_link) as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            why = "another process trains there; wait for it, or name another"
            raise InputError.of("directory", str(directory), why) from error
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            why = (
                f"this file system cannot lock files ({error}), so two trainings there could destroy each other's "
                "checkpoints; name a directory on another one, such as a local disk, or mount this one with locks "
                "(NFS: without nolock; Lustre: with flock)"
            )
            raise InputError.of("directory", str(directory), why) from error
        yield


def _flush(place: Path) -> None:
    opened = os.open(place, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


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
        own = super().symbols
        if not self.own_words:
            return own
        return LanguageSymbols(**vars(own), language=self.language, task=self.task)

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
