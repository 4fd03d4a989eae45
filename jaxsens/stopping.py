"""How long work ends early: a handler notes the signal, and loops test for it where all that is done is kept.

A handler that raised would not do. Python drops what is raised while a callback of its garbage collector runs, and JAX
has such a callback: one Ctrl-C in ten was lost. What is noted is not lost, and nothing is torn apart in between.
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
"""A signal that comes again within this time is the same one: `timeout` sends it to the process and to its group."""

_SAID = "stopping after this step; again to stop now"


class Stopped(KeyboardInterrupt):
    """A signal has asked for a stop, and the work has come to a place where it can. `signal` is its number."""

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}")
        self.signal = number


class Counter:
    """Tells a second signal from the echo of the first."""

    def __init__(self) -> None:
        self._signals = 0
        self._latest: dict[int, float] = {}

    def count(self, number: int) -> int:
        """Which one this is: 1 for the first signal, 2 and so on for those that follow, 0 for an echo."""
        now = time.monotonic()
        echo = number in self._latest and now - self._latest[number] < SAME_SECONDS
        self._latest[number] = now
        if echo:
            return 0
        self._signals += 1
        return self._signals


class Request:
    """Whether a signal has asked for a stop.

    Attributes:
        number: of the first signal; None where none came.
        answered: whether some loop has ended for it.
    """

    def __init__(self) -> None:
        self.previous: dict[int, Any] = {}
        self.leave: Callable[[int], None] | None = None
        self.clear()

    def clear(self) -> None:
        """Forgets what came."""
        self.number: int | None = None
        self.answered = False
        self._counter = Counter()

    def answer(self) -> int | None:
        """The number of the signal, if one came: who asks ends for it."""
        self.answered = self.answered or self.number is not None
        return self.number

    def handle(self, number: int, frame: FrameType | None) -> None:
        """The handler: notes the first signal, and lets a second one do what it would have done without this."""
        if self.number is None:
            self.number = number
        if self._counter.count(number) > 1:
            if self.leave is not None:
                self.leave(number)
            signal.signal(number, self.previous[number])
            signal.raise_signal(number)


_request = Request()  # Signals come to the process, so there is one.


def check() -> None:
    """Raises `Stopped` if a signal was noted. Costs next to nothing: call it wherever what is done so far is kept.

    Signals are the business of the main thread: in others nothing happens, and who started them ends them.
    """
    if _request.number is not None and threading.current_thread() is threading.main_thread():
        _request.answered = True
        raise Stopped(_request.number)


def requested() -> bool:
    """Whether `check` would raise, for work that has an end of its own."""
    return _request.number is not None and threading.current_thread() is threading.main_thread()


@contextmanager
def noting(*numbers: int) -> Iterator[Request]:
    """Notes these signals for the length of the block, in which `check` then raises `Stopped`.

    A second signal does at once what it would do without this block: Ctrl-C raises KeyboardInterrupt, SIGTERM ends the
    process. Only what Python does by default is replaced, and put back afterwards: a handler of your own stays in its
    place and does what it does, an ignored signal stays ignored, and other threads than the main one, where Python
    allows no handlers, have none. Blocks may be nested. A signal that comes too late for a `check` is raised again at
    the end of the outermost block: none is lost.
    """
    if threading.current_thread() is not threading.main_thread():
        yield Request()
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
        # Backwards, so that Ctrl-C raises again only when all else is as it was.
        for number in [number for number in reversed(ours) if number in _request.previous]:
            signal.signal(number, _request.previous.pop(number))
        if outermost:
            number, answered = _request.number, _request.answered
            _request.clear()
            if number is not None and not answered:
                signal.raise_signal(number)


@contextmanager
def of_a_command(own_process: bool) -> Iterator[Request]:
    """As `noting` Ctrl-C and SIGTERM, and says at once that the command stops after the step it is at.

    own_process: whether the process is there for this command alone. Then a second signal ends it at once, also while
        the main thread is in compiled code; files appear whole or not at all, so what is on disk is sound.
    """
    counter = Counter()

    def heard(number: int) -> None:
        if number not in _request.previous:
            return
        which = counter.count(number)
        if which > 1 and _request.leave is not None:
            _request.leave(number)
        if which == 1:
            with suppress(OSError, ValueError):  # Nobody may be listening any more.
                print(_SAID, file=sys.stderr, flush=True)

    with noting(signal.SIGINT, signal.SIGTERM) as request, _heard_at_once(heard):
        request.leave = _leave if own_process else None
        try:
            yield request
        finally:
            request.leave = None
            # A Ctrl-C that comes later ends the process without a traceback.
            if own_process and signal.SIGINT in request.previous:
                request.previous[signal.SIGINT] = signal.SIG_DFL


def end_process(code: int) -> NoReturn:
    """Ends the process with this exit code. Where a signal stopped it, not through the interpreter's teardown, which
    does not wait for computations under way, and crashes where they use what it has taken down."""
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
    """Calls `act` in a thread with every signal that Python handles: a handler itself runs only when the main thread
    comes back from compiled code, and two signals until then are one to it."""
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
