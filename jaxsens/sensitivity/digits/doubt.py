"""How far rounding puts a model's output off: its program is evaluated once more, in other arithmetic.

Engines that subtract two outputs lose what is smaller than the rounding of either. That depends on the model: a cold
softmax turns a rounding of its scores into another choice of keys, and a mean of many values is better than each. So it
is measured, at the input: by an evaluation in float64 for a float32 model, and for a float64 model by another order of
the same operations; and for both with all parameters and constants moved by a rounding each. Either may be small by
luck, in a model of few outputs.

It costs one or two forward passes of NumPy for each input, and compiles nothing. A program is traced once.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from jaxsens.base.precision import numerics
from jaxsens.base.programs import kept
from jaxsens.sensitivity.digits.wide.numbers import FLOAT64, Precise
from jaxsens.sensitivity.digits.wide.program import Program, traced
from jaxsens.sensitivity.engines.engine import Engine
from jaxsens.sensitivity.engines.vmap import HALF_UNIT, output_vector
from jaxsens.sensitivity.subjects.adapters import Measurable, TransformerApply, in_float64

FACTOR = 4.0
"""A change is taken to be off by this many times the rounding seen in the output: it has the rounding of two outputs,
and that of the flipped input's may be larger."""

EXACT_BITS = 1152
"""An output that is the same number in this many bits, where 1 + 1e-300 is not 1, has no rounding."""

LARGEST_EXACT = 2e6
"""The operations up to which a program is evaluated in so many bits: about a second."""

LARGEST_PROGRAM = 1e11
"""The floating-point operations up to which a program is evaluated: some seconds. Beyond, `HALF_UNIT` is assumed."""

MOST_LIFTED = 2**25
"""The numbers of a model up to which they are kept lifted, twice at most: 512 MiB."""

MOST_MOVED = 2**20
"""The numbers of a float32 model up to which it is evaluated with moved parameters too. To move more takes longer than
to measure a short input, and of the many outputs of a large model some show the rounding."""

NUMPY_RATE = 4e8
"""Operations per second of an evaluation in float64 on the reference machine: its arrays leave the cache."""


def doubting_seconds(engine: Engine, subject: Measurable, n: int) -> float:
    """Estimates the seconds in which `output_doubts` evaluates one input of length n on the reference machine."""
    program = output_program(subject, n) if engine.subtracts else None
    if program is None or program.operations > LARGEST_PROGRAM:
        return 0.0
    return (1 + _is_moved(subject, subject.dtype)) * program.operations / NUMPY_RATE


def _is_moved(subject: Measurable, dtype: str) -> bool:
    small = sum(np.size(leaf) for leaf in jax.tree.leaves(subject.parameters)) <= MOST_MOVED
    return dtype == "float64" or small


def output_program(subject: Measurable, n: int) -> Program | None:
    """Returns the program of the model's output for inputs of length n; None where it cannot be evaluated.

    It is that of the float64 form of a jaxsens transformer, whose positions and temperatures are formulas. It is None
    for a model that PyTorch runs, and one with a primitive that `jaxsens.sensitivity.digits.wide` has no rule for.
    """
    if subject.torch is not None:
        return None
    apply, dtype = subject.apply, subject.dtype
    if isinstance(apply, TransformerApply):
        apply, dtype = in_float64(apply) or apply, "float64"
    leaves, structure = jax.tree.flatten(subject.parameters)
    with numerics(dtype):
        shapes = tuple((np.shape(leaf), _type(leaf, dtype)) for leaf in leaves)
    return _output_program(apply, structure, shapes, dtype, n)


@kept
def _output_program(
    apply: Callable[[Any, Any], Any], structure: Any, shapes: tuple[Any, ...], dtype: str, n: int
) -> Program | None:
    """Traces a model's output, once for each model and length."""
    with numerics(dtype):
        leaves = [jax.ShapeDtypeStruct(*of_leaf) for of_leaf in shapes]
        parameters, tokens = jax.tree.unflatten(structure, leaves), jax.ShapeDtypeStruct((n,), np.int32)
        program = traced(lambda parameters, word: output_vector(apply, parameters, word), parameters, tokens)
    return None if program.unsupported is not None else program


