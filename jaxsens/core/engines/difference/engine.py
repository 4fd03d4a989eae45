"""The difference engine, which carries each flip's change through the network exactly, for nearly every config."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxsens.core.base.programs import LARGEST_SCORE, Platform
from jaxsens.core.base.strict import with_fields
from jaxsens.core.engines.difference.layer_change import (
    Prepared,
    TracedRun,
    first_layer_change,
    largest_score,
    last_layer_change,
    layer_change,
    of_dtype,
    prepare,
    score_sizes,
)
from jaxsens.core.engines.difference.moved import Moved, TracedLayer
from jaxsens.core.engines.difference.rules import ACTIVATION_CHANGES, product_error, size, unit
from jaxsens.core.engines.engine import Changed, ConfigEngine, Cost, Engine, FlipBlock, Served
from jaxsens.core.engines.one_key.run import Reach, as_carry, changed_rows, over_changed_rows, rows_of_block
from jaxsens.core.engines.vmap import VmapEngine
from jaxsens.core.models.adapters import TransformerApply
from jaxsens.core.models.parts.masks import SlidingWindow, TwoSidedWindow
from jaxsens.core.models.parts.positions import Component, FunctionComponent, Learned, Limb, Sinusoidal
from jaxsens.core.models.parts.score_positions import Alibi, PartialAlibi, PartialRotary, RelativeBias, Rotary
from jaxsens.core.models.parts.weighting import (
    AverageHard,
    LeftmostHard,
    RightmostHard,
    Sigmoid,
    SinkSoftmax,
    Softmax,
)
from jaxsens.core.models.transformer.config import TransformerConfig
from jaxsens.core.models.transformer.layered import readout_row
from jaxsens.core.models.transformer.layers import layer_operations, read_out
from jaxsens.core.models.transformer.parameters import Stack, TransformerParameters, needed, over_layers
from jaxsens.core.models.transformer.trace import leaves_cache, rows_at_once

ROW_BLOCK = 256
"""The number of first-layer rows per block: their (rows, d_ff) arrays stay in cache."""

SERVED = Served(
    weightings=(Softmax, SinkSoftmax, Sigmoid, LeftmostHard, RightmostHard, AverageHard),
    position_terms=(
        *(Component, FunctionComponent, Limb, Sinusoidal, Learned),
        *(Rotary, PartialRotary, Alibi, PartialAlibi, RelativeBias),
    ),
    masks=("none", "future", "past", "strict-future", "strict-past", SlidingWindow, TwoSidedWindow),
    scores=("dot-product", "additive"),
    layer_norms=("none", "pre", "post"),
    activations=tuple(ACTIVATION_CHANGES),
    output_gates=("none", "headwise", "elementwise"),
)
"""Sparsemax and entmax are missing: their support depends on all scores of a row together, and no difference rule is
known. So is softmax at a temperature that depends on the row's entropy, through which each weight moves every other."""


def refusal(config: TransformerConfig | None) -> str | None:
    """Returns why the difference engine does not support a model, by its config if it has one; None if it does."""
    if config is None:
        return "it is not a jaxsens transformer"
    if config.centred_scores:
        return "the difference engine forms plain scores, which lose the digits that centred scores keep"
    return SERVED.refusal("the difference engine", config)


def flipped_rows(config: TransformerConfig, positions: Int[Array, " flips"], n: int) -> Reach:
    """Returns a span that holds every flipped row; all rows if a layer breaks ties: it computes all in one way."""
    return (0, n) if config.exact_rows else (jnp.min(positions), jnp.max(positions) + 1)


STEPS = 8e-5
"""Seconds of the reference machine for the many small operations of a flip through two layers, at any length."""


