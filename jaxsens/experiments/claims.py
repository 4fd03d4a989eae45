"""Hints between sweeps that run over one directory at once: which points somebody has begun.

Nothing depends on a claim being right. A point is a file that appears whole or not at all, and two processes that
measure one point write the same numbers. A claim only makes the second process take another point first.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

STALE_SECONDS = 6 * 3600
"""A claim this old is taken for that of a process that died."""


def _file(path: Path) -> Path:
    return path.with_name(f".{path.name}.claim")


def is_claimed(path: Path) -> bool:
    """Whether another process says that it is measuring the point that belongs at `path`."""
    try:
        return time.time() - _file(path).stat().st_mtime < STALE_SECONDS
    except OSError:
        return False


@contextmanager
def claim(path: Path) -> Iterator[None]:
    """Says so for the length of a block."""
    claimed = _file(path)
    claimed.parent.mkdir(parents=True, exist_ok=True)
    claimed.write_text(f"{socket.gethostname()} {os.getpid()}\n", encoding="utf-8")
    try:
        yield
    finally:
        claimed.unlink(missing_ok=True)
