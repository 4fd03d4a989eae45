"""Flip-flop, one bit of memory that is written, read or ignored (Liu, Ash, Goel, Krishnamurthy and Zhang 2023); and set
complement, where what comes next has mostly not occurred yet (Zsámboki et al. 2025, arXiv 2510.08341).
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import numpy as np
from numpy.random import Generator

from jaxsens.core.base import inputs
from jaxsens.core.base.inputs import checked_count
from jaxsens.core.base.strict import checked_by, config
from jaxsens.formal.languages.base import Language, Probability, binary_entropy, draw, from_log_ratios

_WRITE, _READ, _IGNORE, _ZERO = range(4)
_START, _FREE, _BOUND, _BETWEEN, _AFTER_READ = 0, 1, 2, 4, 5  # _BOUND + memory: 2 and 3


@config
class FlipFlop(Language):
    """Flip-flop: pairs of an instruction (w, r, i) and a bit. The first is w, the last r; r repeats the last w's bit.

    The instructions are write, read and ignore. After each pair, the next instruction is i with probability q, and w or
    r with (1 - q)/2 each. The bits of w and i are fair coins; the bit of r is the bit of the last w. After each pair of
    r the word ends with probability e. (FFL(q) of Liu et al. instead fixes the length, and the last instruction is r.)

    Given that the word has at least n symbols, instructions are still independent. Those of pairs that end before the
    nth symbol, except the first, are r with weight (1 - e)(1 - q)/2 in place of (1 - q)/2. Near misses: the bit of one
    r, drawn uniformly, is exchanged.

    Attributes:
        ignore_probability: q, strictly between 0 and 1.
        end_probability: e, strictly between 0 and 1.
    """

    ignore_probability: Probability = 0.8
    end_probability: Probability = 0.1
    name: ClassVar[str] = "flip-flop"
    symbols: ClassVar[tuple[str, ...]] = ("w", "r", "i", "0", "1")

    @property
    def _instructions(self) -> np.ndarray:
        other = (1 - self.ignore_probability) / 2
        return np.array([other, other, self.ignore_probability])

    def _state_law(self, n: int) -> tuple[np.ndarray, np.ndarray]:
        """The last instruction is r, with a bit that is 0 or 1 with 1/2 each, unless it is the first one."""
        n = checked_count(self.name, n=n)
        read = float(self._instructions[_READ]) if n > 2 else 0.0
        if n == 0:
            return np.array([_START]), np.ones(1)
        if n % 2:
            return np.array([_FREE, _BOUND, _BOUND + 1]), np.array([1 - read, read / 2, read / 2])
        return np.array([_BETWEEN, _AFTER_READ]), np.array([1 - read, read])

    def _read(self, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """_START; after an instruction _FREE, or _BOUND + memory if it is r; after a pair _AFTER_READ or _BETWEEN."""
        instructions, bits = tokens[..., 0::2], tokens[..., 1::2] - _ZERO
        pairs = bits.shape[-1]
        reads = instructions == _READ
        memory = _memory(instructions[..., :pairs] == _WRITE, bits)
        known = np.zeros(instructions.shape, np.int64)  # before each pair
        known[..., 1:] = memory[..., : max(instructions.shape[-1] - 1, 0)]
        states, wrong = np.empty_like(tokens), np.zeros(tokens.shape, bool)
        states[..., 0::2] = np.where(reads, _BOUND + known, _FREE)
        states[..., 1::2] = np.where(reads[..., :pairs], _AFTER_READ, _BETWEEN)
        wrong[..., 0::2] = instructions > _IGNORE
        wrong[..., :1] |= tokens[..., :1] != _WRITE
        wrong[..., 1::2] = (bits < 0) | (reads[..., :pairs] & (bits != known[..., :pairs]))
        return states, wrong

    def _laws(self, states: np.ndarray) -> np.ndarray:
        laws = np.zeros((6, 6))
        laws[_START, _WRITE] = 1
        laws[_FREE, _ZERO : _ZERO + 2] = 0.5
        laws[_BOUND, _ZERO] = laws[_BOUND + 1, _ZERO + 1] = 1
        laws[_BETWEEN, :_ZERO] = self._instructions
        laws[_AFTER_READ, :_ZERO] = (1 - self.end_probability) * self._instructions
        laws[_AFTER_READ, self.end] = self.end_probability
        return laws[states]

    def _prefixes(self, count: int, n: int, generator: Generator) -> np.ndarray:
        pairs = (n + 1) // 2
        instructions = self._inner(count, pairs, generator)
        if pairs > 1:
            instructions[:, -1] = generator.choice(3, count, p=self._instructions)
        return _joined(instructions, generator)[:, :n]

    def _members(self, count: int, n: int, generator: Generator) -> np.ndarray:
        instructions = self._inner(count, n // 2, generator)
        instructions[:, -1] = _READ
        return _joined(instructions, generator)

    def _inner(self, count: int, pairs: int, generator: Generator) -> np.ndarray:
        """w, followed by instructions after which the word does not end."""
        weights = self._instructions * np.array([1, 1 - self.end_probability, 1])
        instructions = generator.choice(3, (count, pairs), p=weights / weights.sum()).astype(np.int8)
        instructions[:, :1] = _WRITE
        return instructions

    def _has_members(self, n: int) -> bool:
        return n % 2 == 0 and n >= 4

    def _non_members(self, count: int, n: int, generator: Generator) -> np.ndarray:
        tokens = self._members(count, n, generator)
        rank = np.where(tokens[:, 0::2] == _READ, generator.random((count, n // 2)), -1.0)
        rows, where = np.arange(count), 2 * np.argmax(rank, axis=1) + 1
        tokens[rows, where] = 2 * _ZERO + 1 - tokens[rows, where]
        return tokens

    def _length_probabilities(self, longest: int) -> np.ndarray:
        end = float(self._instructions[_READ]) * self.end_probability
        found = np.zeros(longest + 1)
        later = found[4::2]
        later[:] = end * (1 - end) ** np.arange(len(later), dtype=np.float64)
        return found


def _memory(writes: np.ndarray, bits: np.ndarray) -> np.ndarray:
    """The last written bit after each pair; 0 before the first write."""
    position = np.where(writes, np.arange(writes.shape[-1]), -1)
    last = np.maximum.accumulate(position, axis=-1)
    found = np.take_along_axis(bits, np.maximum(last, 0), axis=-1)
    return np.where(last >= 0, found, 0).clip(0, 1)


def _joined(instructions: np.ndarray, generator: Generator) -> np.ndarray:
    """The pairs of these instructions: bits are drawn for w and i, and remembered for r."""
    drawn = generator.integers(0, 2, instructions.shape, dtype=np.int8)
    remembered = _memory(instructions == _WRITE, drawn)
    tokens = np.empty((len(instructions), 2 * instructions.shape[1]), np.int8)
    tokens[:, 0::2] = instructions
    tokens[:, 1::2] = _ZERO + np.where(instructions == _READ, remembered, drawn)
    return tokens


MOST_SYMBOLS = 62
"""The set of symbols that have occurred is one 64-bit integer."""


@config
class SetComplement(Language):
    """Set complement: words in which every symbol occurs, the last one for the first time.

    After a prefix with d of the k symbols, 0 < d < k, each of the k - d that have not occurred follows with probability
    (1 - r)/(k - d), and each of the d others with r/d. The word ends when all have occurred. In the task of the paper r
    is 0, so that no input is longer than k; repeats let prefixes have any length.

    Given that the word has at least n >= 2 symbols, 1 + b of the first n - 1 are new, where b has the binomial law of
    n - 2 trials of 1 - r, given that it is at most k - 2. Which ones they are is uniform. Near misses: the last symbol
    is exchanged, so that it does not occur.

    Attributes:
        size: k, the number of symbols, from 2 to 62.
        repeat_probability: r, strictly between 0 and 1.
    """

    size: Annotated[int, checked_by(inputs.count, least=2, most=MOST_SYMBOLS)] = 16
    repeat_probability: Probability = 0.1
    name: ClassVar[str] = "set-complement"

    @property
    def alphabet(self) -> tuple[str, ...]:
        return tuple(map(str, range(self.size)))

    def distinct_law(self, n: int) -> np.ndarray:
        """The probabilities that n symbols have 0, 1, ..., k distinct ones. O(k)."""
        n, k = checked_count(self.name, n=n), self.size
        found = np.zeros(k + 1)
        if n < 2:
            found[n] = 1
            return found
        before = self._inner_law(n)
        found[1 : 1 + len(before)] = self.repeat_probability * before
        found[2 : 2 + len(before)] += (1 - self.repeat_probability) * before
        return found

    def marginal(self, n: int) -> np.ndarray:
        """The end has the probability that all symbols have occurred; all symbols are equally probable."""
        end = self.distinct_law(n)[-1]
        return np.append(np.full(self.size, (1 - end) / self.size), end)

    def optimal_cross_entropy(self, n: int) -> float:
        """The mean over d of h(r) + r log d + (1 - r) log(k - d); log k for d = 0, and 0 for d = k."""
        r, k, law = self.repeat_probability, self.size, self.distinct_law(n)
        d = np.arange(1, k)
        inner = binary_entropy(r) + r * np.log(d) + (1 - r) * np.log(k - d)
        return float(law[0] * np.log(k) + law[1:-1] @ inner)

    def _read(self, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The set of symbols that have occurred: bit s for symbol s."""
        sets = np.bitwise_or.accumulate(np.left_shift(1, tokens.astype(np.int64)), axis=-1)
        wrong = np.zeros(tokens.shape, bool)
        wrong[..., 1:] = sets[..., :-1] == 2**self.size - 1
        return sets, wrong

    def _laws(self, states: np.ndarray) -> np.ndarray:
        r, k = self.repeat_probability, self.size
        seen = states[..., None] >> np.arange(k) & 1
        d = seen.sum(axis=-1, keepdims=True)
        new = np.where(d == 0, 1.0, 1 - r) / np.maximum(k - d, 1)
        symbols = np.where(seen == 1, r / np.maximum(d, 1), new)
        return np.where(d == k, np.eye(k + 1)[k], np.append(symbols, np.zeros_like(d), axis=-1))

    def _inner_law(self, n: int) -> np.ndarray:
        """The law of b, for n >= 2."""
        trials = n - 2
        b = np.arange(min(trials, self.size - 2), dtype=np.float64)
        odds = (1 - self.repeat_probability) / self.repeat_probability
        return from_log_ratios(np.log((trials - b) / (b + 1) * odds))

    def _prefixes(self, count: int, n: int, generator: Generator) -> np.ndarray:
        inner = draw(self._inner_law(n), count, generator) if n > 1 else np.zeros(count, int)
        return self._joined(inner, n, generator.random(count) >= self.repeat_probability, generator)

    def _members(self, count: int, n: int, generator: Generator) -> np.ndarray:
        return self._joined(np.full(count, self.size - 2), n, np.ones(count, bool), generator)

    def _joined(self, inner: np.ndarray, n: int, last: np.ndarray, generator: Generator) -> np.ndarray:
        """Words of n symbols: the first is new, so many of the inner ones, and the last where `last` says so."""
        new = np.zeros((len(inner), n), bool)
        new[:, 1:-1] = generator.permuted(np.arange(max(n - 2, 0)) < inner[:, None], axis=1)
        new[:, -1:] = last[:, None]
        new[:, :1] = True
        d = np.cumsum(new, axis=1)
        which = np.where(new, d - 1, (generator.random(new.shape) * (d - new)).astype(int))
        order = generator.permuted(np.tile(np.arange(self.size), (len(inner), 1)), axis=1)
        return np.take_along_axis(order, which, axis=1).astype(np.int8)

    def _has_members(self, n: int) -> bool:
        return n >= self.size

    def _non_members(self, count: int, n: int, generator: Generator) -> np.ndarray:
        tokens = self._members(count, n, generator)
        tokens[:, -1] = (tokens[:, -1] + generator.integers(1, self.size, count)) % self.size
        return tokens

    def _length_probabilities(self, longest: int) -> np.ndarray:
        """C(l - 2, k - 2) (1 - r)^(k - 1) r^(l - k): k - 1 new symbols after the first, the last among them."""
        r, k = self.repeat_probability, self.size
        found = np.zeros(longest + 1)
        length = np.arange(k, longest, dtype=np.float64)
        if longest >= k:
            found[k:] = (1 - r) ** (k - 1) * np.cumprod(np.append(1.0, r * (length - 1) / (length - k + 1)))
        return found
