"""Training: from a config and a directory to a trained model, resumed exactly where it stopped; and what a training
reports while it runs, how it ends early, its tables, and their plot.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxsens.core.base import inputs
from jaxsens.core.base.errors import InputError, collecting
from jaxsens.core.base.files import only_inside, place_of, write_bytes, write_text
from jaxsens.core.base.programs import numerics
from jaxsens.core.base.stopping import ENDING, StopRequest, noting
from jaxsens.core.base.strict import naming_arguments, typed_arguments
from jaxsens.core.sweeps.progress import Reporter
from jaxsens.training import checkpoints
from jaxsens.training.checkpoints import TrainedModel, load_checkpoint
from jaxsens.training.config import TrainConfig
from jaxsens.training.evaluation import CrossEntropy, Recognition, accuracy, cross_entropy
from jaxsens.training.steps import batches, initial_state, learning_rate, run_steps

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure
    from rich.table import Table

Row = tuple[int | float | None, ...]

METRICS = ("step", "length", "loss", "optimum", "gradient_norm", "learning_rate")
"""The columns of metrics.csv."""

_KEYS = ("step", "n", "words")
EVALUATIONS = {
    "prediction": (*_KEYS, "cross_entropy", "excess", "standard_error", "choice", "choice_standard_error"),
    "recognition": (*_KEYS, "accuracy", "accuracy_standard_error", "margin", "margin_standard_error"),
}
"""The columns of evaluation.csv, by task: the step, and the fields of what is found there in their order."""


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
        step, directory, signal: the steps done, the directory of the training, and the signal's number.

    >>> TrainingInterrupted(20, Path("trained"), 2).exit_code
    130
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
    """The loss is no longer a finite number. The message says since which step, and what to change.

    >>> print(TrainingDiverged.of("optimiser.learning_rate", 10.0, "a smaller one"))
    optimiser.learning_rate = 10.0: a smaller one
    """


@naming_arguments
@typed_arguments
def train(
    config: TrainConfig, directory: str | os.PathLike[str], progress: Watcher | None = None
) -> TrainedModel:
    """Trains the model of a config, or goes on with its training in `directory`, and returns the trained model.

    The directory receives `checkpoints/` (the newest `config.checkpoint.keep`), `metrics.csv` and `evaluation.csv`,
    each always written whole. `metrics.csv` has a row for each call: the loss, the optimum and the gradient's norm are
    means over the call's steps, and the learning rate is that of the first step.

    Everything depends only on the config. After an interrupted or killed training, the same call goes on from the
    newest sound checkpoint and ends, on one device, with the same files and with the same weights to the last bit. On
    GPUs this needs XLA_FLAGS=--xla_gpu_deterministic_ops=true. A resumed training may have other evaluations and
    checkpoints and, with a constant schedule, another number of steps. Rows of `evaluation.csv` that the new config
    does not ask for are dropped; those that it adds are computed from the present step on.

    Args:
        config: The config of the training.
        directory: Where to write; created if it does not exist. One process at a time.
        progress: Called with every event, see `jaxsens.training.loop`.

    Raises:
        TrainingInterrupted: On Ctrl-C, SIGTERM or SIGHUP, after the running steps have ended and been saved. A second
            signal does not wait for that.
        TrainingDiverged: If the loss is no longer a finite number.
        InputError: If the directory holds another training, or another process trains there; and in a distributed job
            of several processes, which would each train the whole model.

    >>> trained = train(TrainConfig.load("train.toml"), "trained")  # doctest: +SKIP
    """
    if jax.process_count() > 1:
        raise InputError(
            f"train: this is process {jax.process_index()} of {jax.process_count()} of a distributed job, and a "
            "training runs in one process: train without jax.distributed.initialize, in a job of its own, then measure "
            "the checkpoint here"
        )
    with collecting("train") as problems:
        inputs.progress(progress, 1, "each event", problems, bar=False)
    place = Path(directory)
    with (
        only_inside(place),
        checkpoints.lock(place),
        numerics(config.model.dtype),
        noting(*ENDING) as request,
    ):
        # A link that leads out is refused before anything is computed.
        place_of(place / checkpoints.FOLDER / "step")
        _Training(config, place, progress, request).run()
    return load_checkpoint(place)


def train_shown(config: TrainConfig, directory: Path, name: str, reporter: Reporter) -> TrainedModel:
    """As `train`, for an item of a job: its reporter shows how far the training is."""

    def watch(event: Event) -> None:
        if event.done is not None:
            reporter.inside(name, event.done, config.optimiser.steps, f"steps, {event.text}")
        elif event.text:
            reporter.note(f"{name}: {event.text}")

    return train(config, directory, watch)


class _Training:
    """One run of a training.

    The tables are lists of rows that begin with the step. Of evaluations those that the config does not ask for are
    dropped: of other steps, lengths or numbers of words, which an earlier config of this training asked for.
    """

    def __init__(
        self, config: TrainConfig, directory: Path, progress: Watcher | None, request: StopRequest
    ) -> None:
        tell = (lambda event: None) if progress is None else progress
        self.config, self.directory, self.tell, self.request = config, directory, tell, request
        resumed = checkpoints.resume(directory, config, lambda text: tell(Note(text)))
        # If a signal comes during the evaluations of step 0, step 0 is saved: without a checkpoint, every run would
        # start them again.
        self.saved, self.step = -1, 0
        self.metrics: list[Row] = []
        self.evaluations: list[Row] = []
        if resumed is None:
            state = initial_state(config)
        else:
            self.step, state, then, tables = resumed
            self.saved = self.step if then == config else -1
            ended = self.step == config.optimiser.steps
            tell(Note(f"{'ended before, at' if ended else 'goes on from'} step {self.step}"))
            self._take_tables(tables)
        # The steps take the memory of their state over: it must be nobody else's.
        self.state = jax.tree.map(lambda leaf: jnp.array(leaf, copy=True), state)

    def run(self) -> None:
        config, total = self.config, self.config.optimiser.steps
        batch = batches(config, self.step) if self.step < total else None
        while True:
            self._evaluate()
            stopped = self.request.number
            due = self.step == total or (self.step > 0 and self.step % config.checkpoint.every == 0)
            if self.step > self.saved and (stopped is not None or due):
                self._save()
            if stopped is not None:
                raise TrainingInterrupted(self.step, self.directory, stopped)
            if batch is None:
                return
            tokens, targets, optimum = batch
            given = config.model, config.task, config.optimiser
            self.state, measured = run_steps(*given, self.state, tokens, targets)
            # The device computes while the next batch is made.
            begun = self.step
            self.step += config.data.steps_per_call
            batch = batches(config, self.step) if self.step < total else None
            losses, norms = map(np.asarray, measured)
            self._record(begun, tokens.shape[-1] - 1, losses, norms, optimum)

    def _record(self, begun: int, length: int, losses: np.ndarray, norms: np.ndarray, optimum: float) -> None:
        loss, norm = float(np.mean(losses)), float(np.mean(norms))
        rate = learning_rate(self.config.optimiser, begun)
        self.metrics.append((self.step, length, loss, optimum, norm, rate))
        if not (math.isfinite(loss) and math.isfinite(norm)):
            self._write_tables()
            first = begun + int(np.argmin(np.isfinite(losses) & np.isfinite(norms)))
            raise TrainingDiverged(
                f"optimiser.learning_rate = {self.config.optimiser.learning_rate!r}: the loss or its gradient is not "
                f"finite at step {first}; give a smaller one, a longer warmup or a smaller clip"
            )
        self.tell(Stepped(self.step, self.config.optimiser.steps, length, loss, optimum))

    def _save(self) -> None:
        tables = {"metrics": self.metrics, "evaluations": self.evaluations}
        path = checkpoints.save(self.directory, self.config, self.step, self.state, tables)
        self._write_tables()
        self.saved = self.step
        self.tell(Saved(self.step, path))

    def _evaluate(self) -> None:
        """Evaluates the lengths that are due and not yet done. Ends early after a signal."""
        config, lengths = self.config, self.config.evaluation.lengths
        done = {row[:2] for row in self.evaluations}
        for n in [n for n in lengths if self._is_due(self.step) and (self.step, n) not in done]:
            if self.request.number is not None:
                return
            measure = cross_entropy if config.task == "prediction" else accuracy
            model, words = (config.model, self.state.parameters), config.evaluation.words
            result = measure(model, config.language, n, words, config.seed)
            self.evaluations.append((self.step, *astuple(result)))
            self.evaluations.sort(key=lambda row: (row[0], lengths.index(int(row[1] or 0))))
            self.saved = min(self.saved, self.step - 1)  # this step's checkpoint, if any, lacks the result
            self._write_tables()
            self.tell(Evaluated(self.step, result))

    def _is_due(self, step: int) -> bool:
        every = self.config.evaluation.every
        return every > 0 and (step % every == 0 or step == self.config.optimiser.steps)

    def _take_tables(self, tables: dict[str, list[list[Any]]]) -> None:
        rows, asked = tables.get("evaluations", ()), self.config.evaluation
        self.metrics = [tuple(row) for row in tables.get("metrics", ())]
        self.evaluations = [
            (step, n, words, *numbers)
            for step, n, words, *numbers in rows
            if self._is_due(step) and n in asked.lengths and words == asked.words
        ]
        self._write_tables()
        if dropped := len(rows) - len(self.evaluations):
            self.tell(Note(f"evaluation.csv: {dropped} rows dropped, not asked for by this config"))

    def _write_tables(self) -> None:
        _write_table(self.directory / "metrics.csv", METRICS, self.metrics)
        _write_table(self.directory / "evaluation.csv", EVALUATIONS[self.config.task], self.evaluations)


def _write_table(path: Path, columns: Sequence[str], rows: Sequence[Row]) -> None:
    """Writes a table atomically, unless the file holds just this. Without rows there is no file.

    Reading gives back every number exactly. None is an empty field.
    """
    if not rows:
        path.unlink(missing_ok=True)
        return
    texts = [["" if value is None else repr(value) for value in row] for row in rows]
    write_text(path, "".join(f"{','.join(row)}\n" for row in [columns, *texts]))


def write_training_plot(directory: str | os.PathLike[str]) -> Path:
    """Writes training.svg and training.png into the directory of a training that has ended, each atomically; returns
    the path of the latter."""
    from jaxsens.core.report.panels import figure_bytes

    folder = Path(directory)
    figure = training_figure(read_table(folder / "metrics.csv"), read_table(folder / "evaluation.csv"))
    with only_inside(folder):
        for format in ("svg", "png"):
            write_bytes(folder / f"training.{format}", figure_bytes(figure, format))
    return folder / "training.png"


def training_figure(metrics: pandas.DataFrame, evaluations: pandas.DataFrame) -> Figure:
    """The loss with the smallest loss possible, and the evaluations by length if there are any."""
    from jaxsens.core.report.panels import GREY, grid, line_style

    count = 1 if evaluations.empty else 2
    with grid("Progress of the training", count, count, (6.0, 4.2)) as (figure, places):
        known, steps = bool((metrics["optimum"] > 0).any()), metrics["step"]
        places[0].plot(steps, metrics["loss"], color=line_style(0).colour, linewidth=1.4, label="loss")
        if known:
            optimum = metrics["optimum"]
            places[0].plot(steps, optimum, color=GREY, linewidth=1.0, label="smallest possible loss")
        label = "cross-entropy (nats), mean over positions" if known else "loss (nats)"
        places[0].set(title="Loss", ylabel=label)
        if not evaluations.empty:
            column, best, label = "accuracy", 1.0, "share of words labelled correctly"
            if "cross_entropy" in evaluations.columns:
                column, best, label = "excess", 0.0, "cross-entropy above the optimum (nats)"
            for k, (n, rows) in enumerate(evaluations.groupby("n")):
                style = {"color": line_style(k).colour, "marker": line_style(k).marker, "markersize": 4}
                places[1].plot(rows["step"], rows[column], linewidth=1.2, label=f"n = {n:g}", **style)
            places[1].axhline(best, color=GREY, linewidth=0.8)
            places[1].set(title="Evaluations", ylabel=label)
        for axes in places:
            axes.set_xlabel("training step")
            axes.legend(fontsize=9)
    return figure


def training_summary(directory: str | os.PathLike[str]) -> Table:
    """The last evaluation, or the last loss if there was none, as a table for a terminal."""
    from rich import box
    from rich.table import Table

    evaluations, metrics = (read_table(Path(directory) / name) for name in ("evaluation.csv", "metrics.csv"))
    rows = metrics if evaluations.empty else evaluations
    rows = rows[rows["step"] == rows["step"].iloc[-1]].dropna(axis="columns", how="all")
    table = Table(title="After the last step", box=box.SIMPLE_HEAD)
    for name in rows.columns:
        table.add_column(name.replace("_", " "), justify="right")
    for row in rows.itertuples(index=False):
        table.add_row(*(f"{value:.6g}" for value in row))
    return table


def read_table(path: Path) -> pandas.DataFrame:
    """The numbers of a CSV file that the training wrote; NaN for an empty field, and no rows if there is no file."""
    import pandas as pd

    return pd.read_csv(path).astype(np.float64) if path.is_file() else pd.DataFrame()
