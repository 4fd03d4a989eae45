"""The transformer as a Flax NNX module. It holds the parameters; the mathematics is in `layers`."""

from __future__ import annotations

from functools import partial

import numpy as np
from jax.typing import ArrayLike

from jaxsens.core.base.errors import Problems, check_fits
from jaxsens.core.models.networks.given import check_input
from jaxsens.core.models.networks.network import Network
from jaxsens.core.models.transformer import layers
from jaxsens.core.models.transformer.config import TransformerConfig
from jaxsens.core.models.transformer.parameters import TransformerParameters, initialise, shapes


class Transformer(Network[TransformerConfig, TransformerParameters]):
    """A transformer described by a `TransformerConfig`.

    `model(tokens)` is the readout y_r^(L) (or a linear head's logits); `model.activations(tokens)` is y^(L) at every
    position. Tokens are integers below `config.vocabulary_size`, with an optional leading batch axis.

    Args:
        config: the model's shape and choices.
        seed: the seed of the random parameters; see `jaxsens.core.models.transformer.parameters.initialise`.
        parameters: parameters to use instead; their shapes must match the config.

    Raises:
        InputError: naming each unusable argument.
    """

    of = TransformerConfig
    drawn = staticmethod(initialise)
    shaped = staticmethod(shapes)
    output_of = staticmethod(layers.apply)
    rows_of = staticmethod(layers.activations)

    def _check(self, tokens: ArrayLike) -> None:
        check_tokens(self.config, tokens)


def check_length(config: TransformerConfig, n: int, problems: Problems) -> None:
    """Adds an error if the model cannot read inputs of length n."""
    if n < 1:
        problems.add("tokens", f"length {n}", "give at least one symbol")
    for term in config.position_terms:
        term.check_length(n, problems)
    if isinstance(config.readout, int) and config.readout >= n:
        problems.add("tokens", f"length {n}", f"longer than the readout position {config.readout}")


def check_runs(config: TransformerConfig, n: int, problems: Problems) -> None:
    """Adds an error if the model cannot read inputs of length n, or a forward pass does not fit in memory."""
    before = len(problems)
    check_length(config, n, problems)
    if len(problems) == before:
        needed, remedy = activation_bytes(config, n), "give a shorter input"
        check_fits("tokens", f"length {n}", needed, "what a forward pass holds of it", remedy, problems)


def activation_bytes(config: TransformerConfig, n: int) -> int:
    """Returns a lower bound on the bytes of one input's activations: depth 1 needs them only at the readout."""
    layers = config.layers + 1 if config.layers > 1 else 1
    return n * config.width * layers * np.dtype(config.dtype).itemsize


def check_tokens(config: TransformerConfig, tokens: ArrayLike) -> None:
    """Rejects tokens of the wrong type, shape or range. The range is checked only if the values are known.

    Raises:
        InputError: listing every error.
    """
    check_input(tokens, config.vocabulary_size, partial(check_length, config))
