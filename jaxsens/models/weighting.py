"""Weighting functions, which turn a row of scores into a row of attention weights.

They are softmax at temperature tau and leftmost, rightmost and average hardmax (Yang et al. 2024, definitions 2 and 3),
and sparsemax (Martins and Astudillo, 2016). The hard ones are exactly hard: weights are 0, 1 or 1/|ties|.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jaxsens.errors import collecting
from jaxsens.models.parts import Part
from jaxsens.models.products import quotients, weighted_sums
from jaxsens.models.schedules import SCHEDULES, Schedule


@dataclass(frozen=True)
class Weighting(Part):
    """A weighting function. A member defines everything a forward pass needs: `shares`, `hard`, its temperature."""

    @property
    @abc.abstractmethod
    def hard(self) -> bool:
        """Whether the weights jump when scores tie, so that equal keys must get bitwise equal scores."""

    @abc.abstractmethod
    def shares(
        self, scores: Float[Array, "*rows keys"], visible: Bool[Array, "*rows keys"]
    ) -> tuple[Float[Array, "*rows keys"], Float[Array, "*rows 1"]]:
        """Returns shares, to which the keys' weights are proportional, and the divisor that turns them into weights.

        Invisible keys have shares of 0. A row without visible keys has shares of 0 and a divisor of 1. Every share is a
        sum of non-negative terms, so nothing cancels.
        """

    def tempered(
        self, scores: Float[Array, "heads m k"], query_positions: Int[Array, " m"], n: int
    ) -> Float[Array, "heads m k"]:
        """Returns the scores divided by the temperature of each query's row (0-based), if there is a temperature."""
        del query_positions, n
        return scores

    def log_normaliser(
        self, scores: Float[Array, "*rows keys"], visible: Bool[Array, "*rows keys"]
    ) -> Float[Array, "*rows"]:
        """Returns the log of each row's sum of exponentiated scores; 0 for weightings without exponentials."""
        del visible
        return jnp.zeros(scores.shape[:-1], scores.dtype)


@dataclass(frozen=True)
class Softmax(Weighting):
    """softmax(s / tau): the weight of key j is proportional to exp(s_j / tau).

    `inverse_temperature` is 1/tau as a function of the length. `by` selects that length: "length" is n, the input's;
    "query" is the 1-based position of the query, as required for a decoder that does not know n.
    """

    inverse_temperature: Schedule = Schedule()
    by: Literal["length", "query"] = "length"

    def __post_init__(self) -> None:
        with collecting("Softmax") as problems:
            if not isinstance(self.inverse_temperature, Schedule):
                problems.add(
                    "inverse_temperature", self.inverse_temperature, "a Schedule, such as SCHEDULES['log']"
                )
            if self.by not in ("length", "query"):
                problems.add("by", self.by, '"length" or "query"')

    @property
    def hard(self) -> bool:
        """False: the weights are continuous in the scores."""
        return False

    def shares(
        self, scores: Float[Array, "*rows keys"], visible: Bool[Array, "*rows keys"]
    ) -> tuple[Float[Array, "*rows keys"], Float[Array, "*rows 1"]]:
        """Returns exp(s_j - max s) of tempered scores, and their sum."""
        masked, best = _masked(scores, visible)
        best = jax.lax.stop_gradient(best)  # it cancels in the quotient, and so does its derivative
        unnormalised = jnp.exp(
            masked - jnp.where(jnp.isfinite(best), best, 0)
        )  # 0 for -inf, an invisible key
        total = jnp.sum(unnormalised, axis=-1, keepdims=True)
        return unnormalised, jnp.where(total > 0, total, 1)

    def inverse_temperatures(
        self, query_positions: Int[Array, " m"], n: int, dtype: jnp.dtype
    ) -> Float[Array, " m"]:
        """Returns 1/tau of each query's row, 0-based, in an input of length n."""
        if self.by == "length":
            return jnp.full(query_positions.shape, self.inverse_temperature(n), dtype)
        return jnp.asarray(self.inverse_temperature(np.arange(1, n + 1)), dtype)[query_positions]

    def tempered(
        self, scores: Float[Array, "heads m k"], query_positions: Int[Array, " m"], n: int
    ) -> Float[Array, "heads m k"]:
        """Returns the scores of each query's row times 1/tau."""
        return scores * self.inverse_temperatures(query_positions, n, scores.dtype)[:, None]

    def log_normaliser(
        self, scores: Float[Array, "*rows keys"], visible: Bool[Array, "*rows keys"]
    ) -> Float[Array, "*rows"]:
        """Returns log sum_j exp(s_j) over the visible keys; 0 for a row that sees none."""
        found = jax.nn.logsumexp(jnp.where(visible, scores, -jnp.inf), axis=-1)
        return jnp.where(jnp.any(visible, axis=-1), found, 0)


@dataclass(frozen=True)
class HardWeighting(Weighting):
    """Equal weight on some of the keys with the largest score, which members choose in `winners`."""

    @property
    def hard(self) -> bool:
        """True."""
        return True

    @abc.abstractmethod
    def winners(self, ties: Bool[Array, "*rows keys"]) -> Bool[Array, "*rows keys"]:
        """Returns the keys that get weight among `ties`, those with the largest score; none if there are none."""

    def shares(
        self, scores: Float[Array, "*rows keys"], visible: Bool[Array, "*rows keys"]
    ) -> tuple[Float[Array, "*rows keys"], Float[Array, "*rows 1"]]:
        """Returns 1 for every winner, and the number of winners."""
        masked, best = _masked(scores, visible)
        chosen = self.winners((masked == best) & visible).astype(scores.dtype)
        # A NaN score makes its row NaN, as under softmax; comparisons would not notice it.
        chosen = jnp.where(jnp.isnan(best), jnp.nan, chosen)
        return chosen, jnp.maximum(jnp.sum(chosen, axis=-1, keepdims=True), 1)


