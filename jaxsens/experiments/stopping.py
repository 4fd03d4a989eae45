"""How an experiment ends early: SIGTERM as well as Ctrl-C, and a disk that takes no more, leave what was finished."""

from __future__ import annotations

import errno
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_NO_STORAGE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS})


def takes_no_more(error: BaseException) -> bool:
    """Whether a file could not be written because the disk is full, a quota is used up, or it is read-only: whatever is
    computed next could not be kept either."""
    return isinstance(error, OSError) and error.errno in _NO_STORAGE


class Stopped(BaseException):
    """Raised in the main thread where SIGTERM comes."""


@contextmanager
def sigterm_raises() -> Iterator[None]:
    """SIGTERM ends the block as Ctrl-C does, so that files are left whole and the user is told how to resume."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        raise Stopped

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
