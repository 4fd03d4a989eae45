"""Two-layer softmax transformers: the per-position map is folded into one matrix per position, O(n d^2) per flip.

If no hidden unit changes sign, the first layer's per-position map is linear in the change of its input. A change
Db_j of the heads' outputs then moves y_j by Db_j W_j, with one matrix for each position,

    W_j = W_O (1 + W_1 diag[h_j > 0] W_2)          (heads * head_width) x d,

computed once per input. Flips change most rows by O(1/n), so few units change sign, and the candidates are known in
advance: unit f of row j can change sign only if |Db_j . w_f| >= |h_jf|, with w_f the column of W_O W_1, hence only if
|Db_j| >= |h_jf| / |w_f|. The K units with the smallest such thresholds are treated exactly, each by

    relu(h + dh) - relu(h) - [h > 0] dh  =  max(0, -|h| - sign(h) dh) ,

A flip that reaches the (K+1)-st threshold in any row, or that changes attention too much for the simple formulas used
here, is declined: its norm is NaN, and the difference engine measures it. So the result is exact for all flips. The
flipped row and, as a query, the readout row change by O(1) and never use the folded form.

Values are taken relative to b, so that a sink, whose score and value of 0 never change, enters only through b and the
log-normaliser. An output gate of the first layer, which depends on a row's own input, is a factor of W_j.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jaxsens.core.base.errors import no_rule
from jaxsens.core.base.programs import LARGEST_SCORE, LARGEST_TIED, Platform
from jaxsens.core.engines.difference.attention import UNTURNED, inverse_temperature
from jaxsens.core.engines.difference.engine import DifferenceEngine
from jaxsens.core.engines.difference.layer_change import (
    Prepared,
    TracedRun,
    after_attention_change,
    first_layer_change,
    largest_score,
    of_dtype,
    prepare,
    score_sizes,
)
from jaxsens.core.engines.difference.moved import HeadsMoved, Moved, TracedLayer
from jaxsens.core.engines.difference.rules import gain, product_error, size, unit
from jaxsens.core.engines.engine import Changed, ConfigEngine, Cost, Engine, FlipBlock, Served
from jaxsens.core.engines.one_key.run import changed_rows
from jaxsens.core.models.parts.masks import SlidingWindow, TwoSidedWindow, mask_of, visible
from jaxsens.core.models.parts.positions import Component, FunctionComponent, Learned, Limb, Sinusoidal
from jaxsens.core.models.parts.weighting import SOFTMAXES
from jaxsens.core.models.transformer.config import LayerConfig, TransformerConfig
from jaxsens.core.models.transformer.layered import readout_row
from jaxsens.core.models.transformer.layers import layer_operations
from jaxsens.core.models.transformer.parameters import LayerParameters, TransformerParameters, needed
from jaxsens.core.models.transformer.trace import gate_inputs, penalty, projected, scores


def candidates(n: int, hidden: int) -> int:
    """Returns K, the number of units per row that may change sign: fewer in longer inputs, as changes are O(1/n)."""
    return min(hidden - 1, max(16, min(32, 2**14 // n)))


ROWS = 64
"""The number of rows per block."""

LARGEST_SCORE_CHANGE = 20.0
"""Flips that change a score by more are declined: e^20 times the rounding of a weight would be significant."""


SERVED = Served(
    weightings=SOFTMAXES,
    position_terms=(Component, FunctionComponent, Limb, Sinusoidal, Learned, *UNTURNED),
    masks=("none", "future", "past", "strict-future", "strict-past", SlidingWindow, TwoSidedWindow),
    scores=("dot-product",),
    layer_norms=("none",),
    activations=("relu",),
    output_gates=("none", "headwise", "elementwise"),
)


def refusal(config: TransformerConfig) -> str | None:
    """Returns why the folded form does not apply to a config, or None if it does."""
    checks = (
        (config.layers == 2, "two layers"),
        (not config.centred_scores, "plain scores"),
        (config.layers > 0 and config.layer(0).feed_forward > 1, "hidden units in the first layer"),
        (config.readout != "mean", "one readout position"),
    )
    missing = [needs for holds, needs in checks if not holds]
    if missing:
        return f"the folded form needs {', '.join(missing)}"
    return SERVED.refusal("the folded form", config)


SHORTEST = 512
"""Below this length most flips would be declined: attention weights are too large for so few candidates."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class PreparedFold:
    """The folded form's values for an input: `Prepared`, and arrays over rows, padded to whole blocks.

    `maps` holds [W_j | candidates' columns times -sign(h)], (rows, heads*head_width, d + K), and `gain` is about
    |dy_j| / |Db_j| for all rows. `b` is less the value of the last position, as `OtherKeys.values` are. `sizes` are
    those of `b`, and `value_sizes` of `values`.
    """

    prepared: Prepared
    maps: Float[Array, "rows heads_width width_k"]
    margins: Float[Array, "rows k"]
    returns: Float[Array, "rows k width"]
    reach: Float[Array, " rows"]
    queries: Float[Array, "heads rows head_width"]
    normaliser: Float[Array, "heads rows"]
    b: Float[Array, "rows heads_width"]
    keys: Float[Array, "heads rows head_width"]
    values: Float[Array, "heads rows head_width"]
    log_weight: Float[Array, "heads rows"]
    gain: Float[Array, ""]
    sizes: Float[Array, "heads rows"]
    value_sizes: Float[Array, "heads rows"]


