"""What training tells whoever watches it, and how it ends early."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from jaxsens.errors import InputError
from jaxsens.training.evaluation import CrossEntropy, Recognition


@dataclass(frozen=True)
class Stepped:
    """A call of the compiled function has ended.

    Attributes:
        step: steps done so far, in earlier runs too.
        steps: of the whole training.
        length: the number of symbols of the inputs.
        loss: the mean over the call's steps, in nats.
        optimum: to predict, the least loss possible on the same targets; to recognise, 0.
    """

    step: int
    steps: int
    length: int
    loss: float
    optimum: float


@dataclass(frozen=True)
class Evaluated:
    """The model was evaluated after `step` steps."""

    step: int
    result: CrossEntropy | Recognition


@dataclass(frozen=True)
class Saved:
    """A checkpoint was written after `step` steps."""

    step: int
    path: Path


@dataclass(frozen=True)
class Note:
    """Something that must not be missed: from where training goes on, a damaged checkpoint."""

    text: str


Event = Stepped | Evaluated | Saved | Note
Watcher = Callable[[Event], None]


class TrainingInterrupted(KeyboardInterrupt):
    """Ctrl-C or SIGTERM during training. All that was computed is saved: training again goes on from there.

    Attributes:
        step: steps done.
        directory: of the training.
        signal: the signal's number.
    """

    def __init__(self, step: int, directory: Path, number: int) -> None:
        super().__init__(f"interrupted and saved after step {step}; train again in {directory} to go on")
        self.step = step
        self.directory = directory
        self.signal = number

    @property
    def exit_code(self) -> int:
        """128 + the signal's number."""
        return 128 + self.signal


class TrainingDiverged(InputError):
    """The loss is no finite number any more. The message says since which step and what to change."""


class Signals:
    """Which signal, if any, has asked the training to end."""

    def __init__(self) -> None:
        self.number: int | None = None

    def note(self, number: int, frame: FrameType | None) -> None:
        """A handler: the first signal is noted, the second ends the process's main thread at once."""
        if self.number is not None:
            raise KeyboardInterrupt
        self.number = number


@contextmanager
def noted_signals() -> Iterator[Signals]:
    """Notes SIGTERM and Ctrl-C instead of ending at once, in the main thread; elsewhere Python allows no handlers."""
    signals = Signals()
    if threading.current_thread() is not threading.main_thread():
        yield signals
        return
    before = {number: signal.signal(number, signals.note) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
