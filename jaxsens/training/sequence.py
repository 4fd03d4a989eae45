"""Logits and losses of a model on words, as pure functions of its config and parameters. Losses are in nats."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxsens.core.models.config_tables import network
from jaxsens.core.models.parts.choices import rows_times
from jaxsens.core.models.transformer.config import TransformerConfig
from jaxsens.core.models.transformer.layered import Tokens
from jaxsens.training.config import TrainableConfig


def initial_parameters(config: TrainableConfig, seed: int) -> Any:
    """The parameters of a config's network before any training, drawn from `seed`."""
    return network(config.kind).drawn(config, seed)


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


def next_symbol_loss(
    config: TrainableConfig,
    parameters: Any,
    tokens: Int[Array, "batch n"],
    targets: Float[Array, "batch n outcomes"],
) -> Float[Array, ""]:
    """The cross-entropy of the predictions at every position, averaged over positions and inputs.

    `targets` are the probabilities of the next symbol, or 0s and a 1 for a symbol that was drawn.
    """
    return _cross_entropy(sequence_logits, config, parameters, tokens, targets)


def recognition_loss(
    config: TrainableConfig, parameters: Any, tokens: Int[Array, "batch n"], targets: Float[Array, "batch 2"]
) -> Float[Array, ""]:
    """The cross-entropy of the label (not a member, member) at the readout, averaged over inputs."""
    return _cross_entropy(readout_logits, config, parameters, tokens, targets)


def _cross_entropy(
    logits_of: Callable[..., Array], config: TrainableConfig, parameters: Any, tokens: Array, targets: Array
) -> Array:
    def one(word: Array) -> Array:
        return logits_of(config, *own_rows(config, parameters, word))

    logs = jax.nn.log_softmax(jax.vmap(one)(tokens), axis=-1)
    return -jnp.mean(jnp.sum(targets * logs, axis=-1))
