"""MAJORITY: words of fair bits with more 1s than 0s."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np

from jaxsens.base.inputs import checked_count
from jaxsens.languages.base import Language, draw, entropy, from_log_ratios


@dataclass(frozen=True)
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

    end_probability: float = 0.1
    name: ClassVar[str] = "majority"
    symbols: ClassVar[tuple[str, ...]] = ("0", "1")

    @cached_property
    def _log_ratio(self) -> float:
        """log r, from e."""
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

    def marginal(self, n: int) -> np.ndarray:
        """The mean of the next symbol's law over the possible differences. O(n)."""
        differences, law = self.difference_law(n)
        return law @ self._laws(differences)

    def optimal_cross_entropy(self, n: int) -> float:
        """The mean entropy of the next symbol's law over the possible differences. O(n)."""
        differences, law = self.difference_law(n)
        return float(law @ entropy(self._laws(differences)))

    def _read(self, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The difference d."""
        return np.cumsum(2 * tokens - 1, axis=-1), np.zeros(tokens.shape, bool)

    def _laws(self, states: np.ndarray) -> np.ndarray:
        e, ahead = self.end_probability, states > 0
        down = (1 - e) / 2 * np.exp(-self._log_gain(states - 1))
        up = (1 - e) / 2 * np.exp(self._log_gain(states))
        ends = np.where(ahead, e * np.exp(-self._log_wins(np.where(ahead, states, 1))), 0.0)
        return np.stack([down, up, ends], axis=-1)

    def _prefixes(self, count: int, n: int, generator: np.random.Generator) -> np.ndarray:
        return _arranged(draw(self.difference_law(n)[1], count, generator), n, generator)

    def _members(self, count: int, n: int, generator: np.random.Generator) -> np.ndarray:
        fewest = n // 2 + 1
        law = from_log_ratios(_binomial_log_ratios(n)[fewest:])
        return _arranged(fewest + draw(law, count, generator), n, generator)

    def _non_members(self, count: int, n: int, generator: np.random.Generator) -> np.ndarray:
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


def _arranged(ones: np.ndarray, n: int, generator: np.random.Generator) -> np.ndarray:
    """For each number of 1s, a word drawn uniformly from the words of n bits with that many."""
    tokens = (np.arange(n) < ones[:, None]).astype(np.int8)
    return generator.permuted(tokens, axis=1, out=tokens)
