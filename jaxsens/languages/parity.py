"""PARITY: words of 0s and 1s with an even number of 1s, by the two-state automaton of Hahn (2020), section 6."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from jaxsens.inputs import checked_count
from jaxsens.languages.base import Language
from jaxsens.languages.distributions import binary_entropy


@dataclass(frozen=True)
class Parity(Language):
    """PARITY: an even number of 1s.

    While the number of 1s is even the word ends with probability p, and else goes on with 0 or 1, (1 - p)/2 each; while
    it is odd it goes on with 0 or 1, 1/2 each. Write s_t for the parity of the 1s among the first t symbols. A prefix
    of n symbols has the probability prod_{t < n} (1/2 if s_t is odd, else (1 - p)/2). So, given that the word has at
    least n symbols, s_1, ..., s_n are independent: P(s_t even) = (1 - p)/(2 - p) for t < n, and 1/2 for t = n >= 1.

    Near misses: any one symbol exchanged. (`logic`'s formula "parity" says that the number of 1s is odd.)

    Attributes:
        end_probability: p, strictly between 0 and 1.
    """

    end_probability: float = 0.1
    name: ClassVar[str] = "parity"

    @property
    def alphabet(self) -> tuple[str, ...]:
        """0 and 1."""
        return ("0", "1")

    def marginal(self, n: int) -> np.ndarray:
        """The even state's law for n = 0, and the average of both states' laws for every n >= 1."""
        n = checked_count(self.name, n=n)
        laws = self._laws(np.arange(2))
        return laws[0] if n == 0 else laws.mean(axis=0)

    def optimal_cross_entropy(self, n: int) -> float:
        """h(p) + (1 - p) log 2 in the even state, log 2 in the odd one, and for n >= 1 their average.

        For n >= 1 it is less than the unigram level by what the state tells of the end: h(p/2) - h(p)/2.
        """
        n = checked_count(self.name, n=n)
        p = self.end_probability
        even = binary_entropy(p) + (1 - p) * float(np.log(2))
        return even if n == 0 else (even + float(np.log(2))) / 2

    def _states(self, tokens: np.ndarray) -> np.ndarray:
        states = np.zeros((*tokens.shape[:-1], tokens.shape[-1] + 1), np.int8)
        np.bitwise_xor.accumulate(tokens.astype(np.int8), axis=-1, out=states[..., 1:])
        return states

    def _laws(self, states: np.ndarray) -> np.ndarray:
        p = self.end_probability
        return np.array([[(1 - p) / 2, (1 - p) / 2, p], [0.5, 0.5, 0.0]])[states]

    def _prefixes(self, count: int, n: int, generator: np.random.Generator) -> np.ndarray:
        return self._bits(count, n, generator, generator.random((count, 1)) < 0.5)

    def _members(self, count: int, n: int, generator: np.random.Generator) -> np.ndarray:
        return self._bits(count, n, generator, np.zeros((count, 1), bool))

    def _bits(self, count: int, n: int, generator: np.random.Generator, last_odd: np.ndarray) -> np.ndarray:
        """Words whose inner states are drawn independently, and whose last one is given."""
        if n == 0:
            return np.zeros((count, 0), np.int8)
        odd = np.empty((count, n + 1), bool)
        odd[:, :1] = False
        odd[:, 1:n] = generator.random((count, n - 1)) < 1 / (2 - self.end_probability)
        odd[:, n:] = last_odd
        return (odd[:, 1:] ^ odd[:, :-1]).astype(np.int8)

    def _length_probabilities(self, longest: int) -> np.ndarray:
        p = self.end_probability
        later = (1 - p) * p / 2 * (1 - p / 2) ** np.arange(longest, dtype=np.float64)
        return np.concatenate([[p], later])
