"""Stops long work early: a signal handler records the signal, and loops check for it wherever their work is saved.

The handler cannot simply raise. Python discards exceptions raised inside a garbage-collector callback, and JAX installs
one: one Ctrl-C in ten was lost. A recorded signal is never lost and never interrupts a half-finished step. A step may
take long: a command says at once that it has heard the first signal, and a second one ends it in the middle of a step.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

SAME_SECONDS = 0.1
"""A signal repeated within this time counts once: `timeout` sends it to the process and again to its group."""

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""The signals that ask for a stop: of Ctrl-C, of a scheduler, and of a terminal that is closed."""

_IN_A_PROGRAM = "stopping when this program is compiled"


class Stopped(KeyboardInterrupt):
    """Raised by `check` after a signal asked for a stop. `signal` is the signal's number."""

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}")
        self.signal = number


def _is_second(signals: list[tuple[int, float]], number: int) -> bool:
    """Adds a signal to the list; returns whether it is neither the first nor an echo of the first."""
    signals.append((number, time.monotonic()))
    (first, began), (_, now) = signals[0], signals[-1]
    return len(signals) > 1 and (number != first or now - began >= SAME_SECONDS)


class StopRequest:
    """Records whether a signal has asked for a stop.

    Attributes:
        number: the number of the first signal, or None.
        answered: whether the running work has stopped because of it.
    """

    def __init__(self) -> None:
        self.previous: dict[int, Any] = {}
        self.own_process = self.listening = False
        self.clear()

    def clear(self) -> None:
        """Forgets any recorded signal."""
        self.number: int | None = None
        self.answered = False
        self._signals: list[tuple[int, float]] = []

    def answer(self) -> int | None:
        """Returns the number of the recorded signal, or None, and marks it as answered: the caller must then stop."""
        self.answered = self.answered or self.number is not None
        return self.number

    def handle(self, number: int, frame: FrameType | None) -> None:
        """The signal handler: records the first signal; a second one takes its previous effect."""
        if self.number is None:
            self.number = number
        if _is_second(self._signals, number):
            if self.own_process:
                os._exit(128 + number)
            signal.signal(number, self.previous[number])
            signal.raise_signal(number)


_request = StopRequest()  # Signals are sent to the process, so there is one.


def check() -> None:
    """Raises `Stopped` if a signal was recorded. The cost is negligible: call it wherever the work so far is saved.

    It acts only in the main thread. Other threads are stopped by the code that started them.
    """
    if _request.number is not None and threading.current_thread() is threading.main_thread():
        _request.answered = True
        raise Stopped(_request.number)


def requested_signal() -> int | None:
    """Returns the number of the signal for which `check` would raise, or None, for work that has its own way to end."""
    return _request.number if threading.current_thread() is threading.main_thread() else None


def asked() -> bool:
    """Returns whether a signal was recorded, for a thread whose work may be dropped."""
    return _request.number is not None


@contextmanager
def noting(*numbers: int) -> Iterator[StopRequest]:
    """Records these signals while the block runs; `check` then raises `Stopped`.

    A second signal acts immediately, as it would without the block: Ctrl-C raises KeyboardInterrupt, and SIGTERM ends
    the process. Only Python's default handlers are replaced, and they are restored afterwards: custom handlers stay
    installed, and ignored signals stay ignored. Outside the main thread, where Python allows no handlers, the block
    records nothing. Blocks may be nested. A signal that arrives after the last `check` is raised again when the
    outermost block ends, so none is lost.
    """
    if threading.current_thread() is not threading.main_thread():
        yield StopRequest()
        return
    outermost = not _request.previous
    defaults = signal.SIG_DFL, signal.default_int_handler
    ours = [number for number in numbers if signal.getsignal(number) in defaults]
    try:
        for number in ours:
            _request.previous[number] = signal.getsignal(number)
            signal.signal(number, _request.handle)
        yield _request
    except KeyboardInterrupt:
        _request.answered = True
        raise
    finally:
        # In reverse, so that Ctrl-C raises again only after the other handlers are restored.
        for number in [number for number in reversed(ours) if number in _request.previous]:
            signal.signal(number, _request.previous.pop(number))
        if outermost:
            number, answered = _request.number, _request.answered
            _request.clear()
            if number is not None and not answered:
                signal.raise_signal(number)


@contextmanager
def compiling(message: str = _IN_A_PROGRAM, own_process: bool = False) -> Iterator[None]:
    """Prints a message at the first signal that is recorded (`noting`). In another such block it does nothing.

    A thread prints it: a handler runs only when the main thread returns from compiled code, and sees two signals that
    arrive before then as one.

    own_process: whether a second signal ends the process.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or not _request.previous or _request.listening:
        yield
        return
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)

    def listen() -> None:
        signals: list[tuple[int, float]] = []
        with os.fdopen(reading, "rb", buffering=0) as pipe:
            while received := pipe.read(1):
                if received[0] not in _request.previous:
                    continue
                if _is_second(signals, received[0]) and own_process:
                    os._exit(128 + received[0])
                if len(signals) == 1:
                    with suppress(OSError, ValueError):  # Stderr may be closed.
                        print(message, file=sys.stderr, flush=True)

    listener = threading.Thread(target=listen, name="jaxsens signals", daemon=True)
    listener.start()
    _request.listening = True
    try:
        yield
    finally:
        _request.listening = False
        signal.set_wakeup_fd(before)
        os.close(writing)
        listener.join(1.0)
