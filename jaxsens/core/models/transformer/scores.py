"""Attention scores: queries, keys and values of a layer, and the score of a query and a key.

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

from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jaxsens.core.base.errors import rule_for
from jaxsens.core.models.parts.choices import SCORES
from jaxsens.core.models.parts.products import inner_products, rows_times
from jaxsens.core.models.parts.weighting import Weighting, learns_sink
from jaxsens.core.models.transformer.config import LayerConfig
from jaxsens.core.models.transformer.parameters import LayerParameters, needed

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


def raw_scores(
    layer: LayerConfig, parameters: LayerParameters, queries: Queries, keys: Keys, head: Index | None = None
) -> ScoreTable:
    """Returns the scores of all queries and keys, before position penalties and temperature: one of `SCORES`.

    With `head`, queries and keys are only those of that head, (1, ..., head_width).
    """
    function = rule_for("attention", "score", layer.scores, SCORES).function
    vector = parameters.additive
    if vector is not None and head is not None:
        vector = vector[head][None]
    return function(queries, keys, vector, layer.exact_rows)


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
    result = raw_scores(layer, parameters, queries, keys, head)
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
        best = jnp.argmax(jnp.where(seen, scores, -jnp.inf), axis=-1)
        scores = _relative_to(scaled, keys, jnp.take_along_axis(keys, best[..., None], axis=1))
    return scores


def _relative_to(queries: Queries, keys: Keys, reference: Queries) -> ScoreTable:
    # One coordinate at a time: a sum over an axis would store all heads * m * k * head_width products.
    total = jnp.zeros((), queries.dtype)
    for c in range(queries.shape[-1]):
        total = total + queries[:, :, c, None] * (keys[:, None, :, c] - reference[:, :, c, None])
    return total
