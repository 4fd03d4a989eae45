"""One transformer layer, as a pure function that returns its intermediate values with its output.

This is the only implementation of a layer. The modules and the vmap engine drop the intermediate values, and the
compiler then removes their computation; the difference engine keeps them.

An output gate multiplies what a row's heads attended to by sigmoid(z W_G), before the output projection. z is what the
row's query is made of, so that a row can close a head that finds nothing (Qiu et al. 2025, arXiv 2505.06708).

Centred scores: each row's scores relative to its best key, formed from differences of keys.

Softmax and hard weightings are invariant under a shift of a row's scores, so s_ij - s_ir gives the same weights as
s_ij for any key r, but with different rounding. The table lookup of Yang et al. (2026), Lemma 7, has queries (C, 1) and
keys (2j, -j^2): scores of order C^2, whose differences of order 1 matter. Rounded sums of products are wrong by u C^2
(u = 6e-8 in float32, 1e-16 in float64), which is 1 at C = 4000 in float32. From differences of keys,

    s_ij - s_ir = sum_c q_ic (k_jc - k_rc) ,

whose terms are of order 4 C |j - r|, they are wrong by only 4 u C |j - r|. This requires two things:

- Keys with accurate differences. From j = 4097 on, j^2 is not exact in float32; as two `Limb`s, in two key
  coordinates, it is exact, and neighbours differ little in each.
- A key r near the best one. The best key by plain scores is off by about sqrt(2 u) C places, 10 at C = 20 000 in
  float32; the best by scores centred there is off by at most one; centred there, the relevant keys have |j - r| <= 2.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Shaped

from jaxsens.core.base.errors import rule_for
from jaxsens.core.base.programs import Platform, compiled_for
from jaxsens.core.models.parts.choices import (
    ACTIVATIONS,
    OUTPUT_GATES,
    SCORES,
    first_largest,
    inner_products,
    rows_times,
)
from jaxsens.core.models.parts.masks import visible
from jaxsens.core.models.parts.weighting import Weighting, averages, learns_sink
from jaxsens.core.models.transformer.config import LayerConfig
from jaxsens.core.models.transformer.parameters import LayerParameters, NormParameters, needed

Queries: TypeAlias = Float[Array, "heads m head_width"]
Keys: TypeAlias = Float[Array, "heads k head_width"]
ScoreTable: TypeAlias = Float[Array, "heads m k"]
Seen: TypeAlias = Bool[Array, "heads m k"]
Index: TypeAlias = Int[Array, ""]
"""The number of a head."""


def projected(
    layer: LayerConfig, z: Float[Array, "rows width"], matrices: Float[Array, "heads width head_width"]
) -> Float[Array, "heads rows head_width"]:
    """Returns z W_h for every head: queries, keys or values of the rows z."""
    return jax.vmap(lambda matrix: rows_times(z, matrix, layer.exact_rows))(matrices)


def turned(
    layer: LayerConfig, x: Float[Array, "*heads rows head_width"], positions: Int[Array, " rows"], n: int
) -> Float[Array, "*heads rows head_width"]:
    """Applies position embeddings to queries or keys at 0-based `positions` of an input of length n."""
    for term in layer.position_scores:
        x = term.turned(x, positions, n)
    return x


def penalty(
    layer: LayerConfig,
    parameters: LayerParameters,
    query_positions: Int[Array, " m"],
    key_positions: Int[Array, "*k"],
    dtype: jnp.dtype,
    head: Index | None = None,
) -> ScoreTable | None:
    """Returns the position embeddings' addition to the scores (ALiBi's -slope |i - j|), or None.

    `key_positions` is (k,), or (heads, m, k) if every row has its own keys. With `head`, of that head alone: (1, m, k).
    """
    total = None
    for term in layer.position_scores:
        if term.entries:
            table = needed(parameters.relative_bias, "relative_bias")
            table = table if head is None else table[head][None]
            added = term.penalty(len(table), query_positions, key_positions, dtype, table)
        else:
            added = term.penalty(layer.heads, query_positions, key_positions, dtype)
            added = added if head is None or added is None else added[head][None]
        if added is not None:
            total = added if total is None else total + added
    return total


def scores(
    layer: LayerConfig,
    parameters: LayerParameters,
    queries: Queries,
    keys: Keys,
    query_positions: Int[Array, " m"],
    key_positions: Int[Array, "*k"],
    n: int,
    head: Index | None = None,
) -> ScoreTable:
    """Returns the input of the weighting function: scores with position penalties, divided by the temperature.

    With `head`, queries and keys are only those of that head, (1, ..., head_width).
    """
    function, vector = rule_for("attention", "score", layer.scores, SCORES).function, parameters.additive
    if vector is not None and head is not None:
        vector = vector[head][None]
    result = function(queries, keys, vector, layer.exact_rows)
    added = penalty(layer, parameters, query_positions, key_positions, result.dtype, head)
    if added is not None:
        result = result + added
    return layer.weighting.tempered(result, query_positions, n)


def weighting_of(layer: LayerConfig, parameters: LayerParameters, head: Index | None = None) -> Weighting:
    """Returns the layer's weighting, with the scores of learned sinks: those of all heads, or of one.

    Raises:
        TypeError: if the sinks' scores should be among the parameters, and are not.
    """
    if not learns_sink(layer.weighting):
        return layer.weighting
    sink = needed(parameters.sink, "sink")
    return layer.weighting.at_sink(sink[:, None, None] if head is None else sink[head])


REFINEMENTS = 2
"""The number of times that the best key is found and the scores are formed relative to it.