def output_doubts(
    subject: Measurable, words: Int[np.ndarray, "batch n"]
) -> Callable[[int, str, Float[np.ndarray, " outputs"]], Float[np.ndarray, " outputs"]]:
    """Returns a function from the number of an input, the dtype of the arithmetic, and the output found in it, to a
    bound of the rounding of each entry of the output's change.

    Where the program cannot be evaluated, a few roundings of the output are assumed. An output that every evaluation
    gives as the same number is evaluated in `EXACT_BITS` too, if that is cheap, and is then taken to be exact; so are
    those that the model promises to be. The program is traced when it is first asked for: an engine that bounds its own
    rounding asks for none.
    """

    @lru_cache(maxsize=1)
    def affordable() -> Program | None:
        program = output_program(subject, words.shape[1])
        return None if program is None or program.operations > LARGEST_PROGRAM else program

    @lru_cache(maxsize=1)
    def nudged(program: Program, dtype: str) -> Callable[[Any], Any] | None:
        if not _is_moved(subject, dtype):
            return None
        return _moved(program, dtype).given(FLOAT64, _nudged(subject.parameters, dtype))

    @lru_cache(maxsize=4)
    def evaluated(b: int, moved_by: str | None) -> np.ndarray | None:
        program = affordable()
        if program is None:
            return None
        own = _at_hand.of(program, subject.parameters) if moved_by is None else nudged(program, moved_by)
        return None if own is None else np.asarray(own(words[b]), np.float64)

    @lru_cache(maxsize=4)
    def is_exact(b: int, output: bytes) -> bool:
        """Whether no digit of an output is lost, though all evaluations agree: 1 + 1e-50 is 1 in each."""
        program = affordable()
        if program is None or program.operations > LARGEST_EXACT:
            return True
        true = program.evaluate(Precise(EXACT_BITS), subject.parameters, words[b])
        return bool(np.all(true == np.frombuffer(output).reshape(np.shape(true))))

    def doubt(b: int, dtype: str, output: Float[np.ndarray, " outputs"]) -> Float[np.ndarray, " outputs"]:
        output = np.asarray(output, np.float64)
        assumed = HALF_UNIT * np.finfo(dtype).eps * np.abs(output)
        true = evaluated(b, None)
        if true is None:
            return assumed
        off = np.abs(output - true)
        # A float32 output without any rounding is that of a model that counts.
        other = evaluated(b, dtype) if dtype == "float64" or np.any(off) else None
        off = off if other is None else np.maximum(off, np.abs(other - true))
        if not np.any(off) and not is_exact(b, output.tobytes()):
            return FACTOR * assumed
        # A few entries may be right by luck; all of them are off by as much as the others, relative to their sizes.
        size = float(np.max(np.abs(output), initial=0)) or 1.0
        least = np.max(off, initial=0) * np.maximum(np.abs(output) / size, 2**-10)
        return FACTOR * np.maximum(off, least)

    return doubt


class AtHand:
    """The program evaluated last, with its parameters lifted: that takes longer than the rest for a short input.

    It is kept as long as the parameters are, which are JAX's arrays, if they are not many.
    """

    def __init__(self) -> None:
        self._held: tuple[Program, list[weakref.ref[Any]], Callable[[Any], Any]] | None = None

    def of(self, program: Program, parameters: Any) -> Callable[[Any], Any]:
        """Returns the function of the word."""
        leaves, held = jax.tree.leaves(parameters), self._held  # read once: other threads replace it
        # The same program has parameters of the same structure, so as many leaves.
        if held is not None and held[0] is program and all(map(_is, held[1], leaves)):
            return held[2]
        self._held = None
        run = program.given(FLOAT64, parameters)
        small = sum(np.size(leaf) for leaf in leaves) <= MOST_LIFTED
        if small and all(isinstance(leaf, jax.Array) for leaf in leaves):
            self._held = program, [weakref.ref(leaf, self._forget) for leaf in leaves], run
        return run

    def _forget(self, dead: object) -> None:
        self._held = None


def _is(held: weakref.ref[Any], leaf: Any) -> bool:
    return held() is leaf


_at_hand = AtHand()


def _type(leaf: Any, dtype: str) -> Any:
    """Returns the dtype of an argument: a number's is that of the arithmetic."""
    own = jnp.result_type(leaf)
    return jnp.dtype(dtype) if own in (jnp.float32, jnp.float64) else own


def _nudged(values: Any, dtype: str) -> Any:
    """Returns arrays with every number moved by up to a rounding of the dtype, in a fixed random way."""
    rng = np.random.default_rng(0)

    def one(leaf: Any) -> Any:
        if not jnp.issubdtype(jnp.result_type(leaf), jnp.floating):
            return leaf
        wide = np.asarray(leaf, np.float64)
        return wide * (1 + np.finfo(dtype).eps * rng.choice([-1.0, 1.0], wide.shape))

    return jax.tree.map(one, values)


def _moved(program: Program, dtype: str) -> Program:
    """Returns the program with its constants moved by a rounding of the dtype each."""
    closed = program.jaxpr
    return Program(
        closed.replace(consts=_nudged(list(closed.consts), dtype)), program.taken, program.returned
    )
