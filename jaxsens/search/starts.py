"""The words that a search starts from."""

from __future__ import annotations

import numpy as np
from jaxtyping import Int

from jaxsens.search.problem import Problem


def start_of(problem: Problem, given: Int[np.ndarray, "given n"], seed: int, k: int) -> Int[np.ndarray, " n"]:
    """The k-th word to start from: the given ones first, then random and structured ones in turn.

    Structured words, as long as there are any: one symbol all through; one, but the next one where the model reads out;
    two that alternate; one in the first half and the next in the second. A random word depends on `seed` and k alone.
    """
    if k < len(given):
        return given[k]
    drawn = k - len(given)
    structured = _structured(problem, drawn // 2) if drawn % 2 else None
    if structured is not None:
        return problem.word(problem.alphabet[structured])
    return problem.word(np.random.default_rng([seed, k]).choice(problem.alphabet, len(problem.free)))


def _structured(problem: Problem, k: int) -> Int[np.ndarray, " free"] | None:
    """The k-th structured word, by numbers of symbols, or None once there are no more."""
    size, places = len(problem.alphabet), np.arange(len(problem.free))
    readout = problem.subject.position_read(problem.n)
    second = [problem.free == readout, places % 2 == 1, places >= len(places) // 2]
    second = [np.zeros(len(places), bool), *(where for where in second if where.any())]
    if k >= size * len(second):
        return None
    kind, first = divmod(k, size)
    return np.where(second[kind], (first + 1) % size, first)
