"""DYCK-k: balanced words of k kinds of brackets, by the grammar S -> (S)S | [S]S | empty of Hahn (2020), section 6."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from jaxsens import inputs
from jaxsens.errors import Faults, collecting
from jaxsens.inputs import checked_count
from jaxsens.languages.base import NO_PREFIX, Language
from jaxsens.languages.distributions import binary_entropy, draw
from jaxsens.languages.walks import (
    final_height_law,
    final_heights,
    innermost_open,
    last_step_down,
    uniform_walks,
)

_PAIRS = ("()", "[]", "{}", "<>")


class ClosingChoice(NamedTuple):
    """Of each prefix: `hard`, whether it ends in a closing bracket and leaves one open; `kind`, which kind closes next.

    `kind` is 0..k-1, or -1 where nothing is open.
    """

    hard: Bool[np.ndarray, "*batch"]
    kind: Int[np.ndarray, "*batch"]


@dataclass(frozen=True)
class Dyck(Language):
    """DYCK-k, balanced brackets: `kinds` = 2 is 2DYCK.

    The grammar expands S -> (S)S, S -> [S]S, ... with probability p/k each and S -> empty with 1 - p. Read from left to
    right: after every prefix a bracket opens with probability p, of any kind alike; with 1 - p the innermost open one
    closes, or if none is open the word ends. So, given that the word has at least n symbols, the heights (how many
    brackets are open) are a walk of n steps, up with probability p, that is conditioned never to go below 0. For
    p > 1/2 a word may never end (with probability 2 - 1/p), for p = 1/2 its mean length is infinite; prefixes have the
    law stated all the same.

    Symbols: the k opening brackets, then the k closing ones in the same order. Near misses: with two kinds or more,
    one bracket gets another kind, so that all heights stay as they were; with one kind, any symbol exchanged.

    Attributes:
        kinds: k, how many kinds of brackets.
        open_probability: p, strictly between 0 and 1.
    """

    kinds: int = 2
    open_probability: float = 0.45
    name: ClassVar[str] = "dyck"

    def _checked_option(self, name: str, value: Any, faults: Faults) -> Any:
        if name == "kinds":
            return inputs.count(name, value, faults, least=1)
        return super()._checked_option(name, value, faults)

    @property
    def alphabet(self) -> tuple[str, ...]:
        """For two kinds: ( [ ) ]. The fifth kind and later ones are named (5 and )5."""
        names = [_PAIRS[i] if i < len(_PAIRS) else (f"({i + 1}", f"){i + 1}") for i in range(self.kinds)]
        return (*(left for left, _ in names), *(right for _, right in names))

    def height_law(self, n: int) -> tuple[Int[np.ndarray, " m"], Float[np.ndarray, " m"]]:
        """The heights possible after n symbols, and their probabilities. O(n)."""
        n = checked_count(self.name, n=n)
        return final_heights(n), final_height_law(n, self.open_probability)

    def marginal(self, n: int) -> np.ndarray:
        """p/k for each opening bracket; of 1 - p, the share of balanced prefixes for the end, the rest for closing."""
        heights, law = self.height_law(n)
        p, balanced = self.open_probability, float(law[heights == 0].sum())
        opens = np.full(self.kinds, p / self.kinds)
        closes = np.full(self.kinds, (1 - p) * (1 - balanced) / self.kinds)
        return np.concatenate([opens, closes, [(1 - p) * balanced]])

    def optimal_cross_entropy(self, n: int) -> float:
        """h(p) + p log k after every prefix: whether to open, and which kind; what closes is known."""
        n = checked_count(self.name, n=n)
        p = self.open_probability
        return binary_entropy(p) + p * float(np.log(self.kinds))

    # Theorem 6

    def closing_choice_probability(self, n: int) -> float:
        """P0(n): that a prefix of n symbols ends in a closing bracket and is not balanced. Exact, O(n).

        After such a prefix the next closing bracket must match an opening one that is not the last symbol. Exchanging
        that one for another kind gives a prefix of the same probability that asks for another closing bracket.
        """
        heights, law = self.height_law(n)
        if n == 0:
            return 0.0
        return float(np.sum((law * last_step_down(n, heights))[heights > 0]))

    def theorem6_gap(self, n: int) -> float:
        """P0(n) (1 - p) log k: what it costs not to know the kind to close after those prefixes, in nats."""
        return self.closing_choice_probability(n) * (1 - self.open_probability) * float(np.log(self.kinds))

    def theorem6_bound(self, n: int) -> float:
        """The optimum plus P0(n) (1 - p) log k: the least cross-entropy of a prediction that is blind to one exchange.

        Hahn (2020), Theorem 6: the predictions of soft attention after prefixes that differ in one opening bracket
        other than the last symbol come together as n grows, so its cross-entropy comes to at least this level. It
        bounds every predictor that predicts the same after a prefix of `closing_choice` and after the prefixes with
        another kind in the place of the bracket to be closed.
        """
        return self.optimal_cross_entropy(n) + self.theorem6_gap(n)

    def closing_choice(self, prefixes: Int[np.ndarray, "*batch n"]) -> ClosingChoice:
        """Which prefixes end in a closing bracket and are not balanced, and which kind each has to close next.

        Raises:
            InputError: if a row is no prefix of a word.
        """
        kind = self._checked_states(prefixes)[..., -1] - 1
        prefixes = np.asarray(prefixes)
        closed = prefixes[..., -1] >= self.kinds if prefixes.shape[-1] else np.zeros(kind.shape, bool)
        return ClosingChoice(closed & (kind >= 0), kind)

    def closing_choice_loss(
        self, prefixes: Int[np.ndarray, "*batch n"], log_probabilities: Float[np.ndarray, "*batch v"]
    ) -> Float[np.ndarray, "*batch"]:
        """The part of the cross-entropy after each prefix that is due to choosing the kind of a closing bracket.

        With q the prediction exp(log_probabilities), which need not be normalised (logits will do): after a prefix that
        ends in a closing bracket and leaves kind a open, (1 - p) times -log(q(close a) / sum_b q(close b)); after any
        other, 0. Its mean over prefixes of n symbols is 0 at the optimum, and `theorem6_gap(n)` for a prediction that
        gives every closing bracket the same probability.

        Raises:
            InputError: if a row is no prefix of a word, or the shapes do not agree.
        """
        choice = self.closing_choice(prefixes)
        values = np.asarray(log_probabilities, np.float64)
        with collecting(self.name) as faults:
            if values.shape != (*choice.kind.shape, self.outcomes):
                wanted = (*choice.kind.shape, self.outcomes)
                faults.add("log_probabilities' shape", values.shape, f"one number an outcome, {wanted}")
        closing = values[choice.hard, self.kinds : 2 * self.kinds]
        right = np.take_along_axis(closing, choice.kind[choice.hard][:, None], axis=-1)[:, 0]
        possible = right > -np.inf
        lost = np.full(len(right), np.inf)
        lost[possible] = np.logaddexp.reduce(closing[possible], axis=-1) - right[possible]
        found = np.zeros(choice.kind.shape)
        found[choice.hard] = (1 - self.open_probability) * lost
        return found

    # What the base class asks for

    def _states(self, tokens: np.ndarray) -> np.ndarray:
        """0 where nothing is open, and 1 + the kind of the innermost open bracket elsewhere."""
        n = tokens.shape[-1]
        rows = tokens.reshape(math.prod(tokens.shape[:-1]), n)
        opening, kind = rows < self.kinds, rows % self.kinds
        states = np.zeros((len(rows), n + 1), np.int64)
        where = innermost_open(opening)
        top = np.take_along_axis(kind, np.maximum(where, 0), axis=1)
        states[:, 1:] = np.where(where >= 0, top + 1, 0)
        fits = opening | (states[:, :-1] == kind + 1)
        states[:, 1:][~np.logical_and.accumulate(fits, axis=1)] = NO_PREFIX
        return states.reshape(*tokens.shape[:-1], n + 1)

    def _laws(self, states: np.ndarray) -> np.ndarray:
        p, k = self.open_probability, self.kinds
        laws = np.zeros((k + 1, 2 * k + 1))
        laws[:, :k] = p / k
        laws[0, 2 * k] = 1 - p
        laws[np.arange(1, k + 1), np.arange(k, 2 * k)] = 1 - p
        return laws[states]

    def _prefixes(self, count: int, n: int, generator: np.random.Generator) -> np.ndarray:
        heights, law = self.height_law(n)
        return self._brackets(heights[draw(law, count, generator)], n, generator)

    def _members(self, count: int, n: int, generator: np.random.Generator) -> np.ndarray:
        return self._brackets(np.zeros(count, np.int64), n, generator)

    def _brackets(self, heights: np.ndarray, n: int, generator: np.random.Generator) -> np.ndarray:
        """A prefix of n symbols to each final height: a uniform walk, and uniform kinds for what opens."""
        opening = uniform_walks(heights, n, generator) > 0
        kind = generator.integers(0, self.kinds, opening.shape, dtype=np.int32)
        if self.kinds > 1 and n > 0:
            opened = np.take_along_axis(kind, innermost_open(opening)[:, :-1], axis=1)
            kind[:, 1:] = np.where(opening[:, 1:], kind[:, 1:], opened)
        return kind + self.kinds * ~opening

    def _has_members(self, n: int) -> bool:
        return n % 2 == 0

    def _non_members(self, count: int, n: int, generator: np.random.Generator) -> np.ndarray:
        if self.kinds == 1:
            return super()._non_members(count, n, generator)
        tokens = self._members(count, n, generator)
        rows, where = np.arange(count), generator.integers(0, n, count)
        side, kind = np.divmod(tokens[rows, where], self.kinds)
        other = (kind + generator.integers(1, self.kinds, count)) % self.kinds
        tokens[rows, where] = side * self.kinds + other
        return tokens

    def _length_probabilities(self, longest: int) -> np.ndarray:
        """P(2m symbols) = Catalan(m) p^m (1 - p)^(m + 1), from Catalan(m + 1) / Catalan(m) = 2 (2m + 1)/(m + 2)."""
        p = self.open_probability
        m = np.arange(longest // 2, dtype=np.float64)
        logs = np.cumsum(np.log(2 * (2 * m + 1) / (m + 2)) + np.log(p) + np.log1p(-p))
        found = np.zeros(longest + 1)
        found[::2] = (1 - p) * np.exp(np.concatenate([[0.0], logs]))
        return found
