"""The derivative of some outputs with respect to what every row attended to, layer by layer from the top.

With p_jw the weight of key w in row j, b_j = sum_w p_jw v_w and g_j the derivative with respect to b_j, softmax passes
on

    to the value v_w     sum_j p_jw g_j
    to the score s_jw    p_jw (g_j . v_w - g_j . b_j),     and from there to the query j and the key w.

A sink, whose score is constant and whose value is 0, adds nothing to either. In sigmoid attention the score s_jw gets
p_jw (1 - p_jw) (g_j . v_w). Weights are recomputed in tiles; nothing n x n is stored. A tile's weights are shared by
all outputs of a block.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxsens.core.base.errors import no_rule
from jaxsens.core.base.programs import compiled_for
from jaxsens.core.engines.one_key.run import ONE_MOVED_KEY, LayerRun, Run, summed_over_blocks
from jaxsens.core.models.parts.weighting import Sigmoid, Tempered, Weighting
from jaxsens.core.models.transformer.layered import (
    EqualLayers,
    Layered,
    ModelLayer,
    Stack,
    layer_of,
    over_rows,
)

ROWS, KEYS = 256, 128
"""Query rows and keys of a tile: its products for one output stay in a core's cache."""

Read = Callable[[Float[Array, " width"]], Float[Array, " outputs"]]


def attended_gradients(
    model: Layered, parameters: Any, kept: Run, groups: tuple[EqualLayers, ...], row: int | None, read: Read
) -> tuple[Float[Array, "layers heads n value_width outputs"], ...]:
    """Returns the derivative of `read` of the output row with respect to b, in all layers that other rows pass on, by
    group of layers.

    With a readout row, those are all layers but the last, where only that row counts. With a mean over rows (`row` is
    None), `read` is the function of one row whose mean is the output, or a function of it, and all layers count.

    O(layers n^2 outputs width) operations; the result takes n width outputs numbers a layer.
    """
    n, found = kept.y.shape[0], []
    if row is None or kept.last is None:
        outputs = jax.eval_shape(read, kept.y[0]).size
        gy = over_rows(jax.jacrev(read), kept.y, most=_many(outputs, kept.y.shape[1])) / n
    else:
        last = layer_of(model, parameters, model.layers - 1, n)
        gx, g = through_merge(last, kept.last, jnp.asarray([row]), jax.jacrev(read)(kept.y[row])[None])
        gy = through_attention(last, kept.last, row, g).at[row].add(gx[0]) if groups else gx
    for group, stack, layers in reversed([*zip(groups, kept.stacks, kept.groups, strict=True)]):

        def layer(
            gy: Array, given: tuple[Array, LayerRun], group: EqualLayers = group, stack: Stack = stack
        ) -> tuple[Array, Array]:
            k, kept = given
            here = group.layer(model, parameters, n, stack, k)
            gx, g = through_merge(here, kept, jnp.arange(n), gy)

            def below() -> Array:
                return (gx + through_attention(here, kept, None, g)).astype(gy.dtype)

            if group.start:
                gx = below()
            elif len(group.layers) > 1:  # nothing is below the first layer
                gx = jax.lax.cond(k > 0, below, lambda: gy)
            return gx.astype(gy.dtype), g.transpose(0, 2, 3, 1)

        gy, of_group = jax.lax.scan(layer, gy, (group.numbers, layers), reverse=True)
        found.append(of_group)
    return tuple(reversed(found))


def through_merge(
    layer: ModelLayer, kept: LayerRun, rows: Int[Array, " m"], gy: Float[Array, "m outputs width"]
) -> tuple[Float[Array, "m outputs width"], Float[Array, "heads outputs m value_width"]]:
    """Returns the derivatives with respect to the rows' inputs and what they attended to."""

    def one(x: Array, b: Array, g: Array) -> tuple[Array, Array]:
        _, pull = jax.vjp(lambda x, b: layer.model.merge(layer.parameters, layer.k, x, b), x, b)
        return jax.vmap(pull)(g)

    gx, gb = over_rows(one, kept.x[rows], kept.b[:, rows].swapaxes(0, 1), gy, most=_many(*gy.shape[1:]))
    return gx, gb.transpose(2, 1, 0, 3)


