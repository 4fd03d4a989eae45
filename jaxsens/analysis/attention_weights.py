"""Scores and attention weights of every layer on one input, a block of rows at a time, where attention is visible."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxsens.core.base.errors import InputError
from jaxsens.core.models.adapters import Model
from jaxsens.core.models.parts.weighting import Weighting, weights
from jaxsens.core.models.transformer import layers
from jaxsens.core.models.transformer.config import TransformerConfig
from jaxsens.core.models.transformer.layered import Layered, ModelLayer, embedded_rows, layer_of
from jaxsens.core.models.transformer.parameters import TransformerParameters
from jaxsens.core.models.transformer.trace import in_blocks, scores_of_rows, transformer_layer, weighting_of

SCORES = 2**20
"""The largest number of scores of all heads that are in memory at once, unless a single row has more."""

RowWeights = Callable[[Int[Array, " m"]], tuple[Float[Array, "heads m n"], Bool[Array, "*heads m n"]]]
"""Returns the weights of some rows of one layer on all keys, and which keys these rows see."""

RowScores = RowWeights
"""Returns, in place of the weights, the scores that the weighting function takes: with its temperature."""


def block_rows(heads: int, n: int) -> int:
    """Returns how many of n rows make a block."""
    return max(1, SCORES // (heads * n))


def visible_attention(model: Model, function: str) -> TransformerConfig | Layered:
    """Returns what says how the model's rows attend: a transformer's config, or a `Layered`.

    Raises:
        InputError: for a model whose attention is not visible; `function` is what was called.
    """
    found = model.given_layers if model.config is None else model.config
    if found is None:
        raise InputError.note(
            "model",
            "its attention is not visible. Give a jaxsens transformer, a published model "
            "(jaxsens.load_pretrained), or a pair (layered, parameters) of a jaxsens.Layered of your own",
            subject=function,
        )
    return found


def layer_weights(
    attending: TransformerConfig | Layered, parameters: Any, tokens: Int[Array, " n"]
) -> Iterator[tuple[int, RowWeights]]:
    """Yields the number of heads of each layer, and its weights, at the cost of `layer_scores`."""
    for heads, weighting, rows in layer_scores(attending, parameters, tokens):
        yield heads, partial(_weighted, weighting, rows)


def _weighted(weighting: Weighting, rows: RowScores, block: Int[Array, " m"]) -> tuple[Array, Array]:
    s, seen = rows(block)
    return weights(weighting, s, seen), seen


def layer_scores(
    attending: TransformerConfig | Layered, parameters: Any, tokens: Int[Array, " n"]
) -> Iterator[tuple[int, Weighting, RowScores]]:
    """Yields the number of heads of each layer, its weighting, and its scores.

    O(n width + `SCORES`) memory in addition to what the caller keeps. Attention is computed for the layers' outputs, in
    O(n^2 width) operations each, and again where scores are asked for.
    """
    if isinstance(attending, TransformerConfig):
        yield from _of_transformer(attending, parameters, tokens)
    else:
        yield from _of_layered(attending, parameters, tokens)


def _of_transformer(
    config: TransformerConfig, parameters: TransformerParameters, tokens: Int[Array, " n"]
) -> Iterator[tuple[int, Weighting, RowScores]]:
    x = layers.embed(config, parameters, tokens)
    for k in range(config.layers):
        layer, own = config.layer(k), parameters.layers[k]
        # Nothing reads the last layer's output, so one of its rows is enough.
        traced, x = transformer_layer(layer, own, x, only=0 if k == config.layers - 1 else None)

        def rows(block: Array, layer: Any = layer, own: Any = own, traced: Any = traced) -> Any:
            return scores_of_rows(layer, own, traced.queries[:, block], traced.keys, block)

        yield layer.heads, weighting_of(layer, own), rows


def _of_layered(
    model: Layered, parameters: Any, tokens: Int[Array, " n"]
) -> Iterator[tuple[int, Weighting, RowScores]]:
    n = tokens.shape[0]
    model, everywhere = model.at_length(n), jnp.arange(n)
    x = embedded_rows(model, parameters, tokens, everywhere)
    for k in range(model.layers):
        layer = layer_of(model, parameters, k, n)
        attention = layer.attention
        queries, keys, values = layer.projected(x, everywhere)

        def rows(
            block: Array, layer: ModelLayer = layer, queries: Array = queries, keys: Array = keys
        ) -> Any:
            attention = layer.attention
            seen = attention.sees(block[:, None], everywhere[None, :])

            def one_head(given: tuple[Array, ...]) -> Array:
                head, q, key = given
                return layer.scores(head, q[block], key, block, everywhere)

            return jax.lax.map(one_head, (jnp.arange(attention.heads), queries, keys)), seen

        yield attention.heads, layer.weighting(), rows
        if k < model.layers - 1:

            def attended(
                block: Array,
                layer: ModelLayer = layer,
                queries: Array = queries,
                keys: Array = keys,
                values: Array = values,
            ) -> Array:
                return layer.attended(queries[:, block], keys, values, block)

            x = layer.merged(x, in_blocks(attended, n, block_rows(1, n), axis=0))