@dataclass(frozen=True)
class DifferenceEngine(ConfigEngine):
    """Exact for every config of `SERVED` parts with plain scores, including hard attention and its ties.

    Costs per flip: depth 1, O(d d_ff); depth 2, O(n d d_ff); each further layer O(n^2 d). Memory O(n (d + d_ff)).
    If the readout is the mean over positions, the last layer costs as much as a middle one.

    A float32 model whose scores are too large for float32 (`LARGEST_SCORE`) is measured in float64 (`widened`). Flips
    that overflow even there are measured by one forward pass each.
    """

    @property
    def fallback(self) -> Engine:
        """This engine in float64. After that, and for a float64 model, forward passes in float64."""
        wider = self.wider
        if wider is not None:
            return wider
        apply = TransformerApply(with_fields(self.config, dtype="float64"))
        return VmapEngine(self.measure, self.outputs, apply, wide=self.wide)

    @property
    def wider(self) -> Engine | None:
        return None if self.wide or self.config.dtype == "float64" else replace(self, wide=True)

    @property
    def how(self) -> str:
        return "whole rows in float64" if self.wide else "whole rows"

    def resolves(self, prepared: Prepared) -> Bool[Array, ""]:
        limit = math.inf if self.wide else LARGEST_SCORE[self.config.dtype]
        return largest_score(prepared) <= limit

    def sizes(self, prepared: Prepared) -> Float[Array, " layers"]:
        return score_sizes(prepared)

    def prepare(self, parameters: TransformerParameters, tokens: Int[Array, " n"]) -> Prepared:
        row = readout_row(self.config.readout, len(tokens)) if self.config.layers == 1 else None
        return prepare(of_dtype(self.config, parameters), parameters, tokens, row)

    @property
    def prepares_in_float64(self) -> bool:
        """True for a soft float32 model: one forward pass is cheap compared with the flips."""
        return self.config.dtype == "float32" and not self.config.exact_rows and not self.wide

    def changed(self, parameters: TransformerParameters, prepared: Prepared, block: FlipBlock) -> Changed:
        """Returns the output's change under each flip, and a running bound of its rounding (`difference.rounding`)."""
        run, block = TracedRun(of_dtype(self.config, parameters), parameters, prepared), block.single
        n, layers = prepared.tokens.shape[0], run.config.layers
        row = readout_row(run.config.readout, n)
        if layers == 0:
            moved = self._embedding_change(run, block, row)
        elif layers == 1 and row is not None:
            moved = self._readout_of_one_layer(run, block, row)
        else:
            first, reach = self._first_layer(run, block), flipped_rows(run.config, block.places, n)
            moved = jax.vmap(lambda m: self._later_layers(run, m, row, reach))(first)
        if parameters.head is None:
            return moved.dx, moved.error
        head = needed(parameters.head, "head")
        return moved.dx @ head, product_error(size(moved.dx), moved.error, head)

    def output(self, parameters: TransformerParameters, prepared: Prepared) -> Float[Array, " outputs"]:
        return read_out(of_dtype(self.config, parameters), parameters, prepared.output)

    def _embedding_change(self, run: TracedRun, block: FlipBlock, row: int | None) -> Moved:
        embedding, tokens = run.parameters.embedding, run.prepared.tokens
        step = embedding[block.symbols] - embedding[tokens[block.places]]
        step = step / tokens.shape[0] if row is None else jnp.where((block.places == row)[:, None], step, 0)
        return Moved(step, unit(step.dtype) * size(step))

    def _readout_of_one_layer(self, run: TracedRun, block: FlipBlock, row: int) -> Moved:
        """O(d d_ff) per flip, and O(n d) in blocks where some flip is of the readout row."""

        def change(also_own: bool) -> Moved:
            def one(position: Array, symbol: Array) -> Moved:
                moved = first_layer_change(run, position, symbol, jnp.asarray([row]), also_own)
                return Moved(moved.dx[0], moved.error[0])

            return jax.vmap(one)(*block)

        return jax.lax.cond(jnp.any(block.places == row), lambda: change(True), lambda: change(False))

    def _first_layer(self, run: TracedRun, block: FlipBlock) -> Moved:
        """Returns the first layer's change for all rows, in blocks; rows that the mask keeps unchanged are skipped."""
        config, n = run.config, run.prepared.tokens.shape[0]
        one = jax.vmap(first_layer_change, in_axes=(None, 0, 0, None))
        reach = changed_rows(config.layer(0).mask, flipped_rows(config, block.places, n), n)
        zero = jnp.zeros((len(block.places), n, config.width), config.dtype)
        start = Moved(zero, zero[..., 0], zero if config.exact_rows else None)
        return over_changed_rows(lambda rows: one(run, *block, rows), start, reach, ROW_BLOCK, axis=1)

    def _later_layers(self, run: TracedRun, moved: Moved, row: int | None, reach: Reach) -> Moved:
        config, n = run.config, moved.dx.shape[0]
        reach = changed_rows(config.layer(0).mask, reach, n)

        def one(k: int, arguments: Any, carry: tuple[Moved, Reach]) -> tuple[Any, None]:
            layer, (moved, reach) = TracedLayer(run.parameters.layer(config, k), *arguments), carry
            reach = changed_rows(layer.config.mask, reach, n)
            return (layer_change(layer, moved, reach), as_carry(reach)), None

        layers = Stack.of(run.parameters.layers).beside(run.prepared.traces)
        full = range(1, config.layers if row is None else config.layers - 1)
        (moved, _), _ = over_layers(one, layers, (moved, as_carry(reach)), full)
        if row is None:
            rounding = unit(moved.dx.dtype, n) * jnp.mean(size(moved.dx))
            return Moved(jnp.mean(moved.dx, axis=0), jnp.mean(moved.error) + rounding)
        last = last_layer_change(run, moved, row)
        return Moved(last.dx[0], last.error[0])

    def cost(self, parameters: TransformerParameters, tokens: Any, platform: Platform) -> Cost:
        """Counts projections, scores, sums and per-position maps, and the work per weight and hidden unit. Memory is
        that of rows and, in whole layers, of twelve arrays of scores."""
        config, n = self.config, tokens.shape[0]
        row = readout_row(config.readout, n)
        rows = 1 if config.layers == 1 and row is not None else n
        forward = sum(layer_operations(config, k, n) for k in range(config.layers))
        if config.layers and row is not None:
            last = config.layer(config.layers - 1)
            forward -= 4 * n * (n - 1) * last.heads * last.head_width
        flip, scores, reach, first_rows = 0.0, 0, (1, 2), 0
        for k in range(config.layers):
            heads = config.layer(k).heads * config.layer(k).head_width
            reach = changed_rows(config.layer(k).mask, reach, 3)
            maps = (2 * config.width + 12) * (heads + 2 * config.layer(k).feed_forward)  # with their errors
            if k == 0:
                first_rows = rows_of_block(n, ROW_BLOCK, reach == (0, 3))
                flip += rows * (12 * heads + 40 * config.layer(k).heads + maps) + (
                    4 * n * heads if rows > 1 else 0
                )
                forward += 4 * rows * n * heads
            elif k < config.layers - 1 or row is None:
                flip += 2 * layer_operations(config, k, n)
                layer, everything = config.layer(k), reach == (0, 3)
                cached = not layer.exact_rows and leaves_cache(layer.heads, n, platform)
                block = rows_of_block(n, rows_at_once(layer.heads * n, cached), everything)
                scores = max(scores, n * block * (1 if cached else layer.heads))
            else:
                flip += 4 * n * config.width * config.layer(k).heads + 4 * n * heads
        wide = max((config.layer(k).feed_forward for k in range(config.layers)), default=0) + config.width
        batch = self.preferred_batch(n, platform)
        each = first_rows * wide + n * config.width + 12 * scores
        block = batch * each * jnp.result_type(float).itemsize
        # Whole rows, with three layers or more, take four exponentials a score.
        full = config.layers > 2 or row is None
        efficiency, compiling = 0.15 if full else 0.35, 4.6 + 0.75 * config.layers
        least = STEPS if platform.threads and config.layers > 1 else 0.0
        return Cost(forward, flip, int(block), efficiency, compiling, self.wide, least=least)

    def preferred_batch(self, n: int, platform: Platform) -> int:
        if self.config.layers <= 1:
            return 1024
        return max(1, min(platform.difference_flips, platform.difference_symbols // n))
