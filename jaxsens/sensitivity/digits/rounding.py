"""How far rounding puts a model's output off: the model is run once more, in float64 and with its numbers moved.

Engines that subtract two outputs lose what is smaller than the rounding of either. That depends on the model: a cold
softmax turns a rounding of its scores into another choice of keys, and a mean of many values is better than each. So
it is measured, at the input. A float32 model is run in float64. It is run again with every parameter and constant moved
by a rounding; a float64 model twice. Either difference may be small by luck, in a model of few outputs.

It costs one to three forward passes for each input, and one compilation for each model and length.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import jaxpr_as_fun
from jaxtyping import Array, Float, Int

from jaxsens.asked.nudged import equations
from jaxsens.base.platforms import on_host
from jaxsens.base.precision import numerics
from jaxsens.base.programs import SOONER, kept
from jaxsens.sensitivity.engines.engine import Engine
from jaxsens.sensitivity.engines.vmap import HALF_UNIT, output_vector, program_size
from jaxsens.sensitivity.subjects.adapters import Measurable, TransformerApply, in_float64

FACTOR = 4.0
"""A change is taken to be off by this many times the rounding seen in the output: it has the rounding of two outputs,
and that of the flipped input's may be larger."""

LARGEST_PASS = 1e11
"""The floating-point operations up to which a pass is run: some seconds. Beyond, `HALF_UNIT` is assumed."""

MOST_MOVED = 2**20
"""The numbers of a float32 model up to which it is run with moved parameters too. Of the many outputs of a larger one
some show the rounding."""

RATE = 4e9
"""Operations per second of a pass in float64 on the reference machine."""

Pass = Callable[[Sequence[Any], Any, Any], Float[Array, " outputs"]]
"""A forward pass in float64, of a program's constants, the parameters and the tokens."""


def rounding_seconds(engine: Engine, subject: Measurable, n: int) -> float:
    """Estimates the seconds in which `output_rounding` runs one input of length n on the reference machine."""
    operations = _operations(subject, n) if engine.subtracts else None
    if operations is None or operations > LARGEST_PASS:
        return 0.0
    return (1 + _is_moved(subject, subject.dtype)) * operations / RATE


def output_rounding(
    subject: Measurable, words: Int[np.ndarray, "batch n"]
) -> Callable[[int, str, Float[np.ndarray, " outputs"]], Float[np.ndarray, " outputs"]]:
    """Returns a function from the number of an input, the dtype of the arithmetic, and the output in it, to a bound of
    the rounding of each entry of the output's change.

    Where no pass in float64 is possible, a few roundings of the output are assumed. So they are of an output that every
    pass gives as the same number, unless the model promises it to be exact: 1 + 1e-50 is 1 in each. The pass is
    compiled when it is first needed: an engine that bounds its own rounding needs none.
    """
    exact = subject.outputs is not None and set(subject.outputs) <= set(subject.exact_outputs)
    exact = exact and (subject.exact_length is None or words.shape[1] <= subject.exact_length)

    @lru_cache(maxsize=4)
    def output_of(b: int, moved_by: str | None, draw: int = 0) -> np.ndarray | None:
        run = _pass_of(subject, words.shape[1])
        if run is None or (moved_by is not None and not _is_moved(subject, moved_by)):
            return None
        consts, call = run
        with numerics("float64"), on_host():
            parameters = jax.tree.map(_widened, subject.parameters)
            if moved_by is not None:
                consts, parameters = jax.tree.map(_mover(moved_by, draw), (list(consts), parameters))
            return np.asarray(call(consts, parameters, jnp.asarray(words[b], jnp.int32)), np.float64)

    def bound(b: int, dtype: str, output: Float[np.ndarray, " outputs"]) -> Float[np.ndarray, " outputs"]:
        output = np.asarray(output, np.float64)
        assumed = HALF_UNIT * np.finfo(dtype).eps * np.abs(output)
        true = output_of(b, None)
        if true is None:
            return assumed
        off = np.abs(output - true)
        # A float32 output without any rounding is that of a model that counts.
        draws = range(2) if dtype == "float64" else range(int(np.any(off)))
        moved = (output_of(b, dtype, draw) for draw in draws)
        off = np.max([off, *(np.abs(one - true) for one in moved if one is not None)], axis=0)
        if not np.any(off) and not exact:
            return FACTOR * assumed
        # A few entries may be right by luck; all of them are off by as much as the others, relative to their sizes.
        size = float(np.max(np.abs(output), initial=0)) or 1.0
        least = np.max(off, initial=0) * np.maximum(np.abs(output) / size, 2**-10)
        return FACTOR * np.maximum(off, least)

    return bound


