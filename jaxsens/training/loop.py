"""Training: from a config and a directory to a trained model, resumed exactly where it stopped."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxsens.core.base import inputs
from jaxsens.core.base.errors import InputError, collecting
from jaxsens.core.base.files import only_inside, place_of
from jaxsens.core.base.programs import numerics
from jaxsens.core.base.stopping import ENDING, StopRequest, noting
from jaxsens.core.base.strict import naming_arguments, typed_arguments
from jaxsens.core.sweeps.jobs.progress import Reporter
from jaxsens.training import checkpoints, records
from jaxsens.training.checkpoints import TrainedModel, load_checkpoint
from jaxsens.training.config import TrainConfig
from jaxsens.training.evaluation import accuracy, cross_entropy
from jaxsens.training.records import (
    METRICS,
    EvaluationTable,
    Records,
    TrainingDiverged,
    TrainingInterrupted,
    Watcher,
)
from jaxsens.training.steps import StepConfig, batches, initial_state, learning_rate, run_steps


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
        progress: Called with every event, see `jaxsens.training.records`.

    Raises:
        TrainingInterrupted: On Ctrl-C, SIGTERM or SIGHUP, after the running steps have ended and been saved. A second
            signal does not wait for that.
        TrainingDiverged: If the loss is no longer a finite number.
        InputError: If the directory holds another training, or another process trains there; and in a distributed job
            of several processes, which would each train the whole model.
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
        place_of(
            place / checkpoints.FOLDER / "step"
        )  # A link that leads out is refused before anything is computed.
        _Training(config, place, progress, request).run()
    return load_checkpoint(place)


def train_shown(config: TrainConfig, directory: Path, name: str, reporter: Reporter) -> TrainedModel:
    """As `train`, for an item of a job: its reporter shows how far the training is."""

    def watch(event: records.Event) -> None:
        if event.done is not None:
            reporter.inside(name, event.done, config.optimiser.steps, f"steps, {event.text}")
        elif event.text:
            reporter.note(f"{name}: {event.text}")

    return train(config, directory, watch)


class _Training:
    """One run of a training."""

    def __init__(
        self, config: TrainConfig, directory: Path, progress: Watcher | None, request: StopRequest
    ) -> None:
        tell = (lambda event: None) if progress is None else progress
        self.config, self.directory, self.tell, self.request = config, directory, tell, request
        resumed = checkpoints.resume(directory, config, lambda text: tell(records.Note(text)))
        # If a signal comes during the evaluations of step 0, step 0 is saved: without a checkpoint, every run would
        # start them again.
        self.saved, self.step = -1, 0
        tables: dict[str, Any] = {}
        if resumed is None:
            state = initial_state(config)
        else:
            self.step, state, then, tables = resumed
            self.saved = self.step if then == config else -1
            ended = self.step == config.optimiser.steps
            tell(records.Note(f"{'ended before, at' if ended else 'goes on from'} step {self.step}"))
        # The steps take the memory of their state over: it must be nobody else's.
        self.state = jax.tree.map(lambda leaf: jnp.array(leaf, copy=True), state)
        self.metrics = Records(directory / "metrics.csv", METRICS, tables.get("metrics", ()))
        self.evaluations = EvaluationTable(
            directory / "evaluation.csv", config, tables.get("evaluations", ())
        )
        if resumed is not None:
            self._write_tables()
        if self.evaluations.dropped:
            tell(
                records.Note(
                    f"evaluation.csv: {self.evaluations.dropped} rows dropped, not asked for by this config"
                )
            )
        self.steps = StepConfig(config.model, config.task, config.optimiser)

    def run(self) -> None:
        """Trains to the end."""
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
            self.state, measured = run_steps(self.steps, self.state, batch.tokens, batch.targets)
            # The device computes while the next batch is made.
            begun, done = self.step, batch
            self.step += config.data.steps_per_call
            batch = batches(config, self.step) if self.step < total else None
            losses, norms = np.asarray(measured.loss), np.asarray(measured.gradient_norm)
            self._record(begun, done.length, losses, norms, done.optimum)

    def _record(self, begun: int, length: int, losses: np.ndarray, norms: np.ndarray, optimum: float) -> None:
        loss, norm = float(np.mean(losses)), float(np.mean(norms))
        rate = learning_rate(self.config.optimiser, begun)
        self.metrics.add(self.step, length, loss, optimum, norm, rate)
        if not (math.isfinite(loss) and math.isfinite(norm)):
            self.metrics.write()
            first = begun + int(np.argmin(np.isfinite(losses) & np.isfinite(norms)))
            raise TrainingDiverged(
                f"optimiser.learning_rate = {self.config.optimiser.learning_rate!r}: the loss or its gradient is not "
                f"finite at step {first}; give a smaller one, a longer warmup or a smaller clip"
            )
        self.tell(records.Stepped(self.step, self.config.optimiser.steps, length, loss, optimum))

    def _save(self) -> None:
        tables = {"metrics": self.metrics.rows, "evaluations": self.evaluations.rows}
        path = checkpoints.save(self.directory, self.config, self.step, self.state, tables)
        self._write_tables()
        self.saved = self.step
        self.tell(records.Saved(self.step, path))

    def _write_tables(self) -> None:
        self.metrics.write()
        self.evaluations.write()

    def _evaluate(self) -> None:
        """Evaluates the lengths that are due and not yet done. Ends early after a signal."""
        for n in self.evaluations.missing(self.step):
            if self.request.number is not None:
                return
            measure = cross_entropy if self.config.task == "prediction" else accuracy
            subject, words = (self.config.model, self.state.parameters), self.config.evaluation.words
            result = measure(subject, self.config.language, n, words, self.config.seed)
            self.evaluations.add_result(self.step, result)
            self.saved = min(self.saved, self.step - 1)  # this step's checkpoint, if any, lacks the result
            self.evaluations.write()
            self.tell(records.Evaluated(self.step, result))
