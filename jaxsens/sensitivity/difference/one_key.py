"""The change of softmax attention when one key changes and the query does not: a closed form, O(head_width) per row.

With lambda the log-normaliser of a row's other keys and a = s - lambda, the changed key's weight
goes from p = sigmoid(a) to p' = sigmoid(a + ds), and the head's output changes by

    b' - b = (p' - p) (v_i - b_rest) + p' Dv_i ,      b_rest the other keys' weighted mean of values.

lambda = lse + log1p(-p) and b_rest = (b - p v_i) / (1 - p) lose digits as p approaches 1. Only a row's best key can
have p > 1/2, so for that key both are computed in full beforehand (`Rest`).

A sink is one of the other keys, with a score that never changes and the value 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxsens.models.config import LayerConfig
from jaxsens.models.masks import visible
from jaxsens.models.parameters import LayerParameters
from jaxsens.models.products import weighted_sums
from jaxsens.models.scores import scores
from jaxsens.models.trace import LayerTrace, over_row_blocks, row_scores
from jaxsens.models.weighting import sink_logit
from jaxsens.sensitivity.difference.attention import score_change
from jaxsens.sensitivity.difference.sigmoid_change import sigmoid_change
from jaxsens.sensitivity.difference.softmax_change import cancelled, tied, too_large


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Rest:
    """For each row: best key and score, second-best score, and log-normaliser and mean value without the best key.

    With a sink, the scores are at least the sink's, and the log-normaliser and the mean count it.
    """

    best: Int[Array, "heads n"]
    best_score: Float[Array, "heads n"]
    second_score: Float[Array, "heads n"]
    normaliser: Float[Array, "heads n"]
    mean: Float[Array, "heads n head_width"]


def rest_of(
    layer: LayerConfig, parameters: LayerParameters, kept: LayerTrace, row: int | None = None
) -> Rest:
    """`Rest` for all rows, O(H n^2 head_width) once an input, in blocks; or for one `row` alone, 0 in the others."""
    n = kept.x.shape[0]
    keys = jnp.arange(n)
    sink = sink_logit("the change of a softmax", layer.weighting)

    def rows(block: Array) -> tuple[Array, ...]:
        s, seen = row_scores(layer, parameters, kept.queries, kept.keys, block)
        s = jnp.where(seen, s, -jnp.inf)
        best = jnp.argmax(s, axis=-1)
        others = jnp.where(keys == best[..., None], -jnp.inf, s)
        normaliser = jax.nn.logsumexp(others, axis=-1)
        highest, second = jnp.max(s, -1), jnp.max(others, -1)
        if sink > -math.inf:
            normaliser = jnp.logaddexp(normaliser, jnp.asarray(sink, s.dtype))
            highest, second = jnp.maximum(highest, sink), jnp.maximum(second, sink)
        weight = jnp.exp(others - jnp.where(jnp.isfinite(normaliser), normaliser, 0)[..., None])
        return (
            best,
            highest,
            second,
            normaliser,
            weighted_sums(weight, kept.values, False),
        )

    return Rest(*over_row_blocks(rows, layer.heads, n, row))


def one_key_change(
    layer: LayerConfig,
    parameters: LayerParameters,
    kept: LayerTrace,
    rest: Rest,
    rows: Int[Array, " m"],
    position: Int[Array, ""],
    dk: Float[Array, "heads head_width"],
    dv: Float[Array, "heads head_width"],
) -> Float[Array, "heads m head_width"]:
    """Returns Db of the `rows`, other than `position`, when key and value at `position` change by dk and dv."""
    n = kept.x.shape[0]
    q, b, where = kept.queries[:, rows], kept.b[:, rows], position[None]
    key, value = kept.keys[:, position][:, None], kept.values[:, position][:, None]
    s = scores(layer, parameters, q, key, rows, where, n)[..., 0]
    ds = score_change(layer, parameters, q, None, key, dk[:, None], rows, n)[..., 0]
    p = jnp.exp(s - kept.normaliser[:, rows])
    is_best = rest.best[:, rows] == position
    # A key that is not the best has p <= 1/2, up to the rounding of scores: these are bounded, or else do not tie.
    small = jnp.where(is_best, 0, p)
    others = jnp.where(is_best, rest.normaliser[:, rows], kept.normaliser[:, rows] + jnp.log1p(-small))
    mean = jnp.where(
        is_best[..., None], rest.mean[:, rows], (b - small[..., None] * value) / (1 - small)[..., None]
    )
    a = s - others
    new, change = sigmoid_change(a, ds)
    db = change[..., None] * (value - mean) + new[..., None] * dv[:, None]
    # If the dtype cannot represent the new weight accurately, the flip is declined.
    other = jnp.where(is_best, rest.second_score[:, rows], rest.best_score[:, rows])
    size = jnp.maximum(jnp.abs(s), jnp.abs(ds))
    lost = too_large(ds) | cancelled(s, ds, new) | tied(s, other, size) | tied(s + ds, other, size)
    db = jnp.where(lost[..., None], jnp.nan, db)
    seen = visible(layer.mask, rows, position)
    return jnp.where(seen[:, None], db, 0)
