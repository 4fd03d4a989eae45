"""The exact maximum, by enumeration: computes every word's output once and compares every pair of neighbours."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxsens.core.base.errors import InputError
from jaxsens.core.engines.vmap import OutputEngine
from jaxsens.core.placement.run import Measuring
from jaxsens.theory.search.local_search import SearchProgress
from jaxsens.theory.search.problem import SearchSpace, SearchTask

SMALL = 2**16
"""Most words that are enumerated without being asked for."""

LARGEST = 2**24
"""Most words that are enumerated if asked for."""

_BLOCK_BYTES = 2**26
"""Size of the outputs that are computed at a time: the copies that each core makes of them take little memory."""

_PAIRS = 2**16
"""Pairs of neighbouring words that are compared at once."""


def refusal(problem: SearchTask, words: int) -> str | None:
    """Why the words cannot be enumerated, if at most `words` of them may be; None if they can."""
    space, budget = problem.space, problem.devices.budget()
    if space.count > words:
        return f"{len(space.alphabet)}^{len(space.free)} words are more than {words}"
    kept = space.count * problem.output_bytes
    if kept > budget:
        return f"the outputs of all words take {kept} bytes, more than memory_budget = {budget}"
    return None


def largest_word(
    problem: SearchTask, progress: Callable[[SearchProgress], None] | None
) -> Int[np.ndarray, " n"]:
    """The first word with the largest objective.

    Costs one forward pass per word, and memory for all outputs. Neighbours' outputs are subtracted, so float32 loses
    sensitivities below 1e-7 of the output.

    Args:
        problem: What is searched, with few enough words (see `refusal`).
        progress: Called now and then with the number of words done.

    Raises:
        InputError: If some output is not finite, or not even one word fits the memory budget.
    """
    outputs = _outputs(problem, progress)
    if not np.all(np.isfinite(outputs)):
        word = _words(problem.space, np.flatnonzero(~np.isfinite(outputs).all(axis=1))[:1])[0]
        raise InputError.note(
            "model", f"the output is not finite on the word {word.tolist()}; use smaller weights"
        )
    return _words(problem.space, np.array([np.argmax(_objective(problem, outputs))]))[0]


def _words(space: SearchSpace, index: Int[np.ndarray, " words"]) -> Int[np.ndarray, "words n"]:
    """Words by number. The digits of the number are the symbols, the highest one at the first free position."""
    digits = (index[:, None] // _strides(len(space.alphabet), len(space.free))) % len(space.alphabet)
    return space.word(space.alphabet[digits])


def _strides(size: int, free: int) -> Int[np.ndarray, " free"]:
    return size ** np.arange(free, dtype=np.int64)[::-1]


def _objective(
    problem: SearchTask, outputs: Float[np.ndarray, "words outputs"]
) -> Float[np.ndarray, " words"]:
    """The largest sensitivity of every word, or the sum over its flips, which is largest where the mean is."""
    size, words = len(problem.space.alphabet), len(outputs)
    merge = np.maximum if problem.search.objective == "max" else np.add
    found = np.zeros(words)
    for stride in _strides(size, len(problem.space.free))[problem.space.is_flipped]:
        for start in range(0, words // size, _PAIRS):
            problem.devices.check()
            pair = np.arange(start, min(start + _PAIRS, words // size))
            # The words with the symbol 0 at this position; the word with the symbol a is a strides further.
            first = (pair // stride) * stride * size + pair % stride
            for a, b in itertools.combinations(range(size), 2):
                one, other = first + a * stride, first + b * stride
                norms = problem.sizes(outputs[other] - outputs[one])
                found[one] = merge(found[one], norms)
                found[other] = merge(found[other], norms)
    return found


def _outputs(
    problem: SearchTask, progress: Callable[[SearchProgress], None] | None
) -> Float[np.ndarray, "words outputs"]:
    """The chosen outputs of every word. Blocks of words fit what the returned values leave of the memory budget."""
    space, found = problem.space, np.zeros((0, 0))
    rewrite = NumberedWord(tuple(space.alphabet.tolist()), tuple(space.free.tolist()))
    engine = OutputEngine(problem.norm, problem.engine.outputs, problem.model.apply, rewrite=rewrite)
    first = _words(space, np.zeros(1, int))
    size = max(1, min(_BLOCK_BYTES // max(1, problem.output_bytes), space.count))
    nothing = np.zeros((size, 1), np.int32)
    for start in range(0, space.count, size):

        def told(done: int, total: int, start: int = start) -> None:
            if progress is not None:
                progress(SearchProgress(min(start + done, space.count), space.count, None))

        # The last block is filled up, so that one program serves all blocks.
        numbers = np.minimum(np.arange(start, start + size), space.count - 1)[:, None]
        outputs, _ = Measuring(
            engine, problem.parameters, first, nothing[:, 0], numbers, nothing, problem.devices, told
        ).changes()
        if not start:
            found = np.zeros((space.count, outputs.shape[1]), outputs.dtype)
        found[start : start + size] = outputs[: space.count - start]
    return found


@dataclass(frozen=True)
class NumberedWord:
    """What a "flip" does: it makes the word whose number, see `_words`, is its position.

    Attributes:
        alphabet: the symbols of words.
        free: the positions that differ from word to word.
    """

    alphabet: tuple[int, ...]
    free: tuple[int, ...]

    def __call__(
        self, word: Int[Array, " n"], positions: Int[Array, " 1"], symbols: Int[Array, " 1"]
    ) -> Int[Array, " n"]:
        del symbols
        size, strides = len(self.alphabet), jnp.asarray(_strides(len(self.alphabet), len(self.free)))
        digits = positions[0] // strides % size
        return word.at[jnp.asarray(self.free)].set(jnp.asarray(self.alphabet, word.dtype)[digits])
