"""Scores of DeBERTa (He et al. 2021): of contents, and of contents with the distance of query and key."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxsens.models.transformer.layered import Index, Number, Vector


@dataclass(frozen=True)
class Disentangled:
    """The score q_i . k_j + q_i . K[c] + k_j . Q[c] of a query and a key, with c the place of their distance i - j.

    K and Q, (2 span, head_width), are of each head and layer; either may be missing. Queries and keys carry their
    position as a last number, which is exact below 2^24.

    Attributes:
        parts: "key" if there is K, "query" if there is Q.
        span: half the number of places.
        buckets: distances of more than half of it share places logarithmically; 0 if each has its own.
        reach: from this distance on, all share the last place of their side.
        longest: the length of the longest input.
        shared: whether K and Q are made by the maps of keys and queries, not by maps of their own.
        normalised: whether the rows that they are made of are normalised first.
    """

    parts: tuple[Literal["key", "query"], ...]
    span: int
    buckets: int
    reach: int
    longest: int
    shared: bool
    normalised: bool

    def by_distance(self) -> Int[np.ndarray, " longest"]:
        """The bucket of each distance from 0 on; on the other side, its negative. With m = buckets // 2, distance d > m
        has m + ceil((m - 1) log(d / m) / log((reach - 1) / m)), in float64."""
        distances, exact = np.arange(self.longest), self.buckets // 2
        if not exact:
            return distances
        share = np.log(np.maximum(distances, exact) / exact) / math.log((self.reach - 1) / exact)
        shared = exact + np.ceil(share * (exact - 1)).astype(int)
        return np.where(distances <= exact, distances, shared)

    def place(self, behind: Int[Array, "*b"]) -> Int[Array, "*b"]:
        """The place of a key this number of positions behind the query; ahead of it, if negative."""
        bucket = jnp.asarray(self.by_distance(), jnp.int32)[jnp.abs(behind)] * jnp.sign(behind)
        return jnp.clip(bucket + self.span, 0, 2 * self.span - 1)

    def score(self, own: Any, head: Index, query: Vector, key: Vector) -> Number:
        """Returns the score, without its factor. `own` holds K and Q of all heads: key_table and query_table."""
        place = self.place((query[-1] - key[-1]).astype(jnp.int32))
        query, key = query[:-1], key[:-1]
        score = jnp.vdot(query, key)
        for part, content in (("key", query), ("query", key)):
            if part in self.parts:  # a product of each content with all places, then one number of each pair
                products = own[f"{part}_table"][head] @ content
                score = score + products.at[place].get(mode="promise_in_bounds")
        return score


def carrying(position: Index, x: Float[Array, "heads width"]) -> Float[Array, "heads width_and_one"]:
    """Returns the queries or keys of a row with its position as their last number."""
    return jnp.concatenate([x, jnp.full_like(x[:, :1], position)], axis=-1)
