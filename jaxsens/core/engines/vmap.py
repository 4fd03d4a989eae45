"""The vmap engine, which is the specification: one forward pass per flip, and the difference of two outputs."""

from __future__ import annotations

import abc
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import jaxprs_in_params
from jaxtyping import Array, Float, Int

from jaxsens.core.base.nudged import nudged, salts
from jaxsens.core.base.programs import Platform, abstract_of, as_arrays, cached, compiled, program_key
from jaxsens.core.engines.engine import Changed, Cost, Engine, FlipBlock, PreparedPass, Values
from jaxsens.core.flips.flips import Rewrite, replaced
from jaxsens.core.measures.formulas import as_vector, difference, is_whole, l2
from jaxsens.core.models.adapters import TorchApply, TransformerApply, in_float64
from jaxsens.core.models.transformer.config import TransformerConfig
from jaxsens.core.models.transformer.layered import readout_row
from jaxsens.core.models.transformer.trace import leaves_cache, rows_at_once

EFFICIENCY = 0.9
"""The share of a large matrix product's rate that forward passes reach on CPU."""

ELEMENTWISE = 0.02
"""That of hard models, whose products are elementwise."""


READING = 1e-9
"""Seconds in which a forward pass reads a symbol, at least."""

CERTAIN_SCORE = 32.0
"""Beyond this score, the bound of the rounding of outputs grows with the score, and beyond `incremental.LARGEST_SCORE`
nothing is resolved. A choice of keys that rounding turns at some flip, it need not turn in the few runs that the bound
is made of: flips of deep float32 models without normalisation were off by up to 1,400 times what was stated."""

HALF_UNIT = 4.0
"""Without a measured doubt, an output is taken to be off by this many of its roundings."""


@dataclass(frozen=True)
class SubtractingEngine(Engine):
    """An engine that subtracts the output of the input from that of each flipped input.

    Attributes:
        apply: the model's forward pass: (parameters, tokens (n,)) -> output.
    """

    apply: Callable[[Any, Any], Any]
    subtracts: ClassVar[bool] = True

    def changed(self, parameters: Any, prepared: Any, block: FlipBlock) -> Changed:
        return self._changed_to(self._flipped(parameters, prepared, block), prepared)

    def output(self, parameters: Any, prepared: Any) -> Float[Array, "*shape"]:
        return as_vector(prepared.output)

    @abc.abstractmethod
    def _flipped(self, parameters: Any, prepared: Any, block: FlipBlock) -> Array:
        """Returns the output of each flipped input, as the model returns it."""

    def _changed_to(self, new: Array, prepared: Any) -> Changed:
        changes = difference(new, prepared.output)
        bound, own = l2(self.chosen(prepared.error_bound)), l2(self.chosen(changes))
        # A flipped output far larger than the output, at which the rounding was seen, has that of its own size; and so
        # has one that changes where the output is exact.
        size, unit = l2(self.chosen(as_vector(prepared.output))), HALF_UNIT * jnp.finfo(changes.dtype).eps
        exact = is_whole(prepared.output) | (own == 0)
        least = jnp.where(exact, 0, unit * (size + own))
        return changes, jnp.where(bound > 0, bound + unit * own, least).astype(changes.dtype)


