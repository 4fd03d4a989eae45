"""Batches to train on. Each depends only on the config and the step, so a resumed training sees the same ones."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from jaxsens.formal.languages import Language
from jaxsens.training.config import Task, TrainConfig

_LENGTHS, _WORDS = 0, 1  # streams of random numbers under one seed


@dataclass(frozen=True)
class Batches:
    """The inputs of one call of the compiled function. The first axis runs along its steps.

    Attributes:
        tokens: For prediction, the boundary symbol followed by the word; for recognition, the other way round.
        targets: For prediction, the law of the next symbol at every position, or 0s and a 1; for recognition, the
            label as 0s and a 1.
        optimum: For prediction, the mean of the least possible loss on these targets; for recognition, 0.
    """

    tokens: Int[np.ndarray, "steps batch n"]
    targets: Float[np.ndarray, "steps batch *n outcomes"]
    optimum: float

    @property
    def length(self) -> int:
        """The number of symbols n, without the boundary symbol."""
        return self.tokens.shape[-1] - 1


def batches(config: TrainConfig, step: int) -> Batches:
    """What the call that begins at `step` is trained on.

    All its inputs have the same length, drawn uniformly from the lengths that the curriculum allows.
    """
    lengths = config.data.lengths_at(step)
    drawn = np.random.default_rng((config.seed, _LENGTHS, step)).integers(len(lengths))
    steps = range(step, step + config.data.steps_per_call)
    made = [_batch(config, lengths[drawn], k) for k in steps]
    tokens, targets, optima = zip(*made, strict=True)
    return Batches(np.stack(tokens), np.stack(targets), float(np.mean(optima)))


def _batch(config: TrainConfig, n: int, step: int) -> tuple[np.ndarray, np.ndarray, float]:
    generator = np.random.default_rng((config.seed, _WORDS, step))
    count, language = config.data.batch, config.language
    if config.task == "recognition":
        words, labels = language.sample_labelled(count, n, generator)
        targets = np.eye(2)[labels.astype(int)]
        return with_boundary(words, language, "recognition"), targets.astype(config.model.dtype), 0.0
    words = language.sample_prefixes(count, n, generator)
    laws = language.next_probabilities(words)
    targets = laws if config.data.targets == "exact" else one_hot_draws(laws, generator)
    optimum = -np.sum(targets * np.log(np.where(targets > 0, laws, 1))) / targets[..., 0].size
    return with_boundary(words, language, "prediction"), targets.astype(config.model.dtype), float(optimum)


def with_boundary(
    words: Int[np.ndarray, "count n"], language: Language, task: Task
) -> Int[np.ndarray, "count n1"]:
    """Words as a model reads them, int32: the boundary symbol is first for prediction, and last for recognition."""
    symbol = np.full((len(words), 1), len(language.alphabet), np.int32)
    parts = [symbol, words] if task == "prediction" else [words, symbol]
    return np.concatenate(parts, axis=1, dtype=np.int32)


def one_hot_draws(
    laws: Float[np.ndarray, "*batch outcomes"], generator: np.random.Generator
) -> Float[np.ndarray, "*batch outcomes"]:
    """An outcome drawn from each law, as 0s and a 1. An outcome of probability 0 is never drawn."""
    places = np.cumsum(laws, axis=-1)
    drawn = generator.random((*laws.shape[:-1], 1)) * places[..., -1:]
    return np.eye(laws.shape[-1])[np.argmax(places > drawn, axis=-1)]