The largest float32 errors of looking up a hundred counts among n keys (Lemma 7, ideal error 0.0400), after 0, 1, 2 and
3 rounds, were: n = 20 011: 3.0, 0.0400, 0.0400, 0.0400; n = 50 021: 10, 0.0480, 0.0400, 0.0400; n = 100 003: 9.5,
0.0459, 0.0406, 0.0406. One round suffices up to n = 20 000; the second corrects for the distance of the first reference
from the best key; a third changes nothing."""


def centred_scores(layer: LayerConfig, queries: Queries, keys: Keys, seen: Seen) -> ScoreTable:
    """q_i.(k_j - k_r) / sqrt(head_width), before the temperature; r is the visible key with the largest score in row i.

    In a row that sees no key, r is the first key. Equal keys get bitwise equal scores if `layer.exact_rows`. It takes
    O(heads m k) memory and three times the operations of plain scores, only the first third in a matrix product.
    """
    scaled = queries / np.sqrt(layer.head_width).astype(queries.dtype)
    scores = inner_products(scaled, keys, layer.exact_rows)
    for _ in range(REFINEMENTS):
        best = first_largest(jnp.where(seen, scores, -jnp.inf))
        reference = jnp.take_along_axis(keys, best[..., None], axis=1)
        # One coordinate at a time: a sum over an axis would store all heads * m * k * head_width products.
        scores = jnp.zeros((), scaled.dtype)
        for c in range(layer.head_width):
            scores = scores + scaled[:, :, c, None] * (keys[:, None, :, c] - reference[:, :, c, None])
    return scores


SCORES_IN_MEMORY = 2**24
"""Attention rows are computed in blocks so that at most this many scores are in memory at once."""

CACHED_ROWS = 128
"""The number of rows of a block whose scores stay in the cache of a CPU: enough that a matrix product of 16 columns
runs at its full rate."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class LayerTrace:
    """The intermediate values of a layer on one input. None of them is n x n.

    Attributes:
        x: the layer's input.
        z: the input of the query, key and value projections: x, or LN(x) with pre-normalisation.
        queries, keys, values: the vectors of every head, with rotary embedding.
        normaliser: each row's `Weighting.log_normaliser`, which is 0 for weightings without one. With centred
            scores it is relative to these: each row is shifted.
        b: the heads' outputs, before output gates.
        attended: x + sum_h b^h W_O^h, with b^h times its gates if there are any.
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


Block: TypeAlias = Int[Array, " m"]
OfHeads: TypeAlias = Float[Array, "heads n head_width"]
"""Queries, keys or values of all rows."""

Rows: TypeAlias = Float[Array, "m width"]
SomeHeads: TypeAlias = Float[Array, "heads m head_width"]
"""Those of the rows of a block."""


def in_blocks(
    rows: Callable[[Block], Any], n: int, size: int | None, axis: int, only: int | None = None
) -> Any:
    """Returns `rows(positions)` for all n positions, `size` at a time (None: all), joined along an axis; with `only`,
    of that position, and 0 for others."""
    if only is not None:
        return placed(rows(jnp.asarray([only])), only, n, axis)
    if size is None or size >= n:
        return rows(jnp.arange(n))
    blocks = jnp.minimum(jnp.arange(-(-n // size) * size), n - 1).reshape(-1, size)

    def joined(parts: Array) -> Array:
        rows = jnp.moveaxis(parts, 0, axis)
        rows = rows.reshape(*rows.shape[:axis], -1, *rows.shape[axis + 2 :])
        return jax.lax.slice_in_dim(rows, 0, n, axis=axis)

    return jax.tree.map(joined, jax.lax.map(rows, blocks))


def placed(row: Any, position: int, n: int, axis: int) -> Any:
    """Returns n rows along an axis of each array, all 0 except the given one."""

    def one(part: Array) -> Array:
        nothing = jnp.zeros((*part.shape[:axis], n, *part.shape[axis + 1 :]), part.dtype)
        return jax.lax.dynamic_update_slice_in_dim(nothing, part, position, axis)

    return jax.tree.map(one, row)


def some_rows(x: Shaped[Array, "*rows"], block: Block, axis: int = 0) -> Shaped[Array, "*some"]:
    """Returns the rows of a block, which are gathered unless they are all."""
    return x if len(block) == x.shape[axis] else jnp.take(x, block, axis=axis)


def rows_at_once(scores: int, cached: bool) -> int:
    """Returns how many attention rows of so many scores each are computed at once: those that stay in a CPU's cache, or
    if not `cached` those within `SCORES_IN_MEMORY`."""
    return CACHED_ROWS if cached else max(1, SCORES_IN_MEMORY // scores)


def leaves_cache(heads: int, n: int, platform: Platform) -> bool:
    """Returns whether the scores of all rows and heads leave the cache of a platform that has to keep them there: on
    CPU, for long n. Attention then goes by `CACHED_ROWS` rows at a time and, in soft layers, by one head; hard layers
    have elementwise products, and take all heads at once."""
    cached = platform.cached_scores
    return cached is not None and n > CACHED_ROWS and heads * n * n > cached


def scores_of_rows(
    layer: LayerConfig,
    parameters: LayerParameters,
    queries: SomeHeads,
    keys: OfHeads,
    block: Block,
    head: Int[Array, ""] | None = None,
) -> tuple[Float[Array, "heads m n"], Bool[Array, "heads m n"]]:
    """Returns the scores of the rows `block` as the weighting function takes them (centred ones are shifted), from
    their queries, and which keys are visible; with `head`, of that head alone: (1, ..., head_width)."""
    n = keys.shape[1]
    everywhere = jnp.arange(n)
    seen = visible(layer.mask, block[:, None], everywhere[None, :])
    seen = jnp.broadcast_to(seen, (len(keys), *seen.shape))
    if layer.centred_scores:
        centred = centred_scores(layer, queries, keys, seen)
        return layer.weighting.tempered(centred, block, n), seen
    return scores(layer, parameters, queries, keys, block, everywhere, n, head), seen


def attention_of_rows(
    layer: LayerConfig,
    parameters: LayerParameters,
    queries: SomeHeads,
    keys: OfHeads,
    values: OfHeads,
    block: Block,
) -> tuple[SomeHeads, Float[Array, "heads m"]]:
    """Returns the heads' outputs b and the `Weighting.log_normaliser` of the rows `block`, whose queries are given."""

    def some(q: Array, k: Array, v: Array, head: Array | None = None) -> tuple[Array, Array]:
        s, seen = scores_of_rows(layer, parameters, q, k, block, head)
        weighting = weighting_of(layer, parameters, head)
        return averages(weighting, s, seen, v, layer.exact_rows), weighting.log_normaliser(s, seen)

    by_head = not layer.exact_rows and leaves_cache(layer.heads, keys.shape[1], compiled_for())
    if len(block) == 1 or not by_head:
        return some(queries, keys, values)
    each = queries[:, None], keys[:, None], values[:, None], jnp.arange(layer.heads)
    b, normaliser = jax.lax.map(lambda one: some(*one), each)
    return b[:, 0], normaliser[:, 0]


