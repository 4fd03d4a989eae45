"""Matrix products in two forms: a fast one, and one that gives equal rows bitwise equal results. Exact quotients.

A library's matrix product may sum the same numbers in a different order at the edge of a tile, so that two equal keys
get scores an ulp apart (seen in float64 on CPU). This does not matter to a soft weighting, but it breaks ties of a hard
one. Models with a hard layer therefore use the elementwise form, in which every output is the same reduction.
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
    """Returns a / b, with every quotient correctly rounded, so that equal fractions such as 2/6 and 3/9 are equal.

    XLA would otherwise multiply by 1/b, which is rounded once per row.
    """
    return a / jax.lax.optimization_barrier(jnp.broadcast_to(b, a.shape))
