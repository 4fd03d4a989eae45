"""Attention scores: queries, keys and values of a layer, and the score of a query with a key."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxsens.models.config import LayerConfig
from jaxsens.models.parameters import LayerParameters, needed
from jaxsens.models.positions import Alibi, Rotary
from jaxsens.models.products import inner_products, rows_times
from jaxsens.models.weighting import Softmax


def projected(
    layer: LayerConfig, z: Float[Array, "rows width"], matrices: Float[Array, "heads width head_width"]
) -> Float[Array, "heads rows head_width"]:
    """z W_h for every head: queries, keys or values of the rows z."""
    return jax.vmap(lambda matrix: rows_times(z, matrix, layer.exact_rows))(matrices)


def turned(
    layer: LayerConfig, x: Float[Array, "*heads rows head_width"], positions: Int[Array, " rows"], n: int
) -> Float[Array, "*heads rows head_width"]:
    """Queries or keys at 0-based `positions` of an input of length n after rotary embedding, if there is one."""
    for term in layer.position_scores:
        if isinstance(term, Rotary):
            angles = term.angles(n, layer.head_width)
            cosine = jnp.asarray(np.cos(angles), x.dtype)[positions]
            sine = jnp.asarray(np.sin(angles), x.dtype)[positions]
            even, odd = x[..., 0::2], x[..., 1::2]
            pairs = jnp.stack([even * cosine - odd * sine, even * sine + odd * cosine], axis=-1)
            x = pairs.reshape(x.shape)
    return x


def raw_scores(
    layer: LayerConfig,
    parameters: LayerParameters,
    queries: Float[Array, "heads m head_width"],
    keys: Float[Array, "heads k head_width"],
) -> Float[Array, "heads m k"]:
    """The scores of every query with every key, before position penalties and temperature.

    Dot product: q.k / sqrt(head_width) (Yang et al. 2024, Def. 1). Additive: a.tanh(q + k) (Bahdanau et al.).
    """
    if layer.scores == "additive":
        hidden = jnp.tanh(queries[:, :, None, :] + keys[:, None, :, :])
        return jnp.sum(hidden * needed(parameters.additive, "additive")[:, None, None, :], axis=-1)
    scaled = queries / np.sqrt(layer.head_width).astype(queries.dtype)
    return inner_products(scaled, keys, layer.exact_rows)


def penalty(
    layer: LayerConfig, query_positions: Int[Array, " m"], key_positions: Int[Array, "*k"], dtype: jnp.dtype
) -> Float[Array, "heads m k"] | None:
    """What position embeddings add to the scores (ALiBi's -slope |i - j|), or None.

    `key_positions` is (k,), or (heads, m, k) where every row looks at keys of its own.
    """
    for term in layer.position_scores:
        if isinstance(term, Alibi):
            distance = jnp.abs(query_positions[:, None] - key_positions).astype(dtype)
            slopes = jnp.asarray(term.slopes(layer.heads), dtype)
            return -slopes[:, None, None] * distance
    return None


def inverse_temperature(layer: LayerConfig, positions: Int[Array, " m"], n: int, dtype: jnp.dtype) -> Array:
    """1/tau of each query row (0-based `positions`), shape (m,); 1 for weightings without a temperature."""
    weighting = layer.weighting
    if not isinstance(weighting, Softmax):
        return jnp.ones(positions.shape, dtype)
    if weighting.by == "length":
        return jnp.full(positions.shape, weighting.inverse_temperature(n), dtype)
    table = weighting.inverse_temperature(np.arange(1, n + 1))
    return jnp.asarray(table, dtype)[positions]


def scores(
    layer: LayerConfig,
    parameters: LayerParameters,
    queries: Float[Array, "heads m head_width"],
    keys: Float[Array, "heads k head_width"],
    query_positions: Int[Array, " m"],
    key_positions: Int[Array, "*k"],
    n: int,
) -> Float[Array, "heads m k"]:
    """What the weighting function is applied to: scores with position penalties, divided by the temperature."""
    result = raw_scores(layer, parameters, queries, keys)
    added = penalty(layer, query_positions, key_positions, result.dtype)
    if added is not None:
        result = result + added
    return tempered(layer, result, query_positions, n)


def tempered(
    layer: LayerConfig, scores: Float[Array, "heads m k"], query_positions: Int[Array, " m"], n: int
) -> Float[Array, "heads m k"]:
    """Scores divided by the temperature, where the weighting has one."""
    if not isinstance(layer.weighting, Softmax):
        return scores
    return scores * inverse_temperature(layer, query_positions, n, scores.dtype)[:, None]
