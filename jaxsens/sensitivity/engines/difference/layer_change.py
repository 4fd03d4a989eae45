"""The change of one layer's output under a flip: in the first layer, where one key changes, and in later layers."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxsens.base.errors import no_rule
from jaxsens.models.parts.weighting import AverageHard, HardWeighting, Sigmoid, SinkSoftmax, Softmax
from jaxsens.models.transformer import layers
from jaxsens.models.transformer.config import TransformerConfig
from jaxsens.models.transformer.parameters import LayerParameters, TransformerParameters, needed
from jaxsens.models.transformer.trace import (
    LayerTrace,
    leaves_cache,
    over_row_blocks,
    rows_at_once,
    transformer_layer,
)
from jaxsens.sensitivity.engines.difference.attention import (
    SOFT,
    hard_rows,
    readout_row,
    soft_rows,
)
from jaxsens.sensitivity.engines.difference.moved import HeadsMoved, Moved
from jaxsens.sensitivity.engines.difference.one_key import KeyMoved, Rest, one_key_change, own_row
from jaxsens.sensitivity.engines.difference.one_key_hard import Levels, one_key_change_hard
from jaxsens.sensitivity.engines.difference.one_key_sigmoid import one_key_change_sigmoid
from jaxsens.sensitivity.engines.difference.rounding import size, unit
from jaxsens.sensitivity.engines.difference.state import (
    Prepared,
    after_attention_change,
    heads_change,
    heads_of,
    inner_change,
)
from jaxsens.sensitivity.engines.one_key.reach import Reach, over_changed_rows


def first_layer_change(
    config: TransformerConfig,
    parameters: TransformerParameters,
    prepared: Prepared,
    position: Int[Array, ""],
    symbol: Int[Array, ""],
    rows: Int[Array, " m"],
    also_own: bool = True,
) -> Moved:
    """Returns the change of the given rows of the first layer's output under a flip.

    Only one key changes, so attention takes the closed form, O(H head_width) per row. The flipped position's query
    changes too: that row is recomputed in full, O(n d), unless `also_own` says that it is not among the rows. The
    per-position map takes O(d d_ff) per row.
    """
    layer, own = config.layer(0), parameters.layers[0]
    kept = prepared.traces[0]
    embedded = (
        layers.embed(config, parameters, prepared.tokens.at[position].set(symbol))
        if config.exact_rows
        else None
    )
    match layer.weighting, prepared.others:
        case (Softmax() | SinkSoftmax(), Rest()) | (Sigmoid(), None):
            moved, heads = soft_first_layer(config, parameters, prepared, position, symbol, rows, also_own)
        case HardWeighting(), Levels() as best if embedded is not None:
            moved = embedding_change(parameters, prepared, position, symbol, rows)
            moved = dataclasses.replace(moved, new=embedded[rows])
            here = embedding_change(parameters, prepared, position, symbol, position[None])
            here = inner_change(
                layer, own, kept.x[position[None]], dataclasses.replace(here, new=embedded[position[None]])
            )
            heads = _hard_first_layer(config, own, kept, best, position, rows, also_own, here)
        case other, _:
            raise no_rule("the difference engine", "weighting", other, (*SOFT, HardWeighting))
    after = after_attention_change(layer, own, kept, rows, moved, heads)
    if embedded is not None and heads.new is None:
        return dataclasses.replace(after, new=transformer_layer(layer, own, embedded)[1][rows])
    return after


def embedding_change(
    parameters: TransformerParameters,
    prepared: Prepared,
    position: Int[Array, ""],
    symbol: Int[Array, ""],
    rows: Int[Array, " m"],
) -> Moved:
    """Returns the change of some rows of the embedded input: a difference of two given vectors, rounded once."""
    step = parameters.embedding[symbol] - parameters.embedding[prepared.tokens[position]]
    dx = jnp.where((rows == position)[:, None], step, 0)
    return Moved(dx, unit(dx.dtype) * size(dx))


def soft_first_layer(
    config: TransformerConfig,
    parameters: TransformerParameters,
    prepared: Prepared,
    position: Int[Array, ""],
    symbol: Int[Array, ""],
    rows: Int[Array, " m"],
    also_own: bool = True,
) -> tuple[Moved, HeadsMoved]:
    """Returns the change of some rows of a soft layer's input, and of their heads' outputs: `first_layer_change`."""
    layer, own = config.layer(0), parameters.layers[0]
    kept, n, here = prepared.traces[0], prepared.tokens.shape[0], position[None]
    inner = inner_change(
        layer, own, kept.x[here], embedding_change(parameters, prepared, position, symbol, here)
    )
    dq, dk = (heads_change(layer, inner, matrix, here, n) for matrix in (own.query, own.key))
    flip = KeyMoved(position, symbol, dk, heads_change(layer, inner, own.value, None, n))
    match layer.weighting, prepared.others:
        case Softmax() | SinkSoftmax(), Rest() as rest:
            heads = one_key_change(layer, own, kept, rest, rows, flip)
        case Sigmoid(), None as rest:
            heads = one_key_change_sigmoid(layer, own, kept, rows, flip)
        case other, _:
            raise no_rule("the first layer's closed form", "weighting", other, SOFT)
    if also_own:
        heads = own_row(layer, own, kept, rest, flip, dq).where(rows == position, heads)
    return embedding_change(parameters, prepared, position, symbol, rows), heads


def _hard_first_layer(
    config: TransformerConfig,
    own: LayerParameters,
    kept: LayerTrace,
    best: Levels,
    position: Int[Array, ""],
    rows: Int[Array, " m"],
    also_own: bool,
    inner: Moved,
) -> HeadsMoved:
    """Returns the change and new value of the heads' outputs when one key of hard attention becomes that of `inner`."""
    layer, n, here = config.layer(0), kept.x.shape[0], position[None]
    new_z = needed(inner.new, "new")
    new_q, new_k = (heads_of(layer, new_z, matrix, here, n) for matrix in (own.query, own.key))
    new_v = heads_of(layer, new_z, own.value, None, n)
    dv = heads_change(layer, inner, own.value, None, n)
    keys, values = (
        kept.keys.at[:, position].set(new_k[:, 0]),
        kept.values.at[:, position].set(new_v[:, 0]),
    )
    all_dv = HeadsMoved(
        jnp.zeros_like(kept.values).at[:, position].set(dv.db[:, 0]),
        jnp.zeros_like(kept.values[..., 0]).at[:, position].set(dv.error[:, 0]),
    )
    is_here = rows == position
    if isinstance(layer.weighting, AverageHard) and config.layers > 1:
        # Equal averages must be summed in the same order, or a later layer would break their ties by rounding. So all
        # rows are computed in full, O(n d) each.
        queries = jnp.where(is_here[:, None], new_q, kept.queries[:, rows])
        heads = hard_rows(layer, own, kept, rows, (queries, keys, values), all_dv)
    else:
        heads = one_key_change_hard(layer, own, kept, best, rows, position, new_k[:, 0], new_v[:, 0], dv)
    if also_own:
        whole = hard_rows(layer, own, kept, here, (new_q, keys, values), all_dv)
        heads = whole.where(is_here, heads)
    return heads


