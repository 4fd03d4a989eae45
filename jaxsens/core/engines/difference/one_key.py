"""The change of softmax attention when one key changes and the query does not: a closed form, O(head_width) per row.

With lambda the log-normaliser of a row's other keys and a = s - lambda, the changed key's weight
goes from p = sigmoid(a) to p' = sigmoid(a + ds). With r the value of the heaviest other key, u_i = v_i - r, and D the
other keys' weighted mean of v_k - r, the head's output changes by

    b' - b = (p' - p) (u_i - D) + p' Dv_i  =  p' (u'_i - D) - p (u_i - D) .

Of the two forms the one with the smaller terms is taken. Differences of values are formed in float64 before anything is
rounded, and are exactly 0 for rows that hold the same symbol at equal position embeddings. So nothing cancels where
nearly all weight is on keys of one value.

lambda = lse + log1p(-p) and D = (D_all - p u_i) / (1 - p) lose digits as p approaches 1. Only a row's best key can
have p > 1/2, so for that key both are computed in full beforehand, without it (`OtherKeys`).

A sink is one of the other keys, with a score that never changes and the value 0. In sigmoid attention no weights
compete: there lambda = 0, r = 0 and D = 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxsens.core.engines.difference.attention import (
    WeightsMoved,
    pulled_error,
    pulled_of_row,
    score_change,
    score_error,
    weights_moved,
)
from jaxsens.core.engines.difference.moved import Bound, Heads, HeadsMoved, Numbers, Rows, TracedLayer
from jaxsens.core.engines.difference.rules import cancelled, log1p, size, tied, too_large, unit
from jaxsens.core.engines.one_key.one_moved_key import sigmoid_change
from jaxsens.core.models.parts.choices import first_largest, products_summed, weighted_sums
from jaxsens.core.models.parts.masks import visible
from jaxsens.core.models.parts.weighting import SinkSoftmax, sink_score
from jaxsens.core.models.transformer.trace import LayerTrace, in_blocks, rows_at_once, weighting_of


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class FirstRows:
    """What tells rows of the first layer apart; with a sink one more, of symbol -1, at the end.

    Attributes:
        symbols: the tokens.
        places: two numbers for every position; positions of equal numbers have equal position embeddings.
    """

    symbols: Int[Array, " keys"]
    places: Int[Array, "keys 2"]

    def same(self, key: Int[Array, "*rows"], other: Int[Array, "*rows"]) -> Bool[Array, "*rows"]:
        """Returns whether two keys are of equal rows."""
        return self.holds(key, self.symbols[key], other)

    def holds(
        self, position: Int[Array, "*rows"], symbol: Int[Array, "*rows"], other: Int[Array, "*rows"]
    ) -> Bool[Array, "*rows"]:
        """Returns whether a symbol at a position makes a row equal to another key's."""
        placed = jnp.all(self.places[position] == self.places[other], axis=-1)
        return (symbol == self.symbols[other]) & placed


def first_rows(tokens: Int[Array, " n"], positions: Float[Array, "n width"], sink: bool) -> FirstRows:
    """Returns which rows are equal, from the tokens and the embeddings of their positions.

    Position embeddings are told apart by two numbers each, fixed irrational combinations of their entries. Of thousands
    of positions, some have one of them in common in float32.
    """

    def ranks(irrational: float) -> Int[Array, " n"]:
        squares = jnp.arange(1, positions.shape[1] + 1) ** 2
        codes = jnp.sum(positions * jnp.cos(squares * jnp.asarray(irrational, positions.dtype)), axis=-1)
        return jnp.searchsorted(jnp.sort(codes), codes)

    places = jnp.stack([ranks(math.sqrt(2)), ranks(math.sqrt(3))], axis=-1)
    if sink:
        tokens, places = jnp.append(tokens, -1), jnp.append(places, jnp.full((1, 2), -1), axis=0)
    return FirstRows(tokens, places)


class KeyMoved(NamedTuple):
    """The key and value of a flipped position: its new symbol, and the changes (heads, 1, head_width)."""

    position: Int[Array, ""]
    symbol: Int[Array, ""]
    dk: HeadsMoved
    dv: HeadsMoved


