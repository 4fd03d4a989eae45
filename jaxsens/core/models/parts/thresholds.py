"""The thresholds of sparsemax and alpha-entmax, below which a key has no weight.

alpha-entmax (Peters, Niculae and Martins, 2019, eq. 5) gives key j the weight [z_j - tau]_+^(1/(alpha - 1)) with
z = (alpha - 1) s and the tau at which the weights sum to 1. alpha = 2 is sparsemax (Martins and Astudillo, 2016), and
softmax is the limit at alpha = 1. Here the largest z of every row is 0, so tau lies in [-1, 0): at tau = -1 the best
key alone has the weight 1. A key with z <= -1 never has any, so `FLOOR` can replace such a score, which keeps sums
finite.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

FLOOR = -2.0


def entmax_shares(z: Float[Array, "*rows keys"], alpha: float) -> Float[Array, "*rows keys"]:
    """Returns alpha-entmax weights, up to rounding, of rows whose largest score is 0; -inf marks invisible keys.

    tau comes from the sorted scores at alpha = 1.5 and 2, where it has a closed form for each support, and from
    bisection otherwise. A Newton step then removes most of its rounding, and gives it the derivative that the implicit
    equation sum_j [z_j - tau]_+^(1/(alpha - 1)) = 1 gives; sorting and bisection are not differentiated.

    O(keys log keys) a row, or one power a key for each bit of the dtype.
    """
    z, power = jnp.maximum(z, FLOOR), 1 / (alpha - 1)
    fixed = jax.lax.stop_gradient(z)
    match alpha:
        case 2.0:
            start = sparsemax_threshold(fixed)
        case 1.5:
            start = _of_entmax_15(fixed)
        case _:
            start = _bisected(fixed, power)
    above = z - start
    slope = jnp.sum(jnp.where(above > 0, jnp.maximum(above, 0) ** (power - 1), 0), axis=-1, keepdims=True)
    slope = jax.lax.stop_gradient(jnp.where(slope > 0, power * slope, 1))
    tau = start + (jnp.sum(_weights(above, power), axis=-1, keepdims=True) - 1) / slope
    return _weights(z - tau, power)


def _weights(above: Float[Array, "*rows keys"], power: float) -> Float[Array, "*rows keys"]:
    """[x]_+^power; the derivative at 0 and below is 0. NaN stays NaN."""
    inside = ~(above <= 0)
    return jnp.where(inside, jnp.where(inside, above, 1) ** power, 0)


def sparsemax_threshold(z: Float[Array, "*rows keys"]) -> Float[Array, "*rows 1"]:
    """Returns tau of sparsemax for rows whose largest score is 0.

    The support is the longest prefix of the sorted scores with 1 + k z_(k) > sum_{m <= k} z_(m).
    """
    ordered, rank = _ordered(jnp.maximum(z, FLOOR))
    inside = 1 + rank * ordered > jnp.cumsum(ordered, axis=-1)
    size = jnp.maximum(jnp.sum(inside, axis=-1, keepdims=True), 1)
    return (jnp.sum(jnp.where(inside, ordered, 0), axis=-1, keepdims=True) - 1) / size


def _of_entmax_15(z: Float[Array, "*rows keys"]) -> Float[Array, "*rows 1"]:
    """Peters et al. (2019), algorithm 2: with M and S the mean and the sum of squared deviations of the k best scores,
    tau = M - sqrt((1 - S) / k), for the largest k whose tau is at most z_(k)."""
    ordered, rank = _ordered(z)
    mean = jnp.cumsum(ordered, axis=-1) / rank
    deviations = jnp.cumsum(ordered**2, axis=-1) - rank * mean**2
    tau = mean - jnp.sqrt(jnp.maximum(1 - deviations, 0) / rank)
    size = jnp.maximum(jnp.sum(tau <= ordered, axis=-1, keepdims=True), 1)
    return jnp.take_along_axis(tau, size - 1, axis=-1)


def _ordered(z: Float[Array, "*rows keys"]) -> tuple[Float[Array, "*rows keys"], Float[Array, " keys"]]:
    return jnp.sort(z, axis=-1)[..., ::-1], jnp.arange(1, z.shape[-1] + 1, dtype=z.dtype)


def _bisected(z: Float[Array, "*rows keys"], power: float) -> Float[Array, "*rows 1"]:
    """The sum of the weights falls in tau, from at least 1 at -1 to 0 at 0."""

    def halve(_: Any, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        low, step = carry
        total = jnp.sum(_weights(z - (low + step), power), axis=-1, keepdims=True)
        return jnp.where(total >= 1, low + step, low), step / 2

    start = jnp.full((*z.shape[:-1], 1), -1, z.dtype), jnp.asarray(0.5, z.dtype)
    return jax.lax.fori_loop(0, jnp.finfo(z.dtype).nmant + 1, halve, start)[0]
