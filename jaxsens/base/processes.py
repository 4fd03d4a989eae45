"""Process marks. A process puts its mark in the names of its temporary files, so others can tell if it still runs."""

from __future__ import annotations

import hashlib
import os
import re
import socket
from functools import cache
from pathlib import Path

_MARK = re.compile(r"([0-9a-f]{8})-(\d+)")


def own_mark() -> str:
    """Returns the mark of this process: a short digest of its machine and PID namespace, and its PID."""
    return f"{_machine()}-{os.getpid()}"


def has_ended(mark: str) -> bool:
    """Returns whether the process with this mark is known to have ended. False if that cannot be determined: for a
    process on another machine, or on this one before its last boot."""
    match = _MARK.fullmatch(mark)
    if match is None or match[1] != _machine():
        return False
    try:
        os.kill(int(match[2]), 0)
    except (ProcessLookupError, OverflowError):
        return True
    except PermissionError:  # It is running, as another user.
        return False
    return False


@cache
def _machine() -> str:
    # Several containers may share a host name, and each numbers its processes from 1.
    parts = [socket.gethostname()]
    try:
        parts += [Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")]
        parts += [os.readlink("/proc/self/ns/pid")]
    except OSError:  # Only Linux has /proc.
        pass
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:8]
