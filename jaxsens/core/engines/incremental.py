"""The incremental engine for models whose attention is visible: what a flip changes of a forward pass.

- In the first layer one key and one value change, for which attention has a closed form: a row takes O(heads width).
- Middle layers are those of a forward pass, in blocks of rows whose scores stay in a CPU's cache, or within
  `SCORES_IN_MEMORY` for each flip. Under masks, rows that the flip does not reach keep their values.
- The last layer is computed only in the row that is read, unless all rows are.

The outputs of both runs are subtracted, as by the vmap engine, and as many digits are lost.

It serves every model whose attention is visible: jaxsens transformers, and a user's `Layered`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxsens.core.base.programs import Platform, compiled_for
from jaxsens.core.engines.engine import Cost, Engine, FlipBlock
from jaxsens.core.engines.one_key.one_moved_key import attended_by_moved_rows, changes_of_rows
from jaxsens.core.engines.one_key.run import (
    LayerRun,
    Reach,
    as_carry,
    layer_costs,
    layer_run,
    outputs_of_row,
    over_changed_rows,
    rows_of_block,
    weighting_refusal,
)
from jaxsens.core.engines.vmap import HALF_UNIT, SubtractingEngine, VmapEngine
from jaxsens.core.measures import Measure
from jaxsens.core.measures.formulas import as_vector
from jaxsens.core.models.adapters import Model, TransformerApply
from jaxsens.core.models.transformer.config import TransformerConfig
from jaxsens.core.models.transformer.layered import (
    EqualLayers,
    Layered,
    ModelLayer,
    Stack,
    embedded_rows,
    groups_of,
    layer_of,
    row_read,
)
from jaxsens.core.models.transformer.layers import layered_transformer
from jaxsens.core.models.transformer.trace import leaves_cache, rows_at_once

RowsOfFlips: TypeAlias = Float[Array, "flips n width"]
"""All rows of a layer, under each flip."""

SHORT = 12
"""Symbols of an input at which it reaches half of a large matrix product's rate on CPU, and all of it far beyond."""

MAPPED_ROWS = 512
"""Per-row maps are computed for so many rows at once: matrices that leave the cache are then read less often."""

LARGEST_SCORE = {"float32": 2.0**9, "float64": math.inf}
"""The largest scores at which the closed form is used, by dtype. Narrower ones have too few digits for it.

A score s and its change are recomputed, and rounded by eps |s|, relative to their key's weight: together by some
4 eps |s|, at the limit 2e-4 of what the flip changes there. Two forward passes round the scores of other keys alike,
and lose less.
"""


def refusal(model: Model) -> str | None:
    """Returns why the incremental engine does not support a model, or None if it does."""
    layered = model.layered
    if layered is None:
        return "its attention is not visible"
    if model.readout is None:
        return "readout = None: the incremental engine needs the row that is read"
    if not layered.layers:
        return "the incremental engine needs a layer"
    if model.config is not None and model.config.centred_scores:
        return "the incremental engine forms plain scores, which lose the digits that centred scores keep"
    return weighting_refusal("the incremental engine", layered)


def incremental_engine(
    model: Model, measure: Measure, outputs: tuple[int, ...] | None
) -> IncrementalEngine | None:
    """Returns the engine for a model, or None if it does not support it."""
    layered, readout = model.layered, model.readout
    if layered is None or readout is None or refusal(model) is not None:
        return None
    return IncrementalEngine(measure, outputs, model.apply, layered, readout)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class UnflippedRows:
    """The unflipped run.

    Attributes:
        tokens: the input.
        first: the first layer.
        rows: the output of the first layer, and of each group of later ones, one after another along the first axis;
            without that of the last layer if one row is read.
        stacks: what the layers of each group read of the parameters.
        output: the model's output.
        error_bound: a bound of the rounding of each entry of the output and of a flipped input's.
        sizes: the largest |log-normaliser| of each layer of a jaxsens transformer.
    """

    tokens: Int[Array, " n"]
    first: LayerRun
    rows: Sequence[Float[Array, "*layers n width"]]
    stacks: tuple[Stack, ...]
    output: Float[Array, " outputs"]
    error_bound: Float[Array, " outputs"]
    sizes: Float[Array, " layers"]


