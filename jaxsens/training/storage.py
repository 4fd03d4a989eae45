"""Checkpoints as folders of files: written whole or not at all, and read only if every byte is as it was written.

FOLDER/step-00001000/state/         the arrays, by Orbax
FOLDER/step-00001000/manifest.json  sealed: the step, the config, versions, the tables so far, the size and SHA-256 of
                                    every file, and the SHA-256 of the step, the identity of the config and all arrays
                                    ("content")

Orbax alone silently restores wrong weights after a bit has flipped on disk. It takes absolute paths only.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import logging
import os
import re
import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from orbax import checkpoint as orbax

from jaxsens.core.base.errors import InputError, Problems
from jaxsens.core.base.files import made_place, named_failures, never_a_link, takes_no_more
from jaxsens.core.base.sealed import DamagedFile, digest, read_sealed, write_sealed

FORMAT = 2
KIND = "manifest of a checkpoint"
MANIFEST = "manifest.json"
_STATE = "state"
_NAME = re.compile(r"step-(\d{8,})")
# From file systems that lock nothing.
_NO_LOCKS = (errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK)


class DamagedCheckpoint(InputError):
    """A checkpoint that is not what was written. The message names the file and says what is wrong with it."""


def write(
    folder: Path,
    step: int,
    arrays: Mapping[str, np.ndarray],
    config: Mapping[str, Any],
    versions: Mapping[str, str],
    tables: Mapping[str, Any] | None = None,
) -> Path:
    """Writes a checkpoint into a hidden folder, flushes it to disk and renames it; one of the same step is replaced.

    A process that is killed meanwhile leaves the hidden folder, which `sweep_up` removes.

    Raises:
        OSError: naming the checkpoint, if it cannot be written.
    """
    final = folder / f"step-{step:08d}"
    hidden = made_place(folder / f".{final.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        with named_failures(final, hidden):
            hidden.mkdir(parents=True)
            _reserve(hidden / "room", sum(array.nbytes for array in arrays.values()))
            with _no_tracebacks_in_logs(), orbax.PyTreeCheckpointer() as checkpointer:
                checkpointer.save((hidden / _STATE).absolute(), dict(arrays))
            manifest = {
                "format": FORMAT,
                "step": step,
                "config": dict(config),
                "versions": dict(versions),
                "tables": dict(tables or {}),
                "content": _content(step, config, arrays),
                "files": {name: _facts(hidden / name) for name in _files(hidden)},
            }
            write_sealed(hidden / MANIFEST, KIND, manifest)
            for place in (*hidden.rglob("*"), hidden):
                _flush(place)
            if os.path.lexists(final):
                remove(final)
            os.replace(hidden, final)
            _flush(folder)
    finally:
        shutil.rmtree(hidden, ignore_errors=True)
    return final


def _reserve(place: Path, size: int) -> None:
    """Raises OSError if there is no room for `size` bytes.

    Orbax says so as well, but leaves threads behind that complain of it later.
    """
    try:
        with open(place, "wb") as file:
            os.posix_fallocate(file.fileno(), 0, max(size, 1))
    except OSError as error:
        if takes_no_more(error):  # Other errors come from file systems that cannot reserve.
            raise
    finally:
        place.unlink(missing_ok=True)


@contextmanager
def _no_tracebacks_in_logs() -> Iterator[None]:
    """Keeps Orbax's threads from logging the tracebacks of what `save` raises all the same."""

    def wanted(record: logging.LogRecord) -> bool:
        return record.exc_info is None

    logger = logging.getLogger("absl")
    logger.addFilter(wanted)
    try:
        yield
    finally:
        logger.removeFilter(wanted)


