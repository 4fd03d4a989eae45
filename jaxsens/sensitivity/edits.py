"""The vmap engine for flips that delete a symbol, or replace several."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxsens.sensitivity.engine import EngineCost
from jaxsens.sensitivity.vmap_engine import VmapEngine

Edit = Literal["replace", "delete", "groups"]
"""What a flip does to a word: replace one symbol, delete one, or replace those of a group."""


@dataclass(frozen=True)
class DeletionEngine(VmapEngine):
    """Runs the model on the input without one position, of length n - 1. Symbols of flips are ignored."""

    def _flipped(
        self,
        parameters: Any,
        prepared: tuple[Array, Array],
        positions: Int[Array, " flips"],
        symbols: Int[Array, " flips"],
    ) -> Float[Array, "flips outputs"]:
        del symbols
        tokens = prepared[0]
        rest = jnp.arange(tokens.shape[0] - 1)
        return jax.vmap(lambda i: self._output(parameters, tokens[rest + (rest >= i)]))(positions)


@dataclass(frozen=True)
class GroupEngine(VmapEngine):
    """Runs the model on the input with several symbols replaced at once.

    Its parameters are a triple: the model's; members (groups, largest), the positions of each group, n beyond the last;
    and insertions (insertions, largest), symbols for these positions. Its positions are numbers of groups, and its
    symbols those of insertions.
    """

    def prepare(self, parameters: Any, tokens: Int[Array, " n"]) -> tuple[Array, Array]:
        """The input and its output."""
        return super().prepare(parameters[0], tokens)

    def cost(self, parameters: Any, tokens: Any, platform: str) -> EngineCost:
        """Counts one forward pass."""
        return super().cost(parameters[0], tokens, platform)

    def _flipped(
        self,
        parameters: Any,
        prepared: tuple[Array, Array],
        positions: Int[Array, " flips"],
        symbols: Int[Array, " flips"],
    ) -> Float[Array, "flips outputs"]:
        own, members, insertions = parameters
        tokens = prepared[0]

        def one(group: Array, insertion: Array) -> Array:
            inserted = insertions[insertion].astype(tokens.dtype)
            return self._output(own, tokens.at[members[group]].set(inserted, mode="drop"))

        return jax.vmap(one)(positions, symbols)