class Pull(NamedTuple):
    """A key's value less a reference, before and after the flip, with the errors of both."""

    old: Heads
    new: Heads
    old_error: Numbers
    new_error: Numbers


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class OtherKeys:
    """For each row: its best key, and what the row attends to without it.

    With a sink, it is one of the keys, number n, of the value 0.

    Attributes:
        best, second: the best key, and the best of the others.
        best_score, second_score: their scores.
        normaliser: the log-normaliser of the keys other than the best.
        mean: their weighted mean of values, less the value of the second-best.
        pull: the weighted mean of all values, less the value of the best.
        mean_error, pull_error: their errors, before they are rounded to the dtype they are kept in.
        values: the keys' values, less that of the last position, in which two equal rows are bitwise equal.
        value_error: the largest error of these, before they are rounded.
        rows: which rows are equal.
    """

    best: Int[Array, "heads n"]
    second: Int[Array, "heads n"]
    best_score: Float[Array, "heads n"]
    second_score: Float[Array, "heads n"]
    normaliser: Float[Array, "heads n"]
    mean: Float[Array, "heads n head_width"]
    mean_error: Float[Array, "heads n"]
    pull: Float[Array, "heads n head_width"]
    pull_error: Float[Array, "heads n"]
    values: Float[Array, "heads keys head_width"]
    value_error: Float[Array, " heads"]
    rows: FirstRows

    def pull_of(self, flip: KeyMoved, reference: Int[Array, "heads m"]) -> Pull:
        """Returns the flipped key's value less those of the reference keys, before and after."""
        own = self.values[:, flip.position][:, None]
        other = jnp.take_along_axis(self.values, reference[..., None], axis=1)
        old, u = own - other, unit(own.dtype)
        error = u * (size(own) + size(other)) + self.value_error[:, None]
        was = self.rows.same(flip.position, reference)
        is_now = self.rows.holds(flip.position, flip.symbol, reference)
        return Pull(
            jnp.where(was[..., None], 0, old),
            jnp.where(is_now[..., None], 0, jnp.where(was[..., None], 0, old) + flip.dv.db),
            jnp.where(was, 0, error),
            jnp.where(is_now, 0, jnp.where(was, 0, error) + flip.dv.error + u * size(flip.dv.db)),
        )


def other_keys_of(layer: TracedLayer, equal: FirstRows, row: int | None = None) -> OtherKeys:
    """`OtherKeys` for all rows, O(H n^2 head_width) once an input, in blocks; or for one `row` alone, else 0."""
    trace, n, dtype = layer.trace, layer.n, layer.trace.x.dtype
    sink = sink_score("the change of a softmax", weighting_of(layer.config, layer.parameters))
    values = trace.values - trace.values[:, -1:]
    has_sink = isinstance(layer.config.weighting, SinkSoftmax)
    if has_sink:
        values = jnp.concatenate([values, -trace.values[:, -1:]], axis=1)
    keys, sizes = jnp.arange(values.shape[1]), size(values)
    value_error = unit(dtype) * jnp.max(size(trace.values), axis=1)

    def mean_of(s: Array, reference: Array) -> tuple[Array, Array]:
        """The weighted mean of the values less the reference's, over the keys whose value is another, and its error."""
        best = jnp.max(s, axis=-1, keepdims=True)
        powers = jnp.exp(s - jnp.where(best > -jnp.inf, best, 0))
        total = jnp.maximum(jnp.sum(powers, axis=-1, keepdims=True), jnp.finfo(dtype).tiny)
        weight = jnp.where(equal.same(keys, reference[..., None]), 0, powers / total)
        other = jnp.take_along_axis(values, reference[..., None], axis=1)
        mean = weighted_sums(weight, values, False) - jnp.sum(weight, axis=-1, keepdims=True) * other
        rounding = unit(dtype, n) * (1 + jnp.where(weight > 0, jnp.abs(s), 0))
        error_bound = rounding * (sizes[:, None] + size(other)[..., None]) + value_error[:, None, None]
        return mean, products_summed(weight, error_bound)

    def rows(block: Array) -> tuple[Array, ...]:
        s, seen = layer.row_scores(block)
        s = jnp.where(seen, s, -jnp.inf)
        if has_sink:
            s = jnp.concatenate([s, jnp.full_like(s[..., :1], sink)], axis=-1)
        best = first_largest(s)
        others = jnp.where(keys == best[..., None], -jnp.inf, s)
        second = first_largest(others)
        highest = jnp.max(s, axis=-1), jnp.max(others, axis=-1)
        mean, pull = mean_of(others, second), mean_of(s, best)
        return best, second, *highest, jax.nn.logsumexp(others, axis=-1), *mean, *pull

    of_rows = in_blocks(rows, n, rows_at_once(layer.config.heads * n, False), axis=1, only=row)
    return OtherKeys(*of_rows, values=values, value_error=value_error, rows=equal)


