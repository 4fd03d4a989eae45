"""The words that satisfy a formula of temporal logic with counting, as a language with a law over its words."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy.random import Generator

from jaxsens.core.base import inputs
from jaxsens.core.base.errors import InputError, check_fits, collecting
from jaxsens.core.base.inputs import checked_count
from jaxsens.formal.languages.base import CELLS, Language
from jaxsens.formal.logic.evaluator import checked_formula, evaluate_tokens
from jaxsens.formal.logic.formulas import Formula, shortened
from jaxsens.formal.logic.parser import parse
from jaxsens.formal.logic.reading import Automaton, automaton, unrolled

TRIES = 2**16
"""Uniform words that rejection tries before it gives up, plus `TRIES_A_WORD` for each word wanted."""

TRIES_A_WORD = 1000

FEW_STATES = 2**8
"""Up to this number of states, the law after many symbols is a power of a matrix."""

BLOCK = 2**10
"""The number of lengths whose probabilities are found at a time."""

Choices: TypeAlias = Float[np.ndarray, "n states symbols"]
"""Of each symbol of a word: the cumulated probabilities of the symbols in each state."""


@dataclass(frozen=True)
class FormulaLanguage(Language):
    """The words that satisfy a formula of `jaxsens.formal.logic`, that is, those at whose last position it is true.

    The law is that of uniform symbols, where the word ends with probability e before each symbol, given that the word
    satisfies the formula. Members of one length are thus equally probable. The empty word is no member: it has no last
    position. For recognition, half of the words are uniform among the members of the length, and half among the others.

    How words are drawn depends on the formula:

    - From its minimal automaton, if `jaxsens.formal.logic.automaton` finds one. Everything is exact and nothing is
      rejected: numbers of words are integers of any size, found by going back from the last symbol. With g(q) the
      probability that a word that goes on from state q ends as a member,
      g(q) = e [q accepts] + (1 - e)/|alphabet| sum_a g(q a),
      the next symbol after q is a with probability (1 - e)/|alphabet| g(q a)/g(q), and the end has e [q accepts]/g(q).
    - From an automaton that is right up to the length, for other formulas of the past only, such as
      #L[Q_1] > #L[Q_0]: exact, without a law of the next symbol. The number of states grows with the length.
    - By rejection from uniform words otherwise (#R, predicates of the length, too many states). If members, or
      non-members, are too rare, an error says so.

    >>> FormulaLanguage("!(true S (Q_b & Y Q_b))", "ab").number_of_members(10)
    144

    Attributes:
        formula: The formula, or its text.
        symbols: The alphabet, two symbols or more: a text of one-letter symbols, or several texts.
        end_probability: e, strictly between 0 and 1.
    """

    formula: Formula
    symbols: tuple[str, ...]  # pyright: ignore[reportIncompatibleVariableOverride]
    end_probability: float = 0.1
    name: ClassVar[str] = "formula"

    def __post_init__(self) -> None:
        with collecting(self.name) as problems:
            formula, symbols = checked_formula(self.formula, self.symbols, problems)
            end = inputs.number("end_probability", self.end_probability, problems, above=0, below=1)
        object.__setattr__(self, "symbols", symbols)
        object.__setattr__(self, "formula", formula)
        object.__setattr__(self, "end_probability", end)
        found = self.automaton
        if found is not None and not found.accepting.any():
            raise InputError.of("formula", shortened(self.formula), "no word satisfies it", subject=self.name)

    @property
    def settings(self) -> dict[str, Any]:
        """The name and the options: the formula as text, and the alphabet.

        Raises:
            InputError: If the formula has predicates of your own, which the text does not define.
        """
        text = str(self.formula)
        try:
            same = parse(text, self.symbols) == self.formula
        except InputError:
            same = False
        if not same:
            raise InputError.of(
                "formula",
                shortened(self.formula),
                "its text does not define it: use the built-in predicates only, to write it to a file",
                subject=self.name,
            )
        options = {"alphabet": list(self.symbols), "end_probability": self.end_probability}
        return {"name": self.name, "formula": text, **options}

    @property
    def automaton(self) -> Automaton | None:
        """The minimal automaton of the members; None if the formula has none that is found."""
        return automaton(self.formula, self.symbols)

    @property
    def no_law(self) -> str | None:
        if self.automaton is not None:
            return None
        return (
            f"{shortened(self.formula)} has no finite automaton that is found, from which the law of the next symbol "
            "would follow: recognise its words instead, or give a formula of Y, X, S, U and counts that are modular or "
            "settle"
        )

    def member(self, tokens: Int[np.ndarray, "*batch n"]) -> Bool[np.ndarray, "*batch"]:
        """Whether each word of n symbols satisfies the formula, by its definition."""
        words = self._checked_tokens(tokens)
        if not words.shape[-1]:
            return np.zeros(words.shape[:-1], bool)
        return evaluate_tokens(self.formula, words, self.symbols)[..., -1]

    def number_of_members(self, n: int) -> int:
        """How many words of n symbols satisfy the formula, exact.

        Raises:
            InputError: If words are drawn by rejection.
        """
        n = checked_count(self.name, n=n)
        found = unrolled(self.formula, self.symbols, n)
        if found is None:
            why = f"{shortened(self.formula)} has no automaton of few states for {n} symbols"
            raise InputError.of("n", n, f"{why}: count its words by `member`", subject=self.name)
        return found.accepted(n)

    @property
    def _lawful(self) -> Automaton:
        found = self.automaton
        if found is None:
            raise InputError(f"{self.name}: {self.no_law}")
        return found

    @cached_property
    def _ends_well(self) -> Float[np.ndarray, " states"]:
        """g: the probability that a word that goes on from a state ends as a member."""
        found, e = self._lawful, self.end_probability
        solved = np.linalg.solve(np.eye(len(found)) - (1 - e) * self._matrix, e * found.accepting)
        return np.where(self._may_end_well, solved, 0.0)

    @cached_property
    def _may_end_well(self) -> Bool[np.ndarray, " states"]:
        """Whether some word leads from a state to one that accepts."""
        found = self._lawful
        reached = found.accepting
        while (more := reached | reached[found.transitions].any(axis=1)).sum() > reached.sum():
            reached = more
        return reached

    @cached_property
    def _matrix(self) -> Float[np.ndarray, "states states"]:
        """The law of the state after one uniform symbol, a row for each state before it."""
        found = self._lawful
        matrix = np.zeros((len(found), len(found)))
        for after in found.transitions.T:
            np.add.at(matrix, (np.arange(len(found)), after), 1 / len(self.symbols))
        return matrix

    def _after(self, n: int) -> Float[np.ndarray, " states"]:
        if len(self._lawful) <= FEW_STATES:
            return np.linalg.matrix_power(self._matrix, n)[0]
        law = np.zeros(len(self._lawful))
        law[0] = 1
        for _ in range(n):
            law = law @ self._matrix
        return law

    def _state_law(self, n: int) -> tuple[np.ndarray, np.ndarray]:
        """The law of the state after n symbols of a word that has at least n. O(n) for a given automaton."""
        weights = self._after(checked_count(self.name, n=n)) * self._ends_well
        if not weights.any():
            raise InputError.of("n", n, "no word is that long; give a smaller number", subject=self.name)
        return np.arange(len(weights)), weights / weights.sum()

    def _read(self, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        states = self._lawful.states(tokens)[..., 1:]
        return states, ~self._may_end_well[states]

    def _laws(self, states: np.ndarray) -> np.ndarray:
        """Rows of states from which no member is reached are 0."""
        found, e, good = self._lawful, self.end_probability, self._ends_well
        goes_on = (1 - e) / len(self.symbols) * good[found.transitions]
        outcomes = np.column_stack([goes_on, e * found.accepting])
        return (outcomes / np.where(good > 0, good, 1)[:, None])[states]

    def _prefixes(self, count: int, n: int, generator: Generator) -> np.ndarray:
        self._state_law(n)  # raises an error if no word is that long
        return _walk(self._lawful, _prefix_choices(self, n), count, generator)

    def _members(self, count: int, n: int, generator: Generator) -> np.ndarray:
        return self._uniform("members", count, n, generator)

    def _non_members(self, count: int, n: int, generator: Generator) -> np.ndarray:
        return self._uniform("non-members", count, n, generator)

    def _without_members(self, count: int, n: int, generator: Generator) -> np.ndarray:
        return generator.integers(0, len(self.symbols), (count, n))

    def _has_members(self, n: int) -> bool:
        found = unrolled(self.formula, self.symbols, n)
        return found is None or found.accepted(n) > 0

    def _has_non_members(self, n: int) -> bool:
        found = unrolled(self.formula, self.symbols, n)
        return found is None or found.accepted(n) < len(self.symbols) ** n

    def _length_probabilities(self, longest: int) -> np.ndarray:
        """e (1 - e)^l P(l uniform symbols are a member) / g(start)."""
        block = min(longest + 1, BLOCK)
        # P(member after each number of further symbols), from each state
        ends = np.empty((len(self._lawful), block))
        ends[:, 0] = self._lawful.accepting
        for i in range(1, block):
            ends[:, i] = self._matrix @ ends[:, i - 1]
        laws, jump = [self._after(0)], np.linalg.matrix_power(self._matrix, block)
        while len(laws) * block <= longest:
            laws.append(laws[-1] @ jump)
        shares = (np.array(laws) @ ends).reshape(-1)[: longest + 1]
        e = self.end_probability
        return e * (1 - e) ** np.arange(longest + 1.0) * shares / self._ends_well[0]

    def _uniform(
        self, kind: Literal["members", "non-members"], count: int, n: int, generator: Generator
    ) -> np.ndarray:
        found = unrolled(self.formula, self.symbols, n)
        if found is not None:
            return _walk(found, _uniform_choices(found, kind, n), count, generator)
        tokens, have, tried = np.empty((count, n), np.int32), 0, 0
        most = TRIES + TRIES_A_WORD * count
        while have < count:
            if tried >= most:
                raise InputError.of(
                    "n",
                    n,
                    f"{have} of {tried} uniform words are {kind} of {shortened(self.formula)}; "
                    f"{count} are wanted. Give shorter words, or a formula of Y, S and #L, whose words are drawn "
                    "without rejection",
                    subject=self.name,
                )
            size = min(max(1, CELLS // (16 * (n + 1))), max(256, 4 * (count - have)), most - tried)
            words = generator.integers(0, len(self.symbols), (size, n))
            right = evaluate_tokens(self.formula, words, self.symbols)[:, -1] == (kind == "members")
            kept = words[right][: count - have]
            tokens[have : have + len(kept)] = kept
            have, tried = have + len(kept), tried + size
        return tokens


def _walk(found: Automaton, choices: Choices, count: int, generator: Generator) -> Int[np.ndarray, "count n"]:
    """Words by walks from the start. `choices` are cumulated; a symbol of probability 0 is never drawn."""
    tokens = np.empty((count, len(choices)), np.int32)
    states = np.zeros(count, np.int64)
    for i, table in enumerate(choices):
        places = table[states]
        tokens[:, i] = np.argmax(places > generator.random((count, 1)) * places[:, -1:], axis=1)
        states = found.transitions[states, tokens[:, i]]
    return tokens


@lru_cache(maxsize=32)
def _uniform_choices(found: Automaton, kind: Literal["members", "non-members"], n: int) -> Choices:
    """For each symbol of a uniform member: the cumulated probabilities of the symbols in each state.

    The number of ways to end in r symbols is an exact integer; each probability is a ratio of two, rounded once.
    """
    choices = _room(found, n)
    right = found.accepting == (kind == "members")
    ways = right.astype(int).astype(object)
    for i in reversed(range(n)):
        after = ways[found.transitions]
        ways = after.sum(axis=1)
        total = np.where(ways == 0, 1, ways)
        choices[i] = np.cumsum((after / total[:, None]).astype(np.float64), axis=1)
    return choices


@lru_cache(maxsize=32)
def _prefix_choices(language: FormulaLanguage, n: int) -> Choices:
    """The same for the first n symbols of words that have at least n: each state counts by its g."""
    found = language._lawful
    choices, weights = _room(found, n), language._ends_well
    for i in reversed(range(n)):
        after = weights[found.transitions]
        choices[i] = np.cumsum(after, axis=1)
        weights = after.sum(axis=1)
        weights = weights / max(weights.max(), np.finfo(float).tiny)
    return choices


def _room(found: Automaton, n: int) -> np.ndarray:
    shape = (n, *found.transitions.shape)
    with collecting("formula") as problems:
        what = f"the choices of {shape[1]} states at each position"
        check_fits("n", n, 8 * int(np.prod(shape, dtype=float)), what, "give a smaller length", problems)
    return np.empty(shape)
