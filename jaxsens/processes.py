"""Marks of processes: what a process writes on its temporary files, so that another can tell whether it still lives."""

from __future__ import annotations

import hashlib
import os
import re
import socket
from functools import cache
from pathlib import Path

_MARK = re.compile(r"([0-9a-f]{8})-(\d+)")


def own_mark() -> str:
    """The mark of this process: a short digest of where its number counts, and its number."""
    return f"{_machine()}-{os.getpid()}"


def has_ended(mark: str) -> bool:
    """Whether the process of a mark is known to live no more. False where that cannot be told from here: for a process
    of another machine, or of this one before it was started anew."""
    match = _MARK.fullmatch(mark)
    if match is None or match[1] != _machine():
        return False
    try:
        os.kill(int(match[2]), 0)
    except (ProcessLookupError, OverflowError):
        return True
    except PermissionError:  # It lives, and is another user's.
        return False
    return False


@cache
def _machine() -> str:
    # Several containers may have one host's name, and each counts its processes from 1.
    parts = [socket.gethostname()]
    try:
        parts += [Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")]
        parts += [os.readlink("/proc/self/ns/pid")]
    except OSError:  # There is no /proc but on Linux.
        pass
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:8]
