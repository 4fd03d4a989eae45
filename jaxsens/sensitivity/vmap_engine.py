"""The vmap engine, which is the specification: one forward pass per flip, and the difference of two outputs."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxsens.sensitivity.adapters import TorchApply, TransformerApply
from jaxsens.sensitivity.engine import (
    ChangeFunction,
    Engine,
    EngineCost,
    Scalar,
    as_vector,
    difference,
    is_whole,
    resolved,
    value_of,
)
from jaxsens.sensitivity.measures import DECISION, decision_of, where_finite

EFFICIENCY = 0.75
"""The share of a large matrix product's rate that forward passes reach on CPU."""


@dataclass(frozen=True)
class VmapEngine(Engine):
    """Runs the model on every flipped input. It supports every model; n flips cost n forward passes.

    Outputs are subtracted, so a change below their rounding error is lost. In float32 this is 1e-7 of the output, and
    at n = 10^4 a softmax transformer's sensitivity is of that order: use float64 there.
    """

    apply: Callable[[Any, Any], Any]

    def prepare(self, parameters: Any, tokens: Int[Array, " n"]) -> tuple[Array, Array]:
        """The input and its output, as the model returns it."""
        return tokens, self._output(parameters, tokens)

    def changes(
        self,
        parameters: Any,
        prepared: tuple[Array, Array],
        positions: Int[Array, " flips"],
        symbols: Int[Array, " flips"],
    ) -> Float[Array, "flips outputs"]:
        """Returns the output of each flipped input minus that of the input."""
        return difference(self._flipped(parameters, prepared, positions, symbols), prepared[1])

    def output(self, parameters: Any, prepared: tuple[Array, Array]) -> Float[Array, " outputs"]:
        """The prepared output."""
        return as_vector(prepared[1])

    def scalar_changes(
        self,
        scalar: Scalar,
        parameters: Any,
        prepared: tuple[Array, Array],
        positions: Int[Array, " flips"],
        symbols: Int[Array, " flips"],
    ) -> Float[Array, " flips"]:
        """Returns f of the output of each flipped input minus that of the input; NaN if an output is not finite."""
        outputs = resolved(self._flipped(parameters, prepared, positions, symbols))
        found = jax.vmap(lambda y: value_of(scalar, y))(outputs) - value_of(scalar, resolved(prepared[1]))
        return where_finite(outputs, found)

    def change_values(
        self,
        change: ChangeFunction,
        parameters: Any,
        prepared: tuple[Array, Array],
        positions: Int[Array, " flips"],
        symbols: Int[Array, " flips"],
    ) -> Float[Array, " flips"]:
        """Returns f of the output and that of each flipped input; NaN if an output is not finite."""
        outputs, y = resolved(self._flipped(parameters, prepared, positions, symbols)), resolved(prepared[1])
        found = jax.vmap(lambda new: value_of(lambda at: change(y, at), new))(outputs)
        return where_finite(outputs, found)

    def norms(
        self,
        parameters: Any,
        prepared: tuple[Array, Array],
        positions: Int[Array, " flips"],
        symbols: Int[Array, " flips"],
    ) -> Float[Array, " flips"]:
        """Returns the measure of the chosen outputs. A decision is that of the flipped output itself, so that outputs
        which tie there do so exactly."""
        if self.norm != DECISION:
            return super().norms(parameters, prepared, positions, symbols)
        outputs = self._flipped(parameters, prepared, positions, symbols)
        y, threshold = prepared[1], self.threshold
        if is_whole(y) and y.dtype.itemsize >= 4:  # which are compared exactly, and with an integer
            bounds = jnp.iinfo(y.dtype)
            threshold = min(max(math.floor(threshold), int(bounds.min)), int(bounds.max))
        new = jax.vmap(lambda y: decision_of(y, threshold))(self.chosen(outputs))
        changed = new != decision_of(self.chosen(y), threshold)
        outputs = as_vector(outputs)
        return where_finite(outputs, changed.astype(outputs.dtype))

    @property
    def how(self) -> str:
        """Forward passes."""
        return "a forward pass each"

    def preferred_batch(self, n: int, platform: str) -> int:
        """On CPU 256 symbols, so one flip from n = 256: larger batches leave the cache and take up to twice as long. A
        PyTorch module says how many."""
        own = _innermost(self.apply)
        symbols = own.batch_symbols if isinstance(own, TorchApply) else batch_symbols(platform)
        return max(1, symbols // n)

    def cost(self, parameters: Any, tokens: Any, platform: str) -> EngineCost:
        """Counts the operations of one forward pass, lowered but not compiled. Loops in a user's model count once.

        Temporary memory is estimated as three times the largest intermediate value, per flip of a block.
        """
        traced = jax.jit(self._output).trace(parameters, tokens)
        own = _innermost(self.apply)
        if isinstance(own, TransformerApply | TorchApply):
            operations = own.operations(tokens.shape[0])
        else:
            operations = float((traced.lower().cost_analysis() or {}).get("flops", 0))
        block = 3 * self.preferred_batch(tokens.shape[0], platform) * _largest(traced.jaxpr.jaxpr)
        return EngineCost(operations, operations, block, EFFICIENCY)

    def _flipped(
        self,
        parameters: Any,
        prepared: tuple[Array, Array],
        positions: Int[Array, " flips"],
        symbols: Int[Array, " flips"],
    ) -> Array:
        """Returns the output of each flipped input, as the model returns it."""
        tokens, _ = prepared

        def one(position: Array, symbol: Array) -> Array:
            return self._output(parameters, tokens.at[position].set(symbol.astype(tokens.dtype)))

        return jax.vmap(one)(positions, symbols)

    def _output(self, parameters: Any, tokens: Array) -> Array:
        return jnp.atleast_1d(self.apply(parameters, tokens))


def batch_symbols(platform: str) -> int:
    """Returns the symbols of a batch of forward passes: few on CPU, and on accelerators enough to keep them busy."""
    return 2**8 if platform == "cpu" else 2**20


def output_vector(
    apply: Callable[[Any, Any], Any], parameters: Any, tokens: Array
) -> Float[Array, " outputs"]:
    """Returns a model's output on one input as engines measure it: a vector, in float32 at least."""
    return as_vector(apply(parameters, tokens))


def _innermost(apply: Any) -> Any:
    """Returns the model's own function, without what selects a row of its output."""
    return getattr(apply, "apply", apply)


def compiled_output(
    apply: Callable[[Any, Any], Any], parameters: Any, tokens: Any
) -> Float[np.ndarray, " outputs"]:
    """Returns `output_vector`, compiled once for each model and length."""
    parameters = jax.tree.map(jnp.asarray, parameters)
    return np.asarray(_compiled_output(apply, parameters, jnp.asarray(tokens)))


@partial(jax.jit, static_argnums=0)
def _compiled_output(apply: Callable[[Any, Any], Any], parameters: Any, tokens: Array) -> Array:
    return output_vector(apply, parameters, tokens)


def _largest(program: Any) -> int:
    """Returns the bytes of the largest value computed in a traced program or the programs it calls."""
    largest = 0
    for equation in program.eqns:
        values = [value.aval for value in equation.outvars if hasattr(value.aval, "dtype")]
        largest = max([largest, *(value.size * value.dtype.itemsize for value in values)])
        for inner in equation.params.values():
            if hasattr(inner, "jaxpr"):
                largest = max(largest, _largest(inner.jaxpr))
    return largest
