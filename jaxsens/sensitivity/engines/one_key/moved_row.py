"""The flipped row, followed exactly through a layer whose other rows are those of the unflipped run."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxsens.models.transformer.layered import Layered, Projections, head_scores
from jaxsens.sensitivity.engines.one_key.blocks import TILE
from jaxsens.sensitivity.engines.one_key.run import LayerRun


def attended_by_moved_rows(
    model: Layered,
    parameters: Any,
    layer: int,
    kept: LayerRun,
    positions: Int[Array, " flips"],
    moved: Projections,
) -> Float[Array, "flips heads value_width"]:
    """Returns what each flipped row attends to: the old keys, with its own replaced. O(n width) a flip."""
    n, attention = kept.x.shape[0], model.attention(layer)
    columns = jnp.arange(n)

    def one_head(given: tuple[Array, ...]) -> Array:
        head, keys, values, q, k, v = given

        def few(flips: tuple[Array, ...]) -> Array:
            i, q, k, v = (part[None] for part in flips)
            s = head_scores(model, parameters, layer, head, q, keys, i, columns, n)
            own = head_scores(model, parameters, layer, head, q, k, i, i, n)
            s = jnp.where(columns == i[:, None], own, s)
            seen = attention.sees(i[:, None], columns[None, :])
            shares, total = attention.weighting.shares(s, seen)
            weights = shares / total
            replaced = weights[0, i[0]]
            return (weights @ values + replaced * (v - values[i]))[0]

        return jax.lax.map(few, (positions, q, k, v), batch_size=max(1, TILE // n))

    heads = jnp.arange(attention.heads), kept.keys, kept.values, *moved
    return jax.lax.map(one_head, heads).swapaxes(0, 1)