@dataclass(frozen=True)
class IncrementalEngine(SubtractingEngine):
    """For models with softmax or sigmoid attention. Memory O(layers n width), and O(n width) per flip of a block.

    Costs per flip: O(n width hidden) for the first layer, O(n^2 width + n width hidden) for each middle layer, O(n
    width^2) for the last. If the readout is the mean over positions, the last layer costs as much as a middle one.

    A model whose scores are too large for its dtype in the closed form (`LARGEST_SCORE`) is measured by whole forward
    passes.

    Attributes:
        layered: the model.
        readout: the row that is read: "last", a position, or "mean".
    """

    layered: Layered
    readout: int | str

    @property
    def fallback(self) -> VmapEngine:
        return VmapEngine(self.measure, self.outputs, self.apply)

    @property
    def own_config(self) -> TransformerConfig | None:
        return self.apply.config if isinstance(self.apply, TransformerApply) else None

    def for_config(self, config: TransformerConfig) -> IncrementalEngine:
        return replace(self, apply=TransformerApply(config), layered=layered_transformer(config))

    @property
    def how(self) -> str:
        return "what a flip changes of a forward pass"

    def resolves(self, prepared: UnflippedRows) -> Bool[Array, ""]:
        """Returns whether the first layer's scores are small enough for the closed form: always in float64, and never
        in bfloat16 or float16.

        The log-normaliser is at most log n above a row's largest score. In sigmoid attention it is 0, for scores of any
        size: the changed weight is that of one key, and its rounding is relative to its own change.
        """
        sizes = prepared.first.normaliser
        return jnp.max(jnp.abs(sizes), initial=0) <= LARGEST_SCORE.get(str(sizes.dtype), -math.inf)

    def prepare(self, parameters: Any, tokens: Int[Array, " n"]) -> UnflippedRows:
        n = tokens.shape[0]
        model = self.layered.at_length(n)
        x = embedded_rows(model, parameters, tokens, jnp.arange(n))
        full_layers, row = self._full_layers, row_read(self.readout, tokens)
        first, x = layer_run(layer_of(model, parameters, 0, n), x, None if full_layers else row)
        rows, apart = [x] if full_layers else [], model.apart(parameters)
        groups = groups_of(model, apart, n, range(1, full_layers))
        stacks = tuple(group.stacked(apart) for group in groups)
        for group, stack in zip(groups, stacks, strict=True):

            def one(x: Array, own: Any, group: EqualLayers = group) -> tuple[Array, Array]:
                layer = group.layer(model, apart, n, own)
                y = changed_layer(layer, x[None], x[None], (0, n))[0][0].astype(x.dtype)
                return y, y

            x, some = jax.lax.scan(one, x, stack)
            rows.append(some)
        output = self._read(parameters, first.x[None] if not full_layers else x[None], tokens[None])[0]
        error_bound = HALF_UNIT * jnp.finfo(output.dtype).eps * jnp.abs(output)
        sizes = jnp.zeros(0)
        if isinstance(self.apply, TransformerApply):
            _, sizes = self.apply.with_sizes(parameters, tokens)
        return UnflippedRows(tokens, first, tuple(rows), stacks, output, error_bound, sizes)

    def sizes(self, prepared: UnflippedRows) -> Float[Array, " layers"]:
        return prepared.sizes

    @property
    def wider(self) -> Engine | None:
        """Whole forward passes in float64, for a float32 model of which there is a form in float64."""
        return self.fallback.wider

    def _flipped(
        self, parameters: Any, prepared: UnflippedRows, block: FlipBlock
    ) -> Float[Array, "flips outputs"]:
        n, (positions, symbols) = prepared.first.x.shape[0], block.single
        model = self.layered.at_length(n)
        moved = embedded_rows(model, parameters, symbols, positions)
        new_tokens = jax.vmap(lambda i, symbol: prepared.tokens.at[i].set(symbol))(positions, symbols)
        if not prepared.rows:
            x = jax.vmap(lambda i, row: prepared.first.x.at[i].set(row))(positions, moved)
            return self._read(parameters, x, new_tokens)
        reach = model.attention(0).rows_that_see((jnp.min(positions), jnp.max(positions) + 1), n)
        first = layer_of(model, parameters, 0, n)
        y = first_layer(first, prepared.first, prepared.rows[0], positions, moved, reach)
        apart = model.apart(parameters)
        groups = groups_of(model, apart, n, range(1, self._full_layers))
        for group, *arrays in zip(groups, prepared.stacks, prepared.rows[1:], strict=True):

            def one(carry: tuple[Array, Reach], arrays: Any, group: EqualLayers = group) -> tuple[Any, None]:
                (y, reach), (own, unchanged) = carry, arrays
                start = jnp.broadcast_to(unchanged, y.shape)
                changed, reach = changed_layer(group.layer(model, apart, n, own), y, start, reach)
                return (changed.astype(y.dtype), as_carry(reach)), None

            (y, reach), _ = jax.lax.scan(one, (y, as_carry(reach)), tuple(arrays))
        return self._read(parameters, y, new_tokens)

    @property
    def _full_layers(self) -> int:
        """The number of layers of which more than one row is needed."""
        return self.layered.layers - (self.readout != "mean")

    def _read(
        self, parameters: Any, y: RowsOfFlips, tokens: Int[Array, "flips n"]
    ) -> Float[Array, "flips outputs"]:
        """Returns outputs from the input of the last layer, or for a mean from its output."""
        n = y.shape[1]
        model, row = self.layered.at_length(n), row_read(self.readout, tokens)

        def read(one: Float[Array, " width"]) -> Float[Array, " outputs"]:
            return as_vector(model.read(parameters, one))

        if row is None:
            return jax.vmap(lambda rows: as_vector(model.read_mean(parameters, rows)))(y)
        return jax.vmap(read)(last_row(layer_of(model, parameters, model.layers - 1, n), y, row))

    def preferred_batch(self, n: int, platform: Platform) -> int:
        return max(1, platform.forward_symbols // n)

    def cost(self, parameters: Any, tokens: Any, platform: Platform) -> Cost:
        """Counts the products of attention and of the row maps. Masks halve what a flip changes while they hide one
        side. Memory is that of rows and, in middle layers, of the scores of one head."""
        n = tokens.shape[0]
        model, full_layers = self.layered.at_length(n), self._full_layers
        prepare = flip = width = scores = 0.0
        later = earlier = True
        for k in range(model.layers):
            costs, attention = layer_costs(model, parameters, k), model.attention(k)
            prepare += n * (n * costs.pair + costs.row)
            if k == full_layers:
                flip += n * (costs.keys + costs.pair)
                continue
            before, after = attention.rows_that_see((1, 2), 3)
            later, earlier = later and before == 1, earlier and after == 2
            share = 0.5 if later or earlier else 1.0
            flip += (
                share * n * (costs.row + n * costs.pair if k else costs.row - costs.keys + 20 * costs.pair)
            )
            width = max(width, costs.width)
            if k:
                most = rows_at_once(n, leaves_cache(attention.heads, n, platform))
                scores = max(scores, n * rows_of_block(n, most, share == 1))
        if full_layers == model.layers:  # of a mean, the outputs of all rows are in memory too
            width = max(width, outputs_of_row(model, parameters) / 8)
        each = (8 * n * width + scores) * jnp.result_type(float).itemsize
        block = int(self.preferred_batch(n, platform) * each)
        compiling = 1.8 + 0.27 * model.layers
        return Cost(prepare, flip, block, n / (n + SHORT), compiling, forward=prepare)


def first_layer(
    layer: ModelLayer,
    trace: LayerRun,
    unchanged: Float[Array, "n width"],
    positions: Int[Array, " flips"],
    moved: Float[Array, "flips width"],
    reach: Reach,
) -> RowsOfFlips:
    """Returns the first layer's output of every flip, whose input row `moved` stands at its position."""
    q, key, value = layer.projected(moved, positions)
    own = attended_by_moved_rows(layer, trace, positions, (q, key, value))

    def block(rows: Int[Array, " m"]) -> Float[Array, "flips m width"]:
        def changed(i: Array, key: Array, value: Array) -> Array:
            return changes_of_rows(layer, trace, rows, i[None], (key[:, None], value[:, None]))[0]

        db = jax.vmap(changed, in_axes=(0, 1, 1))(positions, key, value)
        mine = (rows == positions[:, None])[..., None]
        b = jnp.where(mine[..., None], own[:, None], trace.b[:, rows].swapaxes(0, 1) + db)
        return merged_rows(layer, jnp.where(mine, moved[:, None], trace.x[rows]), b)

    start = jnp.broadcast_to(unchanged, (len(positions), *unchanged.shape))
    return over_changed_rows(block, start, reach, MAPPED_ROWS, axis=1)


def changed_layer(
    layer: ModelLayer, x: RowsOfFlips, unchanged: RowsOfFlips, reach: Reach
) -> tuple[RowsOfFlips, Reach]:
    """Returns a layer's output under flips that change rows `reach` of its input, and the rows it may change.

    `unchanged` is the layer's output in the unflipped run.
    """
    n, attention = layer.n, layer.attention
    reach = attention.rows_that_see(reach, n)
    q, keys, values = projected_rows(layer, x)
    flips, heads, _, value_width = values.shape

    def attended(rows: Int[Array, " m"]) -> Float[Array, "flips m numbers"]:
        def of_one(q: Array, keys: Array, values: Array) -> Float[Array, "m heads value_width"]:
            return layer.attended(q[:, rows], keys, values, rows)

        return jax.vmap(of_one)(q, keys, values).reshape(flips, len(rows), -1)

    def merged(rows: Int[Array, " m"]) -> Float[Array, "flips m width"]:
        return merged_rows(layer, x[:, rows], b[:, rows].reshape(flips, len(rows), heads, value_width))

    nothing = jnp.zeros((flips, n, heads * value_width), values.dtype)
    most = rows_at_once(n, leaves_cache(heads, n, compiled_for()))  # one head's scores
    b = over_changed_rows(attended, nothing, reach, most, axis=1)
    return over_changed_rows(merged, unchanged, reach, MAPPED_ROWS, axis=1), reach


def last_row(
    layer: ModelLayer, x: RowsOfFlips, row: int | Int[Array, " flips"]
) -> Float[Array, "flips width"]:
    """Returns one row of the last layer's output, the same one or another for each flip, in O(n width^2) a flip: the
    keys and values of all rows, the rest of one."""
    (_, keys, values), each = projected_rows(layer, x), 0 if jnp.ndim(row) else None
    own = x[:, row] if each is None else x[jnp.arange(len(x)), row]
    q, _, _ = layer.projected(own, jnp.broadcast_to(jnp.asarray(row), len(x)))

    def attended(q: Array, keys: Array, values: Array, row: Array) -> Float[Array, "1 heads value_width"]:
        return layer.attended(q[:, None], keys, values, row[None])

    b = jax.vmap(attended, in_axes=(1, 0, 0, each))(q, keys, values, jnp.asarray(row))
    return layer.merged(own, b[:, 0])


# Maps of the rows of all flips at once: a platform's blocks of rows then have one size, however many flips there are.


def projected_rows(layer: ModelLayer, x: RowsOfFlips) -> tuple[Float[Array, "flips heads n head_width"], ...]:
    """Returns queries, keys and values of all rows."""
    flips, n, width = x.shape
    parts = layer.projected(x.reshape(-1, width), jnp.tile(jnp.arange(n), flips))
    return tuple(part.reshape(len(part), flips, n, -1).swapaxes(0, 1) for part in parts)


def merged_rows(
    layer: ModelLayer, x: Float[Array, "flips m width"], b: Float[Array, "flips m heads value_width"]
) -> Float[Array, "flips m width"]:
    """Returns output rows from input rows and what they attended to."""
    flips, m, width = x.shape
    return layer.merged(x.reshape(-1, width), b.reshape(flips * m, *b.shape[2:])).reshape(flips, m, -1)
