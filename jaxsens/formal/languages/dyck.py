"""DYCK-k: balanced words of k kinds of brackets, by the grammar S -> (S)S | [S]S | empty of Hahn (2020), section 6.

An opening bracket is a step up, a closing one a step down, so words are walks of steps +1 and -1 that never go below 0.
N(n, h) = (h + 1) / (n + 1) * binomial(n + 1, (n - h) / 2) such walks of n steps end at height h (the ballot numbers; h
and n are both even or both odd).
"""

from __future__ import annotations

import math
from typing import ClassVar, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy.random import Generator

from jaxsens.core.base.errors import collecting
from jaxsens.core.base.inputs import array_of, checked_count
from jaxsens.core.base.strict import Positive, config
from jaxsens.formal.languages.base import Language, Probability, draw, from_log_ratios
from jaxsens.formal.logic.library import brackets


class ClosingChoice(NamedTuple):
    """For each prefix, whether it ends in a closing bracket and leaves one open (`hard`), and which `kind` closes next.

    `kind` is 0..k-1, or -1 if no bracket is open.
    """

    hard: Bool[np.ndarray, "*batch"]
    kind: Int[np.ndarray, "*batch"]


@config
class Dyck(Language):
    """DYCK-k, balanced brackets: `kinds` = 2 is 2DYCK.

    The grammar expands S -> (S)S, S -> [S]S, ... with probability p/k each and S -> empty with 1 - p. Read from left to
    right, after every prefix a bracket opens with probability p, all kinds equally probable; with 1 - p the innermost
    open bracket closes, or the word ends if none is open. Given that the word has at least n symbols, the heights (the
    number of open brackets) are therefore a walk of n steps, up with probability p, conditioned never to go below 0.
    For p > 1/2 a word may never end (with probability 2 - 1/p), and for p = 1/2 its mean length is infinite. The law of
    prefixes holds nevertheless.

    Symbols: the k opening brackets, then the k closing ones in the same order. Near misses: with two kinds or more, one
    bracket gets another kind, so that all heights stay the same; with one kind, any symbol exchanged.

    >>> Dyck(kinds=1).member(np.array([[0, 1, 0, 1], [1, 0, 0, 1]]))
    array([ True, False])

    Attributes:
        kinds: k, the number of kinds of brackets.
        open_probability: p, strictly between 0 and 1.
    """

    kinds: Positive = 2
    open_probability: Probability = 0.45
    name: ClassVar[str] = "dyck"

    @property
    def alphabet(self) -> tuple[str, ...]:
        return brackets(self.kinds)

    def height_law(self, n: int) -> tuple[Int[np.ndarray, " m"], Float[np.ndarray, " m"]]:
        """The possible heights after n symbols, n mod 2, ..., n - 2, n, and their probabilities. O(n).

        The weight of h is N(n, h) p^((n + h)/2) (1 - p)^((n - h)/2). Only ratios of neighbours are computed:
        N(n, h + 2) / N(n, h) = (h + 3)/(h + 1) * (n - h)/(n + h + 4).
        """
        n, up = checked_count(self.name, n=n), self.open_probability
        heights = np.arange(n % 2, n + 1, 2)
        h = heights[:-1].astype(np.float64)
        ratios = (h + 3) / (h + 1) * (n - h) / (n + h + 4)
        return heights, from_log_ratios(np.log(ratios) + (np.log(up) - np.log1p(-up)))

    def _state_law(self, n: int) -> tuple[np.ndarray, np.ndarray]:
        """Whatever the state, the entropy is h(p) + p log k: whether to open, and which kind. What closes is known."""
        heights, law = self.height_law(n)
        balanced = float(law[heights == 0].sum())
        of_kinds = np.full(self.kinds, (1 - balanced) / self.kinds)
        return np.arange(self.kinds + 1), np.append(balanced, of_kinds)

    def closing_choice_probability(self, n: int) -> float:
        """P0(n), the probability that a prefix of n symbols ends in a closing bracket and is not balanced. Exact, O(n).

        After such a prefix, the next closing bracket must match an opening one that is not the last symbol. With
        another kind in its place, the prefix has the same probability and needs another closing bracket.
        """
        heights, law = self.height_law(n)
        if n == 0:
            return 0.0
        # N(n - 1, h + 1) / N(n, h) is the share of walks to h whose last step is down.
        h = heights.astype(np.float64)
        down = (h + 2) * (n - h) / (2 * n * (h + 1))
        return float(np.sum((law * down)[heights > 0]))

    def theorem6_gap(self, n: int) -> float:
        """P0(n) (1 - p) log k: the cost in nats of not knowing which kind to close after those prefixes."""
        return self.closing_choice_probability(n) * (1 - self.open_probability) * float(np.log(self.kinds))

    def theorem6_bound(self, n: int) -> float:
        """The optimum plus P0(n) (1 - p) log k: the least cross-entropy of a predictor that cannot see one exchange.

        Hahn (2020), Theorem 6: as n grows, the predictions of soft attention after two prefixes that differ only in one
        opening bracket, other than the last symbol, approach each other, so its cross-entropy approaches at least this
        level. The bound holds for every predictor that predicts the same after a prefix of `closing_choice` and after
        the prefixes with another kind in place of the bracket to be closed.
        """
        return self.optimal_cross_entropy(n) + self.theorem6_gap(n)

    def closing_choice(self, prefixes: Int[np.ndarray, "*batch n"]) -> ClosingChoice:
        """Which prefixes end in a closing bracket and are not balanced, and which kind each must close next."""
        kind = self._checked_states(prefixes)[..., -1] - 1
        prefixes = np.asarray(prefixes)
        closed = prefixes[..., -1] >= self.kinds if prefixes.shape[-1] else np.zeros(kind.shape, bool)
        return ClosingChoice(closed & (kind >= 0), kind)

    def closing_choice_loss(
        self, prefixes: Int[np.ndarray, "*batch n"], log_probabilities: Float[np.ndarray, "*batch v"]
    ) -> Float[np.ndarray, "*batch"]:
        """The part of the cross-entropy after each prefix that is due to choosing the kind of a closing bracket.

        Let q = exp(log_probabilities) be the prediction, which need not be normalised (logits will do). After a prefix
        that ends in a closing bracket and leaves kind a open, the loss is (1 - p) times
        -log(q(close a) / sum_b q(close b)); after any other prefix it is 0. Its mean over prefixes of n symbols is 0 at
        the optimum, and `theorem6_gap(n)` for a prediction that gives every closing bracket the same probability.
        """
        choice = self.closing_choice(prefixes)
        values = array_of(log_probabilities)
        with collecting(self.name) as problems:
            if values.dtype.kind not in "iuf":
                problems.add("log_probabilities", log_probabilities, "an array of numbers")
            elif values.shape != (*choice.kind.shape, self.outcomes):
                wanted = (*choice.kind.shape, self.outcomes)
                remedy = f"one number for each outcome, {wanted}"
                problems.add("log_probabilities' shape", values.shape, remedy)
        closing = values.astype(np.float64)[choice.hard, self.kinds : 2 * self.kinds]
        right = np.take_along_axis(closing, choice.kind[choice.hard][:, None], axis=-1)[:, 0]
        possible = right > -np.inf
        lost = np.full(len(right), np.inf)
        lost[possible] = np.logaddexp.reduce(closing[possible], axis=-1) - right[possible]
        found = np.zeros(choice.kind.shape)
        found[choice.hard] = (1 - self.open_probability) * lost
        return found

    def _read(self, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """0 if nothing is open, and otherwise 1 + the kind of the innermost open bracket."""
        rows = tokens.reshape(math.prod(tokens.shape[:-1]), tokens.shape[-1])
        opening, kind = rows < self.kinds, rows % self.kinds
        where = innermost_open(opening)
        top = np.take_along_axis(kind, np.maximum(where, 0), axis=1)
        states = np.where(where >= 0, top + 1, 0)
        before = np.pad(states, ((0, 0), (1, 0)))[:, :-1]
        wrong = ~opening & (before != kind + 1)
        return states.reshape(tokens.shape), wrong.reshape(tokens.shape)

    def _laws(self, states: np.ndarray) -> np.ndarray:
        p, k = self.open_probability, self.kinds
        laws = np.zeros((k + 1, 2 * k + 1))
        laws[:, :k] = p / k
        laws[0, 2 * k] = 1 - p
        laws[np.arange(1, k + 1), np.arange(k, 2 * k)] = 1 - p
        return laws[states]

    def _prefixes(self, count: int, n: int, generator: Generator) -> np.ndarray:
        heights, law = self.height_law(n)
        return self._brackets(heights[draw(law, count, generator)], n, generator)

    def _members(self, count: int, n: int, generator: Generator) -> np.ndarray:
        return self._brackets(np.zeros(count, np.int64), n, generator)

    def _brackets(self, heights: np.ndarray, n: int, generator: Generator) -> np.ndarray:
        """A prefix of n symbols for each final height: a uniform walk, with uniform kinds for the opening brackets."""
        opening = uniform_walks(heights, n, generator) > 0
        kind = generator.integers(0, self.kinds, opening.shape, dtype=np.int32)
        if self.kinds > 1 and n > 0:
            opened = np.take_along_axis(kind, innermost_open(opening)[:, :-1], axis=1)
            kind[:, 1:] = np.where(opening[:, 1:], kind[:, 1:], opened)
        return kind + self.kinds * ~opening

    def _has_members(self, n: int) -> bool:
        return n % 2 == 0

    def _non_members(self, count: int, n: int, generator: Generator) -> np.ndarray:
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


def uniform_walks(
    heights: Int[np.ndarray, " count"], n: int, generator: Generator
) -> Int[np.ndarray, "count n"]:
    """One walk for each final height, uniform among the N(n, h) that end there; steps +1 and -1 as int8.

    By the cycle lemma (Dvoretzky and Motzkin 1947), exactly h + 1 of the n + 1 rotations of any arrangement of
    (n + h)/2 + 1 steps up and (n - h)/2 steps down stay above 0: those that begin where the walk is for the last time
    on one of its h + 1 lowest levels. Without its first step, each of them is such a walk. A random arrangement and a
    random one of its good rotations therefore give a uniform walk, without rejection. O(n) per walk.
    """
    count, period = len(heights), n + 1
    ups = (n + heights) // 2 + 1
    steps = np.where(np.arange(period) < ups[:, None], 1, -1).astype(np.int8)
    generator.permuted(steps, axis=1, out=steps)
    level = np.zeros((count, period + 1), np.int32)
    np.cumsum(steps, axis=1, dtype=np.int32, out=level[:, 1:])
    later = np.minimum.accumulate(level[:, :0:-1], axis=1)[:, ::-1]
    last_there = level[:, :-1] < later  # one on each level, the lowest first
    chosen = generator.integers(0, heights + 1)
    start = np.argmax(np.cumsum(last_there, axis=1, dtype=np.int32) == chosen[:, None] + 1, axis=1)
    return np.take_along_axis(steps, (start[:, None] + np.arange(1, period)) % period, axis=1)


def innermost_open(opening: Bool[np.ndarray, "count n"]) -> Int[np.ndarray, "count n"]:
    """The position, after each symbol, of the innermost opening bracket that is not yet closed; -1 if there is none.

    Correct up to the first closing bracket that closes nothing. O(n log n) per word: that opening bracket is the last
    one that led to the present height, so positions are sorted by height, and in order within one height.
    """
    count, n = opening.shape
    if opening.size == 0:
        return np.zeros((count, n), np.int64)
    height = np.cumsum(np.where(opening, 1, -1).astype(np.int8), axis=1, dtype=np.int32)
    lowest = int(height.min())
    few = int(height.max()) - lowest < 2**16  # NumPy sorts 16-bit numbers by radix, four times as fast
    order = np.argsort((height - lowest).astype(np.uint16) if few else height, axis=1, kind="stable")
    opens = np.take_along_axis(opening, order, axis=1)
    last = np.maximum.accumulate(np.where(opens, np.arange(n), 0), axis=1)
    found = np.empty((count, n), np.int64)
    np.put_along_axis(found, order, np.take_along_axis(order, last, axis=1), axis=1)
    return np.where(height > 0, found, -1)
