"""1* and a^n b^n: the languages that Hahn (2020), section 5, names as within reach of self-attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from jaxsens.inputs import checked_count
from jaxsens.languages.base import NO_PREFIX, Language
from jaxsens.languages.distributions import binary_entropy


@dataclass(frozen=True)
class OneStar(Language):
    """1*: words over 0 and 1 without a 0. After every prefix the word ends with probability p, or else a 1 follows.

    There is one prefix of each length. Near misses: one 1, anywhere, becomes a 0.

    Attributes:
        end_probability: p, strictly between 0 and 1.
    """

    end_probability: float = 0.1
    name: ClassVar[str] = "one-star"

    @property
    def alphabet(self) -> tuple[str, ...]:
        """0 and 1."""
        return ("0", "1")

    def marginal(self, n: int) -> np.ndarray:
        """The law after the one prefix there is: 1 with 1 - p, end with p."""
        n = checked_count(self.name, n=n)
        return self._laws(np.array(0))

    def optimal_cross_entropy(self, n: int) -> float:
        """h(p), the same as the unigram level: the one prefix says nothing."""
        n = checked_count(self.name, n=n)
        return binary_entropy(self.end_probability)

    def _states(self, tokens: np.ndarray) -> np.ndarray:
        states = np.zeros((*tokens.shape[:-1], tokens.shape[-1] + 1), np.int64)
        states[..., 1:][np.logical_or.accumulate(tokens == 0, axis=-1)] = NO_PREFIX
        return states

    def _laws(self, states: np.ndarray) -> np.ndarray:
        p = self.end_probability
        return np.array([[0.0, 1 - p, p]])[states]

    def _prefixes(self, count: int, n: int, generator: np.random.Generator) -> np.ndarray:
        return np.ones((count, n), np.int8)

    def _members(self, count: int, n: int, generator: np.random.Generator) -> np.ndarray:
        return np.ones((count, n), np.int8)

    def _length_probabilities(self, longest: int) -> np.ndarray:
        p = self.end_probability
        return p * (1 - p) ** np.arange(longest + 1, dtype=np.float64)


@dataclass(frozen=True)
class EqualBlocks(Language):
    """a^m b^m: m as, then as many bs.

    With probability p the as stop, at the start or after any a; else another a follows. Then as many bs follow, and the
    word ends. So P(m) = p (1 - p)^m. Given that the word has at least n symbols, m - ceil(n/2) has this same law: after
    long prefixes nearly as many bs as as have been read, and the next symbol hangs on exact counts. Of the prefixes,
    (1 - p)^floor(n/2) consist of as only. Near misses: any symbol exchanged.

    Attributes:
        stop_probability: p, strictly between 0 and 1.
    """

    stop_probability: float = 0.1
    name: ClassVar[str] = "equal-blocks"

    @property
    def alphabet(self) -> tuple[str, ...]:
        """The letters a and b."""
        return ("a", "b")

    def marginal(self, n: int) -> np.ndarray:
        """After an even number of symbols the word ends with p; an a comes with (1 - p)^(floor(n/2) + 1); else a b."""
        n = checked_count(self.name, n=n)
        p = self.stop_probability
        more = (1 - p) ** (n // 2 + 1)
        end = p if n % 2 == 0 else 0.0
        return np.array([more, max(1 - more - end, 0.0), end])

    def optimal_cross_entropy(self, n: int) -> float:
        """h(p) after as only, and 0 once a b has come: (1 - p)^floor(n/2) h(p)."""
        n = checked_count(self.name, n=n)
        p = self.stop_probability
        return (1 - p) ** (n // 2) * binary_entropy(p)

    def _states(self, tokens: np.ndarray) -> np.ndarray:
        """0 at the start, 1 after as only, 2 while bs are owed, 3 when the word is whole."""
        is_a = tokens == 0
        b_seen = np.logical_or.accumulate(~is_a, axis=-1)
        owed = np.cumsum(np.where(is_a, 1, -1).astype(np.int8), axis=-1, dtype=np.int64)
        states = np.zeros((*tokens.shape[:-1], tokens.shape[-1] + 1), np.int64)
        states[..., 1:] = np.where(b_seen, np.where(owed > 0, 2, 3), 1)
        wrong = np.logical_or.accumulate((is_a & b_seen) | (owed < 0), axis=-1)
        states[..., 1:][wrong] = NO_PREFIX
        return states

    def _laws(self, states: np.ndarray) -> np.ndarray:
        p = self.stop_probability
        return np.array([[1 - p, 0.0, p], [1 - p, p, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])[states]

    def _prefixes(self, count: int, n: int, generator: np.random.Generator) -> np.ndarray:
        half = (n + 1) // 2 + generator.geometric(self.stop_probability, (count, 1)) - 1
        return (np.arange(n) >= half).astype(np.int8)

    def _members(self, count: int, n: int, generator: np.random.Generator) -> np.ndarray:
        return np.broadcast_to((np.arange(n) >= n // 2).astype(np.int8), (count, n)).copy()

    def _has_members(self, n: int) -> bool:
        return n % 2 == 0

    def _length_probabilities(self, longest: int) -> np.ndarray:
        p = self.stop_probability
        found = np.zeros(longest + 1)
        found[::2] = p * (1 - p) ** np.arange(longest // 2 + 1, dtype=np.float64)
        return found
