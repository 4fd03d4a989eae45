"""One transformer layer, as a pure function that returns its intermediate values with its output.

This is the only implementation of a layer. The modules and the vmap engine drop the intermediate values, and the
compiler then removes their computation; the difference engine keeps them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxsens.models.centred import centred_scores
from jaxsens.models.config import LayerConfig
from jaxsens.models.maps import activation, layer_norm
from jaxsens.models.masks import visible
from jaxsens.models.parameters import LayerParameters, needed
from jaxsens.models.products import rows_times
from jaxsens.models.scores import projected, scores, turned
from jaxsens.models.weighting import averages

SCORES_IN_MEMORY = 2**24
"""Attention rows are computed in blocks so that at most this many scores are in memory at once."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class LayerTrace:
    """The intermediate values of a layer on one input. None of them is n x n.

    Attributes:
        x: the layer's input.
        z: the input of the query, key and value projections: x, or LN(x) with pre-normalisation.
        queries, keys, values: the vectors of every head, with rotary embedding.
        normaliser: each row's `Weighting.log_normaliser`, which is 0 for weightings other than softmax. With centred
            scores it is relative to these: each row is shifted.
        b: the heads' outputs.
        attended: x + sum_h b^h W_O^h.
        c: the input of the per-position map's skip connection: attended, or LN(attended) with post-normalisation.
        h: the per-position map's pre-activation; None without one.
        mapped: c plus the per-position map; None without one.
    """

    x: Float[Array, "n width"]
    z: Float[Array, "n width"]
    queries: Float[Array, "heads n head_width"]
    keys: Float[Array, "heads n head_width"]
    values: Float[Array, "heads n head_width"]
    normaliser: Float[Array, "heads n"]
    b: Float[Array, "heads n head_width"]
    attended: Float[Array, "n width"]
    c: Float[Array, "n width"]
    h: Float[Array, "n hidden"] | None
    mapped: Float[Array, "n width"] | None


def over_row_blocks(
    rows: Callable[[Int[Array, " m"]], Any], heads: int, n: int, only: int | None = None
) -> Any:
    """Returns `rows(positions)` for all n positions, in blocks within `SCORES_IN_MEMORY`; with `only`, 0 in other rows.

    Results are arrays (or tuples of arrays) of shape (heads, m, ...), joined along the second axis.
    """
    if only is not None:
        return jax.tree.map(
            lambda one: jnp.zeros((heads, n, *one.shape[2:]), one.dtype).at[:, only].set(one[:, 0]),
            rows(jnp.asarray([only])),
        )
    size = max(1, SCORES_IN_MEMORY // (heads * n))
    if size >= n:
        return rows(jnp.arange(n))
    blocks = jnp.minimum(jnp.arange(-(-n // size) * size), n - 1).reshape(-1, size)

    def joined(parts: Array) -> Array:
        return jnp.moveaxis(parts, 0, 1).reshape(heads, -1, *parts.shape[3:])[:, :n]

    return jax.tree.map(joined, jax.lax.map(rows, blocks))


def row_scores(
    layer: LayerConfig,
    parameters: LayerParameters,
    queries: Float[Array, "heads n head_width"],
    keys: Float[Array, "heads n head_width"],
    block: Int[Array, " m"],
) -> tuple[Float[Array, "heads m n"], Bool[Array, "heads m n"]]:
    """Some rows' scores as the weighting function takes them (centred ones are shifted), and which keys are visible."""
    n = keys.shape[1]
    everywhere = jnp.arange(n)
    seen = visible(layer.mask, block[:, None], everywhere[None, :])
    seen = jnp.broadcast_to(seen, (layer.heads, *seen.shape))
    if layer.centred_scores:
        centred = centred_scores(layer, queries[:, block], keys, seen)
        return layer.weighting.tempered(centred, block, n), seen
    return scores(layer, parameters, queries[:, block], keys, block, everywhere, n), seen


def transformer_layer(
    layer: LayerConfig, parameters: LayerParameters, x: Float[Array, "n width"], only: int | None = None
) -> tuple[LayerTrace, Float[Array, "n width"]]:
    """One layer: attention and per-position map, each with its skip connection (Yang et al. 2024, section 2).

    The cost is O(H n^2 head_width + n d d_ff). Attention rows are computed in blocks (`over_row_blocks`). With `only`,
    just that row's attention is computed, in O(H n head_width), and values that follow from other rows are invalid.
    """
    n = x.shape[0]
    everywhere = jnp.arange(n)
    z = layer_norm(layer, parameters.attention_norm, x) if layer.norm.before else x
    queries = turned(layer, projected(layer, z, parameters.query), everywhere, n)
    keys = turned(layer, projected(layer, z, parameters.key), everywhere, n)
    values = projected(layer, z, parameters.value)

    def rows(block: Int[Array, " m"]) -> tuple[Array, Array]:
        s, seen = row_scores(layer, parameters, queries, keys, block)
        b = averages(layer.weighting, s, seen, values, layer.exact_rows)
        return b, layer.weighting.log_normaliser(s, seen)

    b, normaliser = over_row_blocks(rows, layer.heads, n, only)
    return after_attention(layer, parameters, x, z, queries, keys, values, normaliser, b)


def after_attention(
    layer: LayerConfig,
    parameters: LayerParameters,
    x: Float[Array, "m width"],
    z: Float[Array, "m width"],
    queries: Array,
    keys: Array,
    values: Array,
    normaliser: Array,
    b: Float[Array, "heads m head_width"],
) -> tuple[LayerTrace, Float[Array, "m width"]]:
    """The rest of a layer, from the heads' outputs b of any rows: output projection, skips, per-position map."""
    exact, places = layer.exact_rows, layer.norm
    attended = x + jnp.sum(jax.vmap(lambda bh, wh: rows_times(bh, wh, exact))(b, parameters.output), axis=0)
    c = layer_norm(layer, parameters.attention_norm, attended) if places.after else attended
    if not layer.feed_forward:
        return LayerTrace(x, z, queries, keys, values, normaliser, b, attended, c, None, None), c
    inner = layer_norm(layer, parameters.feed_forward_norm, c) if places.before else c
    h = rows_times(inner, needed(parameters.w1, "w1"), exact) + needed(parameters.b1, "b1")
    out = rows_times(activation(layer, h), needed(parameters.w2, "w2"), exact) + needed(parameters.b2, "b2")
    mapped = c + out
    y = layer_norm(layer, parameters.feed_forward_norm, mapped) if places.after else mapped
    return LayerTrace(x, z, queries, keys, values, normaliser, b, attended, c, h, mapped), y
