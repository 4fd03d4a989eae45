"""The change of hard attention when one key changes and the query does not: a comparison with the best other key.

Each row's two best levels are computed in advance, so that the best of the keys other than i is known for every i. All
comparisons in a flip are between scores computed by one operation, so equal keys tie exactly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxsens.core.base.errors import no_rule
from jaxsens.core.base.programs import compiled_for
from jaxsens.core.engines.difference.moved import HeadsMoved, Index, Numbers, Rows, TracedLayer
from jaxsens.core.engines.difference.rules import size, unit
from jaxsens.core.models.parts.choices import weighted_sums
from jaxsens.core.models.parts.masks import visible
from jaxsens.core.models.parts.weighting import (
    AverageHard,
    HardWeighting,
    LeftmostHard,
    RightmostHard,
    Weighting,
)
from jaxsens.core.models.transformer.config import LayerConfig
from jaxsens.core.models.transformer.trace import in_blocks, rows_at_once

HeadVectors: TypeAlias = Float[Array, "heads head_width"]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Levels:
    """The winners of each row, and the keys that win without them.

    For leftmost and rightmost hardmax a level is one key, for average hardmax all keys that share the largest score.

    Attributes:
        key: a key of the best and of the next level; -1 where it is empty.
        count: the number of keys in either.
        sum: the sum of their values.
        spread: that sum, with each value less that of `key`: exactly 0 where they are equal.
    """

    key: Int[Array, "2 heads n"]
    count: Int[Array, "2 heads n"]
    sum: Float[Array, "2 heads n head_width"]
    spread: Float[Array, "2 heads n head_width"]


def _chosen(layer: LayerConfig, s: Float[Array, "*rows n"]) -> Bool[Array, "*rows n"]:
    """Returns the keys of the best level among scores, where -inf marks missing keys."""
    if not isinstance(layer.weighting, HardWeighting):
        raise no_rule("the change of hard attention", "weighting", layer.weighting, (HardWeighting,))
    return layer.weighting.winners((s == jnp.max(s, axis=-1, keepdims=True)) & (s > -jnp.inf))


def _precedes(
    weighting: Weighting, position: Index, key: Int[Array, "heads m"]
) -> Bool[Array, "heads m"] | None:
    """Returns whether `position` wins a tie with `key`; None if the two share the weight."""
    match weighting:
        case LeftmostHard():
            return position < key
        case RightmostHard():
            return position > key
        case AverageHard():
            return None
        case other:
            kinds = (LeftmostHard, RightmostHard, AverageHard)
            raise no_rule("the change of hard attention", "weighting", other, kinds)


def levels_of(layer: TracedLayer, row: int | None = None) -> Levels:
    """`Levels` for all rows, O(H n^2 head_width) once an input, in blocks; or for one `row` alone, 0 in the others.

    On CPU a block's scores stay in cache: they are read a dozen times.
    """
    config, trace, n = layer.config, layer.trace, layer.n

    def of_level(level: Bool[Array, "heads m n"]) -> tuple[Array, ...]:
        key = jnp.where(jnp.any(level, -1), jnp.argmax(level, -1), -1)
        alone = jnp.take_along_axis(trace.values, jnp.maximum(key, 0)[..., None], axis=1)
        if not isinstance(config.weighting, AverageHard):
            # The value of the one key, without a pass over all keys.
            total, spread = jnp.where((key >= 0)[..., None], alone, 0), jnp.zeros_like(alone)
        else:
            total = weighted_sums(level.astype(trace.values.dtype), trace.values, True)
            spread = jnp.sum(level[..., None] * (trace.values[:, None] - alone[:, :, None]), axis=-2)
        return key, jnp.sum(level, -1), total, spread

    def rows(block: Array) -> tuple[Array, ...]:
        s, seen = layer.row_scores(block)
        s = jnp.where(seen, s, -jnp.inf)
        first = _chosen(config, s)
        second = _chosen(config, jnp.where(first, -jnp.inf, s))
        return jax.tree.map(lambda *both: jnp.stack(both), of_level(first), of_level(second))

    cached = compiled_for().cached_scores
    size = rows_at_once(config.heads * n, False) if cached is None else max(1, cached // (config.heads * n))
    return Levels(*in_blocks(rows, n, size, axis=2, only=row))


def one_key_change_hard(
    layer: TracedLayer,
    levels: Levels,
    rows: Rows,
    position: Index,
    new_key: HeadVectors,
    new_value: HeadVectors,
    dv: HeadsMoved,
) -> HeadsMoved:
    """Returns Db and b' of the `rows` when the key at `position` becomes `new_key` and its value changes by dv.

    The new value is `new_value`. The row `position` itself must not be among the rows. Where two scores that decide
    differ by less than their rounding, the choice is in doubt, and the error is that of the other one.
    """
    config, trace = layer.config, layer.trace
    first, second = levels.key[:, :, rows]
    seen = jnp.broadcast_to(visible(config.mask, rows, position), first.shape)
    before, after, one, two = _four_scores(layer, rows, position, new_key, first, second)
    in_first = (before == one) & seen
    if not isinstance(config.weighting, AverageHard):  # one key alone has the weight
        in_first = in_first & (first == position)
    alone = in_first & (levels.count[0][:, rows] == 1)

    # The best level among the keys other than i: its score, one of its keys, their number, their values' sum.
    value = trace.values[:, position][:, None]
    score, key = jnp.where(alone, two, one), jnp.where(alone, second, first)
    less, chosen = (in_first & ~alone).astype(value.dtype), alone[..., None]
    count = jnp.where(alone, *levels.count[::-1, :, rows]).astype(value.dtype) - less
    less = less[..., None]
    total = jnp.where(chosen, *levels.sum[::-1, :, rows]) - less * value
    others = total / jnp.maximum(count, 1)[..., None]

    empty = key < 0
    wins = seen & ((after > score) | empty)
    ties = seen & (after == score) & ~empty
    precedes = _precedes(config.weighting, position, key)
    if precedes is not None:
        wins, ties = wins | (ties & precedes), jnp.zeros_like(ties)
    joined = 1 / (count + 1)
    new = jnp.where(ties[..., None], (total + new_value[:, None]) * joined[..., None], others)
    new = jnp.where(wins[..., None], new_value[:, None], new)
    new = jnp.where((~wins & empty)[..., None], 0, new)

    # Old and new output relative to the mean of the others: (weight of i) (v_i - rest), exact where i is not chosen.
    # v_i - rest is taken relative to one of the others' values, so that equal values leave nothing.
    now = jnp.where(wins, 1, jnp.where(ties, joined, 0))
    ago = jnp.where(alone, 1, jnp.where(in_first, joined, 0))
    other = jnp.take_along_axis(trace.values, jnp.maximum(key, 0)[..., None], axis=1)
    spread = jnp.where(chosen, *levels.spread[::-1, :, rows])
    apart = (value - other) - (spread - less * (value - other)) / jnp.maximum(count, 1)[..., None]
    change = (now - ago)[..., None] * apart + now[..., None] * dv.db
    lone = (empty & seen)[..., None]
    change = jnp.where(lone, dv.db, change)
    doubtful = seen & (_close(after, score) | _close(before, score) | _close(before, one))
    u = unit(change.dtype, len(trace.x))
    rounding = u * (size(value) + size(other)) * (size(apart) > 0)
    error = jnp.abs(now - ago) * rounding + jnp.maximum(now, lone[..., 0]) * (dv.error + u * size(dv.db))
    error = error + jnp.where(doubtful, size(apart) + size(dv.db), 0)
    new = jnp.where(seen[..., None], new, trace.b[:, rows])
    return HeadsMoved(jnp.where(seen[..., None], change, 0), jnp.where(seen, error, 0), new)


def _close(score: Numbers, other: Numbers) -> Bool[Array, "heads m"]:
    """Returns whether two scores differ, but by no more than rounding."""
    finite = jnp.isfinite(score) & jnp.isfinite(other)
    margin = unit(score.dtype) * jnp.maximum(jnp.abs(score), jnp.abs(other))
    return finite & (score != other) & (jnp.abs(score - other) <= margin)


def _four_scores(
    layer: TracedLayer, rows: Array, position: Array, new_key: Array, first: Array, second: Array
) -> tuple[Array, Array, Array, Array]:
    """Returns each row's scores with key i before and after, and with one key of each level, by one operation."""
    trace = layer.trace

    def one_row(row: Array, one: Array, two: Array) -> Array:
        q = trace.queries[:, row][:, None]
        places = jnp.stack([jnp.full_like(one, position), jnp.full_like(one, position), one, two], axis=1)
        keys = (
            jnp.take_along_axis(trace.keys, jnp.maximum(places, 0)[..., None], axis=1).at[:, 1].set(new_key)
        )

        return layer.scores(q, keys, row[None], jnp.maximum(places, 0)[:, None])[:, 0]

    four = jax.vmap(one_row, in_axes=(0, 1, 1), out_axes=1)(rows, first, second)
    before, after, one, two = (four[..., c] for c in range(4))
    return before, after, jnp.where(first < 0, -jnp.inf, one), jnp.where(second < 0, -jnp.inf, two)
