"""Atomic file writing: readers never see a partial file, and errors name the file and the remedy."""

from __future__ import annotations

import errno
import io
import os
import re
import secrets
import stat
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from types import MappingProxyType
from typing import IO

from jaxsens.core.base.errors import InputError, Problems

_REMEDIES = {
    errno.ENOSPC: "make room there",
    errno.EDQUOT: "make room there, or have the quota raised",
    errno.EROFS: "mount it writable, or use another path",
    errno.EFBIG: "raise the limit on the size of a file (ulimit -f)",
}
_NUMBER = re.compile(r"os_error_code='(\d+)'|\[[Ee]rrno (\d+)\]")
_TEMPORARY = re.compile(r"\..+\.[0-9a-f]{16}\.tmp")
_ABANDONED_SECONDS = 24 * 3600


def takes_no_more(error: BaseException) -> bool:
    """Returns whether a write failed because the disk is full or read-only, a quota is used up, or the file would be
    longer than the process may write. Results computed later could not be saved either."""
    return isinstance(error, OSError) and error.errno in _REMEDIES


def remedy(error: OSError) -> str:
    """Returns the remedy for an error for which `takes_no_more` is true."""
    return _REMEDIES[error.errno or errno.ENOSPC]


_guarded: list[Path] = []


@contextmanager
def only_inside(directory: str | os.PathLike[str]) -> Iterator[None]:
    """Keeps what the block writes below a directory inside: see `place_of`. The directory itself may be a link."""
    guarded = Path(os.path.abspath(directory))
    _guarded.append(guarded)
    try:
        yield
    finally:
        _guarded.remove(guarded)


def place_of(path: str | os.PathLike[str]) -> Path:
    """Returns where a file is to be written: for a link, its target; below a directory of `only_inside`, its own name.

    A link in place of a file is then replaced rather than followed.

    Raises:
        InputError: if a link in place of a folder leads out of such a directory.
    """
    named = Path(os.path.abspath(path))
    inside = [directory for directory in _guarded if named.is_relative_to(directory)]
    if not inside:
        return Path(os.path.realpath(path))
    folder = Path(os.path.realpath(named.parent))
    for directory in inside:
        if not folder.is_relative_to(os.path.realpath(directory)):
            why = f"{named.parent} leads out of it, to {folder}, where nothing is written"
            remedy = f"{why}: remove that link, or name the directory that it leads to"
            raise InputError.of("directory", str(directory), remedy)
    return folder / named.name


def made_place(path: str | os.PathLike[str]) -> Path:
    """Returns `place_of` a file, after making the folders that it belongs in. Raises as it does, and OSError."""
    place = place_of(path)
    place.parent.mkdir(parents=True, exist_ok=True)
    return place


def never_a_link(path: str, flags: int) -> int:
    """Opens a file, as `opener` of `open`. A link in its place is removed first, and not followed."""
    if os.path.islink(path):
        os.unlink(path)
    return os.open(path, flags | os.O_NOFOLLOW, 0o666)


@contextmanager
def named_failures(path: str | os.PathLike[str], temporary: str | os.PathLike[str]) -> Iterator[None]:
    """Turns failures to write `temporary` into an OSError with an errno that names `path`, its final name.

    Python's own error for a failed write names no file, and C++ libraries raise ValueError with the errno in its text.
    """
    try:
        yield
    except Exception as error:
        number = error.errno if isinstance(error, OSError) else None
        if number is None and (match := _NUMBER.search(str(error))):
            number = int(match[1] or match[2])
        named = getattr(error, "filename", None)
        is_own = named is None or str(named).startswith(os.fspath(temporary))
        if number is None or not is_own or (not isinstance(error, OSError) and number not in _REMEDIES):
            raise
        raise OSError(number, os.strerror(number), os.fspath(path)) from error


