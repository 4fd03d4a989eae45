"""Layer-norm blow-up: by how much layer normalisation multiplies the differences between rows of activations.

Hahn and Rofin (2024), section 4: a soft-attention transformer whose output is sensitive to many symbols needs large
parameters, or rows of nearly equal coordinates that layer normalisation blows up.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxsens.base.errors import InputError
from jaxsens.base.precision import numerics
from jaxsens.base.programs import compiled
from jaxsens.base.strict import naming_arguments
from jaxsens.models.networks.given import on_device
from jaxsens.models.transformer import layers
from jaxsens.models.transformer.config import TransformerConfig
from jaxsens.models.transformer.module import check_tokens
from jaxsens.models.transformer.parameters import needed
from jaxsens.models.transformer.trace import LayerTrace
from jaxsens.training.evaluation import network_of


@dataclass(frozen=True, eq=False)
class LayerNormBlowup:
    """What each layer normalisation divides by, on each input.

    Attributes:
        names: Of the normalisations in the order in which they act: "layer 1 attention", "layer 1 feed-forward", ...
        factors: 1 / sqrt(variance + epsilon) of each row that a normalisation reads, float64: (inputs, normalisations,
            n). NaN for rows that the output does not depend on: in the last layer, those other than the readout's.
    """

    names: tuple[str, ...]
    factors: Float[np.ndarray, "inputs norms n"]

    @property
    def largest(self) -> Float[np.ndarray, "inputs norms"]:
        """The largest factor over the rows of each input."""
        return np.nanmax(self.factors, axis=-1)

    @property
    def product(self) -> Float[np.ndarray, " inputs"]:
        """The blow-up of each input: the product over the normalisations of their largest factors.

        The code of Hahn and Rofin (2024) takes the same product, with the unbiased variance and without epsilon; for d
        coordinates its factors are sqrt((d - 1)/d) times these, apart from epsilon.
        """
        return np.prod(self.largest, axis=-1)


@naming_arguments
def layer_norm_blowup(subject: Any, tokens: Any) -> LayerNormBlowup:
    """The factors by which layer normalisation scales the rows of a transformer's activations.

    Args:
        subject: A `Transformer` with layer normalisation, a trained model of this kind, or (config, parameters).
        tokens: Inputs of one length, (n,) or (inputs, n), with the boundary symbol if the model reads one.

    Raises:
        InputError: If the model has no layer normalisation, or cannot read the tokens.
    """
    config, parameters = network_of(subject)
    if not isinstance(config, TransformerConfig) or config.layer_norm == "none" or not config.layers:
        remedy = 'give a Transformer of at least one layer whose layer_norm is "pre" or "post"'
        found = getattr(config, "layer_norm", type(subject).__name__)
        raise InputError(f"layer_norm_blowup: subject with layer_norm = {found!r}: {remedy}")
    check_tokens(config, tokens)
    words = np.atleast_2d(np.asarray(tokens))
    with numerics(config.dtype):
        found = np.array(_factors(config, parameters, on_device(words)), np.float64)
    names = [
        f"layer {k + 1} {place}"
        for k in range(config.layers)
        for place in ("attention", "feed-forward")[: 2 if config.layer(k).feed_forward else 1]
    ]
    return LayerNormBlowup(tuple(names), found)


@compiled(static=1)
def _factors(
    config: TransformerConfig, parameters: Any, tokens: Int[Array, "inputs n"]
) -> Float[Array, "inputs norms n"]:
    def one(word: Array) -> Array:
        traces, _ = layers.trace(config, parameters, word)
        return jnp.stack([row for k, trace in enumerate(traces) for row in _of_layer(config, k, trace)])

    return jax.lax.map(one, tokens)


def _of_layer(config: TransformerConfig, k: int, trace: LayerTrace) -> list[Array]:
    """The factors of one layer's normalisations, NaN where the model's output does not depend on the row."""
    layer = config.layer(k)
    before = layer.norm.before
    read = [trace.x if before else trace.attended]
    if layer.feed_forward:
        read.append(trace.c if before else needed(trace.mapped, "mapped"))
    position = layers.readout_position(config, trace.x.shape[0])
    found = []
    for place, rows in enumerate(read):
        factors = 1 / jnp.sqrt(jnp.var(rows, axis=-1) + layer.layer_norm_epsilon)
        # The keys and values of every row come from what is normalised before attention.
        feeds_attention = before and place == 0
        if k == config.layers - 1 and position is not None and not feeds_attention:
            factors = jnp.where(jnp.arange(len(factors)) == position, factors, jnp.nan)
        found.append(factors)
    return found
