"""What training minimises, in nats."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxsens.models.config_tables import NetworkConfig
from jaxsens.training.sequence import own_rows, readout_logits, sequence_logits


def next_symbol_loss(
    config: NetworkConfig,
    parameters: Any,
    tokens: Int[Array, "batch n"],
    targets: Float[Array, "batch n outcomes"],
) -> Float[Array, ""]:
    """The cross-entropy of the predictions at every position, averaged over positions and inputs.

    `targets` are the probabilities of the next symbol, or 0s and a 1 for a symbol that was drawn.
    """

    def one(word: Array) -> Array:
        return sequence_logits(config, *own_rows(config, parameters, word))

    logs = jax.nn.log_softmax(jax.vmap(one)(tokens), axis=-1)
    return -jnp.mean(jnp.sum(targets * logs, axis=-1))


def recognition_loss(
    config: NetworkConfig, parameters: Any, tokens: Int[Array, "batch n"], targets: Float[Array, "batch 2"]
) -> Float[Array, ""]:
    """The cross-entropy of the label (no member, member) at the readout, averaged over inputs."""

    def one(word: Array) -> Array:
        return readout_logits(config, *own_rows(config, parameters, word))

    logs = jax.nn.log_softmax(jax.vmap(one)(tokens), axis=-1)
    return -jnp.mean(jnp.sum(targets * logs, axis=-1))