@dataclass(frozen=True)
class VmapEngine(SubtractingEngine):
    """Runs the model on every flipped input. It supports every model and every kind of flips; n flips cost n forward
    passes.

    Outputs are subtracted, so a change below their rounding error is lost. In float32 this is 1e-7 of the output, and
    at n = 10^4 a softmax transformer's sensitivity is of that order: use float64 there.

    Attributes:
        rewrite: what a flip does to a word (`Flips.rewrite`).
        nudges: whether the rounding of each output is measured, by the model run anew `nudged.DRAWS` times.
    """

    rewrite: Rewrite = field(default=replaced, kw_only=True)
    nudges: bool = field(default=False, kw_only=True)

    @property
    def own_config(self) -> TransformerConfig | None:
        if not isinstance(self.apply, TransformerApply) or flipped_length(self.rewrite, 2) != 2:
            return None
        return self.apply.config

    def for_config(self, config: TransformerConfig) -> VmapEngine:
        return replace(self, apply=TransformerApply(config))

    @property
    def wider(self) -> Engine | None:
        apply = None if self.wide else in_float64(self.apply)
        return None if apply is None else replace(self, apply=apply, wide=True)

    def prepare(self, parameters: Any, tokens: Int[Array, " n"]) -> PreparedPass:
        if isinstance(self.apply, TransformerApply):
            output, scores = self.apply.with_sizes(parameters, tokens)
        else:
            output, scores = self._output(parameters, tokens), jnp.zeros(0)
        units = 0.0 if is_whole(output) else HALF_UNIT
        sizes = jnp.abs(as_vector(output))
        bound = units * jnp.finfo(sizes.dtype).eps * sizes
        if self.nudges and self.rewrite is not replaced:
            bound = self._moved(output, lambda moved: moved._output(parameters, tokens))
        return PreparedPass(tokens, output, bound, scores)

    def sizes(self, prepared: PreparedPass) -> Float[Array, " layers"]:
        return prepared.sizes

    def measured(self, parameters: Any, prepared: PreparedPass, block: FlipBlock) -> Values:
        """As `Engine.measured`, from both outputs: decisions and functions are those of the outputs themselves."""
        old, new = prepared.output, self._flipped(parameters, prepared, block)
        changes, error = self._changed_to(new, prepared)
        # The input too, as a flip to its own symbol: in one program.
        if self.nudges and self.rewrite is replaced:
            own = zip(block, (0, prepared.tokens[0]), strict=True)
            table = FlipBlock(*(jnp.concatenate([part, jnp.full_like(part[:1], one)]) for part, one in own))
            both = jnp.concatenate([new, old[None]])
            bound = l2(
                self.chosen(self._moved(both, lambda moved: moved._flipped(parameters, prepared, table)))
            )
            error = bound[-1] + bound[:-1]
        elif self.nudges:
            bound = self._moved(new, lambda moved: moved._flipped(parameters, prepared, block))
            error = l2(self.chosen(prepared.error_bound)) + l2(self.chosen(bound))
        return self.measure.of_outputs(self.chosen(old), self.chosen(new), self.chosen(changes), error)

    @property
    def how(self) -> str:
        return "a forward pass each in float64" if self.wide else "a forward pass each"

    def preferred_batch(self, n: int, platform: Platform) -> int:
        """The platform's number of symbols. A PyTorch module says how many."""
        own = innermost(self.apply)
        symbols = own.batch_symbols if isinstance(own, TorchApply) else platform.forward_symbols
        return max(1, symbols // max(n, flipped_length(self.rewrite, n)))

    def cost(self, parameters: Any, tokens: Any, platform: Platform) -> Cost:
        """Counts the operations of one forward pass on the longer of the input and the flipped one. Temporary memory is
        estimated as three times the largest intermediate value, per flip of a block."""
        own, n = innermost(self.apply), tokens.shape[0]
        longest = max(n, flipped_length(self.rewrite, n))
        config = getattr(own, "config", None)
        if isinstance(self.apply, TransformerApply):
            once, each = self.apply.operations(n), self.apply.operations(longest)
            largest = _largest(self.apply.config, longest, platform) * jnp.result_type(float).itemsize
        else:
            once = program_size(self.apply, parameters, n).operations
            _, each, largest = program_size(self.apply, parameters, longest)
        return Cost(
            *(once, each),
            block_bytes=3 * self.preferred_batch(n, platform) * largest,
            efficiency=ELEMENTWISE if config is not None and config.exact_rows else EFFICIENCY,
            compiling=compiling(1 if config is None else config.layers),
            wide=self.wide,
            forward=0.0 if isinstance(own, TorchApply) else once,
            least=longest * READING,
        )

    def _flipped(self, parameters: Any, prepared: PreparedPass, block: FlipBlock) -> Array:
        tokens, symbols = prepared.tokens, block.symbols.astype(prepared.tokens.dtype)
        words = jax.vmap(self.rewrite, in_axes=(None, 0, 0))(tokens, block.places, symbols)
        return jax.vmap(lambda word: self._output(parameters, word))(words)

    def _moved(self, output: Array, run: Callable[[VmapEngine], Array]) -> Float[Array, "*shape"]:
        """Returns how far each output moves at most if the model's roundings are moved at random."""

        def away(salt: Array) -> Array:
            return jnp.abs(difference(run(replace(self, apply=nudged(self.apply, salt))), output))

        largest = jnp.max(jax.lax.map(away, salts()), axis=0)
        return jnp.where(jnp.isfinite(largest), largest, jnp.inf)

    def _output(self, parameters: Any, tokens: Array) -> Array:
        return jnp.atleast_1d(self.apply(parameters, tokens))


@dataclass(frozen=True)
class OutputEngine(VmapEngine):
    """Forward passes alone, one program: what it returns as the changes of outputs are the outputs themselves."""

    def prepare(self, parameters: Any, tokens: Int[Array, " n"]) -> PreparedPass:
        del parameters
        nothing = jnp.zeros(0)
        return PreparedPass(tokens, nothing, nothing, nothing)  # of which only the first is looked at

    def changes(self, parameters: Any, prepared: PreparedPass, block: FlipBlock) -> Array:
        return self.chosen(jax.vmap(as_vector)(self._flipped(parameters, prepared, block)))


def compiling(layers: int) -> float:
    """Returns the seconds in which forward passes through so many layers are compiled on the reference machine."""
    return 1.0 + 0.4 * layers


def output_vector(apply: Callable[[Any, Any], Any], parameters: Any, tokens: Array) -> Float[Array, "*shape"]:
    """Returns a model's output on one input as engines measure it: with an axis, in float32 at least."""
    return as_vector(apply(parameters, tokens))


class ProgramSize(NamedTuple):
    """The size of a forward pass: its equations, its floating-point operations, the bytes of its largest value."""

    equations: float
    operations: float
    largest: int


def program_size(apply: Callable[[Any, Any], Any], parameters: Any, n: int) -> ProgramSize:
    """Returns the size of a model's program for inputs of n symbols, lowered once but not compiled.

    Loops in a user's model count once.
    """
    return _program_size(apply, *program_key(parameters, n))


@cached
def _program_size(apply: Any, structure: Any, shapes: tuple[Any, ...], n: int, wide: bool) -> ProgramSize:
    del wide  # 64-bit types are on: another program
    parameters = abstract_of(structure, shapes)
    traced = jax.jit(partial(output_vector, apply)).trace(parameters, jax.ShapeDtypeStruct((n,), jnp.int32))
    own = innermost(apply)
    if isinstance(own, TransformerApply | TorchApply):
        operations = own.operations(n)
    else:
        operations = float((traced.lower().cost_analysis() or {}).get("flops", 0))
    equations, largest = _sizes(traced.jaxpr.jaxpr)
    return ProgramSize(equations, operations, largest)


def _largest(config: TransformerConfig, n: int, platform: Platform) -> int:
    """Returns the numbers in the largest array of `layers.apply` on one input of length n, penalties left out."""
    read, largest = readout_row(config.readout, n) is not None, n * config.width
    for k in range(config.layers):
        layer, one = config.layer(k), read and k == config.layers - 1
        cached = leaves_cache(layer.heads, n, platform)
        rows = 1 if one else min(n, rows_at_once(layer.heads * n, cached))
        # Elementwise products have an array of every factor, as additive scores have of every sum.
        each = layer.head_width if layer.exact_rows or layer.scores == "additive" else 1
        heads = 1 if cached and not layer.exact_rows and not one else layer.heads
        widest = max(layer.heads * layer.head_width, 0 if one else layer.feed_forward)
        widest *= config.width if layer.exact_rows else 1
        largest = max(largest, heads * rows * n * each, n * widest)
    return largest


@lru_cache(maxsize=1024)
def flipped_length(rewrite: Rewrite, n: int) -> int:
    """Returns the length of a flipped input."""
    word, one = (jax.ShapeDtypeStruct((size,), jnp.int32) for size in (n, 1))
    return jax.eval_shape(rewrite, word, one, one).shape[0]


def innermost(apply: Any) -> Any:
    """Returns the model's own function, without what selects a row of its output."""
    return getattr(apply, "apply", apply)


_output_vector = compiled(static=1)(output_vector)


def compiled_output(
    apply: Callable[[Any, Any], Any], parameters: Any, tokens: Any
) -> Float[np.ndarray, " outputs"]:
    """Returns `output_vector`, compiled once for each model and length."""
    return np.asarray(_output_vector(apply, as_arrays(parameters), jnp.asarray(tokens)))


def _sizes(program: Any) -> tuple[float, int]:
    """Returns how many equations a traced program and those that it calls have, and the bytes of their largest value.

    There are infinitely many if it calls Python, which may take long and has no roundings to move.
    """
    equations, largest = 0.0, 0
    for equation in program.eqns:
        equations += math.inf if "callback" in equation.primitive.name else 1
        values = [value.aval for value in equation.outvars if hasattr(value.aval, "dtype")]
        largest = max([largest, *(value.size * value.dtype.itemsize for value in values)])
        for inner in jaxprs_in_params(equation.params):
            own = _sizes(inner)
            equations, largest = equations + own[0], max(largest, own[1])
    return equations, largest
