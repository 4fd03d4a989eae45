"""Stops long work early: a signal handler records the signal, and loops check for it wherever their work is saved.

The handler cannot simply raise. Python discards exceptions raised inside a garbage-collector callback, and JAX installs
one: one Ctrl-C in ten was lost. A recorded signal is never lost and never interrupts a half-finished step.

A step may take longer than whoever sent the signal waits. So a command gives its step up `DEADLINE_SECONDS` after the
first signal: a thread hands over what is finished, waits for files that are being written, and ends the process.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, NoReturn

SAME_SECONDS = 0.1
"""A signal repeated within this time counts once: `timeout` sends it to the process and again to its group."""

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""The signals that ask for a stop: of Ctrl-C, of a scheduler, and of a terminal that is closed."""

DEADLINE_SECONDS = 7.0
"""A command that has not ended this long after the first signal gives its step up. 10 s are promised: the rest is for
saving, on a busy machine."""

WRITING_SECONDS = 60.0
"""How much longer a file that is being written gets. None is damaged by a later end: they are renamed when complete."""

_SAID = "stopping after this step; again to stop now"
_SAID_WITH_DEADLINE = (
    f"stopping after this step, or without it in {DEADLINE_SECONDS:.0f} s; again to stop now"
)
_GAVE_UP = (
    f"jaxsens: stopped in the middle of a step that took over {DEADLINE_SECONDS:.0f} s; every file is whole"
)


class Stopped(KeyboardInterrupt):
    """Raised by `check` after a signal asked for a stop. `signal` is the signal's number."""

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}")
        self.signal = number


class Counter:
    """Distinguishes a second signal from an echo of the first."""

    def __init__(self) -> None:
        self._signals = 0
        self._latest: dict[int, float] = {}

    def count(self, number: int) -> int:
        """Counts a signal: returns 1 for the first, 2 and so on for later ones, and 0 for an echo."""
        now = time.monotonic()
        echo = number in self._latest and now - self._latest[number] < SAME_SECONDS
        self._latest[number] = now
        if echo:
            return 0
        self._signals += 1
        return self._signals


class StopRequest:
    """Records whether a signal has asked for a stop.

    Attributes:
        number: the number of the first signal, or None.
        answered: whether the running work has stopped because of it.
    """

    def __init__(self) -> None:
        self.previous: dict[int, Any] = {}
        self.leave: Callable[[int], None] | None = None
        self.terminals: list[int] = []
        self.clear()

    def clear(self) -> None:
        """Forgets any recorded signal."""
        self.number: int | None = None
        self.answered = False
        self._counter = Counter()

    def answer(self) -> int | None:
        """Returns the number of the recorded signal, or None, and marks it as answered: the caller must then stop."""
        self.answered = self.answered or self.number is not None
        return self.number

    def handle(self, number: int, frame: FrameType | None) -> None:
        """The signal handler: records the first signal; a second one takes its previous effect."""
        if self.number is None:
            self.number = number
            _let_go(self.terminals)  # Before the main thread prints that it stops.
        if self._counter.count(number) > 1:
            if self.leave is not None:
                self.leave(number)
            signal.signal(number, self.previous[number])
            signal.raise_signal(number)


_request = StopRequest()  # Signals are sent to the process, so there is one.


_written: list[object] = []  # one for each file that is being written
_written_changed = threading.Condition()
_handing_over: list[Callable[[], object]] = []


@contextmanager
def writing() -> Iterator[None]:
    """A block that writes a file: a command that gives its step up waits for its end."""
    with _written_changed:
        _written.append(None)
    try:
        yield
    finally:
        with _written_changed:
            _written.pop()
            _written_changed.notify_all()


@contextmanager
def handing_over(act: Callable[[], object]) -> Iterator[None]:
    """While the block runs, a command that gives its step up calls `act` first, in another thread than the block's.

    `act` saves what the block has finished. Whatever it raises is dropped.
    """
    _handing_over.append(act)
    try:
        yield
    finally:
        _handing_over.remove(act)


