"""How far rounding puts a model's output off: the model is run once more, in float64 and with its numbers moved.

Engines that subtract two outputs lose what is smaller than the rounding of either. That depends on the model: a cold
softmax turns a rounding of its scores into another choice of keys, and a mean of many values is better than each. So
it is measured, at the input. A float32 model is run in float64. Any model is run in float64 twice more, with every
parameter moved by a rounding. Each difference may be small by luck, in a model of few outputs.

It costs three forward passes for each input, and one compilation for each model and length.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from jaxsens.asked.measures import L2
from jaxsens.base.platforms import on_host
from jaxsens.base.precision import numerics
from jaxsens.sensitivity.engines.engine import Engine
from jaxsens.sensitivity.engines.vmap import HALF_UNIT, VmapEngine, program_size
from jaxsens.sensitivity.placement.placement import preparation_of
from jaxsens.sensitivity.subjects.adapters import Measurable, in_float64

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


def rounding_seconds(engine: Engine, subject: Measurable, n: int) -> float:
    """Estimates the seconds in which `output_rounding` runs one input of length n on the reference machine."""
    operations = _operations(subject, n) if engine.subtracts else None
    if operations is None or operations > LARGEST_PASS:
        return 0.0
    return (1 + 2 * _is_moved(subject, subject.dtype)) * operations / RATE


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
        if moved_by is not None and not _is_moved(subject, moved_by):
            return None
        return _output(subject, words[b], _moved(subject.parameters, moved_by, draw))

    def bound(b: int, dtype: str, output: Float[np.ndarray, " outputs"]) -> Float[np.ndarray, " outputs"]:
        output = np.asarray(output, np.float64)
        assumed = HALF_UNIT * np.finfo(dtype).eps * np.abs(output)
        true = output_of(b, None)
        if true is None:
            return assumed
        off = np.abs(output - true)
        # A float32 output without any rounding is that of a model that counts.
        draws = range(2) if dtype == "float64" or np.any(off) else ()
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


def _output(subject: Measurable, word: Int[np.ndarray, " n"], parameters: Any) -> np.ndarray | None:
    """Returns the output in float64; None where there is no such pass, or it takes long.

    It is that of the float64 form of a jaxsens transformer, whose positions and temperatures are formulas. That of any
    other model is its own, with these parameters: none if its output is not in float64 then.
    """
    operations = _operations(subject, len(word))
    if operations is None or operations > LARGEST_PASS:
        return None
    wide = in_float64(subject.apply)
    engine = VmapEngine(L2(), None, wide or subject.apply, wide=subject.dtype != "float64")
    with numerics("float64"), on_host():
        parameters = engine.with_tables(parameters, len(word))
        try:
            _, output, _ = preparation_of(engine.shared)(engine.shared.preparing, parameters, word)
        except Exception:
            if wide is not None or subject.config is not None:
                raise
            return None
        return np.asarray(output) if output.dtype == np.float64 else None


def _is_moved(subject: Measurable, dtype: str) -> bool:
    small = sum(np.size(leaf) for leaf in jax.tree.leaves(subject.parameters)) <= MOST_MOVED
    return dtype == "float64" or small


def _moved(parameters: Any, dtype: str | None, draw: int) -> Any:
    """Returns the parameters in float64, each moved by a rounding of the dtype, if any, in a fixed random way."""
    rng = np.random.default_rng(draw)

    def one(leaf: Any) -> Any:
        if not jnp.issubdtype(jnp.result_type(leaf), jnp.floating):
            return leaf
        wide = np.asarray(leaf).astype(np.float64)
        return (
            wide if dtype is None else wide * (1 + np.finfo(dtype).eps * rng.choice([-1.0, 1.0], wide.shape))
        )

    return jax.tree.map(one, parameters)
