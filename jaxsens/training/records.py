"""What a training reports while it runs, how it ends early, and what it writes down: metrics.csv and
evaluation.csv, tables that grow with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path

from jaxsens.core.base.errors import InputError
from jaxsens.core.base.files import write_text
from jaxsens.training.config import TrainConfig
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


Row = tuple[int | float | None, ...]

METRICS = ("step", "length", "loss", "optimum", "gradient_norm", "learning_rate")
"""The columns of metrics.csv."""

_KEYS = ("step", "n", "words")
EVALUATIONS = {
    "prediction": (*_KEYS, "cross_entropy", "excess", "standard_error", "choice", "choice_standard_error"),
    "recognition": (*_KEYS, "accuracy", "accuracy_standard_error", "margin", "margin_standard_error"),
}
"""The columns of evaluation.csv, by task: the step, and the fields of what is found there in their order."""


class Records:
    """A table whose first column is the step. Without rows there is no file.

    Args:
        path: of the CSV file.
        columns: their names, "step" the first.
        rows: those so far.
    """

    def __init__(
        self, path: Path, columns: Sequence[str], rows: Iterable[Sequence[float | None]] = ()
    ) -> None:
        self.path, self.columns = path, tuple(columns)
        self.rows: list[Row] = [tuple(row) for row in rows]

    def add(self, *values: int | float | None) -> None:
        """Adds a row. Numbers are written so that reading gives them back exactly; None as an empty field."""
        self.rows.append(values)

    def write(self) -> None:
        """Writes the file, atomically, unless it holds just this; removes it where there are no rows."""
        if not self.rows:
            self.path.unlink(missing_ok=True)
            return
        texts = [["" if value is None else repr(value) for value in row] for row in self.rows]
        write_text(self.path, "".join(f"{','.join(row)}\n" for row in [self.columns, *texts]))


class EvaluationTable(Records):
    """The evaluations of a training so far, by step and then in the order of the config's lengths.

    Rows that the config does not ask for are dropped: those of other steps, lengths or numbers of words, which an
    earlier config of this training asked for.

    Args:
        path: of evaluation.csv.
        config: of the training.
        rows: those so far.
    """

    def __init__(self, path: Path, config: TrainConfig, rows: Iterable[Sequence[float | None]] = ()) -> None:
        self.config = config
        super().__init__(path, EVALUATIONS[config.task], rows)
        before = len(self.rows)
        self.rows = [row for row in self.rows if row[1:3] in self._asked(int(row[0] or 0))]
        self.dropped = before - len(self.rows)

    def missing(self, step: int) -> tuple[int, ...]:
        """The lengths that are to be evaluated at a step and are not."""
        there = {row[:3] for row in self.rows}
        return tuple(n for n, words in self._asked(step) if (step, n, words) not in there)

    def add_result(self, step: int, result: CrossEntropy | Recognition) -> None:
        """Adds what was found at a step."""
        self.add(step, *astuple(result))
        self.rows.sort(key=lambda row: (row[0], self.config.evaluation.lengths.index(int(row[1] or 0))))

    def _asked(self, step: int) -> list[tuple[int, int]]:
        """The lengths, each with the number of words, that are to be evaluated at a step."""
        every, words = self.config.evaluation.every, self.config.evaluation.words
        due = every > 0 and (step % every == 0 or step == self.config.optimiser.steps)
        return [(n, words) for n in self.config.evaluation.lengths] if due else []
