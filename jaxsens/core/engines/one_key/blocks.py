"""Loops over blocks of rows and keys, so that tiles of scores stay in a core's cache and nothing is n x n; and over
only those rows that a flip can change."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxsens.core.models.parts.masks import AnyMask, Span, mask_of
from jaxsens.core.models.transformer.layered import Attention

TILE = 2**17
"""The scores of one tile: half a megabyte in float32, which fits in a core's second-level cache."""

MASKED_BLOCKS = 8
"""The number of blocks into which rows are divided where a mask leaves some of them unchanged."""

Reach: TypeAlias = Span
"""The rows that can change."""

Carry = TypeVar("Carry")


def rows_of_tile(attention: Attention, n: int, columns: int) -> int:
    """Returns how many of n rows make a tile with `columns` columns, fewer if a mask may leave blocks of rows out."""
    rows = max(8, TILE // columns)
    return min(rows, max(64, -(-n // MASKED_BLOCKS))) if attention.one_sided else rows


def summed_over_blocks(
    work: Callable[[Int[Array, " m"], Array, Carry], Carry],
    n: int,
    size: int,
    start: Carry,
    span: Span | None = None,
) -> Carry:
    """Folds `work(rows, new, carry)` over blocks of n rows; `new` marks the rows that no earlier block had: the last
    block ends at n, and may overlap the one before it.

    Blocks without rows of `span` are left out, if it is given.
    """
    size = max(1, min(size, n))
    first, stop = (0, -(-n // size)) if span is None else (span[0] // size, -(-span[1] // size))

    def block(k: Array, carry: Carry) -> Carry:
        rows = jnp.minimum(k * size, n - size) + jnp.arange(size)
        return work(rows, rows >= k * size, carry)

    return jax.lax.fori_loop(first, stop, block, start)


def changed_rows(mask: AnyMask, reach: Reach, n: int) -> Reach:
    """Returns the rows of a layer's output that can change if the rows `reach` of its input do."""
    return mask_of("the rows that change", mask).rows_that_see(reach, n)


def as_carry(reach: Reach) -> tuple[Array, Array]:
    """Returns the rows as a loop over layers carries them. Bounds that a mask tells anew in each layer stay static."""
    return jnp.asarray(reach[0], jnp.int32), jnp.asarray(reach[1], jnp.int32)


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
