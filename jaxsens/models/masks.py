"""Which keys a query may see."""

from __future__ import annotations

from typing import Literal

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

Mask = Literal["none", "future", "past", "strict-future", "strict-past"]

MASKS: dict[str, str] = {
    "none": "every key is visible",
    "future": "the future is masked: key j is visible to query i if j <= i",
    "past": "the past is masked: key j is visible to query i if j >= i",
    "strict-future": "key j is visible to query i if j < i; the first row sees nothing",
    "strict-past": "key j is visible to query i if j > i; the last row sees nothing",
}
"""The masks by name. The non-strict ones are those of Yang et al. (2024), section 2; a row that sees no key gets
weight 0 on every key, so its head's output is the zero vector."""


def visible(mask: str, queries: Int[Array, "*q"], keys: Int[Array, "*k"]) -> Bool[Array, "*b"]:
    """Whether each key position is visible to each query position; the two arrays broadcast."""
    if mask == "future":
        return keys <= queries
    if mask == "past":
        return keys >= queries
    if mask == "strict-future":
        return keys < queries
    if mask == "strict-past":
        return keys > queries
    return jnp.ones(jnp.broadcast_shapes(jnp.shape(queries), jnp.shape(keys)), dtype=bool)