def transformer_layer(
    layer: LayerConfig, parameters: LayerParameters, x: Float[Array, "n width"], only: int | None = None
) -> tuple[LayerTrace, Float[Array, "rows width"]]:
    """One layer: attention and per-position map, each with its skip connection (Yang et al. 2026, section 2).

    The cost is O(H n^2 head_width + n d d_ff). Attention rows are computed in blocks (`rows_at_once`). With `only`, the
    output is that row alone, and attention takes O(H n head_width): what follows from it in the trace is 0 in other
    rows. Where the trace is not used, the compiler drops the projections of other queries.
    """
    n, mapped_rows = x.shape[0], compiled_for().mapped_rows(x.shape[1])
    z = layer_norm(layer, parameters.attention_norm, x) if layer.norm.before else x

    def projections(block: Block) -> tuple[Array, Array, Array]:
        own = parameters.query, parameters.key, parameters.value
        q, k, v = (projected(layer, some_rows(z, block), matrix) for matrix in own)
        return turned(layer, q, block, n), turned(layer, k, block, n), v

    queries, keys, values = in_blocks(projections, n, mapped_rows, axis=1)
    if only is not None:
        here = jnp.asarray([only])
        own, _, _ = projections(here)
        heads = attention_of_rows(layer, parameters, own, keys, values, here)
        after = after_attention(layer, parameters, x[here], heads[0])
        b, normaliser = placed(heads, only, n, axis=1)
        inner = placed(after[:4], only, n, axis=0)
        queries = queries.at[:, only].set(own[:, 0])
        return LayerTrace(x, z, queries, keys, values, normaliser, b, *inner), after.y
    # XLA fuses the elementwise products of hard layers over all rows, and then projects keys anew for each query.
    b, normaliser = in_blocks(
        lambda block: attention_of_rows(layer, parameters, queries[:, block], keys, values, block),
        n,
        rows_at_once(layer.heads * n, leaves_cache(layer.heads, n, compiled_for())),
        axis=1,
    )
    after = in_blocks(
        lambda block: after_attention(layer, parameters, some_rows(x, block), some_rows(b, block, axis=1)),
        n,
        mapped_rows,
        axis=0,
    )
    return LayerTrace(x, z, queries, keys, values, normaliser, b, *after[:4]), after.y