@dataclass(frozen=True)
class LeftmostHard(HardWeighting):
    """All weight on the first key with the largest score (Yang et al., lhardmax; Hahn's hard attention)."""

    def winners(self, ties: Bool[Array, "*rows keys"]) -> Bool[Array, "*rows keys"]:
        """The first of them."""
        return (jnp.arange(ties.shape[-1]) == jnp.argmax(ties, axis=-1)[..., None]) & ties


@dataclass(frozen=True)
class RightmostHard(HardWeighting):
    """All weight on the last key with the largest score (Yang et al., rhardmax)."""

    def winners(self, ties: Bool[Array, "*rows keys"]) -> Bool[Array, "*rows keys"]:
        """The last of them."""
        keys = ties.shape[-1]
        last = keys - 1 - jnp.argmax(ties[..., ::-1], axis=-1)
        return (jnp.arange(keys) == last[..., None]) & ties


@dataclass(frozen=True)
class AverageHard(HardWeighting):
    """Equal weight on every key with the largest score (Yang et al., ahardmax)."""

    def winners(self, ties: Bool[Array, "*rows keys"]) -> Bool[Array, "*rows keys"]:
        """All of them."""
        return ties


@dataclass(frozen=True)
class Sparsemax(Weighting):
    """The point of the probability simplex nearest to the scores (Martins and Astudillo, 2016, eq. 2)."""

    @property
    def hard(self) -> bool:
        """False: the weights are continuous in the scores."""
        return False

    def shares(
        self, scores: Float[Array, "*rows keys"], visible: Bool[Array, "*rows keys"]
    ) -> tuple[Float[Array, "*rows keys"], Float[Array, "*rows 1"]]:
        """The weights themselves, and 1."""
        # Scores are shifted so that the best is 0; the support is the longest prefix of the sorted scores with
        # 1 + k s_(k) > sum_{m <= k} s_(m), and the threshold follows from it.
        masked, best = _masked(scores, visible)
        shifted = jnp.where(visible, masked - jnp.where(jnp.isfinite(best), best, 0), -jnp.inf)
        # A key at least 1 below the best has weight 0, so -2 can replace its score, which keeps the sums finite.
        ordered = jnp.sort(jnp.maximum(shifted, -2), axis=-1)[..., ::-1]
        rank = jnp.arange(1, masked.shape[-1] + 1, dtype=masked.dtype)
        partial = jnp.cumsum(ordered, axis=-1)
        inside = 1 + rank * ordered > partial
        size = jnp.sum(inside, axis=-1, keepdims=True)
        taken = jnp.sum(jnp.where(inside, ordered, 0), axis=-1, keepdims=True)
        threshold = (taken - 1) / jnp.maximum(size, 1)
        return jnp.where(visible, jnp.maximum(shifted - threshold, 0), 0), jnp.ones_like(best)


def _masked(
    scores: Float[Array, "*rows keys"], visible: Bool[Array, "*rows keys"]
) -> tuple[Float[Array, "*rows keys"], Float[Array, "*rows 1"]]:
    """Returns the scores, with -inf for invisible keys, and each row's largest."""
    masked = jnp.where(visible, scores, -jnp.inf)
    return masked, jnp.max(masked, axis=-1, keepdims=True, initial=-jnp.inf)


WEIGHTING_TYPES: tuple[type[Weighting], ...] = (Softmax, LeftmostHard, RightmostHard, AverageHard, Sparsemax)
"""The weightings that a config file can describe."""

WEIGHTINGS: dict[str, Weighting] = {
    "softmax": Softmax(),
    **{f"temperature-{name}": Softmax(schedule) for name, schedule in SCHEDULES.items()},
    "leftmost-hard": LeftmostHard(),
    "rightmost-hard": RightmostHard(),
    "average-hard": AverageHard(),
    "sparsemax": Sparsemax(),
}
"""The named weighting functions."""


def weights(
    weighting: Weighting,
    scores: Float[Array, "*rows keys"],
    visible: Bool[Array, "*rows keys"],
) -> Float[Array, "*rows keys"]:
    """Returns the attention weights of each row of scores; they are 0 for invisible keys.

    The scores must already be tempered (`Weighting.tempered`). A row without visible keys gets weight 0 everywhere.
    """
    shares, total = weighting.shares(scores, visible)
    return shares / total


def averages(
    weighting: Weighting,
    scores: Float[Array, "*batch m k"],
    visible: Bool[Array, "*batch m k"],
    values: Float[Array, "*batch k width"],
    exact_rows: bool,
) -> Float[Array, "*batch m width"]:
    """Returns sum_j w_ij v_j with the `weights` of each row, dividing by their total after the sum.

    So the average of 0s and 1s under equal weights is the rounded quotient of two exact counts. Summing n rounded
    shares 1/n instead was off by 4 counts at n = 20 000 in float32.
    """
    shares, total = weighting.shares(scores, visible)
    return quotients(weighted_sums(shares, values, exact_rows), total)
