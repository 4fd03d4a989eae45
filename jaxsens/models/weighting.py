"""Weighting functions: how a row of scores becomes a row of attention weights.

Definitions 2 and 3 of Yang et al. (2024): softmax at temperature tau, leftmost, rightmost and average hardmax;
and sparsemax (Martins and Astudillo, 2016). The hard ones are exactly hard: weights are 0, 1 or 1/|ties|.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxsens.errors import collecting
from jaxsens.models.products import quotients, weighted_sums
from jaxsens.models.schedules import SCHEDULES, Schedule


@dataclass(frozen=True)
class Softmax:
    """softmax(s / tau): the weight of key j is proportional to exp(s_j / tau).

    `inverse_temperature` is 1/tau as a function of the length; `by` says which length: "length" takes n, the
    input's, "query" takes the (1-based) position of the query, as a decoder that does not know n must.
    """

    inverse_temperature: Schedule = Schedule()
    by: Literal["length", "query"] = "length"

    def __post_init__(self) -> None:
        with collecting("Softmax") as faults:
            if not isinstance(self.inverse_temperature, Schedule):
                faults.add(
                    "inverse_temperature", self.inverse_temperature, "a Schedule, such as SCHEDULES['log']"
                )
            if self.by not in ("length", "query"):
                faults.add("by", self.by, '"length" or "query"')


@dataclass(frozen=True)
class LeftmostHard:
    """All weight on the first key with the largest score (Yang et al., lhardmax; Hahn's hard attention)."""


@dataclass(frozen=True)
class RightmostHard:
    """All weight on the last key with the largest score (Yang et al., rhardmax)."""


@dataclass(frozen=True)
class AverageHard:
    """Equal weight on every key with the largest score (Yang et al., ahardmax)."""


@dataclass(frozen=True)
class Sparsemax:
    """The point of the probability simplex nearest to the scores (Martins and Astudillo, 2016, eq. 2)."""


Weighting = Softmax | LeftmostHard | RightmostHard | AverageHard | Sparsemax

WEIGHTINGS: dict[str, Weighting] = {
    "softmax": Softmax(),
    **{f"temperature-{name}": Softmax(schedule) for name, schedule in SCHEDULES.items()},
    "leftmost-hard": LeftmostHard(),
    "rightmost-hard": RightmostHard(),
    "average-hard": AverageHard(),
    "sparsemax": Sparsemax(),
}
"""The weighting functions that have a name."""


def is_hard(weighting: Weighting) -> bool:
    """Whether the weights jump when scores tie, so that equal keys must get bitwise equal scores."""
    return isinstance(weighting, LeftmostHard | RightmostHard | AverageHard)


def weights(
    weighting: Weighting,
    scores: Float[Array, "*rows keys"],
    visible: Bool[Array, "*rows keys"],
) -> Float[Array, "*rows keys"]:
    """The attention weights of each row of scores over its visible keys, which are 0 on every key not visible.

    A softmax's scores come divided by the temperature already (`scores.tempered`). A row without visible keys
    gets weight 0 everywhere. Every branch is a sum of non-negative terms: nothing cancels.
    """
    shares, total = _shares(weighting, scores, visible)
    return shares / total


def averages(
    weighting: Weighting,
    scores: Float[Array, "*batch m k"],
    visible: Bool[Array, "*batch m k"],
    values: Float[Array, "*batch k width"],
    exact_rows: bool,
) -> Float[Array, "*batch m width"]:
    """sum_j w_ij v_j with the `weights` of each row, divided by their total after the sum.

    So the average of 0s and 1s under equal weights is the rounded quotient of two exact counts. Added up from n
    rounded shares 1/n, it was off by 4 counts at n = 20 000 in float32.
    """
    shares, total = _shares(weighting, scores, visible)
    return quotients(weighted_sums(shares, values, exact_rows), total)


def _shares(
    weighting: Weighting, scores: Float[Array, "*rows keys"], visible: Bool[Array, "*rows keys"]
) -> tuple[Float[Array, "*rows keys"], Float[Array, "*rows 1"]]:
    """What each key's weight is proportional to, and what makes it the weight when divided by."""
    masked = jnp.where(visible, scores, -jnp.inf)
    one = jnp.ones((*scores.shape[:-1], 1), scores.dtype)
    if isinstance(weighting, Sparsemax):
        return _sparsemax(masked, visible), one
    best = jnp.max(masked, axis=-1, keepdims=True, initial=-jnp.inf)
    if isinstance(weighting, Softmax):
        best = jax.lax.stop_gradient(best)  # it cancels in the quotient, and so does its derivative
        unnormalised = jnp.where(visible, jnp.exp(masked - jnp.where(jnp.isfinite(best), best, 0)), 0)
        total = jnp.sum(unnormalised, axis=-1, keepdims=True)
        return unnormalised, jnp.where(total > 0, total, 1)
    chosen = _hard(weighting, (masked == best) & visible).astype(scores.dtype)
    # A score that is not a number spoils its row, as it does under softmax; no comparison would notice it.
    chosen = jnp.where(jnp.isnan(best), jnp.nan, chosen)
    if isinstance(weighting, AverageHard):
        return chosen, jnp.maximum(jnp.sum(chosen, axis=-1, keepdims=True), 1)
    return chosen, one


def _hard(weighting: Weighting, ties: Bool[Array, "*rows keys"]) -> Bool[Array, "*rows keys"]:
    if isinstance(weighting, AverageHard):
        return ties
    keys = ties.shape[-1]
    if isinstance(weighting, LeftmostHard):
        chosen = jnp.argmax(ties, axis=-1)
    else:
        chosen = keys - 1 - jnp.argmax(ties[..., ::-1], axis=-1)
    return (jnp.arange(keys) == chosen[..., None]) & ties


def _sparsemax(masked: Float[Array, "*rows keys"], visible: Bool[Array, "*rows keys"]) -> Array:
    # Scores are shifted so that the best is 0; the support is the longest prefix of the sorted scores with
    # 1 + k s_(k) > sum_{m <= k} s_(m), and the threshold follows from it.
    best = jnp.max(masked, axis=-1, keepdims=True, initial=-jnp.inf)
    shifted = jnp.where(visible, masked - jnp.where(jnp.isfinite(best), best, 0), -jnp.inf)
    # A key at least 1 below the best has weight 0, so -2 stands for any of those and keeps the sums finite.
    ordered = jnp.sort(jnp.maximum(shifted, -2), axis=-1)[..., ::-1]
    rank = jnp.arange(1, masked.shape[-1] + 1, dtype=masked.dtype)
    partial = jnp.cumsum(ordered, axis=-1)
    inside = 1 + rank * ordered > partial
    size = jnp.sum(inside, axis=-1, keepdims=True)
    taken = jnp.sum(jnp.where(inside, ordered, 0), axis=-1, keepdims=True)
    threshold = (taken - 1) / jnp.maximum(size, 1)
    return jnp.where(visible, jnp.maximum(shifted - threshold, 0), 0)
