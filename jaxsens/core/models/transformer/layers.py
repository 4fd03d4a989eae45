"""The transformer as pure functions of (config, parameters, tokens), shared by modules, engines and theory; and as a
model whose attention is visible (`Layered`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxsens.core.base.errors import rule_for
from jaxsens.core.models.parts.choices import OUTPUT_GATES, SCORES, rows_times
from jaxsens.core.models.parts.weighting import Weighting
from jaxsens.core.models.transformer.config import LayerConfig, TransformerConfig
from jaxsens.core.models.transformer.layered import (
    AllRows,
    Attended,
    Attention,
    Index,
    Layered,
    Number,
    Outputs,
    Row,
    SomeRows,
    Tokens,
    Vector,
    readout_row,
)
from jaxsens.core.models.transformer.parameters import (
    LayerParameters,
    Stack,
    TransformerParameters,
    needed,
    over_layers,
)
from jaxsens.core.models.transformer.trace import (
    REFINEMENTS,
    LayerTrace,
    after_attention,
    layer_norm,
    penalty,
    projected,
    transformer_layer,
    turned,
    weighting_of,
)


def embed(config: TransformerConfig, parameters: TransformerParameters, tokens: Tokens) -> AllRows:
    """Returns y^(0): the symbol embeddings plus the position embeddings."""
    return parameters.embedding[tokens] + parameters.position_embedding(config, tokens.shape[0])


def activations(config: TransformerConfig, parameters: TransformerParameters, tokens: Tokens) -> AllRows:
    """Returns y^(L) at every position, in O(L n^2 d + L n d (d + d_ff)) operations."""
    return trace(config, parameters, tokens)[1]


def trace(
    config: TransformerConfig,
    parameters: TransformerParameters,
    tokens: Tokens,
    row: int | None = None,
    keep: Callable[[LayerTrace], Any] = lambda traced: traced,
) -> tuple[Stack[Any], SomeRows]:
    """The forward pass. Returns what is kept of every layer's intermediate values, by default all, and y^(L).

    With `row`, y^(L) is that row alone, and what follows from attention in the last layer's trace is 0 in others.
    """

    def one(k: int, own: LayerParameters, x: AllRows) -> tuple[SomeRows, Any]:
        only = row if k == config.layers - 1 else None
        traced, y = transformer_layer(parameters.layer(config, k), own, x, only)
        return y, keep(traced)

    x = embed(config, parameters, tokens)
    y, kept = over_layers(one, parameters.layers, x, range(config.layers))
    return kept, y if config.layers or row is None else x[row][None]


def read_out(config: TransformerConfig, parameters: TransformerParameters, y: SomeRows) -> Outputs:
    """Returns the model's output from the rows of y^(L) that it reads, all or one, through the linear head if any."""
    return through_head(config, parameters, jnp.mean(y, axis=0) if config.readout == "mean" else y[0])


def through_head(config: TransformerConfig, parameters: TransformerParameters, row: Row) -> Outputs:
    """Returns the linear head's output of the readout row or mean; the row itself without a head."""
    if parameters.head is None:
        return row
    return rows_times(row, parameters.head, config.exact_rows) + needed(parameters.head_bias, "head_bias")


def apply(config: TransformerConfig, parameters: TransformerParameters, tokens: Tokens) -> Outputs:
    """Returns the model's output on one input. Of the last layer, only what is read out is computed.

    It takes `apply_operations` operations.
    """
    return apply_with_sizes(config, parameters, tokens)[0]


def apply_with_sizes(
    config: TransformerConfig, parameters: TransformerParameters, tokens: Tokens
) -> tuple[Outputs, Float[Array, " layers"]]:
    """Returns the model's output on one input, and the largest |log-normaliser| of each layer in the rows it computes:
    to within log n, the size of the scores that get weight."""
    row = readout_row(config.readout, tokens.shape[0])
    kept, y = trace(config, parameters, tokens, row, lambda traced: jnp.max(jnp.abs(traced.normaliser)))
    sizes = jnp.concatenate([jnp.zeros(0, y.dtype), *map(jnp.atleast_1d, kept.runs)])
    return read_out(config, parameters, y), sizes


def apply_operations(config: TransformerConfig, n: int) -> int:
    """Returns the floating-point operations of the products of `apply` on one input of length n."""
    read = readout_row(config.readout, n) is not None
    complete = max(0, config.layers - read)  # a formula may need no layer
    total = sum(layer_operations(config, k, n) for k in range(complete))
    if complete < config.layers:
        layer, d = config.layer(complete), config.width
        heads = layer.heads * layer.head_width
        total += 4 * (n + 1) * d * heads + 4 * n * heads + 4 * d * layer.feed_forward
    return total


