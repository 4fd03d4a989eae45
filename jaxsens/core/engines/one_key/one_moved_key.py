"""What other rows pass on when one key and its value move: `engines.md`'s closed form, for many flips and rows at once.

With p the old weight of key i in row j, c = 1 - p that of the other keys, whose weighted mean of values is r, and s'
the new score, the new weight is p' = w / (1 + w), w = exp(s') / (the other keys' exponentials), and

    b_j' - b_j = (p' - p) (v_i - r) + p' Dv_i,       v_i - r = (v_i - b_j) / c.

Both quotients lose digits as p nears 1. There, r and the other keys' sum come from the unflipped run, which kept them.

In sigmoid attention no other key counts, which is the same with r = 0: b_j' - b_j = (p' - p) v_i + p' Dv_i.

The flipped row itself, whose query moves too, is followed exactly.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxsens.core.engines.one_key.run import TILE, LayerRun, rows_of_tile, summed_over_blocks
from jaxsens.core.models.parts.weighting import Sigmoid
from jaxsens.core.models.transformer.layered import Index, ModelLayer, Places, Projections, Queries, over_rows

Number: TypeAlias = Float[Array, "*shape"]
Flips: TypeAlias = Int[Array, " flips"]
"""The positions of flips."""

KeysOfFlips: TypeAlias = Float[Array, "flips head_width"]
Table: TypeAlias = Float[Array, "m flips"]
"""A number of each row and flip."""

NEAR = 0.75
"""A weight above this belongs to a row's best key, whatever the rounding of scores."""

LEAST_ROWS = 16
"""Rows of a block whose changes are multiplied by gradients, at least."""

FAR = 0.9
"""Exponents are cut off at this share of the largest whose exponential is finite; there, w / (1 + w) is 1."""


def sigmoid_change(old: Number, new: Number, change: Number) -> tuple[Number, Number]:
    """Returns sigmoid(new) and sigmoid(new) - sigmoid(old), for a `change` more accurate than subtracting new - old.

    sigmoid(a) - sigmoid(b) = sigmoid(a) sigmoid(-b) (1 - e^(b - a)): three factors for a > b, each in [0, 1], none
    a difference. With exponentials of -|a| and -|b| nothing overflows, and sigmoid(a) is accurate for a << 0. An
    invisible key has the score -inf, and weights and a change of 0.
    """
    e_old, e_new = jnp.exp(-jnp.abs(old)), jnp.exp(-jnp.abs(new))
    r_old, r_new = 1 / (1 + e_old), 1 / (1 + e_new)
    at_new = r_new * jnp.where(new > 0, 1, e_new)
    rises = change > 0
    upper = jnp.where(rises, at_new, r_old * jnp.where(old > 0, 1, e_old))
    lower = jnp.where(rises, r_old * jnp.where(old > 0, e_old, 1), r_new * jnp.where(new > 0, e_new, 1))
    size = upper * lower * -jnp.expm1(-jnp.abs(change))
    return at_new, jnp.where(rises, size, -size)


def shares_moved(
    layer: ModelLayer,
    head: Index,
    of_rows: tuple[Array, Array, Array],
    rows: Places,
    positions: Flips,
    old: KeysOfFlips,
    new: KeysOfFlips,
) -> tuple[Table, Table, Table, Bool[Array, "m flips"]]:
    """Returns p' - p, c, p', and whether r is that of the unflipped run (p is near 1, or attention that of sigmoids),
    for the rows of one head and the keys at `positions`.

    All changes are 0 where the row does not see the key. `of_rows` holds the rows' queries and two normalisers.
    """
    q, normaliser, others_normaliser = of_rows
    weighting = layer.attention.weighting
    s = layer.scores(head, q, old, rows, positions)
    new_s = layer.scores(head, q, new, rows, positions)  # s + ds may have lost its digits
    steps = _steps(layer, head, q, old, new)
    seen = layer.attention.sees(rows[:, None], positions[None, :])
    if isinstance(weighting, Sigmoid):
        ds = steps * weighting.inverse_temperatures(rows, layer.n, s.dtype)[:, None]
        new_p, change = sigmoid_change(s, new_s, ds)
        return jnp.where(seen, change, 0), jnp.ones_like(s), jnp.where(seen, new_p, 0), seen
    ds = layer.tempered(steps, rows)
    p = jnp.exp(s - normaliser[:, None])
    near = p > NEAR
    c = jnp.where(near, jnp.exp(others_normaliser - normaliser)[:, None], 1 - p)
    exponent = new_s - jnp.where(near, others_normaliser[:, None], normaliser[:, None])
    far = FAR * math.log(float(jnp.finfo(s.dtype).max))
    w = jnp.exp(jnp.minimum(exponent, far)) / jnp.where(near, 1, c)
    new_p, new_c = w / (1 + w), 1 / (1 + w)
    size = -jnp.expm1(-jnp.abs(ds))
    change = jnp.where(ds > 0, new_p * c, -p * new_c) * size
    return jnp.where(seen, change, 0), jnp.where(seen, c, 1), jnp.where(seen, new_p, 0), near & seen


def _steps(layer: ModelLayer, head: Index, q: Queries, old: KeysOfFlips, new: KeysOfFlips) -> Table:
    """Returns the changes of one head's scores, before the temperature. Position scores do not change."""
    if not layer.bilinear:
        return layer.unplaced_scores(head, q, new) - layer.unplaced_scores(head, q, old)
    return layer.unplaced_scores(head, q, new - old)  # linear in the key: nothing cancels


