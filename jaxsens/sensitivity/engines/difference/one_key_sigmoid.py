"""The change of sigmoid attention when one key changes: a difference of two sigmoids, as no weights compete."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Int

from jaxsens.models.parts.masks import visible
from jaxsens.models.transformer.config import LayerConfig
from jaxsens.models.transformer.parameters import LayerParameters
from jaxsens.models.transformer.scores import scores
from jaxsens.models.transformer.trace import LayerTrace
from jaxsens.sensitivity.engines.difference.attention import score_change, score_error
from jaxsens.sensitivity.engines.difference.moved import Doubt, HeadsMoved
from jaxsens.sensitivity.engines.difference.one_key import KeyMoved
from jaxsens.sensitivity.engines.difference.rounding import size, unit
from jaxsens.sensitivity.engines.difference.softmax_change import cancelled, too_large
from jaxsens.sensitivity.engines.one_key.sigmoid_change import sigmoid_change


def one_key_change_sigmoid(
    layer: LayerConfig,
    parameters: LayerParameters,
    kept: LayerTrace,
    rows: Int[Array, " m"],
    flip: KeyMoved,
) -> HeadsMoved:
    """Returns Db of the `rows`, other than the flipped one, when the key and the value at one position change.

    b' - b = (p' - p) v_i + p' Dv_i, where only the weight of the changed key counts. O(head_width) per row.
    """
    position, n = flip.position, kept.x.shape[0]
    q = kept.queries[:, rows]
    key, value = kept.keys[:, position][:, None], kept.values[:, position][:, None]
    s = scores(layer, parameters, q, key, rows, position[None], n)[..., 0]
    ds = score_change(layer, parameters, q, None, key, flip.dk.db, rows, n)[..., 0]
    es = score_error(layer, parameters, size(q), None, size(key), Doubt.of(flip.dk), rows, n)[..., 0]
    new, change = sigmoid_change(s, ds)
    db = change[..., None] * value + new[..., None] * flip.dv.db
    part = unit(s.dtype) * (1 + jnp.abs(s))
    slope = jnp.maximum(new * (1 - new), (new - change) * (1 - new + change))
    error = jnp.abs(change) * part + slope * (es + unit(s.dtype) * jnp.abs(ds))
    error = error * size(value) + new * (flip.dv.error + part * size(flip.dv.db))
    error = error + jnp.finfo(s.dtype).tiny * (size(value) + size(flip.dv.db))
    lost, seen = too_large(ds) | cancelled(s, ds, new), visible(layer.mask, rows, position)
    db = jnp.where(lost[..., None], jnp.nan, db)
    return HeadsMoved(jnp.where(seen[:, None], db, 0), jnp.where(seen, error, 0))
