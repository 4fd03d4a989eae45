"""Hints between sweeps that run over one directory at once: which points somebody has begun.

Nothing depends on a claim being right. A point is a file that appears whole or not at all, and two processes that
measure one point write the same numbers. A claim only makes the second process take another point first.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from jaxsens.processes import has_ended, own_mark

STALE_SECONDS = 6 * 3600
"""A claim this old is taken for that of a process that died."""


def _file(path: Path) -> Path:
    return path.with_name(f".{path.name}.claim")


def is_claimed(path: Path) -> bool:
    """Whether another process, which is not known to have died, says that it is measuring the point that belongs at
    `path`."""
    try:
        return not _is_stale(_file(path))
    except (OSError, UnicodeDecodeError):
        return False


def _is_stale(claimed: Path) -> bool:
    if time.time() - claimed.stat().st_mtime >= STALE_SECONDS:
        return True
    return has_ended(claimed.read_text(encoding="utf-8").strip())


def clear_claims(claims: Iterable[Path]) -> None:
    """Removes those of the claims whose point is done, or whose process died."""
    for claimed in claims:
        point = claimed.with_name(claimed.name.removeprefix(".").removesuffix(".claim"))
        with suppress(OSError, UnicodeDecodeError):  # Another process may remove the same.
            if point.exists() or _is_stale(claimed):
                claimed.unlink()


@contextmanager
def claim(path: Path) -> Iterator[None]:
    """Says so for the length of a block."""
    claimed = _file(path)
    claimed.parent.mkdir(parents=True, exist_ok=True)
    try:
        claimed.write_text(f"{own_mark()}\n", encoding="utf-8")
        yield
    finally:
        claimed.unlink(missing_ok=True)
