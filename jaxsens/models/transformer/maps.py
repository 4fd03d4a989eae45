"""Maps applied to each position separately: layer normalisation, the activation, and output gates.

An output gate multiplies what a row's heads attended to by sigmoid(z W_G), before the output projection. z is what the
row's query is made of, so that a row can close a head that finds nothing (Qiu et al. 2025, arXiv 2505.06708).
"""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxsens.base.errors import rule_for
from jaxsens.models.parts.choices import ACTIVATIONS, OUTPUT_GATES
from jaxsens.models.transformer.config import LayerConfig
from jaxsens.models.transformer.parameters import LayerParameters, NormParameters, needed
from jaxsens.models.transformer.scores import projected


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


def gate_inputs(
    layer: LayerConfig, parameters: LayerParameters, z: Float[Array, "m width"]
) -> Float[Array, "heads m gates"]:
    """Returns z W_G of every head."""
    return projected(layer, z, needed(parameters.gate, "gate"))


def gated(
    layer: LayerConfig,
    parameters: LayerParameters,
    x: Float[Array, "m width"],
    b: Float[Array, "heads m head_width"],
) -> Float[Array, "heads m head_width"]:
    """Returns the heads' outputs b of rows with the layer's input x, times their gates, if there are any."""
    gate = rule_for("attention", "output gate", layer.output_gate, OUTPUT_GATES)
    if gate is None:
        return b
    z = layer_norm(layer, parameters.attention_norm, x) if layer.norm.before else x
    return gate.function(gate_inputs(layer, parameters, z)) * b
