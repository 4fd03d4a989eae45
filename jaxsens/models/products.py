"""Matrix products in two forms, the fast one and one that gives equal rows bitwise equal results; exact quotients.

A library's matrix product may add up the same numbers in another order at the edge of a tile, so that two equal keys
get scores an ulp apart (seen in float64 on CPU). To a soft weighting this makes no difference, but a hard one breaks a
tie by it. Models with a hard layer therefore use the elementwise form, in which every output is the same reduction.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def rows_times(
    x: Float[Array, "*rows width"], matrix: Float[Array, "width out"], exact_rows: bool
) -> Float[Array, "*rows out"]:
    """x @ matrix: one matrix applied to every row. O(rows width out)."""
    if not exact_rows:
        return x @ matrix
    return jnp.sum(x[..., :, None] * matrix, axis=-2)


def inner_products(
    a: Float[Array, "*batch m width"], b: Float[Array, "*batch k width"], exact_rows: bool
) -> Float[Array, "*batch m k"]:
    """a_i . b_j for all pairs of rows. O(m k width)."""
    if not exact_rows:
        return jnp.einsum("...id,...jd->...ij", a, b)
    return jnp.sum(a[..., :, None, :] * b[..., None, :, :], axis=-1)


def weighted_sums(
    weights: Float[Array, "*batch m k"], values: Float[Array, "*batch k width"], exact_rows: bool
) -> Float[Array, "*batch m width"]:
    """sum_j w_ij v_j for every row of weights. O(m k width)."""
    if not exact_rows:
        return jnp.einsum("...ij,...jd->...id", weights, values)
    return jnp.sum(weights[..., :, :, None] * values[..., None, :, :], axis=-2)


def quotients(a: Float[Array, "*rows width"], b: Float[Array, "*rows 1"]) -> Float[Array, "*rows width"]:
    """a / b, every quotient correctly rounded, so that equal fractions such as 2/6 and 3/9 are equal numbers.

    XLA would multiply by 1/b, one rounded number a row, if it saw that b is.
    """
    return a / jax.lax.optimization_barrier(jnp.broadcast_to(b, a.shape))
