"""Languages with a few states, or a number or a set for a state: PARITY, 1* and a^n b^n of Hahn (2020), sections 5 and
6; MAJORITY; flip-flop, one bit of memory that is written, read or ignored (Liu, Ash, Goel, Krishnamurthy and Zhang
2023); and set complement, where what comes next has mostly not occurred yet (Zsámboki et al. 2025, arXiv 2510.08341).
"""

from __future__ import annotations

from functools import cached_property
from typing import Annotated, ClassVar

import numpy as np
from numpy.random import Generator

from jaxsens.core.base import inputs
from jaxsens.core.base.inputs import checked_count
from jaxsens.core.base.strict import checked_by, config
from jaxsens.formal.languages.base import Language, Probability, binary_entropy, draw, from_log_ratios


@config
class Parity(Language):
    """PARITY: an even number of 1s.

    While the number of 1s is even, the word ends with probability p and goes on with 0 or 1 with (1 - p)/2 each. While
    it is odd, the word goes on with 0 or 1, with 1/2 each. Let s_t be the parity of the 1s among the first t symbols. A
    prefix of n symbols has the probability prod_{t < n} (1/2 if s_t is odd, else (1 - p)/2). Given that the word has at
    least n symbols, s_1, ..., s_n are therefore independent: P(s_t even) = (1 - p)/(2 - p) for t < n, and 1/2 for
    t = n >= 1.

    Near misses: any one symbol exchanged. (The formula "parity" of `logic` says that the number of 1s is odd.)

    >>> Parity().member(np.array([[0, 1, 1], [0, 1, 0]]))
    array([ True, False])

    Attributes:
        end_probability: p, strictly between 0 and 1.
    """

    end_probability: Probability = 0.1
    name: ClassVar[str] = "parity"
    symbols: ClassVar[tuple[str, ...]] = ("0", "1")

    def _state_law(self, n: int) -> tuple[np.ndarray, np.ndarray]:
        """The optimum is below the unigram level by what the parity tells about the end: h(p/2) - h(p)/2 for n >= 1."""
        even = 0.5 if checked_count(self.name, n=n) else 1.0
        return np.arange(2), np.array([even, 1 - even])

    def _read(self, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return np.bitwise_xor.accumulate(tokens, axis=-1), np.zeros(tokens.shape, bool)

    def _laws(self, states: np.ndarray) -> np.ndarray:
        p = self.end_probability
        return np.array([[(1 - p) / 2, (1 - p) / 2, p], [0.5, 0.5, 0.0]])[states]

    def _prefixes(self, count: int, n: int, generator: Generator) -> np.ndarray:
        return self._bits(count, n, generator, generator.random((count, 1)) < 0.5)

    def _members(self, count: int, n: int, generator: Generator) -> np.ndarray:
        return self._bits(count, n, generator, np.zeros((count, 1), bool))

    def _bits(self, count: int, n: int, generator: Generator, last_odd: np.ndarray) -> np.ndarray:
        """Words whose inner states are drawn independently, and whose last state is given."""
        odd = np.empty((count, n + 1), bool)
        odd[:, :1] = False
        odd[:, 1:n] = generator.random((count, max(n - 1, 0))) < 1 / (2 - self.end_probability)
        odd[:, n:] = last_odd
        return (odd[:, 1:] ^ odd[:, :-1]).astype(np.int8)

    def _length_probabilities(self, longest: int) -> np.ndarray:
        p = self.end_probability
        later = (1 - p) * p / 2 * (1 - p / 2) ** np.arange(longest, dtype=np.float64)
        return np.concatenate([[p], later])


@config
class OneStar(Language):
    """1*: words over 0 and 1 without a 0. After every prefix the word ends with probability p; otherwise a 1 follows.

    There is one prefix of each length. Near misses: a single 1, anywhere, becomes a 0.

    >>> OneStar().member(np.array([[1, 1, 1], [0, 1, 0]]))
    array([ True, False])

    Attributes:
        end_probability: p, strictly between 0 and 1.
    """

    end_probability: Probability = 0.1
    name: ClassVar[str] = "one-star"
    symbols: ClassVar[tuple[str, ...]] = ("0", "1")

    def _state_law(self, n: int) -> tuple[np.ndarray, np.ndarray]:
        """The only prefix tells nothing: the optimum is the unigram level."""
        checked_count(self.name, n=n)
        return np.zeros(1, int), np.ones(1)

    def _read(self, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return np.zeros_like(tokens), tokens == 0

    def _laws(self, states: np.ndarray) -> np.ndarray:
        p = self.end_probability
        return np.array([[0.0, 1 - p, p]])[states]

    def _prefixes(self, count: int, n: int, generator: Generator) -> np.ndarray:
        return np.ones((count, n), np.int8)

    _members = _prefixes

    def _length_probabilities(self, longest: int) -> np.ndarray:
        p = self.end_probability
        return p * (1 - p) ** np.arange(longest + 1, dtype=np.float64)


@config
class EqualBlocks(Language):
    """a^m b^m: m as, then as many bs.

    With probability p the as stop, at the start or after any a; otherwise another a follows. Then as many bs follow,
    and the word ends, so P(m) = p (1 - p)^m. Given that the word has at least n symbols, m - ceil(n/2) has this
    same law: after long prefixes nearly as many bs as as have been read, and the next symbol depends on exact counts.
    A share (1 - p)^floor(n/2) of the prefixes consists of as only. Near misses: any symbol exchanged.

    >>> EqualBlocks().member(np.array([[0, 0, 1, 1], [0, 1, 0, 1]]))
    array([ True, False])

    Attributes:
        stop_probability: p, strictly between 0 and 1.
    """

    stop_probability: Probability = 0.1
    name: ClassVar[str] = "equal-blocks"
    symbols: ClassVar[tuple[str, ...]] = ("a", "b")

    def _state_law(self, n: int) -> tuple[np.ndarray, np.ndarray]:
        """As only have (1 - p)^floor(n/2), complete words p after an even number of symbols."""
        n = checked_count(self.name, n=n)
        p = self.stop_probability
        only, complete = (1 - p) ** (n // 2), p if n % 2 == 0 else 0.0
        later = [only, max(1 - only - complete, 0.0), complete]
        return np.arange(4), np.array([0.0, *later] if n else [1.0, 0.0, 0.0, 0.0])

    def _read(self, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """0 at the start, 1 after as only, 2 while bs are missing, 3 when the word is complete."""
        is_a = tokens == 0
        b_seen = np.logical_or.accumulate(~is_a, axis=-1)
        owed = np.cumsum(np.where(is_a, 1, -1).astype(np.int8), axis=-1, dtype=np.int64)
        return np.where(b_seen, np.where(owed > 0, 2, 3), 1), (is_a & b_seen) | (owed < 0)

    def _laws(self, states: np.ndarray) -> np.ndarray:
        p = self.stop_probability
        return np.array([[1 - p, 0.0, p], [1 - p, p, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])[states]

    def _prefixes(self, count: int, n: int, generator: Generator) -> np.ndarray:
        half = (n + 1) // 2 + generator.geometric(self.stop_probability, (count, 1)) - 1
        return (np.arange(n) >= half).astype(np.int8)

    def _members(self, count: int, n: int, generator: Generator) -> np.ndarray:
        return np.broadcast_to((np.arange(n) >= n // 2).astype(np.int8), (count, n)).copy()

    def _has_members(self, n: int) -> bool:
        return n % 2 == 0

    def _length_probabilities(self, longest: int) -> np.ndarray:
        p = self.stop_probability
        found = np.zeros(longest + 1)
        found[::2] = p * (1 - p) ** np.arange(longest // 2 + 1, dtype=np.float64)
        return found


@config
class Majority(Language):
    """MAJORITY: more 1s than 0s.

    The law is that of fair bits, where the word ends with probability e before each bit, given that the word is in
    MAJORITY. Members of one length are thus equally probable. Let d be the number of 1s minus the number of 0s, and
    g(d) the probability that a word that goes on from d ends with more 1s than 0s. The remaining change of d is a
    two-sided geometric variable, P(s) = (1 - r)/(1 + r) r^|s| with r = (1 - sqrt(e (2 - e)))/(1 - e), so

        g(d) = r^(1 - d)/(1 + r) for d <= 0,    g(d) = 1 - r^d/(1 + r) for d > 0.

    The next bit after difference d is b = +1 or -1 with probability (1 - e)/2 g(d + b)/g(d), and the word ends with
    e/g(d) if d > 0. A prefix of n bits has a weight proportional to g(d): given d, its bits may be in any order.

    For recognition, half of the words are uniform among those with more 1s than 0s, and half among the others. Near
    misses would all be ties, and ties are rare among long words.

    >>> Majority().member(np.array([[0, 1, 1], [0, 1, 0]]))
    array([ True, False])

    Attributes:
        end_probability: e, strictly between 0 and 1.
    """

    end_probability: Probability = 0.1
    name: ClassVar[str] = "majority"
    symbols: ClassVar[tuple[str, ...]] = ("0", "1")

    @cached_property
    def _log_ratio(self) -> float:
        e = self.end_probability
        return float(np.log1p(-np.sqrt(e * (2 - e))) - np.log1p(-e))

    def _log_wins(self, difference: np.ndarray) -> np.ndarray:
        """log g(d)."""
        log_r = self._log_ratio
        norm = np.log1p(np.exp(log_r))
        behind = (1 - np.minimum(difference, 0)) * log_r - norm
        ahead = np.log1p(-np.exp(np.maximum(difference, 1) * log_r - norm))
        return np.where(difference > 0, ahead, behind)

    def _log_gain(self, difference: np.ndarray) -> np.ndarray:
        """log g(d + 1) - log g(d), without subtracting large numbers where d is far below 0."""
        near = np.maximum(difference, 0)
        return np.where(difference < 0, -self._log_ratio, self._log_wins(near + 1) - self._log_wins(near))

    def difference_law(self, n: int) -> tuple[np.ndarray, np.ndarray]:
        """The possible differences after n bits, -n, -n + 2, ..., n, and their probabilities. O(n)."""
        n = checked_count(self.name, n=n)
        differences = np.arange(-n, n + 1, 2)
        gain = self._log_gain(differences[:-1]) + self._log_gain(differences[:-1] + 1)
        return differences, from_log_ratios(_binomial_log_ratios(n) + gain)

    _state_law = difference_law

    def _read(self, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return np.cumsum(2 * tokens - 1, axis=-1), np.zeros(tokens.shape, bool)

    def _laws(self, states: np.ndarray) -> np.ndarray:
        e, ahead = self.end_probability, states > 0
        down = (1 - e) / 2 * np.exp(-self._log_gain(states - 1))
        up = (1 - e) / 2 * np.exp(self._log_gain(states))
        ends = np.where(ahead, e * np.exp(-self._log_wins(np.where(ahead, states, 1))), 0.0)
        return np.stack([down, up, ends], axis=-1)

    def _prefixes(self, count: int, n: int, generator: Generator) -> np.ndarray:
        return _arranged(draw(self.difference_law(n)[1], count, generator), n, generator)

    def _members(self, count: int, n: int, generator: Generator) -> np.ndarray:
        fewest = n // 2 + 1
        law = from_log_ratios(_binomial_log_ratios(n)[fewest:])
        return _arranged(fewest + draw(law, count, generator), n, generator)

    def _non_members(self, count: int, n: int, generator: Generator) -> np.ndarray:
        law = from_log_ratios(_binomial_log_ratios(n)[: n // 2])
        return _arranged(draw(law, count, generator), n, generator)

    def _length_probabilities(self, longest: int) -> np.ndarray:
        """e (1 - e)^l P(more 1s in l fair bits) / g(0); P = 1/2 minus half of the ties."""
        e = self.end_probability
        m = np.arange(longest // 2, dtype=np.float64)
        ties = np.zeros(longest + 1)
        ties[::2] = np.exp(np.concatenate([[0.0], np.cumsum(np.log((2 * m + 1) / (2 * m + 2)))]))
        lengths = e * (1 - e) ** np.arange(longest + 1, dtype=np.float64)
        return lengths * (1 - ties) / 2 / np.exp(self._log_wins(np.array(0)))


def _binomial_log_ratios(n: int) -> np.ndarray:
    """log of binomial(n, k + 1) / binomial(n, k) = (n - k)/(k + 1), for k = 0..n-1."""
    k = np.arange(n, dtype=np.float64)
    return np.log((n - k) / (k + 1))


def _arranged(ones: np.ndarray, n: int, generator: Generator) -> np.ndarray:
    """For each number of 1s, a word drawn uniformly from the words of n bits with that many."""
    tokens = (np.arange(n) < ones[:, None]).astype(np.int8)
    return generator.permuted(tokens, axis=1, out=tokens)


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

    >>> FlipFlop().member(np.array([[0, 4, 1, 4], [0, 4, 1, 3]]))  # w1r1, w1r0
    array([ True, False])

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

    >>> SetComplement(3).member(np.array([[0, 1, 2], [0, 1, 0]]))
    array([ True, False])

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
