"""The change of a sigmoid, by a difference that keeps the digits of a small change of its argument."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


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