def one_key_change(layer: TracedLayer, others: OtherKeys | None, rows: Rows, flip: KeyMoved) -> HeadsMoved:
    """Returns Db of the `rows`, other than the flipped one, when the key and value at one position change.

    `others` is None in sigmoid attention, where no other key enters a weight: their log-normaliser and mean are 0.
    """
    trace, position = layer.trace, flip.position
    q, key = trace.queries[:, rows], trace.keys[:, position][:, None]
    s = layer.scores(q, key, rows, position[None])[..., 0]
    ds = score_change(layer, q, None, key, flip.dk.db, rows)[..., 0]
    es = score_error(layer, size(q), None, size(key), Bound.of(flip.dk), rows)[..., 0]
    u, lost, none = unit(s.dtype), too_large(ds), jnp.zeros_like(s)
    if others is None:
        value = trace.values[:, position][:, None]
        normaliser, part = none, u * (1 + jnp.abs(s))
        pull = Pull(value, value + flip.dv.db, none, flip.dv.error)
    else:
        is_best = others.best[:, rows] == position
        other = jnp.where(is_best, others.second_score[:, rows], others.best_score[:, rows])
        largest = jnp.maximum(jnp.abs(s), jnp.abs(ds))
        lost = lost | tied(s, other, largest) | tied(s + ds, other, largest)
        normaliser, part, pull = _beside_others(trace, others, rows, flip, s)
    ahead = s - normaliser
    new, change = sigmoid_change(ahead, ahead + ds, ds)
    old = jax.nn.sigmoid(ahead)
    slope = jnp.maximum(old * (1 - old), new * (1 - new))
    error = jnp.abs(change) * part + slope * (es + u * jnp.abs(ds))
    # If the dtype cannot represent the new weight accurately, the flip is declined.
    lost = lost | cancelled(s, ds, new)
    moved = key_term((old, jnp.where(lost, jnp.nan, new), change), error, pull, flip.dv, part)
    seen = visible(layer.config.mask, rows, position)
    return HeadsMoved(jnp.where(seen[:, None], moved.db, 0), jnp.where(seen, moved.error, 0))


def _beside_others(
    trace: LayerTrace, others: OtherKeys, rows: Rows, flip: KeyMoved, s: Numbers
) -> tuple[Numbers, Numbers, Pull]:
    """Returns the log-normaliser of the other keys in some rows, the error of the flipped key's weight as a part of it,
    from its scores `s`, and its value less the mean of the others."""
    is_best = others.best[:, rows] == flip.position
    # A key that is not the best has p <= 1/2, up to the rounding of scores: these are bounded, or else do not tie.
    small = jnp.where(is_best, 0, jnp.exp(s - trace.normaliser[:, rows]))
    normaliser = jnp.where(is_best, others.normaliser[:, rows], trace.normaliser[:, rows] + log1p(-small))
    pull = others.pull_of(flip, jnp.where(is_best, others.second[:, rows], others.best[:, rows]))
    u = unit(s.dtype)
    part = u * (1 + jnp.abs(s) + jnp.where(jnp.isfinite(normaliser), jnp.abs(normaliser), 0))
    left = (others.pull[:, rows] - small[..., None] * pull.old) / (1 - small)[..., None]
    left_error = others.pull_error[:, rows] + u * size(others.pull[:, rows])
    left_error = (left_error + small * (part * size(pull.old) + pull.old_error)) / (1 - small)
    mean = jnp.where(is_best[..., None], others.mean[:, rows], left)
    error = jnp.where(is_best, others.mean_error[:, rows] + u * size(others.mean[:, rows]), left_error)
    pull = Pull(pull.old - mean, pull.new - mean, pull.old_error + error, pull.new_error + error)
    return normaliser, part, pull


