"""The norm of an output's change."""

from __future__ import annotations

import math

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxsens.errors import no_rule
from jaxsens.inputs import NORMS

ORDERS: dict[str, float] = {"l2": 2, "l1": 1, "linf": math.inf}
"""The order of each norm, as NumPy takes it."""


def norm_of(change: Float[Array, "*batch outputs"], norm: str) -> Float[Array, "*batch"]:
    """The l2, l1 or l-infinity norm over the last axis.

    The l2 norm scales by the largest entry first: squares of changes below 1e-19 would underflow in float32.
    """
    size = jnp.abs(change)
    largest = jnp.max(size, axis=-1, initial=0)
    match norm:
        case "l1":
            return jnp.sum(size, axis=-1)
        case "linf":
            return largest
        case "l2":
            scale = jnp.where(largest > 0, largest, 1)
            return largest * jnp.sqrt(jnp.sum((size / scale[..., None]) ** 2, axis=-1))
        case _:
            raise no_rule("norm_of", "norm", norm, NORMS)
