"""Two ways to search: every word, whose output is computed once and compared with those of its neighbours; and
local search with restarts, from the words to start from, uphill.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxsens.core.base.errors import InputError
from jaxsens.core.engines.vmap import OutputEngine
from jaxsens.core.placement.run import Measuring
from jaxsens.theory.search.problem import Measured, SearchSpace, SearchTask, after_one_change

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
    """The first word with the largest sensitivity.

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
        why = f"the output is not finite on the word {word.tolist()}; use smaller weights"
        raise InputError.note("model", why)
    return _words(problem.space, np.array([np.argmax(_largest(problem, outputs))]))[0]


def _words(space: SearchSpace, index: Int[np.ndarray, " words"]) -> Int[np.ndarray, "words n"]:
    """Words by number. The digits of the number are the symbols, the highest one at the first free position."""
    digits = (index[:, None] // _strides(len(space.alphabet), len(space.free))) % len(space.alphabet)
    return space.word(space.alphabet[digits])


def _strides(size: int, free: int) -> Int[np.ndarray, " free"]:
    return size ** np.arange(free, dtype=np.int64)[::-1]


def _largest(problem: SearchTask, outputs: Float[np.ndarray, "words outputs"]) -> Float[np.ndarray, " words"]:
    """The largest sensitivity of every word."""
    size, words = len(problem.space.alphabet), len(outputs)
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
                found[one] = np.maximum(found[one], norms)
                found[other] = np.maximum(found[other], norms)
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
        flips = nothing[:, 0], numbers, nothing
        outputs, _ = Measuring(engine, problem.parameters, first, *flips, problem.devices, told).changes()
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


SIDEWAYS = 4
"""Steps in a row that may leave the value as it is. Hard attention has plateaus, on which all gains are 0."""


class SearchProgress(NamedTuple):
    """How far a search is.

    Attributes:
        done: Measurements of all flips of a word so far; in an enumeration, words so far.
        total: The budget, None without one; in an enumeration, the number of words.
        value: The largest sensitivity so far; None in an enumeration, which knows it only at its end.
    """

    done: int
    total: int | None
    value: float | None


class BudgetSpent(Exception):
    """The budget has no measurement left."""


@dataclass
class Measurements:
    """Measures words within a budget, and keeps the best one.

    Attributes:
        budget: The number of measurements of all flips of a word that are allowed; None for any number.
        used: The number of measurements so far.
        best, history: The first word with the largest sensitivity, and (used, value) each time that it improved.
        restarts: The starts so far, and where each led; the last one is still searched, or was stopped.
    """

    problem: SearchTask
    budget: int | None
    used: int = 0
    best: Measured | None = None
    history: list[tuple[int, float]] = field(default_factory=list)
    progress: Callable[[SearchProgress], None] | None = None
    restarts: list[Restart] = field(default_factory=list)

    def measure(self, word: Int[np.ndarray, " n"]) -> Measured:
        """All flips of a word.

        Raises:
            BudgetSpent: If the budget has no measurement left.
        """
        if self.budget is not None and self.used >= self.budget:
            raise BudgetSpent
        measured = self.problem.measure(word)
        self.used += 1
        if self.best is None or measured.value > self.best.value:
            self.best = measured
            self.history.append((self.used, measured.value))
        if self.progress is not None:
            self.progress(SearchProgress(self.used, self.budget, self.best.value))
        return measured

    def probe(self, word: Int[np.ndarray, " n"], flip: tuple[int, int]) -> float:
        """One flip (position, symbol) of a word. Costs a forward pass or two, and nothing of the budget."""
        self.problem.devices.check()
        return float(self.problem.few(word[None], [flip])[0, 0])


@dataclass(frozen=True)
class Restart:
    """One start of the search, and where it led.

    Attributes:
        start, tokens, value: The word it began with, the one it ended with, and that one's largest sensitivity.
        measurements, steps: The measurements of all flips of a word that it took, and its steps.
        converged: Whether it ended because no neighbour that the search looks at was better. Otherwise it was stopped.
    """

    start: tuple[int, ...]
    tokens: tuple[int, ...]
    value: float
    measurements: int
    steps: int
    converged: bool


def climb(problem: SearchTask, starts: int, measurements: Measurements) -> None:
    """Searches from every start until all have converged or the budget is spent; `measurements` keeps what is found.

    Every step draws from its own random numbers, so that a larger budget begins like a smaller one.
    """
    try:
        for k in range(starts):
            start, begun = start_of(problem, k), measurements.used
            at, idle, steps, converged = measurements.measure(start), 0, 0, False
            first = tuple(start.tolist())
            measurements.restarts.append(Restart(first, first, at.value, 1, 0, False))
            while not converged:
                rng = np.random.default_rng([problem.search.seed, k, steps + 1])
                led = _step(measurements, at, idle, rng)
                if led is None:
                    converged = True
                else:
                    (at, idle), steps = led, steps + 1
                used = measurements.used - begun
                reached = Restart(first, tuple(at.word.tolist()), at.value, used, steps, converged)
                measurements.restarts[-1] = reached
    except BudgetSpent:
        return


def start_of(problem: SearchTask, k: int) -> Int[np.ndarray, " n"]:
    """The k-th word to start from: the given ones first, then random and structured ones in turn.

    Structured words come as long as there are any: one symbol throughout; one symbol with the next one where the model
    reads its output; two symbols that alternate; one in the first half and the next in the second. A random word
    depends only on the seed and k.
    """
    space = problem.space
    if k < len(space.start_words):
        return space.start_words[k]
    drawn = k - len(space.start_words)
    structured = _structured(problem, drawn // 2) if drawn % 2 else None
    if structured is not None:
        return space.word(space.alphabet[structured])
    return space.word(np.random.default_rng([problem.search.seed, k]).choice(space.alphabet, len(space.free)))


def _structured(problem: SearchTask, k: int) -> Int[np.ndarray, " free"] | None:
    """The k-th structured word, by numbers of symbols, or None if there are no more."""
    space = problem.space
    size, places = len(space.alphabet), np.arange(len(space.free))
    readout = problem.model.position_read(space.n)
    second = [space.free == readout, places % 2 == 1, places >= len(places) // 2]
    second = [np.zeros(len(places), bool), *(where for where in second if where.any())]
    if k >= size * len(second):
        return None
    kind, first = divmod(k, size)
    return np.where(second[kind], (first + 1) % size, first)


Step = tuple[Measured, int] | None
"""Where a step led: the next word and the number of steps in a row that have not raised the value; None if nowhere."""


def _step(measurements: Measurements, at: Measured, idle: int, rng: np.random.Generator) -> Step:
    """A step towards a larger sensitivity of one flip. Costs two measurements, and O(log n) single flips.

    The largest flip of the word x leads to x'. All flips of x' tell how much that flip would do after any single
    change of what x and x' have in common. Changes interact by O(1/n), so the best of them are made together: all that
    raise it, then the better half, and so on, as long as fewer changes do more, down to the best one alone. The step
    goes to x' instead if some other flip of x' is larger still. If neither helps, no neighbour of the pair is better.
    """
    row, column = at.largest
    flip, there = at.flip(row, column), measurements.measure(at.after(row, column))
    gains = after_one_change(at, there, row, column)
    enough, same = at.value * (1 + at.problem.slack), at.value * (1 - at.problem.slack)
    columns = np.argmax(gains, axis=1)
    most_of_row = gains.max(axis=1)
    rows = np.argsort(-most_of_row, kind="stable")
    rows = rows[most_of_row[rows] > enough]
    if len(rows):
        best, most = at.word, enough
        for word in _halved(at, rows, columns):
            found = measurements.probe(word, flip)
            if found > most:
                best, most = word, found
            elif most > enough:
                break
        if most > enough and most >= there.value:
            return measurements.measure(best), 0
    if there.value > enough:
        return there, 0
    if idle >= SIDEWAYS:
        return None
    # On a plateau, make as many of the changes that do nothing as can be made together, drawn at random.
    columns = np.argmax(np.where(gains >= same, rng.random(gains.shape), -1), axis=1)
    rows = rng.permutation(np.flatnonzero(most_of_row >= same))
    if not len(rows):
        return None
    level = (word for word in _halved(at, rows, columns) if measurements.probe(word, flip) >= same)
    word = next(level, None)
    return None if word is None else (measurements.measure(word), idle + 1)


def _halved(at: Measured, rows: np.ndarray, columns: np.ndarray) -> Iterator[Int[np.ndarray, " n"]]:
    """The word after all changes, after the first half of them, and so on down to the first alone."""
    size = len(rows)
    while size:
        yield at.with_all(rows[:size], columns[rows[:size]])
        size //= 2
