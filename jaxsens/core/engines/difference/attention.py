"""The change of attention rows when any number of keys, and the queries, change.

With r any vector, b' - b = sum_k (p'_k - p_k) (v_k - r) + sum_k p'_k Dv_k, because the changes of weights sum to 0. The
reference r is the value of the row's heaviest key: where nearly all weight is on keys of one value, their terms vanish
instead of leaving the rounding of (p'_k - p_k) v_k. The heaviest key's own term is left out, and so is its rounding.
A sink is a key of the value 0.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from jaxsens.core.base.errors import no_rule
from jaxsens.core.base.programs import compiled_for
from jaxsens.core.engines.difference.moved import (
    Bound,
    Heads,
    HeadsMoved,
    Index,
    Keys,
    Moved,
    Numbers,
    Rows,
    Seen,
    Table,
    TracedLayer,
)
from jaxsens.core.engines.difference.rules import (
    FAR,
    best_tied,
    cancelled,
    gain,
    product_error,
    size,
    softmax_change,
    tanh_change,
    too_large,
    unit,
)
from jaxsens.core.engines.one_key.one_moved_key import sigmoid_change
from jaxsens.core.models.parts.choices import first_largest, inner_products, products_summed, weighted_sums
from jaxsens.core.models.parts.masks import visible
from jaxsens.core.models.parts.score_positions import Alibi, PartialAlibi, RelativeBias
from jaxsens.core.models.parts.weighting import Sigmoid, SinkSoftmax, Softmax, averages, weights
from jaxsens.core.models.transformer.config import LayerConfig
from jaxsens.core.models.transformer.parameters import needed
from jaxsens.core.models.transformer.trace import leaves_cache, scores_of_rows, weighting_of

SOFT = (Softmax, SinkSoftmax, Sigmoid)
"""The weightings of soft attention whose changes have a rule."""

UNTURNED = (Alibi, PartialAlibi, RelativeBias)
"""The position terms that are only added to scores: they cancel in a change of scores."""


def inverse_temperature(layer: LayerConfig, rows: Rows, n: int, dtype: jnp.dtype) -> Float[Array, " m"]:
    """Returns 1/tau of each row of a layer of soft attention."""
    if not isinstance(layer.weighting, SOFT):
        raise no_rule("the change of soft attention", "weighting", layer.weighting, SOFT)
    return layer.weighting.inverse_temperatures(rows, n, dtype)


def score_change(
    layer: TracedLayer,
    q: Heads,
    dq: Heads | None,
    k: Keys,
    dk: Keys | None,
    rows: Rows,
    head: Index | None = None,
) -> Table:
    """Returns the change of tempered scores when keys change by dk and queries by dq (None for no change).

    Dot product: (q.dk + dq.(k + dk)) / sqrt(head_width). Additive: a.(tanh's change). Position penalties cancel. With
    `head`, queries and keys are only those of that head, (1, ..., head_width).
    """
    dq, dk = jnp.zeros_like(q) if dq is None else dq, jnp.zeros_like(k[:, :1]) if dk is None else dk
    match layer.config.scores:
        case "additive":
            sums = q[:, :, None, :] + k[:, None, :, :]
            steps = jnp.broadcast_to(dq[:, :, None, :] + dk[:, None, :, :], sums.shape)
            change = tanh_change(sums, steps)
            vector = needed(layer.parameters.additive, "additive")
            vector = vector if head is None else vector[head][None]
            change = jnp.sum(change * vector[:, None, None, :], axis=-1)
        case "dot-product":
            change = inner_products(q, dk, False) + inner_products(dq, k + dk, False)
            change = change / np.sqrt(layer.config.head_width).astype(q.dtype)
        case other:
            raise no_rule("the difference engine", "score", other, ("dot-product", "additive"))
    return change * inverse_temperature(layer.config, rows, layer.n, q.dtype)[:, None]


def score_error(
    layer: TracedLayer,
    q: Numbers,
    dq: Bound | None,
    k: Numbers,
    dk: Bound | None,
    rows: Rows,
    head: Index | None = None,
) -> Table:
    """Returns the error of `score_change`, from the sizes of queries and keys, and sizes and errors of their changes.

    Dot product: every |q| |dk| is rounded. Additive: tanh has slopes up to 1.
    """
    none = Bound(jnp.zeros_like(q), jnp.zeros_like(q)), Bound(jnp.zeros_like(k), jnp.zeros_like(k))
    dq, dk = none[0] if dq is None else dq, none[1] if dk is None else dk
    u, width = unit(q.dtype), layer.config.head_width
    match layer.config.scores:
        case "additive":
            vector = size(needed(layer.parameters.additive, "additive"))
            vector = vector if head is None else vector[head][None]
            error = (dq.error + u * dq.size)[:, :, None] + (dk.error + u * dk.size)[:, None]
            error = error * (vector / np.sqrt(width).astype(q.dtype))[:, None, None]
        case "dot-product":
            error = q[:, :, None] * (dk.error + u * dk.size)[:, None]
            of_query = (dq.error + u * dq.size)[:, :, None] * (k + dk.size + dk.error)[:, None]
            # At least the root of their squares, as both have random directions.
            error = jnp.maximum(error, of_query) + (np.sqrt(2) - 1) * jnp.minimum(error, of_query)
            # One root is that of the scores' scale, the other that of a random direction.
            error = error / width
        case other:
            raise no_rule("the difference engine", "score", other, ("dot-product", "additive"))
    return error * inverse_temperature(layer.config, rows, layer.n, q.dtype)[:, None]


class WeightsMoved(NamedTuple):
    """Rows of attention weights under a flip. A sink is one more key, the last.

    Attributes:
        s: the scores, -inf where a key is not seen.
        new, change: the new weights, NaN where the flip is declined, and their change.
        error: a bound of the error of each `change`, and of each new weight.
        step: the error of each score's change.
        rounded: the part of `error` that is not due to `step`; all of it where only `error` may be used.
    """

    s: Table
    new: Table
    change: Table
    error: Table
    step: Table
    rounded: Table


def soft_rows(layer: TracedLayer, rows: Rows, dq: HeadsMoved, dk: HeadsMoved, dv: HeadsMoved) -> HeadsMoved:
    """Returns Db of the rows when their queries change by dq, and all keys and values by dk and dv.

    The cost is O(H m n head_width). On CPU one head is computed after the other, so that its scores stay in cache.
    """
    config, trace = layer.config, layer.trace
    queries = trace.queries[:, rows]

    def some(arrays: tuple[Any, ...], head: Array | None = None) -> HeadsMoved:
        q, k, v, dq, dk, dv, b = arrays
        ds = score_change(layer, q, dq.db, k, dk.db, rows, head)
        es = score_error(layer, size(q), Bound.of(dq), size(k), Bound.of(dk), rows, head)
        s, seen = scores_of_rows(config, layer.parameters, q, k, rows, head)
        return _pulled(config, v, weights_moved(layer, s, seen, ds, es, head), dv, b)

    arguments = queries, trace.keys, trace.values, dq, dk, dv, trace.b[:, rows]
    if config.exact_rows or not leaves_cache(config.heads, layer.n, compiled_for()):
        return some(arguments)
    arrays = jax.tree.map(lambda heads: heads[:, None], arguments)
    each = jax.lax.map(lambda one: some(*one), (arrays, jnp.arange(config.heads)))
    return jax.tree.map(lambda heads: heads[:, 0], each)


def _pulled(layer: LayerConfig, values: Keys, moved: WeightsMoved, dv: HeadsMoved, b: Heads) -> HeadsMoved:
    """Returns sum_k (p'_k - p_k) (v_k - r) + sum_k p'_k Dv_k of every row, r the value of its heaviest key.

    Values are taken relative to their mean first, so that a common offset cancels before it is rounded. `b` is what
    the rows attended to before.
    """
    n = values.shape[1]
    centre = jnp.mean(values, axis=1, keepdims=True)
    if isinstance(layer.weighting, Sigmoid):  # its changes do not sum to 0
        centre = jnp.zeros_like(centre)
    keys = values - centre
    if isinstance(layer.weighting, SinkSoftmax):
        keys = jnp.concatenate([keys, -centre], axis=1)
    change, sizes = moved.change, jnp.broadcast_to(size(keys)[:, None], moved.change.shape)
    rounding = unit(keys.dtype) * (sizes + size(centre)[..., None])
    distances = None
    if not isinstance(layer.weighting, Sigmoid):
        best = first_largest(moved.s)
        others = jnp.arange(change.shape[-1]) != best[..., None]
        change = change * others
        reference = jnp.take_along_axis(keys, best[..., None], axis=1)
        db = weighted_sums(change, keys, False) - jnp.sum(change, axis=-1, keepdims=True) * reference
        distances = _distances(keys, b - centre + db)
        sizes = (sizes + size(reference)[..., None]) * others
        rounding = (rounding + unit(keys.dtype) * size(reference)[..., None]) * others
    else:
        db = weighted_sums(change, keys, False)
    error = pulled_error(moved, sizes, rounding, Bound.of(dv), distances)
    return HeadsMoved(db + weighted_sums(moved.new[..., :n], dv.db, False), error)


def _distances(values: Keys, means: Heads) -> Table:
    """Returns the distances of all values from the means of some rows, or more: the square of one is off by its
    rounding, and it may not be finite."""
    u, reach = unit(values.dtype), size(values)[:, None] + size(means)[..., None]
    square = jnp.sum(values**2, axis=-1)[:, None] + jnp.sum(means**2, axis=-1)[..., None]
    square = square - 2 * inner_products(means, values, False)
    normal = (reach**2 > jnp.finfo(values.dtype).tiny / u) & jnp.isfinite(square)
    return jnp.where(normal, jnp.sqrt(jnp.maximum(square, u * reach**2)), reach)


def pulled_error(
    moved: WeightsMoved, sizes: Table, rounding: Table, dv: Bound | None, distances: Table | None = None
) -> Numbers:
    """Returns the error of sum_k (p'_k - p_k) u_k + sum_k p'_k Dv_k from the sizes and errors of u and dv.

    `sizes` and `rounding` are those of the u_k; `dv` is of all keys but a sink, or None if no value changes.

    Errors e_k of the scores' changes move weights by p'_k (e_k - sum_j p'_j e_j), hence the first sum by
    sum_k p'_k e_k (v_k - sum_j p'_j v_j). With these `distances` that is the smaller bound where a row attends to many
    keys; that with sizes is where it attends to few, whose common value is the reference.
    """
    n, dtype = moved.s.shape[-1], moved.s.dtype
    u = unit(dtype, n)
    tiny = jnp.finfo(dtype).tiny * jnp.max(sizes, axis=-1)  # what weights that underflow would pull
    sizes = jnp.broadcast_to(sizes, moved.error.shape)
    error = products_summed(moved.error, sizes)
    if distances is not None:
        stepped = products_summed(moved.new * moved.step, distances)
        error = jnp.minimum(error, products_summed(moved.rounded, sizes) + stepped)
    error = error + products_summed(jnp.abs(moved.change), rounding + u * sizes) + tiny
    if dv is None:
        return error
    keys = dv.size.shape[1]
    new, of_new = moved.new[..., :keys], moved.error[..., :keys]
    pulled = weighted_sums(new, (dv.error + u * dv.size)[..., None], False)
    return error + (pulled + weighted_sums(of_new, dv.size[..., None], False))[..., 0]


def readout_row(layer: TracedLayer, row: int, dq: HeadsMoved, moved: Moved) -> HeadsMoved:
    """Returns Db of one row when everything changes, without projecting keys and values per position. O(H n d).

    With u' = W_K (q + dq), a score changes by dq.k_w + u'.dz_w; the values' change enters as (sum_w p'_w dz_w) W_V.
    Additive scores and rotary embeddings need the keys' own changes, O(n d^2).
    """
    config, parameters, trace, n, dz = layer.config, layer.parameters, layer.trace, layer.n, moved.dx
    rows = jnp.asarray([row])
    q = trace.queries[:, rows]
    plain = all(isinstance(term, UNTURNED) for term in config.position_scores)
    if config.scores != "dot-product" or not plain:
        dk = layer.heads(dz, parameters.key, jnp.arange(n))
        ds = score_change(layer, q, dq.db, trace.keys, dk, rows)
    else:
        direction = jnp.einsum("hdk,hmk->hmd", parameters.key, q + dq.db)
        change = inner_products(dq.db, trace.keys, False) + jnp.einsum("hmd,nd->hmn", direction, dz)
        scale = inverse_temperature(config, rows, n, dz.dtype)[:, None]
        scale = scale / np.sqrt(config.head_width).astype(dz.dtype)
        ds = change * scale
    sizes = size(dz)
    keys, own = (
        Bound(gain(matrix)[:, None] * sizes, product_error(sizes, moved.error, matrix))
        for matrix in (parameters.key, parameters.value)
    )
    es = score_error(layer, size(q), Bound.of(dq), size(trace.keys), keys, rows)
    step = weights_moved(layer, *layer.row_scores(rows), ds, es)
    values_change = jnp.einsum("hmn,nd,hdk->hmk", step.new[..., :n], dz, parameters.value, optimize="optimal")
    pulled = pulled_of_row(config, trace.values, step, own)
    return HeadsMoved(pulled.db + values_change, pulled.error)


def pulled_of_row(layer: LayerConfig, values: Keys, moved: WeightsMoved, dv: Bound) -> HeadsMoved:
    """Returns sum_k (p'_k - p_k) (v_k - r) of a single row, each difference formed by itself; with the error of
    sum_k p'_k Dv_k, of which `dv` has the sizes and errors, added to its own.
    """
    best = first_largest(moved.s)
    keys = values
    if isinstance(layer.weighting, SinkSoftmax) and keys.shape[1] < moved.s.shape[-1]:
        keys = jnp.concatenate([values, jnp.zeros_like(values[:, :1])], axis=1)
    reference = jnp.take_along_axis(keys, best[..., None], axis=1)
    if isinstance(layer.weighting, Sigmoid):  # its changes do not sum to 0
        reference, rounding = jnp.zeros_like(reference), jnp.zeros_like(size(keys))
    else:
        equal = jnp.arange(keys.shape[1]) == best
        rounding = jnp.where(equal, 0, unit(keys.dtype) * (size(keys) + size(reference)))
    pull = keys - reference
    db, distances = weighted_sums(moved.change, pull, False), None
    if not isinstance(layer.weighting, Sigmoid):
        mean = weighted_sums(moved.new, pull, False)
        distances = size(pull[:, None] - mean[:, :, None]) + unit(keys.dtype) * size(mean)[..., None]
    error = pulled_error(moved, size(pull)[:, None], rounding[:, None], dv, distances)
    return HeadsMoved(db, error)


def weights_moved(
    layer: TracedLayer, s: Table, seen: Seen, ds: Table, es: Table, head: Index | None = None
) -> WeightsMoved:
    """Returns rows' new weights p' and their change p' - p, both 0 where a row does not see the key, and their errors.

    `es` is the error of ds. With `head`, all are of that head alone, (1, m, k). Weights are NaN, so that the flip is
    declined, if scores are too large for accurate changes, cancel, or tie.
    """
    s = jnp.where(seen, s, -jnp.inf)
    match weighting_of(layer.config, layer.parameters, head):
        case Softmax():
            new, change = softmax_change(s, ds)
            ties = best_tied(s, ds)
        case SinkSoftmax() as weighting:
            sink = jnp.full_like(s[..., :1], weighting.score)
            none = jnp.zeros_like(sink)
            s, ds, es = (jnp.concatenate(pair, -1) for pair in ((s, sink), (ds, none), (es, none)))
            seen = jnp.concatenate([seen, jnp.ones_like(sink, bool)], -1)
            new, change = softmax_change(s, ds)
            ties = best_tied(s, ds)
        case Sigmoid():
            new, change = sigmoid_change(s, s + ds, ds)
            ties = jnp.zeros_like(s[..., :1], bool)  # no key competes with another
        case other:
            raise no_rule("the change of soft attention", "weighting", other, SOFT)
    lost = jnp.any((too_large(ds) | cancelled(s, ds, new)) & seen, axis=-1, keepdims=True) | ties
    competing = not isinstance(layer.config.weighting, Sigmoid)
    errors = _weight_errors(jnp.where(seen, s, 0), ds, es, new, change, competing)
    return WeightsMoved(
        s, jnp.where(lost, jnp.nan, new), change, *(jnp.where(seen, one, 0) for one in errors)
    )


def _weight_errors(
    s: Table, ds: Table, es: Table, new: Table, change: Table, competing: bool
) -> tuple[Table, Table, Table]:
    """Returns the errors of weights' changes. A score is rounded by eps |s|, a part of its weight that both runs share
    unless the changes are taken by subtracting (`FAR`); its change is off by `es` and a rounding, a part of the new
    weight."""
    u = unit(s.dtype)
    part, moved = u * (1 + jnp.abs(s)), jnp.abs(change)
    step, rounded = es + u * jnp.abs(ds), moved * part
    if not competing:
        return rounded + new * step, step, rounded
    far = jnp.sum(moved, axis=-1, keepdims=True) > FAR
    rounded = rounded + jnp.where(far, (2 * new + moved) * part, 0)
    shared = products_summed(new, step)[..., None]
    # Of first order, p' (e - sum p' e): the key's own share counts once, less itself. Large errors have others.
    coarse = shared > FAR
    error = rounded + new * (step + shared + jnp.where(coarse, 0, u * shared - 2 * new * step))
    return error, step, jnp.where(coarse, error, rounded)


def hard_rows(layer: TracedLayer, rows: Rows, new: tuple[Heads, Keys, Keys], dv: HeadsMoved) -> HeadsMoved:
    """Returns the change and new value of hard attention's output, from the new queries, keys and values.

    Db = sum_w (p'_w - p_w) (v_w - r) + sum_w p'_w Dv_w, r the value of a key chosen before; weights are 0 or 1/ties, so
    an unchanged choice, and one between equal values, gives exactly 0. Where scores that differ are closer than their
    rounding, the choice is in doubt, and the error is that of another one.
    """
    config, trace, n = layer.config, layer.trace, layer.n
    keys = jnp.arange(n)
    seen = jnp.broadcast_to(visible(config.mask, rows[:, None], keys[None, :]), (config.heads, len(rows), n))
    # One operation computes the scores of both runs, so that ties are compared bitwise equally.
    pairs = jnp.stack([trace.queries[:, rows], new[0]]), jnp.stack([trace.keys, new[1]])
    both = jax.vmap(lambda q, k: layer.scores(q, k, rows, keys))(*pairs)
    before, after = (weights(config.weighting, s, seen) for s in both)
    first = jnp.argmax(before > 0, axis=-1)
    reference = jnp.take_along_axis(trace.values, first[..., None], axis=1)
    pull = trace.values[:, None] - reference[:, :, None]
    db = jnp.sum((after - before)[..., None] * pull, axis=-2) + weighted_sums(after, dv.db, True)
    sizes, u = size(pull), unit(db.dtype, n)
    doubtful = in_doubt(both[0], seen) | in_doubt(both[1], seen)
    rounding = u * (size(trace.values)[:, None] + size(reference)[..., None]) * (sizes > 0)
    error = jnp.sum(jnp.abs(after - before) * rounding, axis=-1)
    error = error + jnp.sum(after * (dv.error + u * size(dv.db))[:, None], axis=-1)
    widest = jnp.max(jnp.where(seen, sizes, 0), axis=-1) + jnp.max(size(dv.db), axis=-1)[:, None]
    error = error + jnp.where(doubtful, widest, 0)
    return HeadsMoved(db, error, averages(config.weighting, both[1], seen, new[2], True))


def in_doubt(s: Table, seen: Seen) -> Bool[Array, "heads m"]:
    """Returns whether a row has a score that is less than the best, but by no more than rounding."""
    s = jnp.where(seen, s, -jnp.inf)
    best = jnp.max(s, axis=-1, keepdims=True)
    margin = unit(s.dtype) * jnp.where(best > -jnp.inf, jnp.abs(best), 0)
    return jnp.any((s < best) & (s >= best - margin), axis=-1)
