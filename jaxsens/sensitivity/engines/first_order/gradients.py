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

from jaxsens.models.parts.weighting import Sigmoid, Weighting
from jaxsens.models.transformer.layered import Layered, ModelLayer
from jaxsens.sensitivity.engines.one_key.blocks import TILE, summed_over_blocks
from jaxsens.sensitivity.engines.one_key.run import LayerRun, Run

ROWS = 256
"""Query rows of a tile."""

Read = Callable[[Float[Array, " width"]], Float[Array, " outputs"]]


def attended_gradients(
    model: Layered, parameters: Any, kept: Run, row: int | None, read: Read
) -> tuple[Float[Array, "n heads outputs value_width"], ...]:
    """Returns the derivative of `read` of the output row with respect to b, in all layers that other rows pass on.

    With a readout row, those are all layers but the last, where only that row counts. With a mean over rows (`row` is
    None), `read` is the function of one row whose mean is the output, or a function of it, and all layers count.

    O(layers n^2 outputs width) operations; the result takes n width outputs numbers a layer.
    """
    last, n = model.layers - 1, kept.y.shape[0]
    layers = [ModelLayer(model, parameters, k, n) for k in range(model.layers)]
    if row is None:
        outputs = jax.eval_shape(read, kept.y[0]).size
        gy = jax.lax.map(jax.jacrev(read), kept.y, batch_size=_many(outputs)) / n
    else:
        only = jnp.asarray([row])
        gy = jax.jacrev(read)(kept.y[row])[None]
        gx, g = through_merge(layers[last], kept.layers[last], only, gy)
        if last == 0:
            return ()
        gx = jnp.zeros((n, *gx.shape[1:]), gx.dtype).at[row].set(gx[0])
        gy = gx + through_attention(layers[last], kept.layers[last], only, g)
        last -= 1
    everywhere, found = jnp.arange(n), []
    for k in range(last, -1, -1):
        gx, g = through_merge(layers[k], kept.layers[k], everywhere, gy)
        found.append(g)
        if k:
            gy = gx + through_attention(layers[k], kept.layers[k], everywhere, g)
    return tuple(reversed(found))


def through_merge(
    layer: ModelLayer, kept: LayerRun, rows: Int[Array, " m"], gy: Float[Array, "m outputs width"]
) -> tuple[Float[Array, "m outputs width"], Float[Array, "m heads outputs value_width"]]:
    """Returns the derivatives with respect to the rows' inputs and what they attended to."""

    def one(given: tuple[Array, Array, Array]) -> tuple[Array, Array]:
        x, b, g = given
        _, pull = jax.vjp(lambda x, b: layer.model.merge(layer.parameters, layer.k, x, b), x, b)
        return jax.vmap(pull)(g)

    outputs = gy.shape[1]
    gx, gb = jax.lax.map(one, (kept.x[rows], kept.b[:, rows].swapaxes(0, 1), gy), batch_size=_many(outputs))
    return gx, gb.swapaxes(1, 2)


def through_attention(
    layer: ModelLayer, kept: LayerRun, rows: Int[Array, " m"], g: Float[Array, "m heads outputs value_width"]
) -> Float[Array, "n outputs width"]:
    """Returns the derivative with respect to the layer's input rows, from that with respect to b of some rows."""
    attention, outputs = layer.attention, g.shape[2]

    def one_head(given: tuple[Array, ...]) -> tuple[Array, Array, Array]:
        return _one_head(layer, rows, *given)

    of_heads = kept.queries, kept.keys, kept.values, kept.b, kept.normaliser
    gq, gk, gv = jax.lax.map(one_head, (jnp.arange(attention.heads), g.swapaxes(0, 1), *of_heads))
    sharing = attention.heads // (attention.key_heads or attention.heads)
    gq, gk, gv = (
        part.reshape(-1, each, *part.shape[1:]).sum(1).swapaxes(0, 1)
        for part, each in ((gq, 1), (gk, sharing), (gv, sharing))
    )

    def one(given: tuple[Array, ...]) -> Array:
        x, i, gq, gk, gv = given
        _, pull = jax.vjp(lambda row: layer.model.project(layer.parameters, layer.k, row, i), x)
        return jax.vmap(lambda *parts: pull(parts)[0], in_axes=1)(gq, gk, gv)

    return jax.lax.map(one, (kept.x, jnp.arange(layer.n), gq, gk, gv), batch_size=_many(outputs))


