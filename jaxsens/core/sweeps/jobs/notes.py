"""What processes leave next to the records of a job: why items failed, and which items a process computes.

.RECORD.failed    why the record could not be computed, in one line
.ITEMS.lock       locked by the process that computes these items, and removed by it
"""

from __future__ import annotations

import fcntl
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from jaxsens.core.base.errors import InputError
from jaxsens.core.base.files import made_place, never_a_link, place_of, write_text
from jaxsens.core.base.sealed import digest


@contextmanager
def alone(folder: Path, items: Iterable[object]) -> Iterator[bool]:
    """Yields False if another process computes exactly these items. Where files cannot be locked, nobody knows."""
    name = digest({"items": [*map(str, items)]})[:12]
    path = made_place(folder / f".{name}.lock")
    with open(path, "w", encoding="utf-8", opener=never_a_link) as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        except OSError:
            pass
        try:
            yield True
        finally:
            path.unlink(missing_ok=True)


def failure_of(path: Path) -> Path:
    """Returns the name of the note that says why there is no record at `path`."""
    return path.with_name(f".{path.name}.failed")


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
            with suppress(OSError, InputError):  # A folder of another user, or one outside the directory.
                probe = place_of(folder / f".probe.{secrets.token_hex(8)}.tmp")
                probe.touch()
                probe.unlink(missing_ok=True)
