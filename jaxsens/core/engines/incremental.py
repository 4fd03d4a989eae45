"""The incremental engine for models whose attention is visible: what a flip changes of a forward pass.

- In the first layer, if a flip replaces one symbol, one key and one value change, for which attention has a closed
  form: a row takes O(heads width).
- Middle layers are those of a forward pass, in blocks of rows whose scores stay in a CPU's cache, or within
  `SCORES_IN_MEMORY` for each flip. Under masks, rows that the flip does not reach keep their keys and values.
- The last layer is computed only in the row that is read, unless all rows are.

Other flips (groups, deletions, insertions) change the rows from the first symbol on that differs to the last. These
are compared with an unflipped run of their own length: under future masks, the rows before them are those of that run.

The outputs of both runs are subtracted, as by the vmap engine, and as many digits are lost.

It serves every model whose attention is visible: jaxsens transformers, and a user's `Layered`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxsens.core.base.programs import Platform, compiled_for
from jaxsens.core.engines.engine import Cost, Engine, FlipBlock
from jaxsens.core.engines.one_key.one_moved_key import attended_by_moved_rows, changes_of_rows
from jaxsens.core.engines.one_key.run import (
    MASKED_BLOCKS,
    LayerRun,
    Reach,
    as_carry,
    is_static,
    layer_costs,
    layer_run,
    outputs_of_row,
    over_changed_rows,
    rows_computed,
    rows_of_block,
    weighting_refusal,
)
from jaxsens.core.engines.vmap import HALF_UNIT, SubtractingEngine, VmapEngine, flipped_length
from jaxsens.core.flips.flips import Flips, Rewrite, replaced
from jaxsens.core.measures import Measure
from jaxsens.core.measures.formulas import as_vector
from jaxsens.core.models.adapters import Model, TransformerApply
from jaxsens.core.models.transformer.config import TransformerConfig
from jaxsens.core.models.transformer.layered import (
    EqualLayers,
    Index,
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

REWRITING = 0.8
"""The share of that rate for flips that do more than replace one symbol, of which every row is embedded anew."""

MAPPED_ROWS = 512
"""Per-row maps are computed for so many rows at once: matrices that leave the cache are then read less often."""

LARGEST_SCORE = {"float32": 2.0**9, "float64": math.inf}
"""The largest scores at which the closed form is used, and any change is resolved, by dtype. Narrower ones have too few
digits for it.

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
    model: Model, measure: Measure, outputs: tuple[int, ...] | None, flips: Flips
) -> IncrementalEngine | None:
    """Returns the engine for a model and what flips do to its inputs, or None if it does not support the model."""
    layered, readout = model.layered, model.readout
    if layered is None or readout is None or refusal(model) is not None:
        return None
    own = measure, outputs, model.apply, layered, readout
    return IncrementalEngine(*own, rewrite=flips.rewrite, single=flips.plain)


class LayerRows(NamedTuple):
    """The rows of one layer in the unflipped run, or under flips: its output, keys and values."""

    y: Float[Array, "*flips n width"]
    keys: Float[Array, "*flips heads n head_width"]
    values: Float[Array, "*flips heads n value_width"]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class UnflippedRows:
    """The unflipped run of the input, or of a word as long as flipped ones.

    Attributes:
        tokens: the input.
        word: that word.
        first: the first layer, if it has a closed form.
        x: the input of the layers without one: the output of `first`, or the embedded word.
        groups: those layers in groups, one after another along the first axis of every array.
        last: the keys and values of the last layer if one row is read; it is in no group.
        output: the model's output.
        error_bound: a bound of the rounding of each entry of the output and of a flipped input's.
        sizes: the largest |log-normaliser| of each layer of a jaxsens transformer.
    """

    tokens: Int[Array, " n"]
    word: Int[Array, " m"]
    first: LayerRun | None
    x: Float[Array, "m width"]
    groups: tuple[LayerRows, ...]
    last: tuple[Array, Array] | None
    output: Float[Array, " outputs"]
    error_bound: Float[Array, " outputs"]
    sizes: Float[Array, " layers"]