def key_term(
    weights: tuple[Numbers, Numbers, Numbers], error: Numbers, pull: Pull, dv: HeadsMoved, part: Numbers
) -> HeadsMoved:
    """Returns p' u' - p u of one key, from its weights p and p' and p' - p, by the form whose bound is smaller:

        (p' - p) u + p' Dv     or     p' u' - p u .

    `error` is that of the weight's change; `part` is the error of a weight as a part of it.
    """
    (old, new, change), u = weights, unit(weights[0].dtype)
    sizes = size(pull.old), size(pull.new), size(dv.db)
    difference = jnp.abs(change) * sizes[0] + new * sizes[2]
    plain = new * sizes[1] + old * sizes[0]
    error_bound = error * sizes[0] + jnp.abs(change) * pull.old_error + new * (dv.error + part * sizes[2])
    plain_bound = new * (part * sizes[1] + pull.new_error)
    plain_bound = plain_bound + old * (part * sizes[0] + pull.old_error) + error * sizes[1]
    bounds = plain_bound + u * plain, error_bound + u * difference
    by_parts = bounds[0] < bounds[1]
    db = jnp.where(
        by_parts[..., None],
        new[..., None] * pull.new - old[..., None] * pull.old,
        change[..., None] * pull.old + new[..., None] * dv.db,
    )
    tiny = jnp.finfo(change.dtype).tiny * (sizes[0] + sizes[2])  # what a weight that underflows would pull
    return HeadsMoved(db, jnp.where(by_parts, *bounds) + tiny)


def own_row(layer: TracedLayer, other_keys: OtherKeys | None, flip: KeyMoved, dq: HeadsMoved) -> HeadsMoved:
    """Returns Db of the flipped row of the first layer, whose own query, key and value change. O(n d).

    `other_keys` is None for sigmoid attention, whose weights do not compete.
    """
    trace, position = layer.trace, flip.position
    rows = position[None]
    q, key = trace.queries[:, rows], trace.keys[:, rows]
    ds = score_change(layer, q, dq.db, trace.keys, None, rows)
    own = score_change(layer, q, dq.db, key, flip.dk.db, rows)
    here = jnp.arange(layer.n) == position  # not scattered: scatters are not fused with what surrounds them
    ds = jnp.where(here, own, ds)
    sizes = size(q), Bound.of(dq)
    es = score_error(layer, *sizes, size(trace.keys), None, rows)
    own = score_error(layer, *sizes, size(key), Bound.of(flip.dk), rows)
    es = jnp.where(here, own, es)
    moved = weights_moved(layer, *layer.row_scores(rows), ds, es)
    none = jnp.zeros_like(trace.keys[..., 0])
    if other_keys is None:
        sizes = none.at[:, position].set(size(flip.dv.db)[:, 0])
        dv = Bound(sizes, none.at[:, position].set(flip.dv.error[:, 0]))
        pulled = pulled_of_row(layer.config, trace.values, moved, dv)
        return HeadsMoved(pulled.db + moved.new[:, :, position, None] * flip.dv.db, pulled.error)
    # The flipped key has one term of its own, in which its new value may be exactly the reference.
    best, keys = other_keys.best[:, rows], jnp.arange(moved.s.shape[-1])
    others = _pulled_to(other_keys, moved, best, (keys == position) | other_keys.rows.same(keys, best))
    new, change, error, s = (
        values[:, :, position] for values in (moved.new, moved.change, moved.error, moved.s)
    )
    old = jnp.exp(s - trace.normaliser[:, rows])
    part = unit(s.dtype) * (1 + jnp.abs(jnp.where(s > -jnp.inf, s, 0)))
    mine = key_term((old, new, change), error, other_keys.pull_of(flip, best), flip.dv, part)
    return HeadsMoved(others.db + mine.db, others.error + mine.error)


def _pulled_to(
    others: OtherKeys, moved: WeightsMoved, best: Int[Array, "heads 1"], without: Bool[Array, "heads keys"]
) -> HeadsMoved:
    """Returns sum_k (p'_k - p_k) (v_k - r) of one row, r the value of its `best` key, over the keys not in `without`.

    The two parts are summed apart, so that flips share the product with the values. Keys whose value is r are left out
    of both, hence nothing is left of them; the rounding of others is that of v_k and r.
    """
    change, error = jnp.where(without[:, None], 0, moved.change), jnp.where(without[:, None], 0, moved.error)
    reference = jnp.take_along_axis(others.values, best[..., None], axis=1)
    db = weighted_sums(change, others.values, False) - jnp.sum(change, axis=-1, keepdims=True) * reference
    sizes = (size(others.values) + size(reference))[:, None]
    rounding = unit(db.dtype) * sizes + others.value_error[:, None, None]
    return HeadsMoved(db, pulled_error(moved._replace(change=change, error=error), sizes, rounding, None))