def through_attention(
    layer: ModelLayer,
    kept: LayerRun,
    row: int | None,
    g: Float[Array, "heads outputs m value_width"],
) -> Float[Array, "n outputs width"]:
    """Returns the derivative with respect to the layer's input rows, from that with respect to b of all rows, or of the
    given one."""
    attention, outputs = layer.attention, g.shape[1]

    def one_head(given: tuple[Array, ...]) -> tuple[Array, Array, Array]:
        return _of_all_rows(layer, *given) if row is None else _of_one_row(layer, row, *given)

    of_heads = kept.queries, kept.keys, kept.values, kept.b, kept.normaliser
    gq, gk, gv = jax.lax.map(one_head, (jnp.arange(attention.heads), g, *of_heads))
    sharing = attention.heads // (attention.key_heads or attention.heads)
    gq, gk, gv = (
        part.reshape(-1, each, *part.shape[1:]).sum(1).transpose(2, 0, 1, 3)
        for part, each in ((gq, 1), (gk, sharing), (gv, sharing))
    )

    def one(x: Array, i: Array, gq: Array, gk: Array, gv: Array) -> Array:
        _, pull = jax.vjp(lambda row: layer.model.project(layer.parameters, layer.k, row, i), x)
        return jax.vmap(lambda *parts: pull(parts)[0], in_axes=1)(gq, gk, gv)

    return over_rows(one, kept.x, jnp.arange(layer.n), gq, gk, gv, most=_many(outputs, kept.x.shape[1]))


def _of_one_row(
    layer: ModelLayer,
    row: int,
    head: Int[Array, ""],
    g: Float[Array, "outputs 1 value_width"],
    q: Float[Array, "n head_width"],
    k: Float[Array, "n head_width"],
    v: Float[Array, "n value_width"],
    b: Float[Array, "n value_width"],
    normaliser: Float[Array, " n"],
) -> tuple[Array, Array, Array]:
    """Returns the derivatives (outputs, n, ...) with respect to one head's queries, keys and values, from one row's."""
    here, columns, attention = jnp.asarray([row]), jnp.arange(layer.n), layer.attention
    s, pull = jax.vjp(lambda q, k: layer.scores(head, q, k, here, columns), q[here], k)
    seen = attention.sees(here[:, None], columns[None, :])
    p, slope = _weights_and_slopes(attention.weighting, s, normaliser[here], seen)
    to_q, to_k = jax.vmap(pull)(slope * (g @ v.T + _offset(attention.weighting, g, b[here])))
    return jnp.zeros((g.shape[0], *q.shape), g.dtype).at[:, row].set(to_q[:, 0]), to_k, p[0][:, None] * g


def _offset(
    weighting: Weighting, g: Float[Array, "outputs m value_width"], b: Float[Array, "m value_width"]
) -> Float[Array, "outputs m 1"]:
    """Returns -g . b, or 0 for weights that other keys do not enter."""
    own = jnp.sum(g * b, axis=-1, keepdims=True)
    return jnp.zeros_like(own) if isinstance(weighting, Sigmoid) else -own


def _of_all_rows(
    layer: ModelLayer,
    head: Int[Array, ""],
    g: Float[Array, "outputs n value_width"],
    q: Float[Array, "n head_width"],
    k: Float[Array, "n head_width"],
    v: Float[Array, "n value_width"],
    b: Float[Array, "n value_width"],
    normaliser: Float[Array, " n"],
) -> tuple[Array, Array, Array]:
    """Returns the derivatives (outputs, n, ...) with respect to one head's queries, keys and values.

    A tile is transposed, keys by rows, which makes products for keys and values fast. With as many outputs as a
    head is wide, that for queries is g_j^T C_j, with C_j = sum_w p_jw (v_w - b_j) k_w^T shared by all outputs.
    """
    (outputs, n, width), attention, weighting = g.shape, layer.attention, layer.attention.weighting
    # One more column takes g . b off: (g, -g . b) . (v, 1).
    g = jnp.concatenate([g, _offset(weighting, g, b)], axis=-1)
    v = jnp.concatenate([v, jnp.ones_like(v[:, :1])], axis=-1)
    shared = outputs >= q.shape[1] and layer.bilinear
    pairs = (k[:, :, None] * v[:, None]).reshape(n, -1)

    def tile(rows: Array, new_rows: Array, columns: Array, new: Array, carry: tuple[Array, ...]) -> Any:
        """Adds the tile of these rows and keys; rows and keys seen before count 0. to_k and to_v are of the keys."""
        gq, to_k, to_v = carry
        q_rows, of_keys, normalisers = _part(q, rows), _part(k, columns), _part(normaliser, rows)
        s, pull = jax.vjp(lambda q, k: layer.scores(head, q, k, rows, columns), q_rows, of_keys)
        counted = attention.sees(rows[:, None], columns[None, :]) & new_rows[:, None] & new[None, :]
        p, slope = _weights_and_slopes(weighting, s, normalisers, counted)
        # Without a barrier, XLA would fold the transposition into products that are then several times slower.
        by_keys, turned = jax.lax.optimization_barrier((p.T, slope.T))
        values = _part(v, columns)
        factors = _factors(layer, rows, q.shape[1]).astype(q.dtype)[:, None] if layer.bilinear else 1.0

        def through(ds: Float[Array, "k m"]) -> tuple[Array, ...]:
            """From the tile's scores to its queries, unless they are shared, and to its keys."""
            if not layer.bilinear:
                return pull(ds.T)
            to_keys = ds @ (factors * q_rows)
            return (to_keys,) if shared else (factors * (of_keys.T @ ds).T, to_keys)

        def one(o: Array) -> tuple[Array, ...]:
            mine = jax.lax.dynamic_slice(g, (o, rows[0], 0), (1, len(rows), width + 1))[0]
            return *through(turned * (values @ mine.T)), by_keys @ mine[:, :width]

        *to_q, of_k, of_v = jax.lax.map(one, jnp.arange(outputs))
        own = slope @ _part(pairs, columns) if shared else to_q[0]
        gq = _added(gq, rows, own, axis=0 if shared else 1)
        return gq, to_k + of_k, to_v + of_v

    gq = jnp.zeros(pairs.shape if shared else (outputs, *q.shape), g.dtype)
    gk, gv = (jnp.zeros((outputs, n, part), g.dtype) for part in (k.shape[1], width))
    gq, gk, gv = _over_tiles(layer, tile, (gq, gk, gv))
    if shared:
        gq = jnp.einsum("rcx,orx->orc", gq.reshape(n, -1, width + 1), g)
        gq = gq * _factors(layer, jnp.arange(n), q.shape[1])[:, None]
    return gq, gk, gv


