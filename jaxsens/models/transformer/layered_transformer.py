"""The package's own transformers as models whose attention is visible (`Layered`)."""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Array

from jaxsens.base.errors import rule_for
from jaxsens.models.parts.choices import SCORES
from jaxsens.models.transformer import layers
from jaxsens.models.transformer.config import LayerConfig, TransformerConfig
from jaxsens.models.transformer.layered import (
    Attended,
    Attention,
    Index,
    Layered,
    Number,
    Outputs,
    Row,
    Vector,
)
from jaxsens.models.transformer.maps import layer_norm
from jaxsens.models.transformer.parameters import LayerParameters, TransformerParameters
from jaxsens.models.transformer.scores import penalty, projected, turned
from jaxsens.models.transformer.trace import after_attention


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
        """The layer's heads, mask and weighting."""
        config = self.config.layer(layer)
        return Attention(config.heads, mask=config.mask, weighting=config.weighting)

    def at_length(self, n: int) -> LayeredTransformer:
        """The transformer for inputs of length n, on which position embeddings depend."""
        return type(self)(self.config, n)

    def embed(self, parameters: TransformerParameters, symbol: Index, position: Index) -> Row:
        """The symbol's embedding plus the position's."""
        return (
            parameters.embedding[symbol]
            + layers.position_embedding(self.config, parameters, self.n)[position]
        )

    def project(
        self, parameters: TransformerParameters, layer: int, row: Row, position: Index
    ) -> tuple[Array, Array, Array]:
        """Queries, keys and values of one row."""
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
        """Output projection, skips, normalisation and the per-position map of one row."""
        config, own = self._layer(parameters, layer)
        return after_attention(config, own, row[None], attended[:, None]).y[0]

    def read(self, parameters: TransformerParameters, row: Row) -> Outputs:
        """The row itself, or the linear head's logits."""
        return layers.through_head(self.config, parameters, row)

    def placed_score(
        self, parameters: TransformerParameters, layer: int, head: Index, query: Index, key: Index
    ) -> Number | None:
        """The sum of what the position terms add, such as ALiBi's penalties."""
        config, own = self._layer(parameters, layer)
        added = penalty(config, own, query[None], key[None], own.query.dtype, head)
        return None if added is None else added[0, 0, 0]

    def _layer(self, parameters: TransformerParameters, layer: int) -> tuple[LayerConfig, LayerParameters]:
        return self.config.layer(layer), parameters.layers[layer]


class PairwiseTransformer(LayeredTransformer):
    """A transformer whose scores are evaluated for each pair, by the function of their entry in `SCORES`."""

    def score(
        self, parameters: TransformerParameters, layer: int, head: Index, query: Vector, key: Vector
    ) -> Number:
        """The layer's score of one query and one key."""
        config, own = self._layer(parameters, layer)
        of_head = None if own.additive is None else own.additive[head][None]
        function = rule_for("attention", "score", config.scores, SCORES).function
        return function(query[None, None], key[None, None], of_head, config.exact_rows)[0, 0, 0]


def layered_transformer(config: TransformerConfig) -> LayeredTransformer:
    """Returns a config's transformer as a `Layered`; its readout and parameters are those of the transformer."""
    return (LayeredTransformer if config.scores == "dot-product" else PairwiseTransformer)(config)
