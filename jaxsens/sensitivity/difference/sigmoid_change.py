"""The change of sigmoid attention: every weight changes on its own, by a difference of two sigmoids."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxsens.models.config import LayerConfig
from jaxsens.models.masks import visible
from jaxsens.models.parameters import LayerParameters
from jaxsens.models.scores import scores
from jaxsens.models.trace import LayerTrace
from jaxsens.sensitivity.difference.softmax_change import cancelled, too_large


def sigmoid_change(
    s: Float[Array, "*shape"], ds: Float[Array, "*shape"]
) -> tuple[Float[Array, "*shape"], Float[Array, "*shape"]]:
    """Returns sigmoid(s + ds), and sigmoid(s + ds) - sigmoid(s) to a few rounding errors of s and ds.

    With sigma the sigmoid, sigma(s + ds) - sigma(s) = sigma(s + ds) sigma(-s) (1 - e^-ds), of which the form is taken
    whose exponential is at most 1. An invisible key has the score -inf, and weights and a change of 0.
    """
    new = jax.nn.sigmoid(s + ds)
    grown = new * jax.nn.sigmoid(-s) * -jnp.expm1(-jnp.maximum(ds, 0))
    shrunk = jax.nn.sigmoid(s) * jax.nn.sigmoid(-s - ds) * jnp.expm1(jnp.minimum(ds, 0))
    return new, jnp.where(ds > 0, grown, shrunk)


def one_key_change_sigmoid(
    layer: LayerConfig,
    parameters: LayerParameters,
    kept: LayerTrace,
    rows: Int[Array, " m"],
    position: Int[Array, ""],
    ds: Float[Array, "heads m"],
    dv: Float[Array, "heads head_width"],
) -> Float[Array, "heads m head_width"]:
    """Returns Db of the `rows`, other than `position`, when the score and the value there change by ds and dv.

    b' - b = (p' - p) v_i + p' Dv_i, where only the weight of the changed key counts. O(head_width) per row.
    """
    q, n = kept.queries[:, rows], kept.x.shape[0]
    key, value = kept.keys[:, position][:, None], kept.values[:, position][:, None]
    s = scores(layer, parameters, q, key, rows, position[None], n)[..., 0]
    new, change = sigmoid_change(s, ds)
    db = change[..., None] * value + new[..., None] * dv[:, None]
    db = jnp.where((too_large(ds) | cancelled(s, ds, new))[..., None], jnp.nan, db)
    return jnp.where(visible(layer.mask, rows, position)[:, None], db, 0)
