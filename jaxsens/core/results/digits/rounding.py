"""How far rounding puts a model's output off: the model is run again, in float64 and with its numbers moved.

Engines that subtract two outputs lose what is smaller than the rounding of either. That depends on the model: a cold
softmax turns a rounding of its scores into another choice of keys, and a mean of many values is better than each. So
it is measured, at the input. A model is run in float64, and four times more with every parameter and constant moved
by a rounding. One that computes in less than float64 whatever its parameters are, calls Python, or draws random
numbers, is run in its own dtype with every rounding moved. Each difference may be small by luck, in a model of few
outputs.

It costs five forward passes for each input, and one compilation for each model and length.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import jaxpr_as_fun, jaxprs_in_params
from jaxtyping import Array, Float, Int

from jaxsens.core.base.nudged import nudged, salts
from jaxsens.core.base.platforms import on_host
from jaxsens.core.base.precision import numerics
from jaxsens.core.base.programs import SOONER, compiled, kept
from jaxsens.core.engines.vmap import (
    HALF_UNIT,
    LARGEST_PASS,
    VmapEngine,
    compiled_output,
    output_vector,
    program_size,
)
from jaxsens.core.measures.measures import L2
from jaxsens.core.models.subjects.adapters import Measurable, in_float64
from jaxsens.core.placement.placement import preparation_of

FACTOR = 4.0
"""A change is taken to be off by this many times the rounding seen in the output: it has the rounding of two outputs,
and that of the flipped input's may be larger."""

DRAWS = 4
"""So often are the numbers moved, in other ways."""

MOST_MOVED = 2**20
"""The numbers of a float32 model up to which it is run with moved parameters too. Of the many outputs of a larger one
some show the rounding."""

MOST_NUDGED = 4000
"""The equations of a program up to which its roundings are moved: that is compiled, in a second for each hundred."""

Pass = Callable[[Int[np.ndarray, " n"]], Float[np.ndarray, " outputs"]]
"""A run of the model on a word."""


def output_rounding(
    subject: Measurable, words: Int[np.ndarray, "batch n"]
) -> Callable[[int, str, Float[np.ndarray, " outputs"]], Float[np.ndarray, " outputs"]]:
    """Returns a function from the number of an input, the dtype of the arithmetic, and the output in it, to a bound of
    the rounding of each entry of the output's change.

    For a PyTorch model, one whose parameters are split, and one that takes long, a few roundings of the output are
    assumed. So they are of an output that every pass gives as the same number, unless the model promises it to be
    exact: 1 + 1e-50 is 1 in each. An engine that bounds its own rounding needs no pass.
    """
    exact = subject.outputs is not None and set(subject.outputs) <= set(subject.exact_outputs)
    exact = exact and (subject.exact_length is None or words.shape[1] <= subject.exact_length)
    large = sum(np.size(leaf) for leaf in jax.tree.leaves(subject.parameters)) > MOST_MOVED

    @lru_cache(maxsize=0 if large else None)  # a pass holds its moved parameters
    def pass_of(moved_by: str | None, draw: int = 0) -> Pass | None:
        return _pass(subject, words.shape[1], moved_by, draw, large)

    def bound(b: int, dtype: str, output: Float[np.ndarray, " outputs"]) -> Float[np.ndarray, " outputs"]:
        output = np.asarray(output, np.float64)
        assumed = HALF_UNIT * np.finfo(dtype).eps * np.abs(output)
        unmoved = pass_of(None)
        if unmoved is None:
            return assumed
        true = unmoved(words[b])
        off = np.abs(output - true)
        if exact and not np.any(off):
            return off
        for draw in range(DRAWS):
            moved = pass_of(dtype, draw)
            if moved is not None:
                off = np.maximum(off, np.abs(moved(words[b]) - true))
        if not np.any(off):
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


def _pass(subject: Measurable, n: int, moved_by: str | None, draw: int, large: bool) -> Pass | None:
    """Returns a pass with every number moved by a rounding of a dtype, if any, in a fixed random way.

    None where there is no pass, or it takes long. A jaxsens transformer is run in its float64 form, whose positions and
    temperatures are formulas.
    """
    operations = _operations(subject, n)
    if operations is None or operations > LARGEST_PASS:
        return None
    if subject.config is not None:
        if large and moved_by == "float32":
            return None
        wide = in_float64(subject.apply) or subject.apply
        engine = VmapEngine(L2(), None, wide, wide=subject.dtype != "float64")
        with numerics("float64"):
            given = engine.with_tables(_moved(subject.parameters, moved_by, draw, np.float64), n)
        prepare = partial(preparation_of(engine.shared), engine.shared.preparing, given)
        return _in_float64(lambda word: prepare(word)[1])
    leaves, structure = jax.tree.flatten(subject.parameters)
    shapes = tuple((np.shape(leaf), jnp.result_type(leaf)) for leaf in leaves)
    found = _pass_of(subject.apply, structure, shapes, n)
    if found is None:
        return _pass_in_own_dtype(subject, n, moved_by, draw)
    if large and moved_by == "float32":
        return None
    consts, run = found
    with numerics("float64"):
        numbers = _moved(list(consts), moved_by, draw, None), _moved(leaves, moved_by, draw, np.float64)
    return _in_float64(partial(run, *numbers))