@dataclass(frozen=True)
class IncrementalEngine(SubtractingEngine):
    """For models with softmax or sigmoid attention, and every kind of flips. Memory O(layers n width), and O(n width)
    per flip of a block.

    Costs per flip: O(n width hidden) for the first layer if one symbol is replaced, O(n^2 width + n width hidden) for
    each middle layer, O(n width^2) for the last. If the readout is the mean over positions, the last layer costs as
    much as a middle one.

    A model whose scores are too large for its dtype in the closed form (`LARGEST_SCORE`) is measured by whole forward
    passes.

    Of a split model, each device holds the first and the last layer whole, beside the one that it computes.

    Attributes:
        layered: the model.
        readout: the row that is read: "last", a position, or "mean".
        rewrite: what a flip does to a word (`Flips.rewrite`).
        single: whether each flip replaces one symbol (`Flips.plain`).
    """

    layered: Layered
    readout: int | str
    rewrite: Rewrite = field(default=replaced, kw_only=True)
    single: bool = field(default=True, kw_only=True)

    @property
    def fallback(self) -> VmapEngine:
        return VmapEngine(self.measure, self.outputs, self.apply, rewrite=self.rewrite)

    @property
    def own_config(self) -> TransformerConfig | None:
        return self.fallback.own_config

    def for_config(self, config: TransformerConfig) -> IncrementalEngine:
        return replace(self, apply=TransformerApply(config), layered=layered_transformer(config))

    @property
    def how(self) -> str:
        return "what a flip changes of a forward pass"

    def resolves(self, prepared: UnflippedRows) -> Bool[Array, ""]:
        """Returns whether the first layer's scores are small enough for its closed form: always in float64, and never
        in bfloat16 or float16. Without it, there are the products of a forward pass alone.

        The log-normaliser is at most log n above a row's largest score. In sigmoid attention it is 0, for scores of any
        size: the changed weight is that of one key, and its rounding is relative to its own change.
        """
        if prepared.first is None:
            return jnp.asarray(True)
        sizes = prepared.first.normaliser
        return jnp.max(jnp.abs(sizes), initial=0) <= LARGEST_SCORE.get(str(sizes.dtype), -math.inf)

    def prepare(self, parameters: Any, tokens: Int[Array, " n"]) -> UnflippedRows:
        word = tokens
        if not self.single:  # a flip behind the last symbol changes no other
            word = self.rewrite(tokens, jnp.asarray([len(tokens)]), jnp.zeros(1, tokens.dtype))
        n = word.shape[0]
        model, everything = self.layered.at_length(n), (0, n)
        x, first = embedded_rows(model, parameters, word, jnp.arange(n)), None
        if self._closed_form:
            first, y = layer_run(layer_of(model, parameters, 0, n), x)
            x = y.astype(x.dtype)
        start, groups, last = x, [], None
        for group, apart, stack in self._groups(model, parameters, n):

            def one(
                x: Array, k: Index, group: EqualLayers = group, apart: Any = apart, stack: Stack = stack
            ) -> tuple[Array, Any]:
                layer = group.layer(model, apart, n, stack, k)
                rows, _ = changed_layer(layer, x[None], None, everything)
                rows = rows._replace(y=rows.y.astype(x.dtype))
                return rows.y[0], jax.tree.map(lambda part: part[0], rows)

            x, some = jax.lax.scan(one, x, group.numbers)
            groups.append(some)
        if self._full_layers < model.layers:
            final = layer_of(model, parameters, model.layers - 1, n)
            last = final.projected(x, jnp.arange(n))[1:]
        sizes = jnp.zeros(0)
        if word.shape != tokens.shape:
            whole = self.fallback.prepare(parameters, tokens)
            output, sizes = as_vector(whole.output), whole.sizes
        else:  # of the same products as those of flips
            output = self._read(parameters, x[None], word[None], last, everything)[0]
            if isinstance(self.apply, TransformerApply):
                _, sizes = self.apply.with_sizes(parameters, tokens)
        error_bound = HALF_UNIT * jnp.finfo(output.dtype).eps * jnp.abs(output)
        return UnflippedRows(tokens, word, first, start, tuple(groups), last, output, error_bound, sizes)

    def sizes(self, prepared: UnflippedRows) -> Float[Array, " layers"]:
        return prepared.sizes

    @property
    def wider(self) -> Engine | None:
        """Whole forward passes in float64, for a float32 model of which there is a form in float64."""
        return self.fallback.wider

    def _flipped(
        self, parameters: Any, prepared: UnflippedRows, block: FlipBlock
    ) -> Float[Array, "flips outputs"]:
        n = prepared.word.shape[0]
        model = self.layered.at_length(n)
        tokens, symbols = prepared.tokens, block.symbols.astype(prepared.tokens.dtype)
        words = jax.vmap(self.rewrite, in_axes=(None, 0, 0))(tokens, block.places, symbols)
        if prepared.first is not None:
            positions, symbols = block.single
            layer = layer_of(model, parameters, 0, n)
            moved = embedded_rows(model, parameters, symbols, positions)
            reach = layer.attention.rows_that_see((jnp.min(positions), jnp.max(positions) + 1), n)
            y = first_layer(layer, prepared.first, prepared.x, positions, moved, reach)
        else:
            differ = jnp.any(words != prepared.word, axis=0)
            reach = jnp.argmax(differ), n - jnp.argmax(differ[::-1])
            y = jax.vmap(lambda word: embedded_rows(model, parameters, word, jnp.arange(n)))(words)
        for (group, apart, stack), rows in zip(
            self._groups(model, parameters, n), prepared.groups, strict=True
        ):

            def one(
                carry: tuple[Array, Reach],
                given: Any,
                group: EqualLayers = group,
                apart: Any = apart,
                stack: Stack = stack,
            ) -> tuple[Any, None]:
                (y, reach), (k, unflipped) = carry, given
                new, reach = changed_layer(group.layer(model, apart, n, stack, k), y, unflipped, reach)
                return (new.y.astype(y.dtype), as_carry(reach)), None

            known = model.attention(group.start).rows_that_see(reach, n)
            (y, reach), _ = jax.lax.scan(one, (y, as_carry(reach)), (group.numbers, rows))
            # Bounds that the mask tells in every layer anew stay static behind the loop, too.
            first, stop = (a if isinstance(a, int) else b for a, b in zip(known, reach, strict=True))
            reach = first, stop
        return self._read(parameters, y, words, prepared.last, reach)

    @property
    def _full_layers(self) -> int:
        """The number of layers of which more than one row is needed."""
        return self.layered.layers - (self.readout != "mean")

    @property
    def _closed_form(self) -> bool:
        """Whether the first layer has one: if a flip moves one key of it, and more than one row is needed."""
        return self.single and self._full_layers > 0

    def _groups(self, model: Layered, parameters: Any, n: int) -> list[tuple[EqualLayers, Any, Stack]]:
        """Returns the groups of the layers without a closed form of which more than one row is needed, their
        parameters, and what they read of these."""
        apart = model.apart(parameters)
        groups = groups_of(model, apart, n, range(int(self._closed_form), self._full_layers))
        return [(group, apart, group.stacked(apart)) for group in groups]

    def _read(
        self,
        parameters: Any,
        y: RowsOfFlips,
        tokens: Int[Array, "flips n"],
        last: Sequence[Array] | None,
        reach: Reach,
    ) -> Float[Array, "flips outputs"]:
        """Returns outputs from the input of the last layer, of which flips change rows `reach`, and the keys and values
        that others have; or for a mean from its output."""
        n = y.shape[1]
        model, row = self.layered.at_length(n), row_read(self.readout, tokens)
        if row is None or last is None:
            return jax.vmap(lambda rows: as_vector(model.read_mean(parameters, rows)))(y)
        read = last_row(layer_of(model, parameters, model.layers - 1, n), y, row, last, reach)
        return jax.vmap(lambda one: as_vector(model.read(parameters, one)))(read)

    def preferred_batch(self, n: int, platform: Platform) -> int:
        return max(1, platform.forward_symbols // n)

    def cost(self, parameters: Any, tokens: Any, platform: Platform) -> Cost:
        """Counts the products of attention and of the row maps. Masks halve what a flip changes while they hide one
        side. Memory is that of rows and, in middle layers, of the scores of one head."""
        n = max(tokens.shape[0], flipped_length(self.rewrite, tokens.shape[0]))
        model, full_layers = self.layered.at_length(n), self._full_layers
        prepare = flip = width = scores = 0.0
        later = earlier = True
        longer = n != flipped_length(self.rewrite, n)  # every later symbol moves
        for k in range(model.layers):
            costs, attention = layer_costs(model, parameters, k), model.attention(k)
            prepare += n * (n * costs.pair + costs.row)
            if k == full_layers:
                share = 1.0 if later == earlier or (longer and not later) else 0.5
                share = 1 / MASKED_BLOCKS if self.single and not k else share
                flip += n * (share * costs.keys + costs.pair)
                continue
            before, after = attention.rows_that_see((1, 2), 3)
            later, earlier = later and before == 1, earlier and after == 2
            share = 0.5 if later or (earlier and not longer) else 1.0
            closed = self._closed_form and k == 0
            row = costs.row - costs.keys + 20 * costs.pair if closed else costs.row + n * costs.pair
            flip += share * n * row
            width = max(width, costs.width)
            if not closed:
                most = rows_at_once(n, leaves_cache(attention.heads, n, platform))
                scores = max(scores, n * rows_of_block(n, most, share == 1))
        if full_layers == model.layers:  # of a mean, the outputs of all rows are in memory too
            width = max(width, outputs_of_row(model, parameters) / 8)
        each = (8 * n * width + scores) * jnp.result_type(float).itemsize
        block = int(self.preferred_batch(n, platform) * each)
        compiling = 1.8 + 0.27 * model.layers
        efficiency = n / (n + SHORT) * (1.0 if self.single else REWRITING)
        return Cost(prepare, flip, block, efficiency, compiling, forward=prepare)


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
    layer: ModelLayer, x: RowsOfFlips, unflipped: LayerRows | None, reach: Reach
) -> tuple[LayerRows, Reach]:
    """Returns a layer under flips that change rows `reach` of its input, and the rows it may change.

    `unflipped` is the layer in the unflipped run; None if all rows change.
    """
    n, attention = layer.n, layer.attention
    reach = attention.rows_that_see(reach, n)
    q, keys, values = projected_rows(layer, x, unflipped, reach)
    flips, heads, _, value_width = values.shape

    def attended(rows: Int[Array, " m"]) -> Float[Array, "flips m numbers"]:
        def of_one(q: Array, keys: Array, values: Array) -> Float[Array, "m heads value_width"]:
            return layer.attended(q[:, rows], keys, values, rows)

        return jax.vmap(of_one)(q, keys, values).reshape(flips, len(rows), -1)

    def merged(rows: Int[Array, " m"]) -> Float[Array, "flips m width"]:
        return merged_rows(layer, x[:, rows], b[:, rows].reshape(flips, len(rows), heads, value_width))

    nothing = jnp.zeros((flips, n, heads * value_width), values.dtype)
    most = rows_at_once(n, leaves_cache(heads, n, compiled_for()))  # one head's scores
    b = over_changed_rows(attended, nothing, rows_computed(reach, n, MAPPED_ROWS), most, axis=1)
    y = x if unflipped is None else jnp.broadcast_to(unflipped.y, x.shape)
    return LayerRows(over_changed_rows(merged, y, reach, MAPPED_ROWS, axis=1), keys, values), reach