def read(path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The manifest of a checkpoint and its arrays by name, after checking every file of it.

    Raises:
        DamagedCheckpoint: naming every file that is missing, too many, or not as it was written.
        InputError: if it was written by a later version of jaxsens.
    """
    manifest = read_manifest(path)
    problems = Problems(f"checkpoint {path}")
    listed, present = manifest["files"], _files(path)
    for name in sorted(listed.keys() | set(present)):
        if name not in present:
            problems.note((name,), "missing")
        elif name not in listed:
            problems.note((name,), "not one of the files that were written")
        elif (facts := _facts(path / name))["bytes"] != (written := listed[name])["bytes"]:
            problems.note((name,), f"{facts['bytes']} bytes, but {written['bytes']} were written")
        elif facts != written:
            problems.note((name,), "its SHA-256 is not that of what was written")
    problems.raise_if_any(DamagedCheckpoint)
    try:
        with orbax.PyTreeCheckpointer() as checkpointer:
            restored = checkpointer.restore((path / _STATE).absolute())
    except (OSError, ValueError, KeyError, TypeError) as error:
        wrote = manifest["versions"].get("orbax-checkpoint", "unknown")
        raise DamagedCheckpoint(
            f"{problems.subject}: {_STATE}: Orbax {version('orbax-checkpoint')} cannot restore what Orbax {wrote} "
            f"wrote ({error})"
        ) from error
    arrays = {name: np.asarray(value) for name, value in restored.items()}
    if _content(manifest["step"], manifest["config"], arrays) != manifest["content"]:
        raise DamagedCheckpoint(
            f"{problems.subject}: {_STATE}: the arrays restored from it, or the config, are not those that were saved"
        )
    return manifest, arrays


def found(folder: Path) -> list[Path]:
    """The checkpoints in a folder, sound or not, by rising step."""
    places = [path for path in folder.glob("step-*") if _NAME.fullmatch(path.name)]
    return sorted(places, key=step_of)


def is_checkpoint(path: Path) -> bool:
    """Whether a folder is one checkpoint, sound or not: by its manifest, its arrays or its name."""
    named = _NAME.fullmatch(path.name) is not None and path.is_dir() and not any(path.glob("*/step-*"))
    return named or (path / MANIFEST).is_file() or (path / _STATE).is_dir()


def step_of(path: Path) -> int:
    """The step in a checkpoint's name."""
    return int(path.name.removeprefix("step-"))


def remove(path: Path) -> None:
    """Removes a checkpoint; a process that is killed meanwhile leaves no half of one under its name."""
    hidden = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    os.replace(path, hidden)
    if hidden.is_symlink():
        hidden.unlink()
    else:
        shutil.rmtree(hidden)


def set_aside(path: Path) -> Path:
    """Renames a damaged checkpoint so that it is not taken for one any more; returns its new path."""
    aside = path.with_name(f"damaged-{path.name}-{secrets.token_hex(4)}")
    os.replace(path, aside)
    return aside


def sweep_up(folder: Path) -> None:
    """Removes what killed processes left half written or half removed. Only for the holder of the `lock`."""
    for hidden in folder.glob(".step-*.tmp"):
        shutil.rmtree(hidden)


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
            raise InputError.of(
                "directory", str(directory), "another process trains there; wait for it, or name another"
            ) from error
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            raise InputError.of(
                "directory",
                str(directory),
                "this file system cannot lock files, so two trainings there could "
                "destroy each other's checkpoints; name a directory on another one, such as a local disk, or mount "
                "this one with locks (NFS: without nolock; Lustre: with flock)",
            ) from error
        yield


def read_manifest(path: Path) -> dict[str, Any]:
    """The manifest of a checkpoint, whose other files are not looked at.

    Raises:
        DamagedCheckpoint: if it is missing, or not as it was written.
        InputError: if it was written by a later version of jaxsens.
    """
    subject = f"checkpoint {path}"
    try:
        manifest = read_sealed(path / MANIFEST, KIND)
    except FileNotFoundError as error:
        raise DamagedCheckpoint(f"{MANIFEST}: missing", subject=subject) from error
    except DamagedFile as error:
        raise DamagedCheckpoint(f"{MANIFEST}: {error.why}", subject=subject) from error
    if manifest["format"] != FORMAT:
        raise InputError(
            f"format {manifest['format']}, and this version of jaxsens reads {FORMAT}: use the one that wrote it, "
            f"{manifest['versions'].get('jaxsens', 'unknown')}",
            subject=subject,
        )
    if _NAME.fullmatch(path.name) and manifest["step"] != step_of(path):
        why = f"{MANIFEST}: of step {manifest['step']}, which is not the one in the name"
        raise DamagedCheckpoint(why, subject=subject)
    return manifest


def _files(path: Path) -> list[str]:
    """The files of a checkpoint except its manifest, as relative paths."""
    names = [file.relative_to(path).as_posix() for file in path.rglob("*") if not file.is_dir()]
    return sorted(name for name in names if name != MANIFEST)


def _facts(file: Path) -> dict[str, Any]:
    with open(file, "rb") as opened:
        return {"bytes": file.stat().st_size, "sha256": hashlib.file_digest(opened, "sha256").hexdigest()}


def identity(config: Mapping[str, Any]) -> dict[str, Any]:
    """The tables of a config that change the weights."""
    return {key: value for key, value in config.items() if key not in ("evaluation", "checkpoint")}


def _content(step: int, config: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> str:
    names = sorted(arrays)
    described = {"step": step, "identity": identity(config), "arrays": names}
    return digest(described, (np.asarray(arrays[name]) for name in names))


def _flush(place: Path) -> None:
    opened = os.open(place, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
