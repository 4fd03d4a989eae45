"""The change of attention rows when any number of keys, and the queries, change."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jaxsens.errors import no_rule
from jaxsens.models.config import LayerConfig
from jaxsens.models.masks import visible
from jaxsens.models.parameters import LayerParameters, needed
from jaxsens.models.products import inner_products, weighted_sums
from jaxsens.models.score_positions import Alibi, PartialAlibi, RelativeBias
from jaxsens.models.scores import projected, scores, turned
from jaxsens.models.trace import LayerTrace, leaves_cache, row_scores, scores_of_rows
from jaxsens.models.weighting import Sigmoid, SinkSoftmax, Softmax, averages, weights
from jaxsens.sensitivity.difference.rules import tanh_change
from jaxsens.sensitivity.difference.sigmoid_change import sigmoid_change
from jaxsens.sensitivity.difference.softmax_change import best_tied, cancelled, softmax_change, too_large

SOFT = (Softmax, SinkSoftmax, Sigmoid)
"""The weightings of soft attention whose changes have a rule."""

UNTURNED = (Alibi, PartialAlibi, RelativeBias)
"""The position terms that are only added to scores: they cancel in a change of scores."""


def inverse_temperature(
    layer: LayerConfig, rows: Int[Array, " m"], n: int, dtype: jnp.dtype
) -> Float[Array, " m"]:
    """Returns 1/tau of each row of a layer of soft attention."""
    if not isinstance(layer.weighting, SOFT):
        raise no_rule("the change of soft attention", "weighting", layer.weighting, SOFT)
    return layer.weighting.inverse_temperatures(rows, n, dtype)


def score_change(
    layer: LayerConfig,
    parameters: LayerParameters,
    q: Float[Array, "heads m head_width"],
    dq: Float[Array, "heads m head_width"] | None,
    k: Float[Array, "heads keys head_width"],
    dk: Float[Array, "heads keys head_width"] | None,
    rows: Int[Array, " m"],
    n: int,
    head: Int[Array, ""] | None = None,
) -> Float[Array, "heads m keys"]:
    """Returns the change of tempered scores when keys change by dk and queries by dq (None for no change).

    Dot product: (q.dk + dq.(k + dk)) / sqrt(head_width). Additive: a.(tanh's change). Position penalties cancel. With
    `head`, queries and keys are only those of that head, (1, ..., head_width).
    """
    dq, dk = jnp.zeros_like(q) if dq is None else dq, jnp.zeros_like(k[:, :1]) if dk is None else dk
    match layer.scores:
        case "additive":
            sums = q[:, :, None, :] + k[:, None, :, :]
            steps = jnp.broadcast_to(dq[:, :, None, :] + dk[:, None, :, :], sums.shape)
            change = tanh_change(sums, steps)
            vector = needed(parameters.additive, "additive")
            vector = vector if head is None else vector[head][None]
            change = jnp.sum(change * vector[:, None, None, :], axis=-1)
        case "dot-product":
            change = inner_products(q, dk, False) + inner_products(dq, k + dk, False)
            change = change / np.sqrt(layer.head_width).astype(q.dtype)
        case other:
            raise no_rule("the difference engine", "score", other, ("dot-product", "additive"))
    return change * inverse_temperature(layer, rows, n, q.dtype)[:, None]


def soft_rows(
    layer: LayerConfig,
    parameters: LayerParameters,
    kept: LayerTrace,
    rows: Int[Array, " m"],
    dq: Float[Array, "heads m head_width"],
    dk: Float[Array, "heads n head_width"],
    dv: Float[Array, "heads n head_width"],
) -> Float[Array, "heads m head_width"]:
    """Returns Db of the rows when their queries change by dq, and all keys and values by dk and dv.

    The cost is O(H m n head_width). On CPU one head is computed after the other, so that its scores stay in cache.
    """
    q, n = kept.queries[:, rows], kept.x.shape[0]

    def some(arrays: tuple[Array, ...], head: Array | None = None) -> Float[Array, "heads m head_width"]:
        q, k, v, dq, dk, dv = arrays
        ds = score_change(layer, parameters, q, dq, k, dk, rows, n, head)
        new, change = _weights_and_change(layer, *scores_of_rows(layer, parameters, q, k, rows, head), ds)
        return _pulled(layer, v, change) + weighted_sums(new, dv, False)

    if not leaves_cache(layer, n):
        return some((q, kept.keys, kept.values, dq, dk, dv))
    each = tuple(heads[:, None] for heads in (q, kept.keys, kept.values, dq, dk, dv))
    return jax.lax.map(lambda one: some(*one), (each, jnp.arange(layer.heads)))[:, 0]


def own_row(
    layer: LayerConfig,
    parameters: LayerParameters,
    kept: LayerTrace,
    position: Int[Array, ""],
    dq: Float[Array, "heads 1 head_width"],
    dk: Float[Array, "heads 1 head_width"],
    dv: Float[Array, "heads 1 head_width"],
) -> Float[Array, "heads 1 head_width"]:
    """Returns Db of the row `position` when only its own query, key and value change. O(n d)."""
    rows, n = position[None], kept.x.shape[0]
    q, key = kept.queries[:, rows], kept.keys[:, rows]
    ds = score_change(layer, parameters, q, dq, kept.keys, None, rows, n)
    ds = ds.at[:, :, position].set(score_change(layer, parameters, q, dq, key, dk, rows, n)[..., 0])
    new, change = _weights_and_change(
        layer, *row_scores(layer, parameters, kept.queries, kept.keys, rows), ds
    )
    return _pulled(layer, kept.values, change) + new[:, :, position, None] * dv


def _pulled(
    layer: LayerConfig,
    values: Float[Array, "heads n head_width"],
    change: Float[Array, "heads m keys"],
    centre: Float[Array, "heads #m head_width"] | None = None,
) -> Float[Array, "heads m head_width"]:
    """sum_w (p'_w - p_w) v_w, from `_weights_and_change`.

    Where the changes sum to 0, values are taken relative to a centre, by default their mean, so that a common offset
    cancels before rounding. The sink's value is 0.
    """
    centre = jnp.mean(values, axis=1, keepdims=True) if centre is None else centre
    match layer.weighting:
        case Softmax():
            return weighted_sums(change, values - centre, False)
        case SinkSoftmax():
            return weighted_sums(change[..., :-1], values - centre, False) - change[..., -1:] * centre
        case Sigmoid():
            return weighted_sums(change, values, False)
        case other:
            raise no_rule("the change of soft attention", "weighting", other, SOFT)


def readout_row(
    layer: LayerConfig,
    parameters: LayerParameters,
    kept: LayerTrace,
    row: int,
    dq: Float[Array, "heads 1 head_width"],
    dz: Float[Array, "n width"],
) -> Float[Array, "heads 1 head_width"]:
    """Returns Db of one row when everything changes, without projecting keys and values per position. O(H n d).

    With u' = W_K (q + dq), a score changes by dq.k_w + u'.dz_w; the values' change enters as (sum_w p'_w dz_w) W_V.
    Additive scores and rotary embeddings need the keys' own changes, O(n d^2).
    """
    n = kept.x.shape[0]
    rows, everywhere = jnp.asarray([row]), jnp.arange(n)
    q = kept.queries[:, rows]
    plain = all(isinstance(term, UNTURNED) for term in layer.position_scores)
    if layer.scores != "dot-product" or not plain:
        dk = turned(layer, projected(layer, dz, parameters.key), everywhere, n)
        ds = score_change(layer, parameters, q, dq, kept.keys, dk, rows, n)
    else:
        direction = jnp.einsum("hdk,hmk->hmd", parameters.key, q + dq)
        change = inner_products(dq, kept.keys, False) + jnp.einsum("hmd,nd->hmn", direction, dz)
        scale = inverse_temperature(layer, rows, n, dz.dtype)[:, None] / np.sqrt(layer.head_width).astype(
            dz.dtype
        )
        ds = change * scale
    new, change = _weights_and_change(
        layer, *row_scores(layer, parameters, kept.queries, kept.keys, rows), ds
    )
    pulled = _pulled(layer, kept.values, change, kept.b[:, rows])
    moved = jnp.einsum("hmn,nd,hdk->hmk", new, dz, parameters.value, optimize="optimal")
    return pulled + moved


def _weights_and_change(
    layer: LayerConfig,
    s: Float[Array, "heads m n"],
    seen: Bool[Array, "heads m n"],
    ds: Float[Array, "heads m n"],
) -> tuple[Float[Array, "heads m n"], Float[Array, "heads m keys"]]:
    """Returns rows' new weights p' and their change p' - p, both 0 where a row does not see the key.

    With a sink, the changes have one more entry, the sink's. Weights are NaN, so that the flip is declined, if scores
    are too large for accurate changes, cancel, or tie.
    """
    s = jnp.where(seen, s, -jnp.inf)
    match layer.weighting:
        case Softmax():
            new, change = softmax_change(s, ds)
            ties = best_tied(s, ds)
        case SinkSoftmax():
            sink = jnp.full_like(s[..., :1], layer.weighting.logit)
            both = jnp.concatenate([s, sink], -1), jnp.concatenate([ds, jnp.zeros_like(sink)], -1)
            new, change = softmax_change(*both)
            new, ties = new[..., :-1], best_tied(*both)
        case Sigmoid():
            new, change = sigmoid_change(s, ds)
            ties = jnp.zeros_like(s[..., :1], bool)  # no key competes with another
        case other:
            raise no_rule("the change of soft attention", "weighting", other, SOFT)
    lost = jnp.any((too_large(ds) | cancelled(s, ds, new)) & seen, axis=-1, keepdims=True) | ties
    return jnp.where(lost, jnp.nan, new), change


def hard_rows(
    layer: LayerConfig,
    parameters: LayerParameters,
    kept: LayerTrace,
    rows: Int[Array, " m"],
    new: tuple[Array, Array, Array],
    dv: Float[Array, "heads n head_width"],
) -> tuple[Float[Array, "heads m head_width"], Float[Array, "heads m head_width"]]:
    """Returns the change and new value of hard attention's output, from the new queries, keys and values.

    Db = sum_w (p'_w - p_w) v_w + sum_w p'_w Dv_w; weights are 0 or 1/ties, so an unchanged choice gives exactly 0.
    """
    n = kept.x.shape[0]
    keys = jnp.arange(n)
    seen = jnp.broadcast_to(visible(layer.mask, rows[:, None], keys[None, :]), (layer.heads, len(rows), n))
    # One operation computes the scores of both runs, so that ties are compared bitwise equally.
    pairs = jnp.stack([kept.queries[:, rows], new[0]]), jnp.stack([kept.keys, new[1]])
    both = jax.vmap(lambda q, k: scores(layer, parameters, q, k, rows, keys, n))(*pairs)
    before, after = (weights(layer.weighting, s, seen) for s in both)
    moved = weighted_sums(after - before, kept.values, True) + weighted_sums(after, dv, True)
    return moved, averages(layer.weighting, both[1], seen, new[2], True)
