"""The incremental engine: one forward pass per flip, of which only what the flip changes is computed.

- The first layer's attention has the closed form of the difference engine: only one key changes, so a row takes
  O(H head_width). Its per-position map is that of a forward pass.
- Later layers are those of a forward pass. Under masks that hide the future, rows before the flipped position do not
  change; their keys, values and outputs are those of the unflipped run. The same holds for masks that hide the past.
- The last layer is computed only in the row that is read out.

The outputs of both runs are subtracted, as by the vmap engine, and as many digits are lost.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxsens.errors import rule_for
from jaxsens.models.choices import ACTIVATIONS
from jaxsens.models.config import LayerConfig, TransformerConfig
from jaxsens.models.layers import apply_operations, embed, layer_operations, readout_position, through_head
from jaxsens.models.maps import layer_norm
from jaxsens.models.masks import MASKS
from jaxsens.models.parameters import LayerParameters, TransformerParameters
from jaxsens.models.positions import Alibi, Component, FunctionComponent, Learned, Limb, Rotary, Sinusoidal
from jaxsens.models.scores import projected, turned
from jaxsens.models.trace import (
    after_attention,
    attention_of_rows,
    transformer_layer,
    transformer_row,
)
from jaxsens.models.weighting import Softmax
from jaxsens.precision import LARGEST_SCORE
from jaxsens.sensitivity.adapters import TransformerApply
from jaxsens.sensitivity.difference.layer_change import softmax_first_layer
from jaxsens.sensitivity.difference.one_key import rest_of
from jaxsens.sensitivity.difference.state import Prepared, largest_score
from jaxsens.sensitivity.engine import Engine, EngineCost, Served
from jaxsens.sensitivity.reach import Reach, changed_rows, over_changed_rows
from jaxsens.sensitivity.vmap_engine import VmapEngine

EFFICIENCY = 0.75
"""The share of a large matrix product's rate that it reaches on CPU."""

SERVED = Served(
    weightings=(Softmax,),
    position_terms=(Component, FunctionComponent, Limb, Sinusoidal, Learned, Rotary, Alibi),
    masks=("none", "future", "past", "strict-future", "strict-past"),
    scores=("dot-product", "additive"),
    layer_norms=("none", "pre", "post"),
    activations=tuple(ACTIVATIONS),
)
"""The first layer's closed form is that of softmax. A hard layer's ties need rows that are all computed in one way."""


def refusal(config: TransformerConfig) -> str | None:
    """Returns why the incremental engine does not support a config, or None if it does."""
    if config.layers < 2:
        return "the incremental engine needs two layers: of one layer, a forward pass computes only one row"
    if config.centred_scores:
        return "the incremental engine forms plain scores, which lose the digits that centred scores keep"
    return SERVED.refusal("the incremental engine", config)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Unflipped:
    """The unflipped run: its first layer, the outputs of later layers, and its own output.

    Attributes:
        first: the first layer's trace, y^(1), and the values for the closed form.
        rows: y^(2), y^(3), ..., without that of the last layer if one row is read out.
        output: the model's output.
    """

    first: Prepared
    rows: tuple[Float[Array, "n width"], ...]
    output: Float[Array, " outputs"]


