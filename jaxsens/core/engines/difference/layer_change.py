"""The unflipped run that all flips of an input share, and the change of one layer's output under a flip: in the first
layer, where one key changes, and in later layers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxsens.core.base.errors import no_rule
from jaxsens.core.base.programs import compiled_for
from jaxsens.core.base.strict import with_fields
from jaxsens.core.engines.difference import one_key, rules
from jaxsens.core.engines.difference.attention import SOFT, hard_rows, readout_row, soft_rows
from jaxsens.core.engines.difference.moved import HeadsMoved, Index, Moved, Rows, TracedLayer
from jaxsens.core.engines.difference.one_key import KeyMoved, OtherKeys
from jaxsens.core.engines.difference.one_key_hard import Levels, levels_of, one_key_change_hard
from jaxsens.core.engines.difference.rules import (
    feed_forward_change,
    layer_norm_change,
    product_error,
    size,
    unit,
)
from jaxsens.core.engines.one_key.one_moved_key import sigmoid_change
from jaxsens.core.engines.one_key.run import Reach, over_changed_rows
from jaxsens.core.models.parts.weighting import AverageHard, HardWeighting, Sigmoid, SinkSoftmax, Softmax
from jaxsens.core.models.transformer import layers, trace
from jaxsens.core.models.transformer.config import LayerConfig, TransformerConfig
from jaxsens.core.models.transformer.parameters import NormParameters, Stack, TransformerParameters, needed
from jaxsens.core.models.transformer.trace import LayerTrace, gate_inputs, layer_norm, transformer_layer


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Prepared:
    """The unflipped run: tokens, the trace of every layer, y^(L), and the values for the first layer's closed form.

    If one row is read out, y^(L) is that row alone, and what follows from attention in the last layer's trace is 0 in
    other rows.
    """

    tokens: Int[Array, " n"]
    traces: Stack[LayerTrace]
    output: Float[Array, "rows width"]
    others: OtherKeys | Levels | None


@partial(jax.tree_util.register_dataclass, data_fields=["parameters", "prepared"], meta_fields=["config"])
@dataclass(frozen=True)
class TracedRun:
    """A transformer, its parameters, and its unflipped run."""

    config: TransformerConfig
    parameters: TransformerParameters
    prepared: Prepared

    def layer(self, k: int) -> TracedLayer:
        """Layer k."""
        return TracedLayer(
            self.parameters.layer(self.config, k), self.parameters.layers[k], self.prepared.traces[k]
        )


def prepare(
    config: TransformerConfig,
    parameters: TransformerParameters,
    tokens: Int[Array, " n"],
    row: int | None = None,
) -> Prepared:
    """Runs a forward pass, and a pass over the first layer's scores, in O(L n^2 d) time and O(L n (d + d_ff)) memory.

    The last layer's attention is computed only for the readout row: O(n d) with one layer. With `row`, only that row
    and the flipped one will be needed in the first layer, which saves the second pass.
    """
    n = len(tokens)
    traces, output = layers.trace(config, parameters, tokens, layers.readout_row(config.readout, n))
    others: OtherKeys | Levels | None = None
    if config.layers:
        layer = TracedLayer(parameters.layer(config, 0), parameters.layers[0], traces[0])
        match layer.config.weighting:
            case Softmax() | SinkSoftmax():
                sink = isinstance(layer.config.weighting, SinkSoftmax)
                equal = one_key.first_rows(tokens, parameters.position_embedding(config, n), sink)
                others = one_key.other_keys_of(layer, equal, row)
            case Sigmoid():
                pass  # no key's weight depends on the others
            case HardWeighting():
                others = levels_of(layer, row)
            case other:
                raise no_rule("the difference engine", "weighting", other, (*SOFT, HardWeighting))
    return Prepared(tokens, traces, output, others)


def score_sizes(prepared: Prepared) -> Float[Array, " layers"]:
    """Returns the largest |log-normaliser| of each layer."""
    runs = zip(prepared.traces.runs, prepared.traces.lengths, strict=True)
    sizes = [jnp.max(jnp.abs(run.normaliser).reshape(length, -1), axis=1) for run, length in runs]
    return jnp.concatenate([jnp.zeros(0, prepared.output.dtype), *sizes])


def largest_score(prepared: Prepared) -> Float[Array, ""]:
    """Returns the largest size of a softmax score that gets weight in the unflipped run, to within log n.

    It uses the log-normaliser, which is at most log n above a row's largest score. Scores far below that may be large,
    because their weights are 0.
    """
    return jnp.max(score_sizes(prepared), initial=0)


def of_dtype(config: TransformerConfig, parameters: TransformerParameters) -> TransformerConfig:
    """Returns the config with the dtype of the parameters: "float64" while a float32 model is being prepared."""
    return with_fields(config, dtype=str(parameters.embedding.dtype))


def inner_change(layer: TracedLayer, moved: Moved, rows: Rows | None = None) -> Moved:
    """Returns the change of the input of the query, key and value projections, of some rows or of all."""
    config, norm = layer.config, layer.parameters.attention_norm
    if not config.norm.before:
        return moved
    normed = _normed(config, norm, layer.trace.x if rows is None else layer.trace.x[rows], moved)
    return replace(normed, new=None if moved.new is None else layer_norm(config, norm, moved.new))


def _normed(
    config: LayerConfig, norm: NormParameters | None, x: Float[Array, "m width"], moved: Moved
) -> Moved:
    """Returns the change of rows x after layer normalisation, without their new value."""
    dz = layer_norm_change(config, norm, x, moved.dx)
    return Moved(dz, rules.layer_norm_error(config, norm, x, moved.dx, moved.error, dz))


def gated_change(layer: TracedLayer, rows: Rows, moved: Moved, heads: HeadsMoved) -> HeadsMoved:
    """Returns the change of the heads' outputs after their gates: g' Db + (g' - g) b; Db itself without gates."""
    config, parameters, base = layer.config, layer.parameters, layer.trace
    match config.output_gate:
        case "none":
            return heads
        case "headwise" | "elementwise":
            inner = inner_change(layer, moved, rows)
            matrices = needed(parameters.gate, "gate")
            before, step = (gate_inputs(config, parameters, z) for z in (base.z[rows], inner.dx))
            gate, change = sigmoid_change(before, before + step, step)
            b = base.b[:, rows]
            # A gate's slope is at most 1/4, and a rounding of its input z moves it by at most a rounding of g z.
            slope = product_error(size(inner.dx), inner.error, matrices) / 4
            own = unit(b.dtype) * jnp.max(jnp.abs(change) * (1 + jnp.abs(before)), axis=-1)
            error = heads.error + (slope + own) * size(b) + unit(b.dtype) * size(heads.db)
            return HeadsMoved(gate * heads.db + change * b, error, heads.new)
        case other:
            raise no_rule("the difference engine", "output gate", other, ("none", "headwise", "elementwise"))


def after_attention_change(layer: TracedLayer, rows: Rows, moved: Moved, heads: HeadsMoved) -> Moved:
    """Applies the rest of a layer to some rows: gates, output projection, skips, normalisation, per-position map."""
    config, parameters, base = layer.config, layer.parameters, layer.trace
    gates = gated_change(layer, rows, moved, heads)
    merged = size(jax.vmap(product_error)(size(gates.db), gates.error, parameters.output).T)
    after = Moved(
        moved.dx + jnp.einsum("hmk,hkd->md", gates.db, parameters.output), jnp.hypot(moved.error, merged)
    )
    if config.norm.after:
        after = _normed(config, parameters.attention_norm, base.attended[rows], after)
    if base.h is not None and base.mapped is not None:
        norm, w1, w2, inner = parameters.feed_forward_norm, parameters.w1, parameters.w2, after
        if config.norm.before:
            inner = _normed(config, norm, base.c[rows], after)
        h = base.h[rows]
        dy = after.dx + feed_forward_change(config, w1, w2, h, inner.dx)
        mapped = rules.feed_forward_error(config, w1, w2, h, inner.dx, inner.error)
        after = Moved(dy, jnp.hypot(after.error, mapped))
        if config.norm.after:
            after = _normed(config, norm, base.mapped[rows], after)
    error = after.error + unit(after.dx.dtype) * size(after.dx)
    if moved.new is None or heads.new is None:
        return Moved(after.dx, error)
    return Moved(after.dx, error, trace.after_attention(config, parameters, moved.new, heads.new).y)


def first_layer_change(
    run: TracedRun, position: Index, symbol: Index, rows: Rows, also_own: bool = True
) -> Moved:
    """Returns the change of the given rows of the first layer's output under a flip.

    Only one key changes, so attention takes the closed form, O(H head_width) per row. The flipped position's query
    changes too: that row is recomputed in full, O(n d), unless `also_own` says that it is not among the rows. The
    per-position map takes O(d d_ff) per row.
    """
    layer, here = run.layer(0), position[None]
    moved, own = (embedding_change(run, position, symbol, some) for some in (rows, here))
    embedded = None
    if run.config.exact_rows:
        embedded = layers.embed(run.config, run.parameters, run.prepared.tokens.at[position].set(symbol))
        moved, own = replace(moved, new=embedded[rows]), replace(own, new=embedded[here])
    inner = inner_change(layer, own, here)
    match layer.config.weighting, run.prepared.others:
        case (Softmax() | SinkSoftmax(), OtherKeys() as others) | (Sigmoid(), None as others):
            dq, dk = (
                layer.heads_change(inner, m, here) for m in (layer.parameters.query, layer.parameters.key)
            )
            dv = layer.heads_change(inner, layer.parameters.value, None)
            flip = KeyMoved(position, symbol, dk, dv)
            heads = one_key.one_key_change(layer, others, rows, flip)
            if also_own:
                heads = one_key.own_row(layer, others, flip, dq).where(rows == position, heads)
        case HardWeighting(), Levels() as best:
            heads = _hard_first_layer(run, best, position, rows, also_own, inner)
        case other, _:
            raise no_rule("the difference engine", "weighting", other, (*SOFT, HardWeighting))
    after = after_attention_change(layer, rows, moved, heads)
    if embedded is not None and heads.new is None:
        return replace(after, new=transformer_layer(layer.config, layer.parameters, embedded)[1][rows])
    return after


def embedding_change(run: TracedRun, position: Index, symbol: Index, rows: Rows) -> Moved:
    """Returns the change of some rows of the embedded input: a difference of two given vectors, rounded once."""
    embedding = run.parameters.embedding
    step = embedding[symbol] - embedding[run.prepared.tokens[position]]
    dx = jnp.where((rows == position)[:, None], step, 0)
    return Moved(dx, unit(dx.dtype) * size(dx))


def _hard_first_layer(
    run: TracedRun, best: Levels, position: Index, rows: Rows, also_own: bool, inner: Moved
) -> HeadsMoved:
    """Returns the change and new value of the heads' outputs when one key of hard attention becomes that of `inner`."""
    layer, here = run.layer(0), position[None]
    base, new = layer.trace, (needed(inner.new, "new"), here)
    new_q, new_k, new_v = layer.new_heads(new, new)
    dv = layer.heads_change(inner, layer.parameters.value, None)
    keys, values = base.keys.at[:, position].set(new_k[:, 0]), base.values.at[:, position].set(new_v[:, 0])
    all_dv = HeadsMoved(
        jnp.zeros_like(base.values).at[:, position].set(dv.db[:, 0]),
        jnp.zeros_like(base.values[..., 0]).at[:, position].set(dv.error[:, 0]),
    )
    is_here = rows == position
    if isinstance(layer.config.weighting, AverageHard) and run.config.layers > 1:
        # Equal averages must be summed in the same order, or a later layer would break their ties by rounding. So all
        # rows are computed in full, O(n d) each.
        queries = jnp.where(is_here[:, None], new_q, base.queries[:, rows])
        heads = hard_rows(layer, rows, (queries, keys, values), all_dv)
    else:
        heads = one_key_change_hard(layer, best, rows, position, new_k[:, 0], new_v[:, 0], dv)
    if also_own:
        heads = hard_rows(layer, here, (new_q, keys, values), all_dv).where(is_here, heads)
    return heads


def layer_change(layer: TracedLayer, moved: Moved, reach: Reach) -> Moved:
    """Returns the change of all rows of a layer but the first under a change of its inputs. O(H n^2 head_width), in
    blocks.

    Only the rows `reach` can change.
    """
    n, everywhere, config, own = layer.n, jnp.arange(layer.n), layer.config, layer.parameters
    inner = inner_change(layer, moved)
    dv = layer.heads_change(inner, own.value, None)
    match config.weighting:
        case Softmax() | SinkSoftmax() | Sigmoid():
            dq, dk = (layer.heads_change(inner, matrix, everywhere) for matrix in (own.query, own.key))

            def change(rows: Rows) -> Moved:
                heads = soft_rows(layer, rows, HeadsMoved(dq.db[:, rows], dq.error[:, rows]), dk, dv)
                return after_attention_change(layer, rows, Moved(moved.dx[rows], moved.error[rows]), heads)

            cached = not config.exact_rows and trace.leaves_cache(config.heads, n, compiled_for())
            most = trace.rows_at_once(config.heads * n, cached)
            start = Moved(jnp.zeros_like(moved.dx), jnp.zeros_like(moved.error))
            after = over_changed_rows(change, start, reach, most, axis=0)
            new = None if moved.new is None else transformer_layer(config, own, moved.new)[1]
            return replace(after, new=new)
        case HardWeighting() if inner.new is not None:
            q, keys, values = layer.new_heads((inner.new, everywhere), (inner.new, everywhere))
            heads = trace.in_blocks(
                lambda rows: hard_rows(layer, rows, (q[:, rows], keys, values), dv),
                n,
                trace.rows_at_once(config.heads * n, False),
                axis=1,
            )
            return after_attention_change(layer, everywhere, moved, heads)
        case other:
            raise no_rule("the difference engine", "weighting", other, (*SOFT, HardWeighting))


def last_layer_change(run: TracedRun, moved: Moved, row: int) -> Moved:
    """Returns the change of the readout row of the last layer, k > 0, under a change of all its inputs. O(n d)."""
    layer = run.layer(run.config.layers - 1)
    rows, own = jnp.asarray([row]), layer.parameters
    inner = inner_change(layer, moved)
    match layer.config.weighting:
        case Softmax() | SinkSoftmax() | Sigmoid():
            here = Moved(inner.dx[rows], inner.error[rows])
            heads = readout_row(layer, row, layer.heads_change(here, own.query, rows), inner)
        case HardWeighting() if inner.new is not None:
            new = layer.new_heads((inner.new[rows], rows), (inner.new, jnp.arange(layer.n)))
            heads = hard_rows(layer, rows, new, layer.heads_change(inner, own.value, None))
        case other:
            raise no_rule("the difference engine", "weighting", other, (*SOFT, HardWeighting))
    before = Moved(moved.dx[rows], moved.error[rows])
    return after_attention_change(layer, rows, before, HeadsMoved(heads.db, heads.error))
