"""How an experiment ends early: SIGTERM as well as Ctrl-C leaves what was finished."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


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
