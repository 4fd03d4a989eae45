"""The specification: one forward pass a flip, and the difference of two outputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxsens.sensitivity.engine import Engine


@dataclass(frozen=True)
class VmapEngine(Engine):
    """Runs the model on every flipped input. Serves every model; n flips cost n forward passes.

    The outputs are subtracted, so a change smaller than the rounding of the output (1e-7 of it in float32) is
    lost: at n = 10^4 a softmax transformer's sensitivity is of that order. Use float64 there.
    """

    apply: Callable[[Any, Any], Any]

    def prepare(self, parameters: Any, tokens: Int[Array, " n"]) -> tuple[Array, Array]:
        """The input and its output."""
        return tokens, self._output(parameters, tokens)

    def changes(
        self,
        parameters: Any,
        prepared: tuple[Array, Array],
        positions: Int[Array, " flips"],
        symbols: Int[Array, " flips"],
    ) -> Float[Array, "flips outputs"]:
        """Output of each flipped input minus that of the input."""
        tokens, output = prepared

        def one(position: Array, symbol: Array) -> Array:
            return self._output(parameters, tokens.at[position].set(symbol.astype(tokens.dtype))) - output

        return jax.vmap(one)(positions, symbols)

    def preferred_batch(self, n: int, platform: str) -> int:
        """On CPU some ten thousand symbols at once: larger batches leave the cache and are slower."""
        symbols = 2**13 if platform == "cpu" else 2**20
        return max(1, symbols // n)

    def _output(self, parameters: Any, tokens: Array) -> Array:
        output = jnp.atleast_1d(self.apply(parameters, tokens))
        return output.astype(jnp.promote_types(output.dtype, jnp.float32))
