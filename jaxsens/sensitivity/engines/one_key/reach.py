"""Which rows of a layer a flip can change, and a loop over only those, in blocks."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxsens.models.parts.masks import AnyMask, Span, mask_of

MASKED_BLOCKS = 8
"""The number of blocks into which rows are divided where a mask leaves some of them unchanged."""

Reach: TypeAlias = Span
"""The rows that can change."""


def changed_rows(mask: AnyMask, reach: Reach, n: int) -> Reach:
    """Returns the rows of a layer's output that can change if the rows `reach` of its input do."""
    return mask_of("the rows that change", mask).rows_that_see(reach, n)


def over_changed_rows(
    rows: Callable[[Int[Array, " m"]], Float[Array, "*flips m width"]],
    unchanged: Float[Array, "*flips n width"],
    reach: Reach,
    most: int,
) -> Float[Array, "*flips n width"]:
    """Returns `rows(positions)` for the rows `reach`, in blocks of at most `most` rows, and `unchanged` in the other
    rows."""
    n, (first, stop) = unchanged.shape[-2], reach
    size = rows_of_block(n, most, all(isinstance(bound, int) for bound in reach))

    def block(k: Array, so_far: Array) -> Array:
        # The last block overlaps the one before it, so that all blocks have the same size.
        begin = jnp.minimum(k * size, n - size)
        return jax.lax.dynamic_update_slice_in_dim(so_far, rows(begin + jnp.arange(size)), begin, -2)

    return jax.lax.fori_loop(first // size, -(-stop // size), block, unchanged)


def rows_of_block(n: int, most: int, everything: bool) -> int:
    """Returns the number of rows per block, at most `most`: fewer if not `everything` needs computing."""
    size = min(most, n)
    return size if everything else max(1, min(size, -(-n // MASKED_BLOCKS)))
