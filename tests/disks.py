"""Stand-ins for disks that are full and processes that were killed, for tests that are not run by root."""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from jaxsens.base.files import own_mark


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """No file of this process may be longer, in bytes: as on a full disk, writing fails in the middle."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def dead_mark() -> str:
    """The mark of a process of this machine that has ended."""
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        pass
    machine, _, _ = own_mark().partition("-")
    return f"{machine}-{ended.pid}"
