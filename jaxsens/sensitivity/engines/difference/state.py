"""The values shared by all flips of one input, and those that one flip carries from layer to layer."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxsens.base.errors import no_rule
from jaxsens.models.parts.weighting import HardWeighting, Sigmoid, SinkSoftmax, Softmax
from jaxsens.models.transformer import layers
from jaxsens.models.transformer.config import LayerConfig, TransformerConfig
from jaxsens.models.transformer.maps import gate_inputs, layer_norm
from jaxsens.models.transformer.parameters import LayerParameters, TransformerParameters, needed
from jaxsens.models.transformer.scores import projected, turned
from jaxsens.models.transformer.trace import LayerTrace, after_attention
from jaxsens.sensitivity.engines.difference.attention import SOFT
from jaxsens.sensitivity.engines.difference.moved import HeadsMoved, Moved
from jaxsens.sensitivity.engines.difference.one_key import Rest, first_rows, rest_of
from jaxsens.sensitivity.engines.difference.one_key_hard import Levels, levels_of
from jaxsens.sensitivity.engines.difference.rounding import (
    feed_forward_error,
    layer_norm_error,
    product_error,
    size,
    unit,
)
from jaxsens.sensitivity.engines.difference.rules import feed_forward_change, layer_norm_change
from jaxsens.sensitivity.engines.one_key.sigmoid_change import sigmoid_change


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
    n = len(tokens)
    traces, output = layers.trace(config, parameters, tokens, layers.readout_position(config, n))
    others: Rest | Levels | None = None
    if config.layers:
        layer = config.layer(0)
        match layer.weighting:
            case Softmax() | SinkSoftmax():
                sink = isinstance(layer.weighting, SinkSoftmax)
                equal = first_rows(tokens, layers.position_embedding(config, parameters, n), sink)
                others = rest_of(layer, parameters.layers[0], traces[0], equal, row)
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


def inner_change(
    layer: LayerConfig, parameters: LayerParameters, x: Float[Array, "m width"], moved: Moved
) -> Moved:
    """Returns the change of the input of the query, key and value projections."""
    if not layer.norm.before:
        return moved
    norm = parameters.attention_norm
    dz = layer_norm_change(layer, norm, x, moved.dx)
    error = layer_norm_error(layer, norm, x, moved.dx, moved.error, dz)
    return Moved(dz, error, None if moved.new is None else layer_norm(layer, norm, moved.new))


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


def heads_change(
    layer: LayerConfig,
    moved: Moved,
    matrices: Float[Array, "heads width head_width"],
    positions: Int[Array, " m"] | None,
    n: int,
) -> HeadsMoved:
    """Returns the change of queries, keys or values (`heads_of`) when their rows z move."""
    error = product_error(size(moved.dx), moved.error, matrices)
    return HeadsMoved(heads_of(layer, moved.dx, matrices, positions, n), error)


def gated_change(
    layer: LayerConfig,
    parameters: LayerParameters,
    kept: LayerTrace,
    rows: Int[Array, " m"],
    moved: Moved,
    heads: HeadsMoved,
) -> HeadsMoved:
    """Returns the change of the heads' outputs after their gates: g' Db + (g' - g) b; Db itself without gates."""
    match layer.output_gate:
        case "none":
            return heads
        case "headwise" | "elementwise":
            inner = inner_change(layer, parameters, kept.x[rows], moved)
            matrices = needed(parameters.gate, "gate")
            before, step = (gate_inputs(layer, parameters, z) for z in (kept.z[rows], inner.dx))
            gate, change = sigmoid_change(before, step)
            b = kept.b[:, rows]
            # A gate's slope is at most 1/4, and a rounding of its input z moves it by at most a rounding of g z.
            slope = product_error(size(inner.dx), inner.error, matrices) / 4
            own = unit(b.dtype) * jnp.max(jnp.abs(change) * (1 + jnp.abs(before)), axis=-1)
            error = heads.error + (slope + own) * size(b) + unit(b.dtype) * size(heads.db)
            return HeadsMoved(gate * heads.db + change * b, error, heads.new)
        case other:
            raise no_rule("the difference engine", "output gate", other, ("none", "headwise", "elementwise"))


def after_attention_change(
    layer: LayerConfig,
    parameters: LayerParameters,
    kept: LayerTrace,
    rows: Int[Array, " m"],
    moved: Moved,
    heads: HeadsMoved,
) -> Moved:
    """Applies the rest of a layer to some rows: gates, output projection, skips, normalisation, per-position map."""
    open_heads = gated_change(layer, parameters, kept, rows, moved, heads)
    dc = moved.dx + jnp.einsum("hmk,hkd->md", open_heads.db, parameters.output)
    error = moved.error + _merged_error(open_heads, parameters.output)
    if layer.norm.after:
        before, x = dc, kept.attended[rows]
        dc = layer_norm_change(layer, parameters.attention_norm, x, before)
        error = layer_norm_error(layer, parameters.attention_norm, x, before, error, dc)
    dy = dc
    if kept.h is not None and kept.mapped is not None:
        inner = _before_the_map(layer, parameters, kept.c[rows], Moved(dc, error))
        dy = dc + feed_forward_change(layer, parameters.w1, parameters.w2, kept.h[rows], inner.dx)
        error = error + feed_forward_error(parameters.w1, parameters.w2, inner.dx, inner.error)
        if layer.norm.after:
            before, x = dy, kept.mapped[rows]
            dy = layer_norm_change(layer, parameters.feed_forward_norm, x, before)
            error = layer_norm_error(layer, parameters.feed_forward_norm, x, before, error, dy)
    error = error + unit(dy.dtype) * size(dy)
    if moved.new is None or heads.new is None:
        return Moved(dy, error)
    new = after_attention(layer, parameters, moved.new, heads.new).y
    return Moved(dy, error, new)


def _merged_error(heads: HeadsMoved, matrices: Float[Array, "heads head_width width"]) -> Float[Array, " m"]:
    """Returns the error of the sum of the heads' outputs times their output matrices."""
    return jnp.sum(jax.vmap(product_error)(size(heads.db), heads.error, matrices), axis=0)


def _before_the_map(
    layer: LayerConfig, parameters: LayerParameters, c: Float[Array, "m width"], moved: Moved
) -> Moved:
    """Returns the change of the per-position map's input."""
    if not layer.norm.before:
        return moved
    norm = parameters.feed_forward_norm
    dz = layer_norm_change(layer, norm, c, moved.dx)
    return Moved(dz, layer_norm_error(layer, norm, c, moved.dx, moved.error, dz))
