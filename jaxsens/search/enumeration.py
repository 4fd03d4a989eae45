"""The exact maximum, by enumeration: computes every word's output once and compares every pair of neighbours."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Array, Float, Int

from jaxsens.errors import InputError
from jaxsens.search.problem import Problem, SearchSpace, norm_of
from jaxsens.stopping import check

SMALL = 2**16
"""Most words that are enumerated without being asked for."""

LARGEST = 2**24
"""Most words that are enumerated if asked for."""

_SYMBOLS = 2**16
"""Symbols of the words that one call of the model processes on each device."""

_PAIRS = 2**16
"""Pairs of neighbouring words that are compared at once."""


def refusal(problem: Problem, words: int) -> str | None:
    """Why the words cannot be enumerated, if at most `words` of them may be; None if they can."""
    space, budget = problem.space, problem.devices.budget
    if space.count > words:
        return f"{len(space.alphabet)}^{len(space.free)} words are more than {words}"
    word = jax.ShapeDtypeStruct((space.n,), jnp.int32)
    output = jax.eval_shape(problem.subject.apply, problem.parameters, word)
    kept = space.count * int(np.prod(output.shape)) * jnp.promote_types(output.dtype, jnp.float32).itemsize
    if kept > budget:
        return f"the outputs of all words take {kept} bytes, more than memory_budget = {budget}"
    return None


def largest_word(problem: Problem, progress: Callable[[int, int], None] | None) -> Int[np.ndarray, " n"]:
    """The first word with the largest objective.

    Costs one forward pass per word, and memory for all outputs. Neighbours' outputs are subtracted, so float32 loses
    sensitivities below 1e-7 of the output.

    Args:
        problem: What is searched, with few enough words (see `refusal`).
        progress: Called with (words done, words in all).

    Raises:
        InputError: If some output is not finite, or not even one word fits the memory budget.
    """
    outputs = _outputs(problem, progress)
    if not np.all(np.isfinite(outputs)):
        word = _words(problem.space, np.flatnonzero(~np.isfinite(outputs).all(axis=1))[:1])[0]
        raise InputError(f"model: the output is not finite on the word {word.tolist()}; use smaller weights")
    return _words(problem.space, np.array([np.argmax(_objective(problem, outputs))]))[0]


def _words(space: SearchSpace, index: Int[np.ndarray, " words"]) -> Int[np.ndarray, "words n"]:
    """Words by number. The digits of the number are the symbols, the highest one at the first free position."""
    digits = (index[:, None] // _strides(space)) % len(space.alphabet)
    return space.word(space.alphabet[digits])


def _strides(space: SearchSpace) -> Int[np.ndarray, " free"]:
    return len(space.alphabet) ** np.arange(len(space.free), dtype=np.int64)[::-1]


def _objective(problem: Problem, outputs: Float[np.ndarray, "words outputs"]) -> Float[np.ndarray, " words"]:
    """The largest sensitivity of every word, or the sum over its flips, which is largest where the mean is."""
    size, words = len(problem.space.alphabet), len(outputs)
    merge = np.maximum if problem.objective == "max" else np.add
    found = np.zeros(words)
    for stride in _strides(problem.space)[problem.space.is_flipped]:
        for start in range(0, words // size, _PAIRS):
            check()
            pair = np.arange(start, min(start + _PAIRS, words // size))
            # The words with the symbol 0 at this position; the word with the symbol a is a strides further.
            first = (pair // stride) * stride * size + pair % stride
            for a, b in itertools.combinations(range(size), 2):
                one, other = first + a * stride, first + b * stride
                norms = norm_of(outputs[other] - outputs[one], problem.norm)
                found[one] = merge(found[one], norms)
                found[other] = merge(found[other], norms)
    return found


def _outputs(
    problem: Problem, progress: Callable[[int, int], None] | None
) -> Float[np.ndarray, "words outputs"]:
    """The chosen outputs of every word, in blocks within the memory budget."""
    total, devices, n = problem.space.count, problem.devices.mesh.size, problem.space.n
    each = problem.devices.batch_size or max(1, _SYMBOLS // n)
    each = min(each, -(-total // devices))
    while True:
        program, held = _compiled(problem, each)
        if held <= problem.devices.budget:
            break
        if each == 1 or problem.devices.batch_size:
            raise InputError(
                f"memory_budget = {problem.devices.budget} bytes: {each} words of length {n} take {held} bytes"
            )
        each = max(1, min(each - 1, each * problem.devices.budget // held))
    split = NamedSharding(problem.devices.mesh, PartitionSpec(problem.devices.mesh.axis_names))
    found: np.ndarray | None = None
    for start in range(0, total, each * devices):
        check()
        index = np.arange(start, start + each * devices)
        words = _words(problem.space, np.minimum(index, total - 1))
        stop = min(start + each * devices, total)
        block = np.asarray(program(problem.parameters, jax.device_put(words, split)))[: stop - start]
        if found is None:
            found = np.zeros((total, block.shape[1]), block.dtype)
        found[start:stop] = block
        if progress is not None:
            progress(stop, total)
    return np.zeros((0, 0)) if found is None else found


def _compiled(problem: Problem, each: int) -> tuple[Any, int]:
    """The program for `each` words on each device, and the bytes of temporary memory that it takes there."""
    mesh, apply = problem.devices.mesh, problem.subject.apply
    chosen = problem.engine.outputs

    def one(parameters: Any, word: Array) -> Array:
        output = jnp.atleast_1d(apply(parameters, word))
        output = output if chosen is None else output[jnp.asarray(chosen)]
        return output.astype(jnp.promote_types(output.dtype, jnp.float32))

    everywhere, split = PartitionSpec(), PartitionSpec(mesh.axis_names)
    sharded = jax.shard_map(
        jax.vmap(one, in_axes=(None, 0)),
        mesh=mesh,
        in_specs=(everywhere, split),
        out_specs=split,
        check_vma=False,
    )

    def placed(leaf: Any, spec: PartitionSpec) -> Any:
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=NamedSharding(mesh, spec))

    parameters = jax.tree.map(lambda leaf: placed(leaf, everywhere), problem.parameters)
    words = placed(jax.ShapeDtypeStruct((each * mesh.size, problem.space.n), jnp.int32), split)
    program = jax.jit(sharded).lower(parameters, words).compile()
    analysis = program.memory_analysis()

    def run(parameters: Any, words: Array) -> Array:
        return program(jax.device_put(parameters, NamedSharding(mesh, everywhere)), words)

    return run, 0 if analysis is None else int(analysis.temp_size_in_bytes)
