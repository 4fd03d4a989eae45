"""Logits of a model on a word, as pure functions of (config, parameters, tokens)."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxsens.models import baselines, layers
from jaxsens.models.baselines import BaselineParameters
from jaxsens.models.config import TransformerConfig
from jaxsens.models.config_tables import NetworkConfig
from jaxsens.models.parameters import TransformerParameters, initialise
from jaxsens.models.products import rows_times

Parameters = TransformerParameters | BaselineParameters


def initial_parameters(config: NetworkConfig, seed: int) -> Parameters:
    """The parameters that the network of a config has before any training, drawn by its `seed`."""
    if isinstance(config, TransformerConfig):
        return initialise(config, seed)
    return baselines.initialise(config, seed)


def sequence_logits(
    config: NetworkConfig, parameters: Any, tokens: Int[Array, " n"]
) -> Float[Array, "n logits"]:
    """The linear head at every position: row i is what the model would put out if the input ended there.

    That holds of recurrent networks and of transformers whose masks hide the future, as far as their embeddings and
    temperatures do not depend on the input's length: those use the length of `tokens` at every position.
    """
    rows = _activations(config, parameters, tokens)
    exact = isinstance(config, TransformerConfig) and config.exact_rows
    return rows_times(rows, parameters.head, exact) + parameters.head_bias


def readout_logits(
    config: NetworkConfig, parameters: Any, tokens: Int[Array, " n"]
) -> Float[Array, " logits"]:
    """The model's own output, at its readout."""
    if isinstance(config, TransformerConfig):
        return layers.apply(config, parameters, tokens)
    return baselines.apply(config, parameters, tokens)


def own_rows(
    config: NetworkConfig, parameters: Any, tokens: Int[Array, " n"]
) -> tuple[Any, Int[Array, " n"]]:
    """Parameters and tokens that give the same outputs, with a row of the embedding for every position.

    The gradient of a table of which many positions read one row is a sum that accelerators form in any order; that of
    a product with zeros and ones is a matrix product, the same every time. Every row is the table's, to the last bit.
    """
    table = parameters.embedding
    rows = jax.nn.one_hot(tokens, config.vocabulary_size, dtype=table.dtype) @ table
    return dataclasses.replace(parameters, embedding=rows), jnp.arange(tokens.shape[0])


def _activations(config: NetworkConfig, parameters: Any, tokens: Array) -> Array:
    if isinstance(config, TransformerConfig):
        return layers.activations(config, parameters, tokens)
    return baselines.activations(config, parameters, tokens)
