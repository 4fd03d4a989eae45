"""What the first-order engine is compared with: a plain gradient, and attribution patching with the query-key fix.

Both estimate the same quantity, the change of the outputs under every flip, from one backward pass for each output:

- the gradient: (d output / d x_i) (e' - e), with e and e' the embeddings of the old and the new symbol.
- AtP* (Kramar et al. 2024, arXiv 2403.00745, section 3.1.1): where a query or a key changes, the softmax is computed
  anew; maps of single rows stay linear, so row i passes through the layers by their derivatives.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxsens.core.engines.one_key.run import LayerRun
from jaxsens.core.models.transformer.layered import Layered, ModelLayer, Projections, readout_row
from jaxsens.first_order.engine import FirstOrderEngine


def gradient_changes(
    model: Layered,
    parameters: Any,
    readout: int | str,
    tokens: Int[Array, " n"],
    positions: Int[Array, " flips"],
    symbols: Int[Array, " flips"],
) -> Float[Array, "flips outputs"]:
    """Returns (d output / d x_i) (e' - e) for each flip: one derivative of the forward pass along each step."""
    n = tokens.shape[0]
    model = model.at_length(n)

    def embedded(symbol: Array, i: Array) -> Array:
        return model.embed(parameters, symbol, i)

    x = jax.vmap(embedded)(tokens, jnp.arange(n))
    _, derivative = jax.linearize(lambda x: outputs_of(model, parameters, readout, x), x)

    def one(given: tuple[Array, Array]) -> Array:
        i, symbol = given
        return derivative(jnp.zeros_like(x).at[i].set(embedded(symbol, i) - x[i]))

    return jax.lax.map(one, (positions, symbols))


def outputs_of(model: Layered, parameters: Any, readout: int | str, x: Float[Array, "n width"]) -> Array:
    """Returns the output from the first layer's input rows."""
    for k in range(model.layers):
        x = ModelLayer(model, parameters, k, x.shape[0]).output(x)
    row = readout_row(readout, x.shape[0])
    rows = jax.vmap(lambda y: model.read(parameters, y))(x if row is None else x[row][None])
    return jnp.mean(rows, axis=0)


class LinearRows(FirstOrderEngine):
    """AtP*'s query-key fix: the first-order engine with every map of the flipped row replaced by its derivative."""

    def projected(
        self,
        layer: ModelLayer,
        kept: LayerRun,
        positions: Int[Array, " flips"],
        moved: Float[Array, "flips width"],
    ) -> Projections:
        """The old queries, keys and values, and the derivative of the projections along the row's change."""

        def one(x: Array, new: Array, i: Array) -> tuple[Array, ...]:
            old, step = jax.jvp(
                lambda row: layer.model.project(layer.parameters, layer.k, row, i), (x,), (new - x,)
            )
            return tuple(a + b for a, b in zip(old, step, strict=True))

        q, key, value = (
            jnp.moveaxis(part, 1, 0) for part in jax.vmap(one)(kept.x[positions], moved, positions)
        )
        sharing = q.shape[0] // key.shape[0]
        return q, jnp.repeat(key, sharing, axis=0), jnp.repeat(value, sharing, axis=0)

    def merged(
        self,
        layer: ModelLayer,
        kept: LayerRun,
        positions: Int[Array, " flips"],
        moved: Float[Array, "flips width"],
        b: Float[Array, "flips heads value_width"],
    ) -> Float[Array, "flips width"]:
        """The old row, and the derivative of the map along the row's change and that of what it attended to."""

        def one(x: Array, attended: Array, new: Array, new_attended: Array) -> Array:
            steps = new - x, new_attended - attended
            old, step = jax.jvp(
                lambda x, c: layer.model.merge(layer.parameters, layer.k, x, c), (x, attended), steps
            )
            return old + step

        return jax.vmap(one)(kept.x[positions], kept.b[:, positions].swapaxes(0, 1), moved, b)