@contextmanager
def atomic_path(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yields a temporary path next to `path`, and renames it to `path` when the block succeeds.

    The temporary file is flushed to disk before the rename, and removed if the block fails. So `path` holds either its
    old content or all of the new content, even after a crash. Parent folders are created. Concurrent writers are safe:
    the last rename wins. If `path` is a symbolic link, its target is written, except where `only_inside` holds.

    Raises:
        OSError: naming `path`, if it cannot be written.
        InputError: as `place_of` does.
    """
    final = made_place(path)
    temporary = final.with_name(f".{final.name}.{secrets.token_hex(8)}.tmp")
    try:
        with named_failures(path, temporary):
            yield temporary
            with open(temporary, "rb") as written:
                os.fsync(written.fileno())
            os.replace(temporary, final)
    finally:
        temporary.unlink(missing_ok=True)


def open_regular(path: str | os.PathLike[str]) -> IO[bytes]:
    """Opens a file to read it. Raises OSError for what is no regular file: a pipe has no end, nor has a device."""
    file = open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))  # noqa: SIM115
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "no regular file", os.fspath(path))
    return file


def read_within(path: str | os.PathLike[str] | IO[bytes], most: int) -> bytes:
    """Returns the bytes of a file, which may be open, that has at most `most`.

    Of a longer one, and of an endless device, no more is read.

    Raises:
        OSError: if it cannot be read.
        ValueError: if it is longer.
    """
    with open(path, "rb") if isinstance(path, str | os.PathLike) else nullcontext(path) as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise ValueError(f"it has more than {most} bytes")
    return content


def read_text_within(path: str | os.PathLike[str] | IO[bytes], most: int) -> str:
    """Returns the text of a UTF-8 file, without a byte order mark. Raises as `read_within`, and ValueError, with the
    line, for what is no such text."""
    raw = read_within(path, most)
    try:
        text, why = raw.decode("utf-8-sig"), "has a NUL, as UTF-16 has"
        end = raw.find(b"\0")
    except UnicodeDecodeError as error:
        text, why, end = "", "is not UTF-8", error.start
    if end >= 0:
        line = raw.count(b"\n", 0, end) + 1
        raise ValueError(f"line {line} {why}; save it as UTF-8")
    return text


def lines_of(text: str) -> list[str]:
    """Returns the lines of a text. They end at line feeds and carriage returns, as those of an open file do."""
    return io.StringIO(text, newline=None).read().removesuffix("\n").split("\n")


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Writes `text` to `path` atomically, as UTF-8, unless the file holds just this.

    Many processes that have the same to say then read one file, rather than replace it in turn.
    """
    data = text.encode()
    with suppress(OSError):
        if Path(path).is_file() and Path(path).read_bytes() == data:
            return
    write_bytes(path, data)


def write_bytes(path: str | os.PathLike[str], data: bytes) -> None:
    """Writes `data` to `path` atomically."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(data)


METHODS = {".parquet": "save", ".html": "to_html", ".htm": "to_html", ".png": "to_png", ".svg": "to_svg"}
"""The method of a result that writes a file with this ending."""


def check_ending(
    method: str,
    path: str | os.PathLike[str],
    problems: Problems,
    argument: str = "path",
    names: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Adds an error for a path whose ending another method writes, or none.

    Args:
        method: of `METHODS`.
        path: of the file.
        problems: collects the error.
        argument: what messages call the path.
        names: what they call the methods, if not by their own names.
    """
    own = [ending for ending, name in METHODS.items() if name == method]
    ending = Path(path).suffix.lower()
    if ending not in own:
        other = METHODS.get(ending)
        hint = "" if other is None else f"; {names.get(other, other)} writes {ending}"
        problems.add(argument, os.fspath(path), f"a file name that ends in {' or '.join(own)}{hint}")


def there_are(paths: Iterable[Path]) -> set[Path]:
    """Returns which of these files exist: by one listing of each folder, not by one look at each file."""
    folders: dict[Path, list[Path]] = {}
    for path in paths:
        folders.setdefault(path.parent, []).append(path)
    existing: set[Path] = set()
    for folder, inside in folders.items():
        with suppress(FileNotFoundError, NotADirectoryError):
            names = {*os.listdir(folder)}
            existing.update(path for path in inside if path.name in names)
    return existing


def clear_leftovers(paths: Iterable[Path]) -> None:
    """Removes the paths that are temporary files of `atomic_path` which nobody has written to for a day: what killed
    processes left."""
    for path in paths:
        with suppress(OSError):  # Another process may remove the same file, or we may not be allowed to.
            if _TEMPORARY.fullmatch(path.name) and time.time() - path.stat().st_mtime > _ABANDONED_SECONDS:
                path.unlink()


def try_writing_to(folder: str | os.PathLike[str]) -> None:
    """Tests whether the folder, or its nearest existing parent, can be written to. Leaves no files behind.

    Raises:
        OSError: naming that folder, if it cannot be written to.
    """
    place = Path(folder)
    while not os.path.lexists(place) and place != place.parent:
        place = place.parent
    if not place.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(place))
    try:
        with tempfile.TemporaryFile(dir=place) as file:
            file.write(b"\0" * 4096)
            file.flush()
    except OSError as error:
        # The temporary file's own name, if it has one, would not help the user.
        number = error.errno or errno.EIO
        raise OSError(number, os.strerror(number), str(place)) from error
