"""What training tells whoever watches it, and how it ends early."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

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
