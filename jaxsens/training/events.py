"""What training reports while it runs, and how it ends early."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from jaxsens.core.base.errors import InputError
from jaxsens.training.evaluation import CrossEntropy, Recognition


@dataclass(frozen=True)
class Stepped:
    """A call of the compiled function has ended.

    Attributes:
        step: Steps done so far, including those of earlier runs.
        steps: Steps of the whole training.
        length: The number of symbols of the inputs.
        loss: The mean loss over the call's steps, in nats.
        optimum: For prediction, the least possible loss on the same targets; for recognition, 0.
    """

    step: int
    steps: int
    length: int
    loss: float
    optimum: float

    @property
    def done(self) -> int:
        """The steps done."""
        return self.step

    @property
    def text(self) -> str:
        """The loss, the optimum and the length."""
        optimum = f" (optimum {self.optimum:.4f})" if self.optimum else ""
        return f"loss {self.loss:.4f}{optimum}, n = {self.length}"


@dataclass(frozen=True)
class Evaluated:
    """The model was evaluated after `step` steps."""

    step: int
    result: CrossEntropy | Recognition
    done = None

    @property
    def text(self) -> str:
        """The step, the length and what was evaluated."""
        result, where = self.result, f"step {self.step}: n = {self.result.n}"
        if not isinstance(result, CrossEntropy):
            return f"{where}: accuracy {result.accuracy:.3f}, margin {result.margin:.3g}"
        choice = "" if result.choice is None else f", {result.choice:.4f} of it for choosing brackets"
        return f"{where}: cross-entropy {result.mean:.4f}, {result.excess:.4f} above the optimum{choice}"


@dataclass(frozen=True)
class Saved:
    """A checkpoint was written after `step` steps."""

    step: int
    path: Path
    done = None
    text = ""  # the next `Stepped` says as much


@dataclass(frozen=True)
class Note:
    """Something that must not be missed, such as where training resumes, or a damaged checkpoint."""

    text: str
    done = None


Event = Stepped | Evaluated | Saved | Note
Watcher = Callable[[Event], None]


class TrainingInterrupted(KeyboardInterrupt):
    """Ctrl-C or SIGTERM during training. Everything computed is saved: training again goes on from there.

    Attributes:
        step: Steps done.
        directory: The directory of the training.
        signal: The signal's number.
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
    """The loss is no longer a finite number. The message says since which step, and what to change."""