def _one_head(
    layer: ModelLayer,
    rows: Int[Array, " m"],
    head: Int[Array, ""],
    g: Float[Array, "m outputs value_width"],
    q: Float[Array, "n head_width"],
    k: Float[Array, "n head_width"],
    v: Float[Array, "n value_width"],
    b: Float[Array, "n value_width"],
    normaliser: Float[Array, " n"],
) -> tuple[Array, Array, Array]:
    """Returns the derivatives (n, outputs, ...) with respect to one head's queries, keys and values."""
    n, m, outputs = q.shape[0], rows.shape[0], g.shape[1]
    attention = layer.attention
    single = isinstance(attention.weighting, Sigmoid)
    offset = jnp.zeros_like(g[..., 0]) if single else jnp.sum(g * b[rows][:, None], axis=-1)

    def tile(own: Array, new_rows: Array, columns: Array, new: Array, carry: tuple[Array, ...]) -> Any:
        """Adds the tile of the rows `rows[own]` and the keys `columns`; rows and keys seen before count 0."""
        gq, gk, gv = carry
        here = rows[own]

        def scores_of(q: Array, k: Array) -> Array:
            return layer.scores(head, q, k, here, columns)

        s, pull = jax.vjp(scores_of, q[here], k[columns])
        counted = attention.sees(here[:, None], columns[None, :]) & new_rows[:, None] & new[None, :]
        p, slope = _weights_and_slopes(attention.weighting, s, normaliser[here], counted)
        mine = g[own]
        passed = jnp.einsum("rw,rov->wov", p, mine)

        def one(given: tuple[Array, Array]) -> tuple[Array, Array]:
            of_output, at_b = given
            return pull(slope * (of_output @ v[columns].T - at_b[:, None]))

        to_q, to_k = jax.lax.map(one, (mine.swapaxes(0, 1), offset[own].T))
        return (
            gq.at[own].add(to_q.swapaxes(0, 1)),
            gk.at[columns].add(to_k.swapaxes(0, 1)),
            gv.at[columns].add(passed),
        )

    def of_rows(own: Array, new_rows: Array, carry: Any) -> Any:
        def of_keys(columns: Array, new: Array, carry: Any) -> Any:
            return tile(own, new_rows, columns, new, carry)

        seen = attention.keys_seen_by((jnp.min(rows[own]), jnp.max(rows[own]) + 1), n)
        return summed_over_blocks(of_keys, n, max(ROWS, TILE // min(ROWS, m)), carry, seen)

    start = tuple(
        jnp.zeros((count, outputs, like.shape[1]), g.dtype) for count, like in ((m, q), (n, k), (n, v))
    )
    gq, gk, gv = summed_over_blocks(of_rows, m, ROWS, start)
    return jnp.zeros((n, *gq.shape[1:]), gq.dtype).at[rows].set(gq), gk, gv


def _weights_and_slopes(
    weighting: Weighting, s: Float[Array, "m k"], normaliser: Float[Array, " m"], counted: Bool[Array, "m k"]
) -> tuple[Float[Array, "m k"], Float[Array, "m k"]]:
    """Returns the weights of the keys that count, and the factor of the derivative with respect to their scores."""
    if isinstance(weighting, Sigmoid):
        p = jnp.where(counted, jax.nn.sigmoid(s), 0)
        return p, p * jax.nn.sigmoid(-s)
    p = jnp.where(counted, jnp.exp(jnp.where(counted, s - normaliser[:, None], 0)), 0)
    return p, p


def _many(outputs: int) -> int:
    """Rows whose per-row derivatives are taken at once."""
    return max(1, 2**12 // outputs)
