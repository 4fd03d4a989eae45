"""Attention scores: queries, keys and values of a layer, and the score of a query and a key."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxsens.base.errors import rule_for
from jaxsens.models.parts.choices import SCORES
from jaxsens.models.parts.products import rows_times
from jaxsens.models.transformer.config import LayerConfig
from jaxsens.models.transformer.parameters import LayerParameters, needed


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
    layer: LayerConfig,
    parameters: LayerParameters,
    queries: Float[Array, "heads m head_width"],
    keys: Float[Array, "heads k head_width"],
    head: Int[Array, ""] | None = None,
) -> Float[Array, "heads m k"]:
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
    head: Int[Array, ""] | None = None,
) -> Float[Array, "heads m k"] | None:
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
    queries: Float[Array, "heads m head_width"],
    keys: Float[Array, "heads k head_width"],
    query_positions: Int[Array, " m"],
    key_positions: Int[Array, "*k"],
    n: int,
    head: Int[Array, ""] | None = None,
) -> Float[Array, "heads m k"]:
    """Returns the input of the weighting function: scores with position penalties, divided by the temperature.

    With `head`, queries and keys are only those of that head, (1, ..., head_width).
    """
    result = raw_scores(layer, parameters, queries, keys, head)
    added = penalty(layer, parameters, query_positions, key_positions, result.dtype, head)
    if added is not None:
        result = result + added
    return layer.weighting.tempered(result, query_positions, n)