def layer_change(
    config: TransformerConfig,
    parameters: TransformerParameters,
    prepared: Prepared,
    k: int,
    moved: Moved,
    reach: Reach,
) -> Moved:
    """Returns the change of all rows of layer k > 0 under a change of its inputs. O(H n^2 head_width), in blocks.

    Only the rows `reach` can change.
    """
    layer, own, kept = config.layer(k), parameters.layers[k], prepared.traces[k]
    n = kept.x.shape[0]
    everywhere = jnp.arange(n)
    inner = inner_change(layer, own, kept.x, moved)
    dv = heads_change(layer, inner, own.value, None, n)
    match layer.weighting:
        case Softmax() | SinkSoftmax() | Sigmoid():
            dq, dk = (heads_change(layer, inner, matrix, everywhere, n) for matrix in (own.query, own.key))

            def change(rows: Int[Array, " m"]) -> Float[Array, "m width_and_error"]:
                own_dq = HeadsMoved(dq.db[:, rows], dq.error[:, rows])
                heads = soft_rows(layer, own, kept, rows, own_dq, dk, dv)
                before = Moved(moved.dx[rows], moved.error[rows])
                after = after_attention_change(layer, own, kept, rows, before, heads)
                return jnp.concatenate([after.dx, after.error[:, None]], axis=1)

            most = rows_at_once(layer.heads * n, leaves_cache(layer, n))
            start = jnp.zeros((n, config.width + 1), moved.dx.dtype)
            after = over_changed_rows(change, start, reach, most)
            new = None if moved.new is None else transformer_layer(layer, own, moved.new)[1]
            return Moved(after[:, :-1], after[:, -1], new)
        case HardWeighting() if inner.new is not None:
            q, keys = (heads_of(layer, inner.new, matrix, everywhere, n) for matrix in (own.query, own.key))
            values = heads_of(layer, inner.new, own.value, None, n)
            heads = over_row_blocks(
                lambda rows: hard_rows(layer, own, kept, rows, (q[:, rows], keys, values), dv), layer.heads, n
            )
            return after_attention_change(layer, own, kept, everywhere, moved, heads)
        case other:
            raise no_rule("the difference engine", "weighting", other, (*SOFT, HardWeighting))


def last_layer_change(
    config: TransformerConfig,
    parameters: TransformerParameters,
    prepared: Prepared,
    moved: Moved,
    row: int,
) -> Moved:
    """Returns the change of the readout row of the last layer, k > 0, under a change of all its inputs. O(n d)."""
    k = config.layers - 1
    layer, own, kept = config.layer(k), parameters.layers[k], prepared.traces[k]
    n = kept.x.shape[0]
    rows, everywhere = jnp.asarray([row]), jnp.arange(n)
    inner = inner_change(layer, own, kept.x, moved)
    match layer.weighting:
        case Softmax() | SinkSoftmax() | Sigmoid():
            here = Moved(inner.dx[rows], inner.error[rows])
            heads = readout_row(layer, own, kept, row, heads_change(layer, here, own.query, rows, n), inner)
        case HardWeighting() if inner.new is not None:
            new_q = heads_of(layer, inner.new[rows], own.query, rows, n)
            new_k = heads_of(layer, inner.new, own.key, everywhere, n)
            new_v = heads_of(layer, inner.new, own.value, None, n)
            dv = heads_change(layer, inner, own.value, None, n)
            heads = hard_rows(layer, own, kept, rows, (new_q, new_k, new_v), dv)
        case other:
            raise no_rule("the difference engine", "weighting", other, (*SOFT, HardWeighting))
    before = Moved(moved.dx[rows], moved.error[rows])
    return after_attention_change(layer, own, kept, rows, before, HeadsMoved(heads.db, heads.error))
