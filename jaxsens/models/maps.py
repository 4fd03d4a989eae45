"""Maps applied to every position alone: layer normalisation and the activation."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxsens.models.config import LayerConfig
from jaxsens.models.parameters import NormParameters


def layer_norm(
    layer: LayerConfig, parameters: NormParameters | None, x: Float[Array, "*rows width"]
) -> Float[Array, "*rows width"]:
    """(x - mean) / sqrt(variance + epsilon) * scale + bias over the last axis."""
    if parameters is None:
        raise TypeError("layer normalisation needs its parameters")
    centred = x - jnp.mean(x, axis=-1, keepdims=True)
    variance = jnp.mean(centred**2, axis=-1, keepdims=True)
    return centred / jnp.sqrt(variance + layer.layer_norm_epsilon) * parameters.scale + parameters.bias


def activation(layer: LayerConfig, h: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """The per-position map's nonlinearity."""
    if layer.activation == "relu":
        return jax.nn.relu(h)
    if layer.activation == "gelu":
        return jax.nn.gelu(h, approximate=True)
    if layer.activation == "silu":
        return jax.nn.silu(h)
    return jnp.tanh(h)