def attended_by_moved_rows(
    layer: ModelLayer, trace: LayerRun, positions: Flips, moved: Projections
) -> Float[Array, "flips heads value_width"]:
    """Returns what each flipped row attends to: the old keys, with its own replaced. O(n width) a flip."""
    attention, columns = layer.attention, jnp.arange(layer.n)

    def one_head(arrays: tuple[Array, ...]) -> Array:
        head, keys, values, q, k, v = arrays

        def of_flip(*flip: Array) -> Array:
            i, q, k, v = (part[None] for part in flip)
            s = layer.scores(head, q, keys, i, columns)
            own = layer.scores(head, q, k, i, i)
            s = jnp.where(columns == i[:, None], own, s)
            seen = attention.sees(i[:, None], columns[None, :])
            shares, total = layer.weighting(head).shares(s, seen)
            weights = shares / total
            replaced = weights[0, i[0]]
            return (weights @ values + replaced * (v - values[i]))[0]

        return over_rows(of_flip, positions, q, k, v, most=max(1, TILE // layer.n))

    heads = jnp.arange(attention.heads), trace.keys, trace.values, *moved
    return jax.lax.map(one_head, heads).swapaxes(0, 1)


def changes_of_rows(
    layer: ModelLayer, trace: LayerRun, rows: Places, positions: Flips, moved: tuple[Array, Array]
) -> Float[Array, "flips m heads value_width"]:
    """Returns b' - b of some rows, exactly, for flips of other rows. `moved` holds their new keys and values.

    O(width) operations for each row and flip.
    """

    def one_head(arrays: tuple[Array, ...]) -> Array:
        head, q, keys, values, b, normaliser, others_normaliser, others, key, value = arrays
        old, old_value = keys[positions], values[positions]
        of_rows = q[rows], normaliser[rows], others_normaliser[rows]
        change, c, new, near = (
            part.T[..., None] for part in shares_moved(layer, head, of_rows, rows, positions, old, key)
        )
        old_value, value = old_value[:, None], value[:, None]
        mean = jnp.where(near, others[rows], b[rows])
        return change / jnp.where(near, 1, c) * (old_value - mean) + new * (value - old_value)

    heads = (jnp.arange(trace.queries.shape[0]), *_of_heads(trace), *moved)
    return jnp.moveaxis(jax.lax.map(one_head, heads), 0, 2)


def passed_on(
    layer: ModelLayer,
    trace: LayerRun,
    g: Callable[[Index, Index, int], Float[Array, "m value_width outputs"]],
    outputs: int,
    positions: Flips,
    moved: tuple[Array, Array],
) -> Float[Array, "flips outputs"]:
    """Returns sum_j g_j . (b_j' - b_j) over all rows j other than the flipped one, and over heads.

    The changes of a block of rows, as in `changes_of_rows`, stay in cache for a matrix product with their gradients. It
    costs 2 n outputs width operations a flip, besides some thirty per row and head for the weights and four per row
    and width. `g(head, first, m)` returns the gradients of m rows from `first` on.
    """
    n, flips, attention = layer.n, positions.shape[0], layer.attention
    seeing = attention.rows_that_see((jnp.min(positions), jnp.max(positions) + 1), n)
    width = trace.values.shape[2]
    size = min(rows_of_tile(attention, n, flips), max(LEAST_ROWS, TILE // (flips * width)))

    def one_head(total: Array, arrays: tuple[Array, ...]) -> tuple[Array, None]:
        head, q, keys, values, b, normaliser, others_normaliser, others, key, value = arrays
        old, old_value = keys[positions], values[positions]
        old_value, dvalue = old_value.T, (value - old_value).T

        def rows(block: Array, new_rows: Array, total: Array) -> Array:
            first, m = block[0], len(block)
            part = partial(jax.lax.dynamic_slice_in_dim, start_index=first, slice_size=m)
            of_rows = part(q), part(normaliser), part(others_normaliser)
            change, c, new, near = shares_moved(layer, head, of_rows, block, positions, old, key)
            counted = new_rows[:, None] & (block[:, None] != positions)
            change = jnp.where(counted, change / jnp.where(near, 1, c), 0)
            new = jnp.where(counted, new, 0)
            # Of v_i - mean, v_i stands with the change of its weight, and the mean is in two products of its own.
            db = change[:, None] * old_value + new[:, None] * dvalue
            mine = g(head, first, m)
            at_b, at_others = (jnp.einsum("jvo,jv->oj", mine, part(mean)) for mean in (b, others))
            means = at_b @ jnp.where(near, 0, change) + at_others @ jnp.where(near, change, 0)
            return total - means + mine.reshape(m * width, outputs).T @ db.reshape(m * width, flips)

        return summed_over_blocks(rows, n, size, total, seeing), None

    heads = jnp.arange(trace.queries.shape[0]), *_of_heads(trace), *moved
    return jax.lax.scan(one_head, jnp.zeros((outputs, flips), trace.b.dtype), heads)[0].T


def _of_heads(run: LayerRun) -> tuple[Array, ...]:
    return (run.queries, run.keys, run.values, run.b, run.normaliser, run.others_normaliser, run.others)