def _operations(subject: Measurable, n: int) -> float | None:
    """Returns the operations of a pass; None where there is none: PyTorch's, and that of parameters that are split."""
    if subject.torch is not None or subject.mesh is not None:
        return None
    with numerics(subject.dtype):
        return program_size(subject.apply, subject.parameters, n).operations


def _pass_of(subject: Measurable, n: int) -> tuple[Sequence[Any], Pass] | None:
    """Returns the constants of the pass, and the pass; None where there is none, or it takes long.

    It is that of the float64 form of a jaxsens transformer, whose positions and temperatures are formulas. That of any
    other model is its own, with parameters in float64: none if its output is not in float64 then.
    """
    operations = _operations(subject, n)
    if operations is None or operations > LARGEST_PASS:
        return None
    apply = subject.apply
    if isinstance(apply, TransformerApply):
        apply = in_float64(apply) or apply
    leaves, structure = jax.tree.flatten(subject.parameters)
    with numerics("float64"):
        shapes = tuple((np.shape(leaf), _wide_type(leaf)) for leaf in leaves)
        return _traced_pass(apply, structure, shapes, n)


@kept
def _traced_pass(
    apply: Callable[[Any, Any], Any], structure: Any, shapes: tuple[Any, ...], n: int
) -> tuple[Sequence[Any], Pass] | None:
    """Traces a model's output, once for each model and length."""
    leaves = [jax.ShapeDtypeStruct(*of_leaf) for of_leaf in shapes]
    parameters, tokens = jax.tree.unflatten(structure, leaves), jax.ShapeDtypeStruct((n,), np.int32)
    closed, output = jax.make_jaxpr(partial(output_vector, apply), return_shape=True)(parameters, tokens)
    if output.dtype != jnp.float64 or math.isinf(equations(closed.jaxpr)):
        return None

    def run(consts: Sequence[Any], parameters: Any, tokens: Array) -> Array:
        return jaxpr_as_fun(closed.replace(consts=consts))(*jax.tree.leaves(parameters), tokens)[0]

    return closed.consts, jax.jit(run, compiler_options=SOONER)


def _is_moved(subject: Measurable, dtype: str) -> bool:
    small = sum(np.size(leaf) for leaf in jax.tree.leaves(subject.parameters)) <= MOST_MOVED
    return dtype == "float64" or small


def _wide_type(leaf: Any) -> Any:
    own = jnp.result_type(leaf)
    return jnp.dtype(jnp.float64) if jnp.issubdtype(own, jnp.floating) else own


def _widened(leaf: Any) -> Any:
    return jnp.asarray(np.asarray(leaf), _wide_type(leaf))


def _mover(dtype: str, draw: int) -> Callable[[Any], Any]:
    """Returns what moves every number of an array by a rounding of the dtype, up or down, the same in every call."""
    rng, eps = np.random.default_rng(draw), np.finfo(dtype).eps

    def moved(leaf: Any) -> Any:
        own = jnp.result_type(leaf)
        if not jnp.issubdtype(own, jnp.floating):
            return leaf
        step = max(eps, float(jnp.finfo(own).eps)) * rng.choice([-1.0, 1.0], np.shape(leaf))
        return jnp.asarray(np.asarray(leaf, np.float64) * (1 + step), own)

    return moved
