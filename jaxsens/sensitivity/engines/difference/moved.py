"""What moves under a flip: rows, and what heads attended to, each with a bound of its rounding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxsens.sensitivity.engines.difference.rounding import size


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Moved:
    """Rows under a flip: their change, a bound of its rounding, and for models with a hard layer their new value.

    If a hard layer breaks ties, equal positions must have bitwise equal values, which x + dx does not guarantee. New
    values are therefore computed from the flipped symbol, by the functions of the forward pass.

    Attributes:
        dx: the change of each row.
        error: a bound of the l2 norm of the rounding in it (`difference.rounding`).
        new: the new rows, or None.
    """

    dx: Float[Array, "m width"]
    error: Float[Array, " m"]
    new: Float[Array, "m width"] | None = None


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class HeadsMoved:
    """What the heads of some rows attended to, under a flip: as `Moved`, for every head."""

    db: Float[Array, "heads m head_width"]
    error: Float[Array, "heads m"]
    new: Float[Array, "heads m head_width"] | None = None

    def where(self, chosen: Bool[Array, " m"], other: HeadsMoved) -> HeadsMoved:
        """Returns these rows where `chosen` (m,) holds, elsewhere those of `other`, which may be a single row."""
        new = None
        if self.new is not None and other.new is not None:
            new = jnp.where(chosen[:, None], self.new, other.new)
        db = jnp.where(chosen[:, None], self.db, other.db)
        return HeadsMoved(db, jnp.where(chosen, self.error, other.error), new)


class Doubt(NamedTuple):
    """The sizes of some vectors, and their errors."""

    size: Float[Array, "heads rows"]
    error: Float[Array, "heads rows"]

    @classmethod
    def of(cls, moved: HeadsMoved) -> Doubt:
        """Returns the sizes and errors of some heads' changes."""
        return cls(size(moved.db), moved.error)
