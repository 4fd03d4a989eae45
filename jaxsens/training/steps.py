"""Batches to train on, each of which depends only on the config and the step; logits and losses of a model on
words, in nats; and AdamW with its schedule and gradient clipping, and the compiled steps of training.
"""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int

from jaxsens.core.models.parts.choices import rows_times
from jaxsens.core.models.transformer.config import TransformerConfig
from jaxsens.core.models.transformer.layered import Tokens
from jaxsens.core.models.transformer.module import network
from jaxsens.formal.languages import Language
from jaxsens.training.config import OptimiserConfig, Task, TrainableConfig, TrainConfig

_LENGTHS, _WORDS = 0, 1  # streams of random numbers under one seed


def batches(
    config: TrainConfig, step: int
) -> tuple[Int[np.ndarray, "steps batch n"], Float[np.ndarray, "steps batch *n outcomes"], float]:
    """What the call of the compiled function that begins at `step` is trained on.

    All its inputs have the same length, drawn uniformly from the lengths that the curriculum allows.

    Returns:
        The tokens: for prediction, the boundary symbol followed by the word; for recognition, the other way round. The
        targets: for prediction, the law of the next symbol at every position, or 0s and a 1; for recognition, the label
        as 0s and a 1. The optimum: for prediction, the mean of the least possible loss on these targets; for
        recognition, 0.
    """
    lengths = config.data.lengths_at(step)
    drawn = np.random.default_rng((config.seed, _LENGTHS, step)).integers(len(lengths))
    steps = range(step, step + config.data.steps_per_call)
    tokens, targets, optima = zip(*(_batch(config, lengths[drawn], k) for k in steps), strict=True)
    return np.stack(tokens), np.stack(targets), float(np.mean(optima))


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


def sequence_logits(config: TrainableConfig, parameters: Any, tokens: Tokens) -> Float[Array, "n logits"]:
    """The linear head at every position: row i is the model's output if the input ended there.

    This holds for recurrent networks, and for transformers whose masks hide the future, unless their embeddings or
    temperatures depend on the input's length: those use the length of `tokens` at every position.
    """
    rows = network(config.kind).rows_of(config, parameters, tokens)
    exact = isinstance(config, TransformerConfig) and config.exact_rows
    return rows_times(rows, parameters.head, exact) + parameters.head_bias


def readout_logits(config: TrainableConfig, parameters: Any, tokens: Tokens) -> Float[Array, " logits"]:
    """The model's own output, at its readout."""
    return network(config.kind).output_of(config, parameters, tokens)


def own_rows(config: TrainableConfig, parameters: Any, tokens: Tokens) -> tuple[Any, Tokens]:
    """Parameters and tokens that give the same outputs, with a row of the embedding for every position.

    If many positions read one row of a table, the row's gradient is a sum that accelerators form in any order. The
    gradient of a product with zeros and ones is a matrix product, the same every time. Every row equals the table's
    to the last bit.
    """
    table = parameters.embedding
    rows = jax.nn.one_hot(tokens, config.vocabulary_size, dtype=table.dtype) @ table
    return dataclasses.replace(parameters, embedding=rows), jnp.arange(tokens.shape[0])


def loss_of(
    config: TrainableConfig,
    task: Task,
    parameters: Any,
    tokens: Int[Array, "batch n"],
    targets: Float[Array, "batch *n outcomes"],
) -> Float[Array, ""]:
    """The cross-entropy, averaged over inputs: for prediction of the next symbol at every position, averaged over
    positions too; for recognition of the label (not a member, member) at the readout.

    `targets` are probabilities, or 0s and a 1 for what was drawn.
    """
    logits_of = sequence_logits if task == "prediction" else readout_logits

    def one(word: Array) -> Array:
        return logits_of(config, *own_rows(config, parameters, word))

    logs = jax.nn.log_softmax(jax.vmap(one)(tokens), axis=-1)
    return -jnp.mean(jnp.sum(targets * logs, axis=-1))


UNDECAYED = frozenset({"bias", "b1", "b2", "output_bias", "head_bias", "scale", "sink"})
"""The names of the parameters that weight decay leaves alone: biases, scores of sinks, scales of normalisation."""


class TrainState(NamedTuple):
    """What training changes: the model's parameters and the optimiser's state."""

    parameters: Any
    optimiser: Any


def schedule(config: OptimiserConfig) -> optax.Schedule:
    """The learning rate as a function of the step: with a warmup 0 at step 0, and the largest after it."""
    largest, warmup = config.learning_rate, config.warmup
    if config.schedule == "constant":
        return optax.warmup_constant_schedule(0.0 if warmup else largest, largest, warmup)
    return optax.warmup_cosine_decay_schedule(0.0, largest, warmup, config.steps)


def transformation(config: OptimiserConfig) -> optax.GradientTransformation:
    """Clipping, then AdamW. Weight decay leaves the parameters of `UNDECAYED` alone."""

    def decayed(parameters: Any) -> Any:
        # By name and not by shape: the biases of a recurrent layer are a matrix with a row for each gate.
        return jax.tree_util.tree_map_with_path(lambda path, _: path[-1].name not in UNDECAYED, parameters)

    adam = optax.adamw(schedule(config), weight_decay=config.weight_decay, mask=decayed)
    return optax.chain(optax.clip_by_global_norm(config.clip), adam) if config.clip else adam


def initial_state(config: TrainConfig) -> TrainState:
    """The state before the first step. Call it within `numerics` of the model's dtype."""
    parameters = network(config.model.kind).drawn(config.model, config.seed)
    return TrainState(parameters, transformation(config.optimiser).init(parameters))


@partial(jax.jit, static_argnums=(0, 1, 2), donate_argnums=3)
def run_steps(
    model: TrainableConfig,
    task: Task,
    optimiser: OptimiserConfig,
    state: TrainState,
    tokens: Array,
    targets: Array,
) -> tuple[TrainState, tuple[Array, Array]]:
    """One step of training for each batch of a call, compiled once for each length. Donates the given state.

    Returns the state, and for each step the loss and the global norm of its gradient before any clipping.
    """
    transform = transformation(optimiser)

    def step(state: TrainState, batch: tuple[Array, Array]) -> tuple[TrainState, tuple[Array, Array]]:
        of_batch = partial(loss_of, model, task)
        value, gradient = jax.value_and_grad(of_batch)(state.parameters, *batch)
        updates, after = transform.update(gradient, state.optimiser, state.parameters)
        parameters = optax.apply_updates(state.parameters, updates)
        return TrainState(parameters, after), (value, optax.tree.norm(gradient))

    return jax.lax.scan(step, state, (tokens, targets))


def learning_rate(config: OptimiserConfig, step: int) -> float:
    """The learning rate of a step."""
    return float(jnp.asarray(schedule(config)(step)))
