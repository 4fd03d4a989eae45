"""Training: from a config and a directory to a trained model, resumed exactly where it ended."""

from __future__ import annotations

import math
import os
import signal
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from jaxsens.precision import numerics
from jaxsens.stopping import Request, noting
from jaxsens.training import checkpoints, storage
from jaxsens.training.checkpoints import TrainedModel, load_checkpoint
from jaxsens.training.config import TrainConfig
from jaxsens.training.data import batches
from jaxsens.training.evaluation import CrossEntropy, Recognition, accuracy, cross_entropy
from jaxsens.training.evaluation_table import EvaluationTable
from jaxsens.training.events import (
    Evaluated,
    Event,
    Note,
    Saved,
    Stepped,
    TrainingDiverged,
    TrainingInterrupted,
    Watcher,
)
from jaxsens.training.optimiser import StepConfig, TrainState, initial_state, learning_rate, run_steps
from jaxsens.training.records import METRICS, Records


def train(
    config: TrainConfig, directory: str | os.PathLike[str], progress: Watcher | None = None
) -> TrainedModel:
    """Trains the model of a config, or goes on with its training in `directory`; returns the trained model.

    In the directory are written, always whole: `checkpoints/` (the newest `config.checkpoint.keep`), `metrics.csv` (a
    row a call: the loss, the optimum and the gradient's norm are means over its steps, the learning rate is that of the
    first) and `evaluation.csv`. Everything is a function of the config: after an interrupted or killed training, the
    same call goes on from the newest sound checkpoint and ends with the same weights, to the last bit, and the same
    files, on one device. On GPUs that takes XLA_FLAGS=--xla_gpu_deterministic_ops=true. Evaluations and checkpoints may
    be asked for in another way, and a constant schedule for other steps, on going on: rows of `evaluation.csv` that the
    new config does not ask for are dropped, those that it asks for are made from where the training is.

    Args:
        config: of the training.
        directory: made if it is not there. One process at a time.
        progress: called with what happens, see `jaxsens.training.events`.

    Raises:
        TrainingInterrupted: on Ctrl-C or SIGTERM, after the steps under way have ended and been saved; a second signal
            does not wait for that.
        TrainingDiverged: if the loss is no finite number any more.
        InputError: if the directory holds another training, or another process trains there.
    """
    place = Path(directory)
    with storage.lock(place), numerics(config.model.dtype), noting(signal.SIGINT, signal.SIGTERM) as request:
        _Training(config, place, _ignore if progress is None else progress, request).run()
    return load_checkpoint(place)


def _ignore(event: Event) -> None:
    """Watches nothing."""


class _Training:
    """One run of a training."""

    def __init__(self, config: TrainConfig, directory: Path, tell: Watcher, request: Request) -> None:
        self.config, self.directory, self.tell, self.request = config, directory, tell, request
        resumed = checkpoints.resume(directory, config, lambda text: tell(Note(text)))
        # Step 0 is saved where a signal comes in its evaluations: beside no checkpoint every run would begin them anew.
        self.saved, self.step = -1, 0
        if resumed is None:
            self.state = jax.tree.map(lambda leaf: jnp.array(leaf, copy=True), initial_state(config))
        else:
            self.step, self.state = resumed.step, resumed.state
            self.saved = self.step if resumed.config == config else -1
            ended = self.step == config.optimiser.steps
            tell(Note(f"{'ended before, at' if ended else 'goes on from'} step {self.step}"))
        last = None if resumed is None else self.step
        self.metrics = Records(directory / "metrics.csv", METRICS, last)
        self.evaluations = EvaluationTable(directory / "evaluation.csv", config, last)
        if self.evaluations.dropped:
            self.evaluations.write()
            tell(
                Note(f"evaluation.csv: {self.evaluations.dropped} rows dropped, not asked for by this config")
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
            # The device is at work meanwhile.
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
        self.tell(Stepped(self.step, self.config.optimiser.steps, length, loss, optimum))

    def _save(self) -> None:
        # First what the checkpoint's step has seen, so that a kill in between loses no row.
        self.metrics.write()
        self.evaluations.write()
        path = checkpoints.save(self.directory, self.config, self.step, self.state)
        self.saved = self.step
        self.tell(Saved(self.step, path))

    def _evaluate(self) -> None:
        """Evaluates where it is due, but for lengths that were before; ends early when a signal has come."""
        for n in self.evaluations.missing(self.step):
            if self.request.number is not None:
                return
            result = self._evaluated(n, self.state)
            self.evaluations.add(self.step, result)
            self.evaluations.write()
            self.tell(Evaluated(self.step, result))

    def _evaluated(self, n: int, state: TrainState) -> CrossEntropy | Recognition:
        measure = cross_entropy if self.config.task == "prediction" else accuracy
        subject = (self.config.model, state.parameters)
        return measure(subject, self.config.language, n, self.config.evaluation.words, self.config.seed)
