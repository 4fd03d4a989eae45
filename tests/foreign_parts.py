"""Position terms of kinds that the package does not have, as a user or a later version may add them."""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np

from jaxsens.core.models.parts.positions import AddedTerm, PositionTerm, ScoreTerm


@dataclass(frozen=True)
class Ramp(AddedTerm):
    """i/n in every coordinate: an added term, which every rule for added terms serves."""

    @property
    def bounded(self) -> bool:
        return True

    def values(self, n, width):
        return np.repeat(np.arange(1, n + 1)[:, None] / n, width, axis=1)


@dataclass(frozen=True)
class Window(ScoreTerm):
    """-1 on keys more than two places away: a score term that nobody has a rule for."""

    @property
    def bounded(self) -> bool:
        return True

    def turned(self, x, positions, n):
        return x

    def penalty(self, heads, queries, keys, dtype, table=None):
        far = jnp.abs(queries[:, None] - keys) > 2
        return -jnp.broadcast_to(far, (heads, *far.shape)).astype(dtype)


@dataclass(frozen=True)
class Nowhere(PositionTerm):
    """A position term that enters neither the embeddings nor the scores."""

    @property
    def bounded(self) -> bool:
        return True
