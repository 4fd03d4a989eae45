"""The values shared by all flips of one input, and those that one flip carries from layer to layer."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxsens.errors import no_rule
from jaxsens.models import layers
from jaxsens.models.config import LayerConfig, TransformerConfig
from jaxsens.models.gates import gate_inputs
from jaxsens.models.maps import layer_norm
from jaxsens.models.parameters import LayerParameters, TransformerParameters
from jaxsens.models.scores import projected, turned
from jaxsens.models.trace import LayerTrace, after_attention
from jaxsens.models.weighting import HardWeighting, Sigmoid, SinkSoftmax, Softmax
from jaxsens.sensitivity.difference.attention import SOFT
from jaxsens.sensitivity.difference.one_key import Rest, rest_of
from jaxsens.sensitivity.difference.one_key_hard import Levels, levels_of
from jaxsens.sensitivity.difference.rules import feed_forward_change, layer_norm_change
from jaxsens.sensitivity.difference.sigmoid_change import sigmoid_change


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Prepared:
    """The unflipped run: tokens, the trace of every layer, y^(L), and the values for the first layer's closed form.

    If one row is read out, the last layer's trace and y^(L) are valid only in that row.
    """

    tokens: Int[Array, " n"]
    traces: tuple[LayerTrace, ...]
    output: Float[Array, "n width"]
    others: Rest | Levels | None


def prepare(
    config: TransformerConfig,
    parameters: TransformerParameters,
    tokens: Int[Array, " n"],
    row: int | None = None,
) -> Prepared:
    """Runs a forward pass, and a pass over the first layer's scores, in O(L n^2 d) time and O(L n (d + d_ff)) memory.

    The last layer's attention is computed only for the readout row: O(n d) with one layer. With `row`, only that row
    and the flipped one will be needed in the first layer, which saves the second pass.
    """
    traces, output = layers.trace(config, parameters, tokens, layers.readout_position(config, len(tokens)))
    others: Rest | Levels | None = None
    if config.layers:
        layer = config.layer(0)
        match layer.weighting:
            case Softmax() | SinkSoftmax():
                others = rest_of(layer, parameters.layers[0], traces[0], row)
            case Sigmoid():
                pass  # no key's weight depends on the others
            case HardWeighting():
                others = levels_of(layer, parameters.layers[0], traces[0], row)
            case other:
                raise no_rule("the difference engine", "weighting", other, (*SOFT, HardWeighting))
    return Prepared(tokens, traces, output, others)


def largest_score(prepared: Prepared) -> float:
    """Returns the largest size of a softmax score that gets weight in the unflipped run, to within log n.

    It uses the log-normaliser, which is at most log n above a row's largest score. Scores far below that may be large,
    because their weights are 0.
    """
    return max((float(jnp.max(jnp.abs(kept.normaliser), initial=0)) for kept in prepared.traces), default=0.0)


def of_dtype(config: TransformerConfig, parameters: TransformerParameters) -> TransformerConfig:
    """Returns the config with the dtype of the parameters: "float64" while a float32 model is being prepared."""
    return config.replace(dtype=str(parameters.embedding.dtype))


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Moved:
    """A layer's input under a flip: its change, and for models with a hard layer also its new value.

    If a hard layer breaks ties, equal positions must have bitwise equal values, which x + dx does not guarantee. New
    values are therefore computed from the flipped symbol, by the functions of the forward pass.
    """

    dx: Float[Array, "m width"]
    new: Float[Array, "m width"] | None


def inner_change(
    layer: LayerConfig, parameters: LayerParameters, x: Float[Array, "m width"], moved: Moved
) -> tuple[Float[Array, "m width"], Float[Array, "m width"] | None]:
    """Returns the change and new value of the input of the query, key and value projections."""
    if not layer.norm.before:
        return moved.dx, moved.new
    dz = layer_norm_change(layer, parameters.attention_norm, x, moved.dx)
    return dz, None if moved.new is None else layer_norm(layer, parameters.attention_norm, moved.new)


def heads_of(
    layer: LayerConfig,
    z: Float[Array, "m width"],
    matrices: Float[Array, "heads width head_width"],
    positions: Int[Array, " m"] | None,
    n: int,
) -> Float[Array, "heads m head_width"]:
    """Returns queries or keys at `positions` (with rotary embedding), or values (None), of rows z or their changes."""
    out = projected(layer, z, matrices)
    return out if positions is None else turned(layer, out, positions, n)


def gated_change(
    layer: LayerConfig,
    parameters: LayerParameters,
    kept: LayerTrace,
    rows: Int[Array, " m"],
    dx: Float[Array, "m width"],
    db: Float[Array, "heads m head_width"],
) -> Float[Array, "heads m head_width"]:
    """Returns the change of the heads' outputs after their gates: g' Db + (g' - g) b; Db itself without gates."""
    match layer.output_gate:
        case "none":
            return db
        case "headwise" | "elementwise":
            dz, _ = inner_change(layer, parameters, kept.x[rows], Moved(dx, None))
            before, step = (gate_inputs(layer, parameters, z) for z in (kept.z[rows], dz))
            gate, change = sigmoid_change(before, step)
            return gate * db + change * kept.b[:, rows]
        case other:
            raise no_rule("the difference engine", "output gate", other, ("none", "headwise", "elementwise"))


def after_attention_change(
    layer: LayerConfig,
    parameters: LayerParameters,
    kept: LayerTrace,
    rows: Int[Array, " m"],
    dx: Float[Array, "m width"],
    db: Float[Array, "heads m head_width"],
    new_x: Float[Array, "m width"] | None,
    new_b: Float[Array, "heads m head_width"] | None,
) -> Moved:
    """Applies the rest of a layer to some rows: gates, output projection, skips, normalisation, per-position map."""
    db = gated_change(layer, parameters, kept, rows, dx, db)
    dc = dx + jnp.einsum("hmk,hkd->md", db, parameters.output)
    if layer.norm.after:
        dc = layer_norm_change(layer, parameters.attention_norm, kept.attended[rows], dc)
    dy = dc
    if kept.h is not None and kept.mapped is not None:
        dz = dc
        if layer.norm.before:
            dz = layer_norm_change(layer, parameters.feed_forward_norm, kept.c[rows], dc)
        dy = dc + feed_forward_change(layer, parameters.w1, parameters.w2, kept.h[rows], dz)
        if layer.norm.after:
            dy = layer_norm_change(layer, parameters.feed_forward_norm, kept.mapped[rows], dy)
    if new_x is None or new_b is None:
        return Moved(dy, None)
    none = new_x[:0]
    return Moved(dy, after_attention(layer, parameters, new_x, none, none, none, none, none, new_b)[1])
