"""The change of one layer's output under a flip: in the first layer, where one key changes, and in later layers."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxsens.errors import no_rule
from jaxsens.models import layers
from jaxsens.models.config import TransformerConfig
from jaxsens.models.maps import layer_norm
from jaxsens.models.parameters import LayerParameters, TransformerParameters
from jaxsens.models.trace import LayerTrace, leaves_cache, over_row_blocks, rows_at_once, transformer_layer
from jaxsens.models.weighting import AverageHard, HardWeighting, Sigmoid, SinkSoftmax, Softmax
from jaxsens.sensitivity.difference.attention import (
    SOFT,
    hard_rows,
    own_row,
    readout_row,
    score_change,
    soft_rows,
)
from jaxsens.sensitivity.difference.one_key import Rest, one_key_change
from jaxsens.sensitivity.difference.one_key_hard import Levels, one_key_change_hard
from jaxsens.sensitivity.difference.sigmoid_change import one_key_change_sigmoid
from jaxsens.sensitivity.difference.state import (
    Moved,
    Prepared,
    after_attention_change,
    heads_of,
    inner_change,
)
from jaxsens.sensitivity.reach import Reach, over_changed_rows


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
    kept, n = prepared.traces[0], prepared.tokens.shape[0]
    embedded = (
        layers.embed(config, parameters, prepared.tokens.at[position].set(symbol))
        if config.exact_rows
        else None
    )
    new_b = None
    match layer.weighting, prepared.others:
        case (Softmax() | SinkSoftmax(), Rest()) | (Sigmoid(), None):
            dx, db = soft_first_layer(config, parameters, prepared, position, symbol, rows, also_own)
        case HardWeighting(), Levels() as best if embedded is not None:
            here, is_here = position[None], (rows == position)[:, None]
            dx_here = (parameters.embedding[symbol] - parameters.embedding[prepared.tokens[position]])[None]
            dz, _ = inner_change(layer, own, kept.x[here], Moved(dx_here, None))
            new_x = embedded[here]
            new_z = layer_norm(layer, own.attention_norm, new_x) if layer.norm.before else new_x
            dx, dv = jnp.where(is_here, dx_here, 0), heads_of(layer, dz, own.value, None, n)
            db, new_b = _hard_first_layer(
                config, own, kept, best, position, rows, also_own, new_z, dv, is_here
            )
        case other, _:
            raise no_rule("the difference engine", "weighting", other, (*SOFT, HardWeighting))
    new_x = None if embedded is None or new_b is None else embedded[rows]
    moved = after_attention_change(layer, own, kept, rows, dx, db, new_x, new_b)
    if embedded is not None and new_b is None:
        return Moved(moved.dx, transformer_layer(layer, own, embedded)[1][rows])
    return moved


def soft_first_layer(
    config: TransformerConfig,
    parameters: TransformerParameters,
    prepared: Prepared,
    position: Int[Array, ""],
    symbol: Int[Array, ""],
    rows: Int[Array, " m"],
    also_own: bool = True,
) -> tuple[Float[Array, "m width"], Float[Array, "heads m head_width"]]:
    """Returns the change of some rows of a soft layer's input, and of their heads' outputs: `first_layer_change`."""
    layer, own = config.layer(0), parameters.layers[0]
    kept, n = prepared.traces[0], prepared.tokens.shape[0]
    here = position[None]
    dx_here = (parameters.embedding[symbol] - parameters.embedding[prepared.tokens[position]])[None]
    dz = inner_change(layer, own, kept.x[here], Moved(dx_here, None))[0]
    dq, dk = (heads_of(layer, dz, matrix, here, n) for matrix in (own.query, own.key))
    dv = heads_of(layer, dz, own.value, None, n)
    is_here = (rows == position)[:, None]
    q, key = kept.queries[:, rows], kept.keys[:, position][:, None]
    match layer.weighting, prepared.others:
        case Softmax() | SinkSoftmax(), Rest() as rest:
            db = one_key_change(layer, own, kept, rest, rows, position, dk[:, 0], dv[:, 0])
        case Sigmoid(), _:
            ds = score_change(layer, own, q, None, key, dk, rows, n)[..., 0]
            db = one_key_change_sigmoid(layer, own, kept, rows, position, ds, dv[:, 0])
        case other, _:
            raise no_rule("the first layer's closed form", "weighting", other, SOFT)
    if also_own:
        db = jnp.where(is_here, own_row(layer, own, kept, position, dq, dk, dv), db)
    return jnp.where(is_here, dx_here, 0), db


def _hard_first_layer(
    config: TransformerConfig,
    own: LayerParameters,
    kept: LayerTrace,
    best: Levels,
    position: Int[Array, ""],
    rows: Int[Array, " m"],
    also_own: bool,
    new_z: Float[Array, "1 width"],
    dv: Float[Array, "heads 1 head_width"],
    is_here: Bool[Array, "m 1"],
) -> tuple[Float[Array, "heads m head_width"], Float[Array, "heads m head_width"]]:
    """Returns the change and new value of the heads' outputs when one key of hard attention becomes that of `new_z`."""
    layer, n, here = config.layer(0), kept.x.shape[0], position[None]
    new_q, new_k = (heads_of(layer, new_z, matrix, here, n) for matrix in (own.query, own.key))
    new_v = heads_of(layer, new_z, own.value, None, n)
    keys, values = (
        kept.keys.at[:, position].set(new_k[:, 0]),
        kept.values.at[:, position].set(new_v[:, 0]),
    )
    all_dv = jnp.zeros_like(kept.values).at[:, position].set(dv[:, 0])
    if isinstance(layer.weighting, AverageHard) and config.layers > 1:
        # Equal averages must be summed in the same order, or a later layer would break their ties by rounding. So all
        # rows are computed in full, O(n d) each.
        queries = jnp.where(is_here, new_q, kept.queries[:, rows])
        db, new_b = hard_rows(layer, own, kept, rows, (queries, keys, values), all_dv)
    else:
        db, new_b = one_key_change_hard(
            layer, own, kept, best, rows, position, new_k[:, 0], new_v[:, 0], dv[:, 0]
        )
    if also_own:
        whole, whole_b = hard_rows(layer, own, kept, here, (new_q, keys, values), all_dv)
        db, new_b = jnp.where(is_here, whole, db), jnp.where(is_here, whole_b, new_b)
    return db, new_b


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
    dz, new_z = inner_change(layer, own, kept.x, moved)
    dv = heads_of(layer, dz, own.value, None, n)
    match layer.weighting:
        case Softmax() | SinkSoftmax() | Sigmoid():
            dq, dk = (heads_of(layer, dz, matrix, everywhere, n) for matrix in (own.query, own.key))

            def change(rows: Int[Array, " m"]) -> Float[Array, "m width"]:
                db = soft_rows(layer, own, kept, rows, dq[:, rows], dk, dv)
                return after_attention_change(layer, own, kept, rows, moved.dx[rows], db, None, None).dx

            most = rows_at_once(layer.heads * n, leaves_cache(layer, n))
            dy = over_changed_rows(change, jnp.zeros_like(moved.dx), reach, most)
            return Moved(dy, None if moved.new is None else transformer_layer(layer, own, moved.new)[1])
        case HardWeighting() if new_z is not None:
            q, keys = (heads_of(layer, new_z, matrix, everywhere, n) for matrix in (own.query, own.key))
            values = heads_of(layer, new_z, own.value, None, n)
            db, new_b = over_row_blocks(
                lambda rows: hard_rows(layer, own, kept, rows, (q[:, rows], keys, values), dv), layer.heads, n
            )
            return after_attention_change(layer, own, kept, everywhere, moved.dx, db, moved.new, new_b)
        case other:
            raise no_rule("the difference engine", "weighting", other, (*SOFT, HardWeighting))


