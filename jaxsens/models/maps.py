"""Maps applied to each position separately: layer normalisation and the activation."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxsens.errors import rule_for
from jaxsens.models.choices import ACTIVATIONS
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
    """Applies the activation of the per-position map."""
    return rule_for("the forward pass", "activation", layer.activation, ACTIVATIONS)(h)
