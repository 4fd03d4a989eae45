"""Which rows of a layer a flip can change, and a loop over only those, in blocks."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxsens.models.masks import AnyMask, Span, mask_of
from jaxsens.models.trace import CACHED_ROWS

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
    cached: bool,
) -> Float[Array, "*flips n width"]:
    """Returns `rows(positions)` for the rows `reach`, computed in blocks, and `unchanged` in the other rows.

    With `cached`, a block is small enough that what it computes stays in a CPU's cache.
    """
    n, (first, stop) = unchanged.shape[-2], reach
    size = _block_rows(n, reach, cached)

    def block(k: Array, so_far: Array) -> Array:
        # The last block overlaps the one before it, so that all blocks have the same size.
        begin = jnp.minimum(k * size, n - size)
        return jax.lax.dynamic_update_slice_in_dim(so_far, rows(begin + jnp.arange(size)), begin, -2)

    return jax.lax.fori_loop(first // size, -(-stop // size), block, unchanged)


def _block_rows(n: int, reach: Reach, cached: bool) -> int:
    """Returns the number of rows per block: those that stay in a CPU's cache, and fewer if some need no computing."""
    size = min(CACHED_ROWS, n) if cached else n
    everything = all(isinstance(bound, int) for bound in reach)
    return size if everything else max(1, min(size, -(-n // MASKED_BLOCKS)))