@dataclass(frozen=True)
class IncrementalEngine(Engine):
    """For softmax transformers of two layers or more. Memory O(L n (d + d_ff)), and O(n d) per flip of a block.

    Costs per flip: O(n d d_ff) for the first layer, O(n^2 d + n d d_ff) for each middle layer, O(n d^2) for the last.
    If the readout is the mean over positions, the last layer costs as much as a middle one.

    A float32 model whose scores are too large for the closed form (`LARGEST_SCORE`), and flips for which its result
    would be inaccurate, are measured by whole forward passes.
    """

    config: TransformerConfig

    @property
    def fallback(self) -> Engine:
        """Whole forward passes."""
        return VmapEngine(self.norm, self.outputs, TransformerApply(self.config), scalar=self.scalar)

    @property
    def how(self) -> str:
        """The method."""
        return "what a flip changes of a forward pass"

    def resolves(self, prepared: Unflipped) -> bool:
        """Returns whether the first layer's scores are small enough for the closed form; always true in float64."""
        return largest_score(prepared.first) <= LARGEST_SCORE[self.config.dtype]

    def prepare(self, parameters: TransformerParameters, tokens: Int[Array, " n"]) -> Unflipped:
        """Runs one forward pass and keeps its intermediate values, and passes over the first layer's scores again."""
        config = self.config
        trace, y = transformer_layer(config.layer(0), parameters.layers[0], embed(config, parameters, tokens))
        rest = rest_of(config.layer(0), parameters.layers[0], trace)
        first, rows = Prepared(tokens, (trace,), y, rest), []
        for k in range(1, whole_layers(config, tokens.shape[0])):
            y = transformer_layer(config.layer(k), parameters.layers[k], y)[1]
            rows.append(y)
        return Unflipped(first, tuple(rows), self._read(parameters, y))

    def changes(
        self,
        parameters: TransformerParameters,
        prepared: Unflipped,
        positions: Int[Array, " flips"],
        symbols: Int[Array, " flips"],
    ) -> Float[Array, "flips outputs"]:
        """Returns the output of each flipped input minus that of the input; NaN for flips that are declined."""
        config = self.config
        n = prepared.first.output.shape[0]
        reach = changed_rows(config.layer(0).mask, (jnp.min(positions), jnp.max(positions) + 1), n)
        y = self._first_layer(parameters, prepared.first, positions, symbols, reach)
        for k, unchanged in enumerate(prepared.rows, start=1):
            y, reach = changed_layer(config.layer(k), parameters.layers[k], unchanged, y, reach)
        return jax.vmap(lambda y: self._read(parameters, y))(y) - prepared.output

    def output(self, parameters: TransformerParameters, prepared: Unflipped) -> Float[Array, " outputs"]:
        """Returns the output of the unflipped run."""
        del parameters
        return prepared.output

    def _first_layer(
        self,
        parameters: TransformerParameters,
        first: Prepared,
        positions: Int[Array, " flips"],
        symbols: Int[Array, " flips"],
        reach: Reach,
    ) -> Float[Array, "flips n width"]:
        """Returns y^(1) of every flip."""
        config, own, kept = self.config, parameters.layers[0], first.traces[0]
        layer = config.layer(0)

        def of_one(position: Array, symbol: Array, rows: Int[Array, " m"]) -> Float[Array, "m width"]:
            dx, db = softmax_first_layer(config, parameters, first, position, symbol, rows)
            return _rest_of_layer(layer, own, kept.x[rows] + dx, kept.b[:, rows] + db)

        def block(rows: Int[Array, " m"]) -> Float[Array, "flips m width"]:
            return jax.vmap(lambda position, symbol: of_one(position, symbol, rows))(positions, symbols)

        start = jnp.broadcast_to(first.output, (len(positions), *first.output.shape))
        return over_changed_rows(block, layer, start, reach)

    def _read(
        self, parameters: TransformerParameters, y: Float[Array, "n width"]
    ) -> Float[Array, " outputs"]:
        """Returns the output from the input of the last layer, or for a mean from its output."""
        config, row = self.config, readout_position(self.config, y.shape[0])
        if row is None:
            return through_head(config, parameters, jnp.mean(y, axis=0))
        last = config.layers - 1
        read = transformer_row(config.layer(last), parameters.layers[last], y, row)
        return through_head(config, parameters, read)

    def cost(self, parameters: TransformerParameters, tokens: Any, platform: str) -> EngineCost:
        """Counts products, and the closed form's work per row and head. Masks halve it while they hide one side."""
        config, n = self.config, tokens.shape[0]
        layer, d = config.layer(0), config.width
        heads = layer.heads * layer.head_width
        masks = [
            rule_for("the incremental engine", "mask", config.layer(k).mask, MASKS)
            for k in range(config.layers)
        ]
        closed = n * (12 * heads + 40 * layer.heads + 2 * d * heads + 4 * d * layer.feed_forward)
        flip, later, earlier = 0.0, True, True
        for k in range(whole_layers(config, n)):
            later, earlier = later and not masks[k].earlier, earlier and not masks[k].later
            share = 0.5 if later or earlier else 1.0
            flip += share * (layer_operations(config, k, n) if k else closed)
        last = config.layer(config.layers - 1)
        if readout_position(config, n) is not None:
            flip += 4 * n * (d + 1) * last.heads * last.head_width
        wide = max(config.layer(k).feed_forward for k in range(config.layers)) + 8 * d
        block = 4 * self.preferred_batch(n, platform) * n * wide
        prepare = apply_operations(config, n) + 4 * n**2 * heads
        return EngineCost(prepare, flip, block, EFFICIENCY)

    def preferred_batch(self, n: int, platform: str) -> int:
        """As the vmap engine: on CPU 256 symbols, on accelerators enough flips to keep them busy."""
        return max(1, (2**8 if platform == "cpu" else 2**20) // n)


def whole_layers(config: TransformerConfig, n: int) -> int:
    """Returns the number of layers of which more than one row is needed."""
    return config.layers - (readout_position(config, n) is not None)


def changed_layer(
    layer: LayerConfig,
    parameters: LayerParameters,
    unchanged: Float[Array, "n width"],
    x: Float[Array, "flips n width"],
    reach: Reach,
) -> tuple[Float[Array, "flips n width"], Reach]:
    """Returns a later layer's output under flips that change rows `reach` of its input, and the rows it may change.

    `unchanged` is the layer's output in the unflipped run.
    """
    n = unchanged.shape[0]
    reach = changed_rows(layer.mask, reach, n)

    def attended(x: Float[Array, "n width"]) -> tuple[Array, Array, Array]:
        z = layer_norm(layer, parameters.attention_norm, x) if layer.norm.before else x
        keys = turned(layer, projected(layer, z, parameters.key), jnp.arange(n), n)
        return z, keys, projected(layer, z, parameters.value)

    z, keys, values = jax.vmap(attended)(x)

    def block(rows: Int[Array, " m"]) -> Float[Array, "flips m width"]:
        def of_one(x: Array, z: Array, keys: Array, values: Array) -> Float[Array, "m width"]:
            queries = turned(layer, projected(layer, z[rows], parameters.query), rows, n)
            b = attention_of_rows(layer, parameters, queries, keys, values, rows)[0]
            return _rest_of_layer(layer, parameters, x[rows], b)

        return jax.vmap(of_one)(x, z, keys, values)

    return over_changed_rows(block, layer, jnp.broadcast_to(unchanged, x.shape), reach), reach


def _rest_of_layer(
    layer: LayerConfig,
    parameters: LayerParameters,
    x: Float[Array, "m width"],
    b: Float[Array, "heads m head_width"],
) -> Float[Array, "m width"]:
    none = x[:0]
    return after_attention(layer, parameters, x, none, none, none, none, none, b)[1]