def _in_float64(run: Callable[[Any], Any]) -> Pass:
    def output(word: Int[np.ndarray, " n"]) -> Float[np.ndarray, " outputs"]:
        with numerics("float64"), on_host():
            return np.asarray(run(jnp.asarray(word, jnp.int32)))

    return output


def _pass_in_own_dtype(subject: Measurable, n: int, moved_by: str | None, draw: int) -> Pass | None:
    """Returns a pass with every rounding moved, if any is; None for a program of too many equations."""
    with numerics(subject.dtype):
        if program_size(subject.apply, subject.parameters, n).equations > MOST_NUDGED:
            return None

    def output(word: Int[np.ndarray, " n"]) -> Float[np.ndarray, " outputs"]:
        with numerics(subject.dtype):
            given = subject.apply, subject.parameters, jnp.asarray(word, jnp.int32)
            found = compiled_output(*given) if moved_by is None else _nudged_output(*given, salts()[draw])
            return np.asarray(found, np.float64)

    return output


@compiled(static=1)
def _nudged_output(apply: Any, parameters: Any, word: Array, salt: Array) -> Array:
    moved = nudged(lambda parameters, word: output_vector(apply, parameters, word), salt)
    return moved(jax.tree.map(jnp.asarray, parameters), word)


@kept
def _pass_of(
    apply: Callable[[Any, Any], Any], structure: Any, shapes: tuple[Any, ...], n: int
) -> tuple[Sequence[Any], Callable[..., Array]] | None:
    """Returns the constants of a model's pass in float64, and the pass, of constants, parameters and tokens.

    None if not all of it is in float64.
    """

    def output(leaves: Any, tokens: Array) -> Array:
        return output_vector(apply, jax.tree.unflatten(structure, leaves), tokens)

    with numerics("float64"):
        leaves = [jax.ShapeDtypeStruct(shape, _kind(own)) for shape, own in shapes]
        try:
            closed = jax.make_jaxpr(output)(leaves, jax.ShapeDtypeStruct((n,), np.int32))
        except Exception:  # noqa: BLE001 - what a user's model raises for float64 parameters alone is no error
            return None
    # A `Layered` may keep its matrices in bfloat16, which are exact in float64.
    layered = in_float64(apply) is not None and closed.out_avals[0].dtype == jnp.float64
    if not (layered or _is_wide(closed.jaxpr)):
        return None

    def run(consts: Sequence[Any], leaves: Sequence[Any], tokens: Array) -> Array:
        return jaxpr_as_fun(closed.replace(consts=consts))(*leaves, tokens)[0]

    return closed.consts, jax.jit(run, compiler_options=SOONER)


def _kind(own: Any) -> Any:
    return jnp.dtype(np.float64) if jnp.issubdtype(own, jnp.floating) else own


def _is_wide(jaxpr: Any) -> bool:
    """Returns whether a program computes in float64 alone, calls no Python and draws no random numbers: another type
    has others."""
    for one in jaxpr.eqns:
        name = one.primitive.name
        if "callback" in name or "random" in name or "threefry" in name:
            return False
        kinds = [value.aval.dtype for value in one.outvars if hasattr(value.aval, "dtype")]
        if any(jnp.issubdtype(kind, jnp.floating) and kind != jnp.float64 for kind in kinds):
            return False
        if not all(map(_is_wide, jaxprs_in_params(one.params))):
            return False
    return True


def _moved(numbers: Any, dtype: str | None, draw: int, kind: Any) -> Any:
    """Returns numbers, in float64 if that is the `kind`, each moved by a rounding of the dtype, if any."""
    rng = np.random.default_rng(draw)

    def one(leaf: Any) -> Any:
        own = jnp.result_type(leaf)
        if not jnp.issubdtype(own, jnp.floating):
            return leaf
        wide = np.asarray(leaf).astype(np.float64)
        if dtype is not None:
            step = max(float(np.finfo(dtype).eps), float(jnp.finfo(own).eps) if kind is None else 0.0)
            wide = wide * (1 + step * rng.choice([-1.0, 1.0], wide.shape))
        return jnp.asarray(wide, own) if kind is None else wide

    return jax.tree.map(one, numbers)