def gates_of(
    layer: LayerConfig, parameters: LayerParameters, z: Float[Array, "n width"]
) -> Float[Array, "n heads_width"]:
    """Returns what multiplies each row's heads' outputs, between 0 and 1; 1 without gates. O(n d heads_width).

    A row's gate depends on its own input alone, which in the first layer only the flipped row's does not keep.
    """
    shape = (len(z), layer.heads, layer.head_width)
    match layer.output_gate:
        case "none":
            return jnp.ones(shape, z.dtype).reshape(len(z), -1)
        case "headwise" | "elementwise":
            gates = jax.nn.sigmoid(gate_inputs(layer, parameters, z)).swapaxes(0, 1)
            return jnp.broadcast_to(gates, shape).reshape(len(z), -1)
        case other:
            raise no_rule("the folded form", "output gate", other, SERVED.output_gates)


@dataclass(frozen=True)
class FoldedEngine(ConfigEngine):
    """Exact unless it declines (NaN). O(n d^2) per flip after O(n d^2 d_ff) per input; memory O(n d^2)."""

    def prepare(self, parameters: TransformerParameters, tokens: Int[Array, " n"]) -> PreparedFold:
        config = of_dtype(self.config, parameters)
        first, second = parameters.layers
        prepared = prepare(config, parameters, tokens, readout_row(config.readout, tokens.shape[0]))
        trace, last = prepared.traces
        n = tokens.shape[0]
        # The matrices have the engine's own dtype: they multiply changes, so rounding them is harmless.
        work = jnp.dtype(self.config.dtype)
        h = jnp.zeros((n, 0)) if trace.h is None else trace.h
        w1, w2 = needed(first.w1, "w1").astype(work), needed(first.w2, "w2").astype(work)
        out = first.output.reshape(-1, config.width).astype(work)
        columns, gates = out @ w1, gates_of(parameters.layer(config, 0), first, trace.z).astype(work)
        # Single precision sorts much faster; the margin makes up for its rounding. Gates, at most 1, only raise them.
        thresholds = (jnp.abs(h) / jnp.linalg.norm(columns, axis=0) * (1 - 1e-6)).astype(jnp.float32)
        count = candidates(n, h.shape[1])
        least, units = jax.lax.top_k(-thresholds, count + 1)
        reach, units = -least[:, -1], units[:, :count]
        chosen = jnp.take_along_axis(h, units, axis=1)

        def one_row(active: Array, k: Array, sign: Array, gate: Array) -> Array:
            return gate[:, None] * jnp.concatenate(
                [out + (columns * active) @ w2, columns[:, k] * sign], axis=1
            )

        signs = jnp.where(chosen > 0, -1, 1).astype(work)
        rows = ((h > 0).astype(work), units, signs, gates)
        maps = jax.lax.map(lambda row: one_row(*row), rows, batch_size=ROWS)
        row = readout_row(config.readout, n)
        here, keys = jnp.asarray([row]), jnp.arange(n)
        layer = parameters.layer(config, 1)
        s = scores(layer, second, last.queries[:, here], last.keys, here, keys, n)[:, 0]
        log_weight = jnp.where(visible(layer.mask, here, keys), s - last.normaliser[:, here], -jnp.inf)

        b = jnp.moveaxis(trace.b - trace.values[:, -1:], 0, 1)
        values = last.values - last.b[:, here]

        def filled(array: Array, axis: int, value: float = 0.0) -> Array:
            widths = [(0, 0)] * array.ndim
            widths[axis] = (0, -n % ROWS)
            return jnp.pad(array, widths, constant_values=value)

        return PreparedFold(
            prepared=prepared,
            maps=filled(maps, 0),
            margins=filled(-jnp.abs(chosen), 0),
            returns=filled(w2[units], 0),
            reach=filled(reach, 0, np.inf),
            queries=filled(trace.queries, 1),
            normaliser=filled(trace.normaliser, 1),
            b=filled(b.reshape(n, -1), 0),
            keys=filled(last.keys, 1),
            values=filled(values, 1),
            log_weight=filled(log_weight, 1, -np.inf),
            gain=gain(out) + gain(columns) * gain(w2),
            sizes=filled(size(b).T, 1),
            value_sizes=filled(size(values), 1),
        )

    def changed(self, parameters: TransformerParameters, prepared: PreparedFold, block: FlipBlock) -> Changed:
        """Returns the output's change under each flip, NaN for flips that are declined, and its error."""
        block = block.single
        config, base, (positions, symbols) = self.config, prepared.prepared, block
        n, dtype, run = base.tokens.shape[0], base.output.dtype, TracedRun(config, parameters, base)
        last = run.layer(1)
        layer, second, trace = last.config, last.parameters, last.trace
        row = int(readout_row(config.readout, n) or 0)
        ends = jnp.stack([positions, jnp.full_like(positions, row)], axis=1)
        first = jax.vmap(first_layer_change, in_axes=(None, 0, 0, 0))(run, positions, symbols, ends)
        dy_own, dy_readout = jnp.moveaxis(first.dx, 1, 0)
        own_error, readout_error = first.error.T

        here = jnp.asarray([row])
        q = trace.queries[:, here]
        scale = inverse_temperature(layer, here, n, dtype)[0] / np.sqrt(layer.head_width).astype(dtype)
        dq = jnp.moveaxis(projected(layer, dy_readout, second.query), 0, 1) * scale
        dq_error = product_error(size(dy_readout), readout_error, second.query).T * scale
        new_q = dq + q[:, 0] * scale
        direction = jnp.einsum("hdk,fhk->fhd", second.key, new_q)
        moves = _Moves(positions, dq, dq_error, direction, size(direction))
        step = self._step(run, block)
        sums = self._all_rows(run.layer(0), prepared, moves, step)

        # The flipped position's own key in the last layer changes by O(1) and is not in the sums.
        own = jnp.einsum("fhk,hfk->fh", dq, trace.keys[:, positions])
        own = own + jnp.einsum("fhd,fd->fh", direction, dy_own)
        weight = jnp.exp(prepared.log_weight[:, positions].T)
        gained = weight * jnp.expm1(own)
        total = 1 + sums.total + gained
        pulled = sums.pulled + gained[..., None] * jnp.moveaxis(prepared.values[:, positions], 0, 1)
        moved = sums.moved + (weight + gained)[..., None] * dy_own[:, None]
        db = (pulled + jnp.einsum("fhd,hdk->fhk", moved, second.value)) / total[..., None]
        error = self._error(parameters, prepared, moves, sums, (weight, gained), Moved(dy_own, own_error))
        error = error / total + unit(dtype) * size(db)

        def finish(dx: Array, ex: Array, db: Array, eb: Array) -> Moved:
            heads = HeadsMoved(db[:, None], eb[:, None])
            after = after_attention_change(last, here, Moved(dx[None], ex[None]), heads)
            return Moved(after.dx[0], after.error[0])

        change = jax.vmap(finish)(dy_readout, readout_error, db, error)
        large = jnp.max(jnp.abs(own), axis=1) > LARGEST_SCORE_CHANGE
        shrunk = jnp.any((total < 0.5) | ~jnp.isfinite(total), axis=1)
        declined = sums.declined | large | shrunk
        dx, error = change.dx, change.error
        if parameters.head is not None:
            error = product_error(size(dx), error, parameters.head)
            dx = dx @ parameters.head
        return jnp.where(declined[:, None], jnp.nan, dx), error

    def _error(
        self,
        parameters: TransformerParameters,
        prepared: PreparedFold,
        moves: _Moves,
        sums: _Sums,
        weights: tuple[Array, Array],
        own: Moved,
    ) -> Float[Array, "flips heads"]:
        """Returns the error of the last layer's sums, before they are divided: of the rows, and of the flipped one."""
        value, last = parameters.layers[1].value, prepared.prepared.traces[1]
        dy, dy_error, positions, (weight, gained) = own.dx, own.error, moves.positions, weights
        u = unit(dy.dtype, last.x.shape[0])
        keys, pulls = size(last.keys[:, positions]).T, prepared.value_sizes[:, positions].T
        # The errors of the query and of a row have random directions.
        queried = (moves.dq_error + u * size(moves.dq)) / np.sqrt(value.shape[2]).astype(dy.dtype)
        along = moves.size / np.sqrt(value.shape[1]).astype(dy.dtype)
        scored = queried * keys + along * (dy_error + u * size(dy))[:, None]
        through = gain(value)
        of_own = (weight + gained) * (
            scored * (pulls + through * size(dy)[:, None]) + through * (dy_error + u * size(dy))[:, None]
        )
        # Every v_j - b is a difference of two numbers in float64, in which the engine prepares.
        spread = jnp.max(size(last.values), axis=1) * float(np.finfo(np.float64).eps)
        # Each row is rounded on its own: the errors of many add up like roots.
        of_rows = jnp.sqrt(sums.moved_square)
        widest = jnp.max(prepared.value_sizes, axis=1)
        rows = queried * sums.pulled_by_keys + (along * widest + through) * of_rows
        rows = rows + through * u * size(sums.moved) + u * sums.pulled_size
        return rows + of_own + u * jnp.abs(gained) * pulls + (sums.gained_size + jnp.abs(gained)) * spread

    def sizes(self, prepared: PreparedFold) -> Float[Array, " layers"]:
        return score_sizes(prepared.prepared)

    def output(self, parameters: TransformerParameters, prepared: PreparedFold) -> Float[Array, " outputs"]:
        return self.fallback.output(parameters, prepared.prepared)

    def _step(self, run: TracedRun, block: FlipBlock) -> _Step:
        """Returns the flipped positions' first-layer keys and values, before the flip and their change."""
        layer, embedding, (positions, symbols) = run.layer(0), run.parameters.embedding, block
        own, trace = layer.parameters, layer.trace
        dx = embedding[symbols] - embedding[run.prepared.tokens[positions]]
        dk = layer.heads(dx, own.key, positions)
        dv = jnp.moveaxis(layer.heads(dx, own.value, None), 0, 1)
        v = jnp.moveaxis(trace.values[:, positions] - trace.values[:, -1:], 0, 1)
        return _Step(trace.keys[:, positions], dk, v, dv, size(v), size(dv))

    def _all_rows(self, first: TracedLayer, prepared: PreparedFold, moves: _Moves, step: _Step) -> _Sums:
        """Returns the sums over all rows except the flipped one. Rows that the mask keeps unchanged are skipped."""
        config, dtype, positions = self.config, prepared.prepared.output.dtype, moves.positions
        flips, blocks = positions.shape[0], prepared.reach.shape[0] // ROWS
        second, n = config.layer(1), prepared.prepared.tokens.shape[0]
        reach = changed_rows(config.layer(0).mask, (jnp.min(positions), jnp.max(positions) + 1), n)
        start, stop = jnp.asarray(reach[0] // ROWS), jnp.asarray(-(-reach[1] // ROWS))
        zero = _Sums(
            jnp.zeros((flips, second.heads), dtype),
            jnp.zeros((flips, second.heads, second.head_width), dtype),
            jnp.zeros((flips, second.heads, config.width), dtype),
            jnp.zeros(flips, bool),
            *(jnp.zeros((flips, second.heads), dtype) for _ in range(4)),
        )
        add = partial(_with_block, prepared, moves)

        def unmoved(k: Array, sums: _Sums) -> _Sums:
            return add(k, sums, None, jnp.zeros(flips, bool))

        def moved(k: Array, sums: _Sums) -> _Sums:
            return add(k, sums, *self._first_layer(first, prepared, positions, step, k))

        sums = jax.lax.fori_loop(0, start, unmoved, zero)
        sums = jax.lax.fori_loop(start, stop, moved, sums)
        return jax.lax.fori_loop(stop, blocks, unmoved, sums)

    def _first_layer(
        self, first: TracedLayer, prepared: PreparedFold, positions: Array, step: _Step, k: Array
    ) -> tuple[_RowsMoved, Bool[Array, " flips"]]:
        """Returns the first layer's change in the rows of block k, bounds of its size and error, and which flips change
        one of them too much."""
        config, base = self.config, prepared.prepared
        layer, n, dtype, flips = first.config, base.tokens.shape[0], base.output.dtype, positions.shape[0]
        rows = k * ROWS + jnp.arange(ROWS)
        inside = jnp.minimum(rows, n - 1)
        # The closed form: weights of the moved key before, and what its move does; (heads, rows, flips).
        inverse = inverse_temperature(layer, inside, n, dtype)[:, None]
        scale = inverse / np.sqrt(layer.head_width).astype(dtype)
        queries = _cut(prepared.queries, k, 1)
        s = jnp.einsum("hjk,hfk->hjf", queries, step.keys) * scale
        added = penalty(layer, first.parameters, inside, positions, dtype)
        s = s if added is None else s + added * inverse  # the temperature divides both
        seen = (
            visible(layer.mask, rows[:, None], positions) & (rows[:, None] != positions) & (rows < n)[:, None]
        )
        p = jnp.where(seen, jnp.exp(s - _cut(prepared.normaliser, k, 1)[..., None]), 0)
        ds = jnp.einsum("hjk,hfk->hjf", queries, step.dk) * scale
        gained = p * jnp.expm1(ds)
        share = 1 / (1 + gained)
        alpha = jnp.moveaxis(gained * share, 0, 2)[..., None]
        beta = jnp.moveaxis((p + gained) * share, 0, 2)[..., None]
        b = _cut(prepared.b, k, 0).reshape(ROWS, 1, layer.heads, layer.head_width)
        db = (alpha * (step.values - b) + beta * step.dv).reshape(ROWS, flips, -1)
        reached = jnp.sum(db**2, axis=-1) >= _cut(prepared.reach, k, 0)[:, None] ** 2
        strange = jnp.any((p > 0.5) | (jnp.abs(ds) > LARGEST_SCORE_CHANGE) & seen, axis=0)
        # The per-position map: one matrix per row, and the units that change sign.
        mapped = jnp.einsum("jfa,jab->jfb", db, _cut(prepared.maps, k, 0))
        crossed = jax.nn.relu(mapped[..., config.width :] + _cut(prepared.margins, k, 0)[:, None])
        dy = mapped[..., : config.width] + jnp.einsum("jfk,jkd->jfd", crossed, _cut(prepared.returns, k, 0))
        # v_i - b_j and the two terms may cancel; each row's map adds a rounding of what it adds up.
        parts, grown = jnp.abs(gained * share), (p + gained) * share
        both = parts * (step.value_sizes.T[:, None] + _cut(prepared.sizes, k, 1)[..., None])
        added_up = jnp.sum(both + grown * step.dv_sizes.T[:, None], axis=0)
        size_of_change = (prepared.gain * added_up).T
        changed = _RowsMoved(jnp.moveaxis(dy, 0, 1), size_of_change, unit(dtype) * size_of_change)
        return changed, jnp.any(reached | strange, axis=0)

    @property
    def prepares_in_float64(self) -> bool:
        """True for a float32 model: one forward pass is cheap compared with the flips."""
        return self.config.dtype == "float32"

    @property
    def fallback(self) -> Engine:
        return DifferenceEngine(self.measure, self.outputs, self.config)

    @property
    def wider(self) -> Engine | None:
        return self.fallback.wider

    @property
    def how(self) -> str:
        return "the folded form"

    def resolves(self, prepared: PreparedFold) -> Bool[Array, ""]:
        return largest_score(prepared.prepared) <= min(LARGEST_SCORE[self.config.dtype], LARGEST_TIED)

    def cost(self, parameters: TransformerParameters, tokens: Any, platform: Platform) -> Cost:
        """Counts products only. A pair of flip and row costs 2 H head_width (d + K) + 2 K d + 4 H_2 d, and scores."""
        config, n, d = self.config, tokens.shape[0], self.config.width
        first, second = config.layer(0), config.layer(1)
        heads, k = first.heads * first.head_width, candidates(n, first.feed_forward)
        pair = 2 * heads * (d + k) + 2 * k * d + 4 * second.heads * d + 8 * heads
        if mask_of("the folded form", first.mask).one_sided:
            pair /= 2
        forward = layer_operations(config, 0, n) + layer_operations(config, 1, n)
        batch = self.preferred_batch(n, platform)
        block = 4 * batch * ROWS * (2 * heads + 3 * d + 8 * first.heads) + 8 * batch * n * heads
        return Cost(forward + 2 * n * heads * first.feed_forward * d, n * pair, block, 0.6, compiling=5.8)

    def preferred_batch(self, n: int, platform: Platform) -> int:
        return platform.folded_flips


class _Step(NamedTuple):
    """The flipped positions' keys and values in the first layer, and their changes. Values are less that of the last
    position."""

    keys: Float[Array, "heads flips head_width"]
    dk: Float[Array, "heads flips head_width"]
    values: Float[Array, "flips heads head_width"]
    dv: Float[Array, "flips heads head_width"]
    value_sizes: Float[Array, "flips heads"]
    dv_sizes: Float[Array, "flips heads"]


class _Moves(NamedTuple):
    """The positions of flips, the change of the last layer's scaled query, its error, and the direction W_K q' along
    which rows move scores."""

    positions: Int[Array, " flips"]
    dq: Float[Array, "flips heads head_width"]
    dq_error: Float[Array, "flips heads"]
    direction: Float[Array, "flips heads width"]
    size: Float[Array, "flips heads"]


class _RowsMoved(NamedTuple):
    """The changes of rows, and bounds of their sizes and errors."""

    dy: Float[Array, "flips rows width"]
    size: Float[Array, "flips rows"]
    error: Float[Array, "flips rows"]


class _Sums(NamedTuple):
    """Sums over rows j != i: of p (e^ds - 1), of that times (v_j - b), of p e^ds times Dy_j; which are declined.

    For the errors, the sums of the first two's sizes; of the new weights times the sizes of keys and of v_j - b, which
    the query's error is multiplied by; and of the squares of what each row's own error does to the third.
    """

    total: Float[Array, "flips heads"]
    pulled: Float[Array, "flips heads head_width"]
    moved: Float[Array, "flips heads width"]
    declined: Bool[Array, " flips"]
    gained_size: Float[Array, "flips heads"]
    pulled_size: Float[Array, "flips heads"]
    pulled_by_keys: Float[Array, "flips heads"]
    moved_square: Float[Array, "flips heads"]


def _cut(array: Array, k: Array, axis: int) -> Array:
    """Block k of `ROWS` rows."""
    return jax.lax.dynamic_slice_in_dim(array, k * ROWS, ROWS, axis)


def _with_block(
    prepared: PreparedFold, moves: _Moves, k: Array, sums: _Sums, changed: _RowsMoved | None, declined: Array
) -> _Sums:
    """Adds block k, whose rows are `changed` (None for no change), to the sums of layer 2's readout row."""
    rows, u = k * ROWS + jnp.arange(ROWS), unit(moves.dq.dtype)
    keys, values = _cut(prepared.keys, k, 1), _cut(prepared.values, k, 1)
    change = jnp.einsum("fhk,hjk->fhj", moves.dq, keys)
    if changed is not None:
        change = change + jnp.einsum("fhd,fjd->fhj", moves.direction, changed.dy)
    others = (rows != moves.positions[:, None])[:, None]
    log_weight = _cut(prepared.log_weight, k, 1)
    weight = jnp.exp(log_weight) * others
    gained = weight * jnp.expm1(change)
    far = (jnp.abs(change) > LARGEST_SCORE_CHANGE) & jnp.isfinite(log_weight) & others
    new, grown = weight + gained, jnp.abs(gained)
    pulls = _cut(prepared.value_sizes, k, 1)
    moved, moved_square = sums.moved, sums.moved_square
    if changed is not None:
        moved = moved + jnp.einsum("fhj,fjd->fhd", new, changed.dy)
        error_bound = (changed.error + u * changed.size) ** 2
        moved_square = moved_square + jnp.einsum("fhj,fj->fh", new * new, error_bound)
    return _Sums(
        sums.total + jnp.sum(gained, axis=-1),
        sums.pulled + jnp.einsum("fhj,hjk->fhk", gained, values),
        moved,
        sums.declined | declined | jnp.any(far, axis=(1, 2)),
        sums.gained_size + jnp.sum(grown, axis=-1),
        sums.pulled_size + jnp.einsum("fhj,hj->fh", grown, pulls),
        sums.pulled_by_keys + jnp.einsum("fhj,hj->fh", new, size(keys) * pulls),
        moved_square,
    )