def _over_tiles(
    layer: ModelLayer, tile: Callable[..., tuple[Array, Array, Array]], total: tuple[Array, Array, Array]
) -> tuple[Array, Array, Array]:
    n = layer.n

    def of_keys(columns: Array, new: Array, carry: tuple[Array, ...]) -> tuple[Array, ...]:
        def of_rows(rows: Array, new_rows: Array, carry: Any) -> Any:
            return tile(rows, new_rows, columns, new, carry)

        gq, gk, gv = carry
        empty = (jnp.zeros((len(part), len(columns), part.shape[2]), part.dtype) for part in (gk, gv))
        seeing = layer.attention.rows_that_see((columns[0], columns[-1] + 1), n)
        gq, to_k, to_v = summed_over_blocks(of_rows, n, ROWS, (gq, *empty), seeing)
        return gq, _added(gk, columns, to_k, axis=1), _added(gv, columns, to_v, axis=1)

    gq, gk, gv = summed_over_blocks(of_keys, n, KEYS, total)
    return gq, gk, gv


def _part(whole: Float[Array, "n ..."], rows: Int[Array, " m"]) -> Float[Array, "m ..."]:
    """Returns successive rows, without a gather."""
    return jax.lax.dynamic_slice_in_dim(whole, rows[0], len(rows))


def _added(whole: Array, rows: Int[Array, " m"], part: Array, axis: int = 0) -> Array:
    """Returns the whole with a part added to successive rows."""
    old = jax.lax.dynamic_slice_in_dim(whole, rows[0], len(rows), axis)
    return jax.lax.dynamic_update_slice_in_dim(whole, old + part, rows[0], axis)


def _factors(layer: ModelLayer, rows: Int[Array, " m"], width: int) -> Float[Array, " m"]:
    """Returns the factor of each row's dot products in its scores."""
    weighting, scale = layer.attention.weighting, layer.attention.scale
    if not isinstance(weighting, Tempered):
        raise no_rule("the first-order engine", "weighting", weighting, ONE_MOVED_KEY)
    inverse = weighting.inverse_temperatures(rows, layer.n, jnp.result_type(float))
    return inverse * (width**-0.5 if scale is None else scale)


def _weights_and_slopes(
    weighting: Weighting, s: Float[Array, "m k"], normaliser: Float[Array, " m"], counted: Bool[Array, "m k"]
) -> tuple[Float[Array, "m k"], Float[Array, "m k"]]:
    """Returns the weights of the keys that count, and the factor of the derivative with respect to their scores."""
    if isinstance(weighting, Sigmoid):
        p = jnp.where(counted, jax.nn.sigmoid(s), 0)
        return p, p * jax.nn.sigmoid(-s)
    p = jnp.where(counted, jnp.exp(jnp.where(counted, s - normaliser[:, None], 0)), 0)
    return p, p


def _many(outputs: int, width: int) -> int:
    """Rows whose per-row derivatives are taken at once: each has as many as there are outputs."""
    return max(1, min(2**12, compiled_for().mapped_rows(width) or 2**12) // outputs)
