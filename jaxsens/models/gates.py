"""Output gates: what a row's heads attended to is multiplied by sigmoid(z W_G) before the output projection.

z is what the row's query is made of, so that a row can close a head that finds nothing (Qiu et al. 2025, arXiv
2505.06708).
"""

from __future__ import annotations

from jaxtyping import Array, Float

from jaxsens.errors import rule_for
from jaxsens.models.choices import OUTPUT_GATES
from jaxsens.models.config import LayerConfig
from jaxsens.models.maps import layer_norm
from jaxsens.models.parameters import LayerParameters, needed
from jaxsens.models.scores import projected


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
