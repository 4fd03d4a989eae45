"""A layer and its unflipped run, and what moves there under a flip: rows, and what heads attended to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxsens.core.engines.difference.rules import product_error, size
from jaxsens.core.models.transformer.config import LayerConfig
from jaxsens.core.models.transformer.parameters import LayerParameters
from jaxsens.core.models.transformer.trace import LayerTrace, projected, scores, scores_of_rows, turned

Index: TypeAlias = Int[Array, ""]
Rows: TypeAlias = Int[Array, " m"]
Heads: TypeAlias = Float[Array, "heads m head_width"]
"""Queries, keys, values or what is attended to, of the heads in some rows."""

Keys: TypeAlias = Float[Array, "heads keys head_width"]
"""Keys or values of all positions, or of some."""

Numbers: TypeAlias = Float[Array, "heads m"]
"""A number of each head in some rows."""

Table: TypeAlias = Float[Array, "heads m keys"]
"""A number of each head for some rows and all keys: scores or weights."""

Seen: TypeAlias = Bool[Array, "heads m keys"]
Matrices: TypeAlias = Float[Array, "heads width out"]


@dataclass(frozen=True)
class TracedLayer:
    """One layer: its config, its parameters, and its unflipped run."""

    config: LayerConfig
    parameters: LayerParameters
    trace: LayerTrace

    @property
    def n(self) -> int:
        """The length of the input."""
        return self.trace.x.shape[0]

    def scores(self, queries: Heads, keys: Keys, rows: Rows, places: Int[Array, "*k"]) -> Table:
        """Returns the tempered scores of the queries of some rows and of keys at some places."""
        return scores(self.config, self.parameters, queries, keys, rows, places, self.n)

    def row_scores(self, rows: Rows) -> tuple[Table, Seen]:
        """Returns the unflipped scores of some rows and all keys, and which keys are visible."""
        trace = self.trace
        return scores_of_rows(self.config, self.parameters, trace.queries[:, rows], trace.keys, rows)

    def heads(self, z: Float[Array, "m width"], matrices: Matrices, places: Rows | None) -> Heads:
        """Returns queries or keys at `places` (with rotary embedding), or values (None), of rows z or their changes."""
        out = projected(self.config, z, matrices)
        return out if places is None else turned(self.config, out, places, self.n)

    def new_heads(
        self, rows: tuple[Float[Array, "m width"], Rows], others: tuple[Float[Array, "keys width"], Rows]
    ) -> tuple[Heads, Keys, Keys]:
        """Returns the queries of some new rows, and the keys and values of others; each with their places."""
        (z, places), own = others, self.parameters
        keys, values = self.heads(z, own.key, places), self.heads(z, own.value, None)
        return self.heads(rows[0], own.query, rows[1]), keys, values

    def heads_change(self, moved: Moved, matrices: Matrices, places: Rows | None) -> HeadsMoved:
        """Returns the change of queries, keys or values (`heads`) when their rows z move."""
        error = product_error(size(moved.dx), moved.error, matrices)
        return HeadsMoved(self.heads(moved.dx, matrices, places), error)


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

    db: Heads
    error: Numbers
    new: Heads | None = None

    def where(self, chosen: Bool[Array, " m"], other: HeadsMoved) -> HeadsMoved:
        """Returns these rows where `chosen` (m,) holds, elsewhere those of `other`, which may be a single row."""
        new = None
        if self.new is not None and other.new is not None:
            new = jnp.where(chosen[:, None], self.new, other.new)
        db = jnp.where(chosen[:, None], self.db, other.db)
        return HeadsMoved(db, jnp.where(chosen, self.error, other.error), new)


class Bound(NamedTuple):
    """The sizes of some vectors, and their errors."""

    size: Float[Array, "heads rows"]
    error: Float[Array, "heads rows"]

    @classmethod
    def of(cls, moved: HeadsMoved) -> Bound:
        """Returns the sizes and errors of some heads' changes."""
        return cls(size(moved.db), moved.error)
