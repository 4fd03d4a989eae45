"""The transformer as pure functions of (config, parameters, tokens). Modules, engines and theory share these."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxsens.models.config import LayerConfig, TransformerConfig
from jaxsens.models.masks import visible
from jaxsens.models.parameters import LayerParameters, NormParameters, TransformerParameters, needed
from jaxsens.models.positions import Component, Learned, Sinusoidal
from jaxsens.models.products import rows_times, weighted_sums
from jaxsens.models.scores import projected, scores, turned
from jaxsens.models.weighting import weights

SCORES_IN_MEMORY = 2**24
"""Attention rows are computed in blocks so that no more than this many scores are held at once."""


def position_embedding(
    config: TransformerConfig, parameters: TransformerParameters, n: int
) -> Float[Array, "n width"]:
    """What the position embedding adds to the symbols' embeddings, for inputs of length n."""
    total = jnp.zeros((n, config.width), config.dtype)
    row = 0
    for term in config.position_terms:
        if isinstance(term, Sinusoidal):
            total = total + jnp.asarray(term.values(n, config.width), config.dtype)
        elif isinstance(term, Learned):
            total = total + needed(parameters.learned, "learned")[:n]
        elif isinstance(term, Component):
            vector = needed(parameters.components, "components")[row]
            total = total + jnp.asarray(term.values(n), config.dtype)[:, None] * vector
            row += 1
    return total


def embed(
    config: TransformerConfig, parameters: TransformerParameters, tokens: Int[Array, " n"]
) -> Float[Array, "n width"]:
    """y^(0): the embeddings of the symbols plus those of the positions."""
    return parameters.embedding[tokens] + position_embedding(config, parameters, tokens.shape[0])


def layer_norm(
    layer: LayerConfig, parameters: NormParameters | None, x: Float[Array, "*rows width"]
) -> Float[Array, "*rows width"]:
    """(x - mean) / sqrt(variance + epsilon) * scale + bias over the last axis."""
    if parameters is None:
        raise TypeError("layer normalisation needs its parameters")
    centred = x - jnp.mean(x, axis=-1, keepdims=True)
    variance = jnp.mean(centred**2, axis=-1, keepdims=True)
    return centred / jnp.sqrt(variance + layer.layer_norm_epsilon) * parameters.scale + parameters.bias


def activation(layer: LayerConfig, h: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """The per-position map's nonlinearity."""
    if layer.activation == "relu":
        return jax.nn.relu(h)
    if layer.activation == "gelu":
        return jax.nn.gelu(h, approximate=True)
    if layer.activation == "silu":
        return jax.nn.silu(h)
    return jnp.tanh(h)


def attention(
    layer: LayerConfig, parameters: LayerParameters, z: Float[Array, "n width"]
) -> Float[Array, "n width"]:
    """The attention sublayer's output, sum_h b^h W_O^h, for every row. O(H n^2 head_width).

    Rows are computed in blocks of as many as keep H * rows * n scores within `SCORES_IN_MEMORY`.
    """
    n = z.shape[0]
    everywhere = jnp.arange(n)
    queries = turned(layer, projected(layer, z, parameters.query), everywhere, n)
    keys = turned(layer, projected(layer, z, parameters.key), everywhere, n)
    values = projected(layer, z, parameters.value)

    def rows(block: Int[Array, " m"]) -> Float[Array, "m width"]:
        s = scores(layer, parameters, queries[:, block], keys, block, everywhere, n)
        seen = jnp.broadcast_to(visible(layer.mask, block[:, None], everywhere[None, :]), s.shape)
        b = weighted_sums(weights(layer.weighting, s, seen), values, layer.exact_rows)
        return jnp.sum(
            jax.vmap(lambda bh, wh: rows_times(bh, wh, layer.exact_rows))(b, parameters.output), axis=0
        )

    block = max(1, SCORES_IN_MEMORY // (layer.heads * n))
    if block >= n:
        return rows(everywhere)
    padded = jnp.minimum(jnp.arange(-(-n // block) * block), n - 1).reshape(-1, block)
    return jax.lax.map(rows, padded).reshape(-1, z.shape[1])[:n]


def feed_forward(
    layer: LayerConfig, parameters: LayerParameters, z: Float[Array, "rows width"]
) -> Float[Array, "rows width"]:
    """The per-position map without its skip connection: act(z W1 + b1) W2 + b2."""
    h = rows_times(z, needed(parameters.w1, "w1"), layer.exact_rows) + needed(parameters.b1, "b1")
    return rows_times(activation(layer, h), needed(parameters.w2, "w2"), layer.exact_rows) + needed(
        parameters.b2, "b2"
    )


def transformer_layer(
    layer: LayerConfig, parameters: LayerParameters, x: Float[Array, "n width"]
) -> Float[Array, "n width"]:
    """One layer: attention and per-position map, each with its skip connection (Yang et al. 2024, section 2)."""
    pre, post = layer.layer_norm == "pre", layer.layer_norm == "post"
    z = layer_norm(layer, parameters.attention_norm, x) if pre else x
    c = x + attention(layer, parameters, z)
    if post:
        c = layer_norm(layer, parameters.attention_norm, c)
    if not layer.feed_forward:
        return c
    z = layer_norm(layer, parameters.feed_forward_norm, c) if pre else c
    y = c + feed_forward(layer, parameters, z)
    return layer_norm(layer, parameters.feed_forward_norm, y) if post else y


def activations(
    config: TransformerConfig, parameters: TransformerParameters, tokens: Int[Array, " n"]
) -> Float[Array, "n width"]:
    """y^(L) at every position. O(L n^2 d + L n d (d + d_ff)) operations."""
    x = embed(config, parameters, tokens)
    for k in range(config.layers):
        x = transformer_layer(config.layer(k), parameters.layers[k], x)
    return x


def readout_position(config: TransformerConfig, n: int) -> int | None:
    """The 0-based position whose activation is read out, or None for the mean over positions."""
    if config.readout == "mean":
        return None
    return n - 1 if config.readout == "last" else int(config.readout)


def read_out(
    config: TransformerConfig, parameters: TransformerParameters, y: Float[Array, "n width"]
) -> Float[Array, " outputs"]:
    """The model's output from y^(L): the readout position's row or the mean, through the linear head if any."""
    position = readout_position(config, y.shape[0])
    row = jnp.mean(y, axis=0) if position is None else y[position]
    if parameters.head is None:
        return row
    return rows_times(row, parameters.head, config.exact_rows) + needed(parameters.head_bias, "head_bias")


def apply(
    config: TransformerConfig, parameters: TransformerParameters, tokens: Int[Array, " n"]
) -> Float[Array, " outputs"]:
    """The model's output on one input: `read_out` of `activations`."""
    return read_out(config, parameters, activations(config, parameters, tokens))


def parameters_from_numpy(tree: TransformerParameters, dtype: str) -> TransformerParameters:
    """The same parameters as JAX arrays of `dtype`. Call inside `numerics(dtype)`."""
    return jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf), dtype), tree)