def layer_operations(config: TransformerConfig, k: int, n: int) -> int:
    """Returns the floating-point operations of layer k's products on one input of length n; a multiply-add is two."""
    layer, d = config.layer(k), config.width
    heads = layer.heads * layer.head_width
    gate = rule_for("apply_operations", "output gate", layer.output_gate, OUTPUT_GATES)
    gates = 2 * n * d * layer.heads * gate.width(layer.head_width) if gate else 0
    centring = 3 * REFINEMENTS * n**2 * heads if layer.centred_scores else 0
    return 8 * n * d * heads + 4 * n**2 * heads + 4 * n * d * layer.feed_forward + centring + gates


@dataclass(frozen=True)
class LayeredTransformer(Layered):
    """A transformer with dot-product scores, for inputs of length n."""

    config: TransformerConfig
    n: int = 0

    @property
    def layers(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """L."""
        return self.config.layers

    @property
    def readout(self) -> int | str:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The config's readout."""
        return self.config.readout

    def attention(self, layer: int) -> Attention:
        config = self.config.layer(layer)
        return Attention(config.heads, mask=config.mask, weighting=config.weighting)

    def attention_of(self, parameters: TransformerParameters, layer: int) -> Attention:
        """The same, with the temperature that is among the parameters, if it is."""
        attention = self.attention(layer)
        if getattr(parameters, "tables", None) is None:  # a derived class may have parameters of its own
            return attention
        return replace(attention, weighting=parameters.layer(self.config, layer).weighting)

    def weighting_of(self, parameters: TransformerParameters, layer: int, head: Index) -> Weighting:
        """The weighting of one head, with its learned sink, if it has one."""
        return weighting_of(*self._layer(parameters, layer), head)

    def at_length(self, n: int) -> LayeredTransformer:
        return type(self)(self.config, n)

    def embed(self, parameters: TransformerParameters, symbol: Index, position: Index) -> Row:
        return (
            parameters.embedding[symbol]
            + jnp.asarray(parameters.position_embedding(self.config, self.n))[position]
        )

    def project(
        self, parameters: TransformerParameters, layer: int, row: Row, position: Index
    ) -> tuple[Array, Array, Array]:
        config, own = self._layer(parameters, layer)
        z = row[None]
        if config.norm.before:
            z = layer_norm(config, own.attention_norm, z)
        q, k = (
            turned(config, projected(config, z, matrix), position[None], self.n)[:, 0]
            for matrix in (own.query, own.key)
        )
        return q, k, projected(config, z, own.value)[:, 0]

    def merge(self, parameters: TransformerParameters, layer: int, row: Row, attended: Attended) -> Row:
        config, own = self._layer(parameters, layer)
        return after_attention(config, own, row[None], attended[:, None]).y[0]

    def read(self, parameters: TransformerParameters, row: Row) -> Outputs:
        return through_head(self.config, parameters, row)

    def placed_score(
        self, parameters: TransformerParameters, layer: int, head: Index, query: Index, key: Index
    ) -> Number | None:
        """The sum of what the position terms add, such as ALiBi's penalties."""
        config, own = self._layer(parameters, layer)
        added = penalty(config, own, query[None], key[None], own.query.dtype, head)
        return None if added is None else added[0, 0, 0]

    def apart(self, parameters: TransformerParameters) -> TransformerParameters:
        return replace(parameters, layers=tuple(parameters.layers))

    def _layer(self, parameters: TransformerParameters, layer: int) -> tuple[LayerConfig, LayerParameters]:
        return parameters.layer(self.config, layer), parameters.layers[layer]


class PairwiseTransformer(LayeredTransformer):
    """A transformer whose scores are evaluated for each pair, by the function of their entry in `SCORES`."""

    def score(
        self, parameters: TransformerParameters, layer: int, head: Index, query: Vector, key: Vector
    ) -> Number:
        config, own = self._layer(parameters, layer)
        of_head = None if own.additive is None else own.additive[head][None]
        function = rule_for("attention", "score", config.scores, SCORES).function
        return function(query[None, None], key[None, None], of_head, config.exact_rows)[0, 0, 0]


def layered_transformer(config: TransformerConfig) -> LayeredTransformer:
    """Returns a config's transformer as a `Layered`; its readout and parameters are those of the transformer."""
    return (LayeredTransformer if config.scores == "dot-product" else PairwiseTransformer)(config)