def last_layer_change(
    config: TransformerConfig,
    parameters: TransformerParameters,
    prepared: Prepared,
    moved: Moved,
    row: int,
) -> Float[Array, " width"]:
    """Returns the change of the readout row of the last layer, k > 0, under a change of all its inputs. O(n d)."""
    k = config.layers - 1
    layer, own, kept = config.layer(k), parameters.layers[k], prepared.traces[k]
    n = kept.x.shape[0]
    rows, everywhere = jnp.asarray([row]), jnp.arange(n)
    dz, new_z = inner_change(layer, own, kept.x, moved)
    dq = heads_of(layer, dz[rows], own.query, rows, n)
    match layer.weighting:
        case Softmax() | SinkSoftmax() | Sigmoid():
            db = readout_row(layer, own, kept, row, dq, dz)
        case HardWeighting() if new_z is not None:
            new_q = heads_of(layer, new_z[rows], own.query, rows, n)
            new_k = heads_of(layer, new_z, own.key, everywhere, n)
            new_v, dv = (heads_of(layer, value, own.value, None, n) for value in (new_z, dz))
            db = hard_rows(layer, own, kept, rows, (new_q, new_k, new_v), dv)[0]
        case other:
            raise no_rule("the difference engine", "weighting", other, (*SOFT, HardWeighting))
    return after_attention_change(layer, own, kept, rows, moved.dx[rows], db, None, None).dx[0]