def check() -> None:
    """Raises `Stopped` if a signal was recorded. The cost is negligible: call it wherever the work so far is saved.

    It acts only in the main thread. Other threads are stopped by the code that started them.
    """
    if _request.number is not None and threading.current_thread() is threading.main_thread():
        _request.answered = True
        raise Stopped(_request.number)


def requested() -> bool:
    """Returns whether `check` would raise, for work that has its own way to end."""
    return requested_signal() is not None


def requested_signal() -> int | None:
    """Returns the number of the signal for which `check` would raise, or None."""
    return _request.number if threading.current_thread() is threading.main_thread() else None


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
    ours = [
        number
        for number in numbers
        if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler)
    ]
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
def of_a_command(own_process: bool) -> Iterator[StopRequest]:
    """Like `noting` for `ENDING`, but also prints at once that the command stops after the current step.

    own_process: whether the process runs only this command. It then ends `DEADLINE_SECONDS` after the first signal even
        if its step has not, and immediately at a second one, also while the main thread is in compiled code. Files are
        written atomically, so those on disk are intact.
    """
    counter = Counter()

    def heard(number: int) -> None:
        if number not in _request.previous:
            return
        which = counter.count(number)
        if which > 1 and _request.leave is not None:
            _request.leave(number)
        if which == 1:
            _let_go(_request.terminals)
            if own_process:
                timer = threading.Timer(DEADLINE_SECONDS, _give_up, [number])
                timer.daemon = True  # The process may end before.
                timer.start()
            _print(_SAID_WITH_DEADLINE if own_process else _SAID)

    with noting(*ENDING) as request, _heard_at_once(heard):
        request.leave = _leave if own_process else None
        request.terminals = [descriptor for descriptor in (1, 2) if os.isatty(descriptor)]
        try:
            yield request
        finally:
            request.leave, request.terminals = None, []
            # A later Ctrl-C ends the process without a traceback.
            if own_process and signal.SIGINT in request.previous:
                request.previous[signal.SIGINT] = signal.SIG_DFL


def _let_go(terminals: list[int]) -> None:
    """Makes what is printed to a terminal that was closed go nowhere: printing there fails, and would end the work."""
    for descriptor in terminals:
        if not os.isatty(descriptor):
            with suppress(OSError):
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, descriptor)
                os.close(nowhere)


def hand_over() -> None:
    """Saves what is finished, from another thread than that of the work, and waits for files that are being written.

    Call it before a process ends in the middle of a step.
    """
    for act in reversed(_handing_over):
        with suppress(Exception):
            act()
    with _written_changed:
        _written_changed.wait_for(lambda: not _written, WRITING_SECONDS)


def _give_up(number: int) -> None:
    """Ends the process in the middle of a step, with what is finished."""
    hand_over()
    _print(_GAVE_UP)
    _leave(number)


def _print(text: str) -> None:
    with suppress(OSError, ValueError):  # Stderr may be closed.
        print(text, file=sys.stderr, flush=True)


def end_process(code: int) -> NoReturn:
    """Ends the process with this exit code. After a signal it skips the interpreter's teardown, which does not wait for
    running computations and crashes when they use objects that are already torn down."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    if code > 128:
        os._exit(code)
    sys.exit(code)


def _leave(number: int) -> None:
    os._exit(128 + number)


@contextmanager
def _heard_at_once(act: Callable[[int], None]) -> Iterator[None]:
    """Calls `act` in a thread for every signal that Python handles. A handler runs only when the main thread returns
    from compiled code, and sees two signals that arrive before then as one."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)

    def listen() -> None:
        with os.fdopen(reading, "rb", buffering=0) as pipe:
            while received := pipe.read(1):
                act(received[0])

    listener = threading.Thread(target=listen, name="jaxsens signals", daemon=True)
    listener.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        os.close(writing)
        listener.join(1.0)
