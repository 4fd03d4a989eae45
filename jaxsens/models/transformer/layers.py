"""The transformer as pure functions of (config, parameters, tokens), shared by modules, engines and theory."""

from __future__ import annotations

import jax.numpy as jnp

from jaxsens.base.errors import no_rule, rule_for
from jaxsens.models.parts.choices import OUTPUT_GATES
from jaxsens.models.parts.positions import AddedTerm, CoordinateTerm, Learned, ScoreTerm
from jaxsens.models.parts.products import rows_times
from jaxsens.models.transformer.centred import REFINEMENTS
from jaxsens.models.transformer.config import TransformerConfig
from jaxsens.models.transformer.layered import AllRows, Outputs, Row, Tokens, readout_row
from jaxsens.models.transformer.parameters import TransformerParameters, needed
from jaxsens.models.transformer.trace import LayerTrace, transformer_layer, transformer_row


def position_embedding(config: TransformerConfig, parameters: TransformerParameters, n: int) -> AllRows:
    """Returns the position embedding that is added to the symbols' embeddings, for inputs of length n."""
    total = jnp.zeros((n, config.width), config.dtype)
    row = 0
    for term in config.position_terms:
        match term:
            case CoordinateTerm():
                vector = needed(parameters.components, "components")[row]
                total = total + jnp.asarray(term.values(n), config.dtype)[:, None] * vector
                row += 1
            case AddedTerm():
                total = total + jnp.asarray(term.values(n, config.width), config.dtype)
            case Learned():
                total = total + needed(parameters.learned, "learned")[:n]
            case ScoreTerm():
                pass  # it affects the scores, not the embedding
            case _:
                raise no_rule(
                    "position_embedding",
                    "position term",
                    term,
                    (CoordinateTerm, AddedTerm, Learned, ScoreTerm),
                )
    return total


def embed(config: TransformerConfig, parameters: TransformerParameters, tokens: Tokens) -> AllRows:
    """Returns y^(0): the symbol embeddings plus the position embeddings."""
    return parameters.embedding[tokens] + position_embedding(config, parameters, tokens.shape[0])


def activations(config: TransformerConfig, parameters: TransformerParameters, tokens: Tokens) -> AllRows:
    """Returns y^(L) at every position, in O(L n^2 d + L n d (d + d_ff)) operations."""
    return trace(config, parameters, tokens)[1]


def trace(
    config: TransformerConfig, parameters: TransformerParameters, tokens: Tokens, row: int | None = None
) -> tuple[tuple[LayerTrace, ...], AllRows]:
    """Returns every layer's intermediate values, and y^(L). With `row`, only that row of the last layer is valid."""
    x = embed(config, parameters, tokens)
    kept = []
    for k in range(config.layers):
        only = row if k == config.layers - 1 else None
        one, x = transformer_layer(config.layer(k), parameters.layers[k], x, only)
        kept.append(one)
    return tuple(kept), x


def readout_position(config: TransformerConfig, n: int) -> int | None:
    """Returns the 0-based readout position, or None for the mean over positions."""
    return readout_row(config.readout, n)


def read_out(config: TransformerConfig, parameters: TransformerParameters, y: AllRows) -> Outputs:
    """Returns the model's output from y^(L): the readout row or the mean, through the linear head if any."""
    position = readout_position(config, y.shape[0])
    return through_head(config, parameters, jnp.mean(y, axis=0) if position is None else y[position])


def through_head(config: TransformerConfig, parameters: TransformerParameters, row: Row) -> Outputs:
    """Returns the linear head's output of the readout row or mean; the row itself without a head."""
    if parameters.head is None:
        return row
    return rows_times(row, parameters.head, config.exact_rows) + needed(parameters.head_bias, "head_bias")


def apply(config: TransformerConfig, parameters: TransformerParameters, tokens: Tokens) -> Outputs:
    """Returns the model's output on one input: `read_out` of `activations`. Of the last layer, only what is read out.

    It takes `apply_operations` operations.
    """
    position = readout_position(config, tokens.shape[0])
    if position is None or not config.layers:
        return read_out(config, parameters, activations(config, parameters, tokens))
    x, last = embed(config, parameters, tokens), config.layers - 1
    for k in range(last):
        x = transformer_layer(config.layer(k), parameters.layers[k], x)[1]
    return through_head(
        config, parameters, transformer_row(config.layer(last), parameters.layers[last], x, position)
    )


def apply_operations(config: TransformerConfig, n: int) -> int:
    """Returns the floating-point operations of the products of `apply` on one input of length n."""
    whole = config.layers - (readout_position(config, n) is not None)
    total = sum(layer_operations(config, k, n) for k in range(whole))
    if whole < config.layers:
        layer, d = config.layer(whole), config.width
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
