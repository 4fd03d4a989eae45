"""The vmap engine, which is the specification: one forward pass per flip, and the difference of two outputs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxsens.asked.formulas import as_vector, difference, is_whole, l2
from jaxsens.base.programs import compiled
from jaxsens.sensitivity.engines.engine import Engine, EngineCost, PreparedPass
from jaxsens.sensitivity.subjects.adapters import TorchApply, TransformerApply, in_float64

EFFICIENCY = 0.75
"""The share of a large matrix product's rate that forward passes reach on CPU."""


HALF_UNIT = 4.0
"""Without a measured doubt, an output is taken to be off by this many of its roundings."""


@dataclass(frozen=True)
class VmapEngine(Engine):
    """Runs the model on every flipped input. It supports every model; n flips cost n forward passes.

    Outputs are subtracted, so a change below their rounding error is lost. In float32 this is 1e-7 of the output, and
    at n = 10^4 a softmax transformer's sensitivity is of that order: use float64 there.
    """

    apply: Callable[[Any, Any], Any]
    wide: bool = field(default=False, kw_only=True)

    @property
    def widened(self) -> bool:
        """Whether a float32 model is measured in float64."""
        return self.wide

    @property
    def wider(self) -> Engine | None:
        """This engine in float64, for a float32 model of which there is a form in float64 (`in_float64`)."""
        apply = None if self.wide else in_float64(self.apply)
        return None if apply is None else replace(self, apply=apply, wide=True)

    @property
    def subtracts(self) -> bool:
        """True: changes are differences of two rounded outputs."""
        return True

    def doubting(self, prepared: PreparedPass, doubt: Float[Any, " outputs"]) -> PreparedPass:
        """Returns the prepared values with this bound of the rounding of each output; integers have none."""
        if is_whole(prepared.output):
            return prepared
        return dataclasses.replace(prepared, doubt=jnp.asarray(doubt, prepared.doubt.dtype))

    def prepare(self, parameters: Any, tokens: Int[Array, " n"]) -> PreparedPass:
        """The input and its output, as the model returns it."""
        output = self._output(parameters, tokens)
        units = 0.0 if is_whole(output) else HALF_UNIT
        sizes = jnp.abs(as_vector(output))
        return PreparedPass(tokens, output, units * jnp.finfo(sizes.dtype).eps * sizes)

    def changed(
        self,
        parameters: Any,
        prepared: PreparedPass,
        positions: Int[Array, " flips"],
        symbols: Int[Array, " flips"],
    ) -> tuple[Float[Array, "flips outputs"], Float[Array, " flips"]]:
        """Returns the output of each flipped input minus that of the input, and the rounding of both."""
        new = self._flipped(parameters, prepared, positions, symbols)
        changes = difference(new, prepared.output)
        return changes, jnp.broadcast_to(self._doubt(prepared), changes.shape[:1]).astype(changes.dtype)

    def output(self, parameters: Any, prepared: PreparedPass) -> Float[Array, " outputs"]:
        """The prepared output."""
        return as_vector(prepared.output)

    def measured(
        self,
        parameters: Any,
        prepared: PreparedPass,
        positions: Int[Array, " flips"],
        symbols: Int[Array, " flips"],
    ) -> Float[Array, "flips 2"]:
        """As `Engine.measured`, from both outputs: decisions and functions are those of the outputs themselves."""
        old, new = prepared.output, self._flipped(parameters, prepared, positions, symbols)
        changes = difference(new, old)
        error = jnp.broadcast_to(self._doubt(prepared), changes.shape[:1]).astype(changes.dtype)
        chosen = self.chosen(old), self.chosen(new), self.chosen(changes)
        values, resolution = self.measure.of_outputs(*chosen, error)
        return jnp.stack([values, jnp.where(jnp.isfinite(values), resolution, jnp.nan)], axis=-1)

    def _doubt(self, prepared: PreparedPass) -> Float[Array, ""]:
        """A bound of the l2 norm of the rounding of the outputs that are measured."""
        return l2(self.chosen(prepared.doubt))

    @property
    def how(self) -> str:
        """Forward passes."""
        return "a forward pass each in float64" if self.wide else "a forward pass each"

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
        prepared: PreparedPass,
        positions: Int[Array, " flips"],
        symbols: Int[Array, " flips"],
    ) -> Array:
        """Returns the output of each flipped input, as the model returns it."""
        tokens = prepared.tokens

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


@compiled(static=1)
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
