"""What processes leave next to the records of a job: claims on items that are under way, and why items failed.

    .RECORD.claim     the mark of the process that computes the record, and the name of its host
    .RECORD.failed    why the record could not be computed, in one line

A claim is a hint for other processes that somebody has begun an item. Nothing depends on it being right: a record
appears whole or not at all, and two processes that compute one item write the same numbers, up to rounding where their
hosts differ; the later record stands. The holder touches its claim every minute, and a claim that was not touched for
long is that of a process that died. Ages are by the file system's clock, which all hosts share, never by a host's own.
"""

from __future__ import annotations

import os
import secrets
import socket
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from jaxsens.base.errors import InputError
from jaxsens.base.files import has_ended, made_place, never_a_link, own_mark, place_of, write_text

STALE_SECONDS = 15 * 60.0
"""A claim that was not touched for this long is taken for that of a process that died."""

_TOUCH_EVERY = 60.0


class Claim(NamedTuple):
    """A claim of another process or of this one: its host, and the seconds since it was last touched."""

    host: str
    age: float


def claim_of(path: Path) -> Path:
    """Returns the name of the claim on the record at `path`."""
    return path.with_name(f".{path.name}.claim")


def failure_of(path: Path) -> Path:
    """Returns the name of the note that says why there is no record at `path`."""
    return path.with_name(f".{path.name}.failed")


def seconds_since(file: Path) -> float:
    """Returns the age of a file by the clock of its file system.

    Where the folder cannot be written to, the host's clock has to do.

    Raises:
        OSError: if there is no such file.
    """
    return _now(file.parent) - file.stat().st_mtime


def _now(folder: Path) -> float:
    """The time by the file system's clock: that of a new file."""
    try:
        probe = place_of(folder / f".{own_mark()}-{secrets.token_hex(4)}.clock")
        probe.touch()
        try:
            return probe.stat().st_mtime
        finally:
            probe.unlink(missing_ok=True)
    except (OSError, InputError):
        return time.time()


def read_claim(path: Path) -> Claim | None:
    """Returns the claim on the record at `path`; None if there is none, or that of a process that died."""
    claimed = claim_of(path)
    try:
        mark, _, host = claimed.read_text(encoding="utf-8").partition("\n")
        if has_ended(mark.strip()):
            return None
        age = seconds_since(claimed)
    except (OSError, UnicodeDecodeError):
        return None
    return None if age >= STALE_SECONDS else Claim(host.strip() or "a host", max(age, 0.0))


def is_claimed(path: Path | None) -> bool:
    """Returns whether another process, which is not taken to have died, says that it computes this record."""
    return path is not None and claim_of(path).exists() and read_claim(path) is not None


@contextmanager
def claim(path: Path) -> Iterator[None]:
    """Claims the record that belongs at `path` for the length of a block, and touches the claim meanwhile."""
    claimed = made_place(claim_of(path))
    ended = threading.Event()

    def keep_alive() -> None:
        while not ended.wait(_TOUCH_EVERY):
            with suppress(OSError):  # Another process may have removed it, which does no harm.
                os.utime(claimed)

    toucher = threading.Thread(target=keep_alive, name="jaxsens claim", daemon=True)
    try:
        with open(claimed, "w", encoding="utf-8", opener=never_a_link) as file:
            file.write(f"{own_mark()}\n{socket.gethostname()}\n")
        toucher.start()
        yield
    finally:
        ended.set()
        if toucher.is_alive():
            toucher.join()
        claimed.unlink(missing_ok=True)


def clear_claims(folder: Path) -> None:
    """Removes claims below a folder on records that are there, and claims of processes that died."""
    for claimed in folder.rglob(".*.claim"):
        record = claimed.with_name(claimed.name.removeprefix(".").removesuffix(".claim"))
        with suppress(OSError):  # Another process may remove the same.
            if record.exists() or read_claim(record) is None:
                claimed.unlink()


def note_failure(path: Path | None, message: str) -> None:
    """Keeps why a record could not be computed, for `jaxsens status`; None takes no note."""
    if path is not None:
        with suppress(OSError, InputError):  # The run itself says what failed.
            write_text(failure_of(path), f"{message}\n")


def forget_failure(path: Path | None) -> None:
    """Removes the note of an earlier failure."""
    if path is not None:
        with suppress(OSError):
            failure_of(path).unlink(missing_ok=True)


def read_failure(path: Path) -> str | None:
    """Returns why the record at `path` could not be computed; None if no failure was noted, or it is there by now."""
    try:
        text = failure_of(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return None
    return None if path.exists() else text


def see_what_others_wrote(folders: Iterable[Path]) -> None:
    """Makes network file systems look at these folders again.

    An NFS client remembers for up to a minute which names a folder lacks. It forgets when the folder changes.
    """
    for folder in sorted(set(folders)):
        if folder.is_dir():
            _now(folder)