def layer_norm(
    layer: LayerConfig, parameters: NormParameters | None, x: Float[Array, "*rows width"]
) -> Float[Array, "*rows width"]:
    """(x - mean) / sqrt(variance + epsilon) * scale + bias over the last axis."""
    if parameters is None:
        raise TypeError("layer normalisation needs its parameters")
    centred = x - jnp.mean(x, axis=-1, keepdims=True)
    variance = jnp.mean(centred**2, axis=-1, keepdims=True)
    return centred / jnp.sqrt(variance + layer.layer_norm_epsilon) * parameters.scale + parameters.bias


def gate_inputs(layer: LayerConfig, parameters: LayerParameters, z: Rows) -> Float[Array, "heads m gates"]:
    """Returns z W_G of every head."""
    return projected(layer, z, needed(parameters.gate, "gate"))


class AfterAttention(NamedTuple):
    """What follows from the heads' outputs in a layer, for any rows: y is the layer's output, and the rest of
    `LayerTrace`."""

    attended: Float[Array, "m width"]
    c: Float[Array, "m width"]
    h: Float[Array, "m hidden"] | None
    mapped: Float[Array, "m width"] | None
    y: Float[Array, "m width"]


def after_attention(
    layer: LayerConfig, parameters: LayerParameters, x: Float[Array, "m width"], b: SomeHeads
) -> AfterAttention:
    """The rest of a layer, from the heads' outputs b of any rows: gates, output projection, skips, per-position map."""
    exact, places = layer.exact_rows, layer.norm
    gate = rule_for("attention", "output gate", layer.output_gate, OUTPUT_GATES)
    if gate is not None:
        z = layer_norm(layer, parameters.attention_norm, x) if places.before else x
        b = gate.function(gate_inputs(layer, parameters, z)) * b
    if exact:
        each = jax.vmap(lambda bh, wh: rows_times(bh, wh, exact))(b, parameters.output)
        attended = x + jnp.sum(each, axis=0)
    else:  # one product: from 512 rows on, a sum of one for each head takes longer than all the rest of this
        attended = x + jnp.einsum("hmv,hvd->md", b, parameters.output)
    c = layer_norm(layer, parameters.attention_norm, attended) if places.after else attended
    if not layer.feed_forward:
        return AfterAttention(attended, c, None, None, c)
    inner = layer_norm(layer, parameters.feed_forward_norm, c) if places.before else c
    h = rows_times(inner, needed(parameters.w1, "w1"), exact) + needed(parameters.b1, "b1")
    activation = rule_for("the forward pass", "activation", layer.activation, ACTIVATIONS)
    out = rows_times(activation(h), needed(parameters.w2, "w2"), exact) + needed(parameters.b2, "b2")
    mapped = c + out
    y = layer_norm(layer, parameters.feed_forward_norm, mapped) if places.after else mapped
    return AfterAttention(attended, c, h, mapped, y)
