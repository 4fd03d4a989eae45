"""What every language offers: a law over its words and their prefixes, samples, and cross-entropies.

A language here is a set of words with a probability law over them, as in Hahn (2020), section 6. Read from left to
right, the law gives the probability of each symbol, and of the word's end, after a prefix. Everything is exact:
probabilities in closed form, samples without rejection. Pure NumPy.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy.random import Generator

from jaxsens.core.base import inputs
from jaxsens.core.base.errors import InputError, collecting
from jaxsens.core.base.inputs import checked_count
from jaxsens.core.base.strict import checked_by

NO_PREFIX = -(2**31)
"""The state of a sequence of symbols with which no word begins."""

CELLS = 2**22
"""Symbols sampled at a time, so that many long words need little more memory than the result."""

MISSING = 1e-12
"""Total probability of the lengths that `sample_words` leaves out if it has no bound."""

Probability = Annotated[float, checked_by(inputs.number, above=0, below=1)]
"""An option of a language that is a probability, strictly between 0 and 1."""

LONGEST = 2**20
"""Longest words that are sampled without being asked for."""


def entropy(probabilities: Float[np.ndarray, "*shape v"]) -> Float[np.ndarray, "*shape"]:
    """The entropy of each row, in nats; 0 log 0 is 0."""
    positive = np.where(probabilities > 0, probabilities, 1.0)
    return np.sum(positive * -np.log(positive), axis=-1)


def binary_entropy(probability: float) -> float:
    """The entropy, in nats, of an event with a probability strictly between 0 and 1."""
    return -float(probability * np.log(probability) + (1 - probability) * np.log1p(-probability))


def from_log_ratios(log_ratios: Float[np.ndarray, " m"]) -> Float[np.ndarray, " m1"]:
    """The distribution on 0..m with log(weight_{i+1} / weight_i) = log_ratios[i], which may be infinite.

    Logarithms are added up from the mode outwards, so that large numbers are never subtracted: at a million outcomes,
    the probabilities that matter keep 14 digits. (Differences of log-gamma functions keep 9.)
    """
    mode = int(np.argmax(np.concatenate([[0.0], np.cumsum(log_ratios)])))
    above = np.cumsum(log_ratios[mode:])
    below = np.cumsum(-log_ratios[:mode][::-1])[::-1]
    weights = np.exp(np.concatenate([below, [0.0], above]))
    return weights / np.sum(weights)


def draw(
    probabilities: Float[np.ndarray, " m"], count: int, generator: Generator
) -> Int[np.ndarray, " count"]:
    """Independent draws from a distribution on 0..m-1, by inversion. An outcome of probability 0 is never drawn."""
    cumulative = np.cumsum(probabilities)
    return np.searchsorted(cumulative, generator.random(count) * cumulative[-1], side="right")


class Words(NamedTuple):
    """Words of several lengths that `sample_words` draws: `tokens` (count, longest) int32, padded with the end symbol;
    `lengths` (count,)."""

    tokens: Int[np.ndarray, "count longest"]
    lengths: Int[np.ndarray, " count"]


class Language(ABC):
    """A set of words over an alphabet, with a law over them.

    Symbols are numbered as in `alphabet`. Among the predictions, `end` = len(alphabet) stands for the word's end.
    Wherever "after n symbols" is said, the prefix of n symbols is drawn as `sample_prefixes` draws it: the first n
    symbols of a word of the law that has at least n symbols. All randomness comes from the NumPy generator given.

    A class of your own is a `config` of `jaxsens.core.base.strict`, which checks its options: `p: Probability = 0.5`.

    >>> from jaxsens.languages import language
    >>> language("parity").member(np.array([[0, 1, 1], [0, 1, 0]]))
    array([ True, False])

    Raises:
        InputError: From the class and every method, naming each argument that cannot be used and the remedy.
    """

    name: ClassVar[str]
    symbols: ClassVar[tuple[str, ...]]

    @property
    def alphabet(self) -> tuple[str, ...]:
        """The symbols' names, in the order of their numbers."""
        return self.symbols

    @property
    def end(self) -> int:
        """The number of the outcome "the word ends here", one more than the last symbol's."""
        return len(self.alphabet)

    @property
    def outcomes(self) -> int:
        """The number of outcomes of a prediction: the symbols and the end."""
        return len(self.alphabet) + 1

    @property
    def settings(self) -> dict[str, Any]:
        """The name and the options. `language(**settings)` is an equal language."""
        fields = dataclasses.fields(self)  # pyright: ignore[reportArgumentType]
        return {"name": self.name, **{field.name: getattr(self, field.name) for field in fields}}

    @property
    def no_law(self) -> str | None:
        """Why there is no law of the next symbol, so that it cannot be predicted; None if there is one."""
        return None

    def member(self, tokens: Int[np.ndarray, "*batch n"]) -> Bool[np.ndarray, "*batch"]:
        """Whether each word of n symbols is in the language."""
        states = self._states(self._checked_tokens(tokens))[..., -1]
        sound = states != NO_PREFIX
        return sound & (self._laws(np.where(sound, states, 0))[..., self.end] > 0)

    def length_probabilities(self, longest: int) -> Float[np.ndarray, " lengths"]:
        """P(a word has l symbols), l = 0..longest. They add up to less than 1 if words may be longer. O(longest)."""
        return self._length_probabilities(checked_count(self.name, longest=longest))

    def sample_words(self, count: int, generator: Generator, longest: int | None = None) -> Words:
        """Independent words of the law or, with `longest`, of the law given that a word has at most `longest` symbols.

        Raises:
            InputError: Also if words of more than 2^20 symbols have a probability above 1e-12 and there is no
                `longest`, and if no word is as short as `longest`.
        """
        given = 0 if longest is None else longest
        count, most = self._checked_sampling(generator, count=count, longest=given)
        lengths = draw(self._lengths_to_draw(None if longest is None else most), count, generator)
        tokens = np.full((count, int(lengths.max(initial=0))), self.end, np.int32)
        for length in np.unique(lengths):
            rows = np.flatnonzero(lengths == length)
            tokens[rows, :length] = self._in_parts(self._members, len(rows), int(length), generator)
        return Words(tokens, lengths)

    def sample_prefixes(self, count: int, n: int, generator: Generator) -> Int[np.ndarray, "count n"]:
        """Independent prefixes of exactly n symbols, int32: the first n symbols of words that have at least n.

        They are drawn exactly, without rejection, in O(n) operations each (DYCK: O(n log n)).
        """
        count, n = self._checked_sampling(generator, count=count, n=n)
        return self._in_parts(self._prefixes, count, n, generator)

    def sample_labelled(
        self, count: int, n: int, generator: Generator
    ) -> tuple[Int[np.ndarray, "count n"], Bool[np.ndarray, " count"]]:
        """Words of n symbols for recognition, int32, and whether each is in the language.

        Half are members, drawn from the law given the length n, and half are not; if `count` is odd, a coin decides one
        word. Non-members are near misses: members with one symbol exchanged, as the language's class says. If no member
        has length n, all words are prefixes of longer words (for a formula, uniform words); if all words of n symbols
        are members, so are these. The empty word has its true label.
        """
        count, n = self._checked_sampling(generator, count=count, n=n)
        if n == 0:
            tokens = np.zeros((count, 0), np.int32)
            return tokens, self.member(tokens)
        if not self._has_members(n):
            return self._in_parts(self._without_members, count, n, generator), np.zeros(count, bool)
        if not self._has_non_members(n):
            return self._in_parts(self._members, count, n, generator), np.ones(count, bool)
        labels = np.arange(count) < (count + int(generator.integers(0, 2))) // 2
        generator.shuffle(labels)
        tokens = np.empty((count, n), np.int32)
        yes, no = np.flatnonzero(labels), np.flatnonzero(~labels)
        tokens[yes] = self._in_parts(self._members, len(yes), n, generator)
        tokens[no] = self._in_parts(self._non_members, len(no), n, generator)
        return tokens, labels

    def has_members(self, n: int) -> bool:
        """Whether some word has n symbols. True where a formula's words are drawn by rejection, and it is not known."""
        n = checked_count(self.name, n=n)
        return self._has_members(n) if n else bool(self.member(np.zeros(0, np.int64)))

    def sample_members(self, count: int, n: int, generator: Generator) -> Int[np.ndarray, "count n"]:
        """Independent words of exactly n symbols, int32, drawn from the law given the length.

        Raises:
            InputError: Also if no word has n symbols.
        """
        count, n = self._checked_sampling(generator, count=count, n=n)
        if not self.has_members(n):
            raise InputError.of("n", n, "no word has this length; give another", subject=self.name)
        return self._in_parts(self._members, count, n, generator)

    def next_probabilities(self, prefixes: Int[np.ndarray, "*batch n"]) -> Float[np.ndarray, "*batch n1 v"]:
        """The law of the next symbol after 0, 1, ..., n symbols of each prefix: (..., n + 1, outcomes)."""
        return self._laws(self._checked_states(prefixes))

    def last_probabilities(self, prefixes: Int[np.ndarray, "*batch n"]) -> Float[np.ndarray, "*batch v"]:
        """The law of the next symbol after each whole prefix: only the last row of `next_probabilities`."""
        return self._laws(self._checked_states(prefixes)[..., -1])

    def marginal(self, n: int) -> Float[np.ndarray, " v"]:
        """The law of the symbol after n symbols if the prefix is unknown: the mean of `last_probabilities`. Exact."""
        states, law = self._state_law(n)
        return law @ self._laws(states)

    # Cross-entropies of predicting the symbol after n symbols, in nats.

    def optimal_cross_entropy(self, n: int) -> float:
        """The least cross-entropy possible after n symbols: the mean entropy of the next symbol given the prefix."""
        states, law = self._state_law(n)
        return float(law @ entropy(self._laws(states)))

    def unigram_cross_entropy(self, n: int) -> float:
        """The least cross-entropy after n symbols of a prediction that does not depend on the prefix.

        It is the entropy of `marginal(n)`, which is also the prediction that attains it. This is the "unigram chance
        level" to which, by Theorem 6 of Hahn (2020), the cross-entropy of soft attention on PARITY converges.
        """
        return float(entropy(self.marginal(n)))

    def chance_cross_entropy(self, n: int) -> float:
        """The cross-entropy of a uniform guess among all outcomes, including the end: log(outcomes), for every n.

        A model whose logits are all equal is at this level. What Theorem 6 calls chance is `unigram_cross_entropy`.
        """
        checked_count(self.name, n=n)
        return float(np.log(self.outcomes))

    def _states(self, tokens: np.ndarray) -> np.ndarray:
        """The states of each prefix of (..., n) tokens: (..., n + 1), NO_PREFIX from where no word begins so."""
        after, wrong = self._read(tokens)
        states = np.zeros((*tokens.shape[:-1], tokens.shape[-1] + 1), np.int64)
        states[..., 1:] = np.where(np.logical_or.accumulate(wrong, axis=-1), NO_PREFIX, after)
        return states

    # What each language defines.

    def _state_law(self, n: int) -> tuple[np.ndarray, np.ndarray]:
        """The possible states after n symbols, and their probabilities; not needed with closed forms of both above."""
        raise NotImplementedError

    @abstractmethod
    def _read(self, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """What matters for what follows after each of (..., n) tokens, integers; and where a token cannot stand.

        Before the first token the state is 0. After one that cannot stand, states mean nothing.
        """

    @abstractmethod
    def _laws(self, states: np.ndarray) -> np.ndarray:
        """The law of the next symbol in each state, none of them NO_PREFIX: (..., outcomes)."""

    @abstractmethod
    def _prefixes(self, count: int, n: int, generator: Generator) -> np.ndarray:
        """See `sample_prefixes`."""

    @abstractmethod
    def _members(self, count: int, n: int, generator: Generator) -> np.ndarray:
        """Words from the law given the length n, which some words have."""

    @abstractmethod
    def _length_probabilities(self, longest: int) -> np.ndarray:
        """See `length_probabilities`."""

    def _has_members(self, n: int) -> bool:
        """Whether some word has n >= 1 symbols."""
        return True

    def _has_non_members(self, n: int) -> bool:
        """Whether some n >= 1 symbols are no word."""
        return True

    def _without_members(self, count: int, n: int, generator: Generator) -> np.ndarray:
        """What recognition is given at a length n >= 1 without members."""
        return self._prefixes(count, n, generator)

    def _non_members(self, count: int, n: int, generator: Generator) -> np.ndarray:
        """Members of length n >= 1 with one symbol replaced by another, both drawn uniformly."""
        tokens = self._members(count, n, generator)
        where = generator.integers(0, n, count)
        shift = generator.integers(1, len(self.alphabet), count)
        rows = np.arange(count)
        tokens[rows, where] = (tokens[rows, where] + shift) % len(self.alphabet)
        return tokens

    def _checked_sampling(self, generator: object, **counts: Any) -> list[int]:
        with collecting(self.name) as problems:
            found = [inputs.count(name, value, problems) for name, value in counts.items()]
            inputs.generator(generator, problems)
        return found

    def _checked_tokens(self, tokens: np.ndarray, name: str = "tokens") -> Int[np.ndarray, "*batch n"]:
        with collecting(self.name) as problems:
            return inputs.words(tokens, self.alphabet, problems, name)

    def _checked_states(self, prefixes: np.ndarray) -> np.ndarray:
        tokens = self._checked_tokens(prefixes, "prefixes")
        states = self._states(tokens)
        bad = states == NO_PREFIX
        if bad.any():
            row = np.unravel_index(int(np.argmax(bad[..., -1])), bad.shape[:-1])
            length = int(np.argmax(bad[row]))
            shown = "".join(self.alphabet[symbol] for symbol in tokens[row][max(length - 40, 0) : length])
            raise InputError(
                f"{self.name}: prefixes: no word of the language begins with the first {length} symbols of row "
                f"{tuple(map(int, row))}, which end in {shown!r}: give prefixes of its words"
            )
        return states

    def _lengths_to_draw(self, longest: int | None) -> np.ndarray:
        if longest is not None:
            found = self._length_probabilities(longest)
            if not found.any():
                remedy = "no word is so short; give a larger number"
                raise InputError.of("longest", longest, remedy, subject=self.name)
            return found
        bound = 2**10
        while True:
            found = self._length_probabilities(bound)
            missing = 1 - float(np.sum(found))
            if missing <= MISSING:
                return found
            if bound >= LONGEST:
                remedy = "give longest, or options that make words shorter"
                text = f"words of more than {bound} symbols have probability {missing:.2g}; {remedy}"
                raise InputError.of("longest", None, text, subject=self.name)
            bound *= 4

    def _in_parts(
        self, sampler: Callable[[int, int, Generator], np.ndarray], count: int, n: int, generator: Generator
    ) -> np.ndarray:
        tokens = np.empty((count, n), np.int32)
        rows = max(1, CELLS // (n + 1))
        for first in range(0, count, rows):
            part = tokens[first : first + rows]
            part[:] = sampler(len(part), n, generator)
        return tokens
