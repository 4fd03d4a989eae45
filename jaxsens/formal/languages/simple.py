"""PARITY, 1* and a^n b^n: the languages of Hahn (2020), sections 5 and 6, with a few states each; and MAJORITY."""

from __future__ import annotations

from functools import cached_property
from typing import ClassVar

import numpy as np
from numpy.random import Generator

from jaxsens.core.base.inputs import checked_count
from jaxsens.core.base.strict import config
from jaxsens.formal.languages.base import Language, Probability, draw, from_log_ratios


@config
class Parity(Language):
    """PARITY: an even number of 1s.

    While the number of 1s is even, the word ends with probability p and goes on with 0 or 1 with (1 - p)/2 each. While
    it is odd, the word goes on with 0 or 1, with 1/2 each. Let s_t be the parity of the 1s among the first t symbols. A
    prefix of n symbols has the probability prod_{t < n} (1/2 if s_t is odd, else (1 - p)/2). Given that the word has at
    least n symbols, s_1, ..., s_n are therefore independent: P(s_t even) = (1 - p)/(2 - p) for t < n, and 1/2 for
    t = n >= 1.

    Near misses: any one symbol exchanged. (The formula "parity" of `logic` says that the number of 1s is odd.)

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