def last_row(
    layer: ModelLayer, x: RowsOfFlips, row: int | Int[Array, " flips"], last: Sequence[Array], reach: Reach
) -> Float[Array, "flips width"]:
    """Returns one row of the last layer's output, the same one or another for each flip, in O(n width^2) a flip: the
    keys and values of changed rows, the rest of one."""
    each = 0 if jnp.ndim(row) else None
    _, keys, values = projected_rows(layer, x, LayerRows(x, *last), reach)
    own = x[:, row] if each is None else x[jnp.arange(len(x)), row]
    q, _, _ = layer.projected(own, jnp.broadcast_to(jnp.asarray(row), len(x)))

    def attended(q: Array, keys: Array, values: Array, row: Array) -> Float[Array, "1 heads value_width"]:
        return layer.attended(q[:, None], keys, values, row[None])

    b = jax.vmap(attended, in_axes=(1, 0, 0, each))(q, keys, values, jnp.asarray(row))
    return layer.merged(own, b[:, 0])


# Maps of the rows of all flips at once: a platform's blocks of rows then have one size, however many flips there are.


def projected_rows(
    layer: ModelLayer, x: RowsOfFlips, unflipped: LayerRows | None, reach: Reach
) -> tuple[Float[Array, "flips heads n head_width"], ...]:
    """Returns queries, keys and values: of the rows `reach` from x, and of others those of the unflipped run, whose
    queries are 0, for nobody asks them."""
    flips, n, width = x.shape

    def projected(rows: Int[Array, " m"]) -> tuple[Array, ...]:
        some = x if len(rows) == n else x[:, rows]
        parts = layer.projected(some.reshape(-1, width), jnp.tile(rows, flips))
        return tuple(part.reshape(len(part), flips, len(rows), -1).swapaxes(0, 1) for part in parts)

    if unflipped is None or is_static(reach):
        return projected(jnp.arange(n))
    keys, values = (jnp.broadcast_to(part, (flips, *part.shape)) for part in unflipped[1:])
    some = jax.eval_shape(projected, jnp.arange(1))[0]
    q = jnp.zeros((*keys.shape[:3], some.shape[-1]), some.dtype)
    return over_changed_rows(projected, (q, keys, values), reach, MAPPED_ROWS, axis=2)


def merged_rows(
    layer: ModelLayer, x: Float[Array, "flips m width"], b: Float[Array, "flips m heads value_width"]
) -> Float[Array, "flips m width"]:
    """Returns output rows from input rows and what they attended to."""
    flips, m, width = x.shape
    return layer.merged(x.reshape(-1, width), b.reshape(flips * m, *b.shape[2:])).reshape(flips, m, -1)
