"""Flip-flop: one bit of memory that is written, read or ignored (Liu, Ash, Goel, Krishnamurthy and Zhang 2023)."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from numpy.random import Generator

from jaxsens.core.base.inputs import checked_count
from jaxsens.core.base.strict import config
from jaxsens.formal.languages.base import Language, Probability

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
