"""The automaton of a formula: minimal where the states are few, and unrolled to one length where they are not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from jaxtyping import Bool, Int

from jaxsens.core.base import inputs
from jaxsens.core.base.errors import InputError, collecting
from jaxsens.core.base.inputs import checked_count
from jaxsens.core.base.strict import typed_arguments
from jaxsens.formal.logic.formulas import Formula
from jaxsens.formal.logic.reading import Reading, State, UnreadableFormula

MOST_STATES = 2**12
"""A formula that has more states before minimisation counts as one without a finite automaton."""

MOST_UNROLLED = 2**17
"""The most states of an automaton for words of at most a given length."""


@dataclass(frozen=True, eq=False)
class Automaton:
    """A deterministic automaton that is complete: each state has a successor for every symbol.

    Attributes:
        transitions: The state after each symbol. State 0 is the start.
        accepting: Whether the words that lead to a state satisfy the formula. State 0 does not accept the empty word.
        longest: The automaton is right about words of at most this number of symbols; None for all words.
    """

    transitions: Int[np.ndarray, "states symbols"]
    accepting: Bool[np.ndarray, " states"]
    longest: int | None = None

    def __len__(self) -> int:
        return len(self.accepting)

    def states(self, tokens: Int[np.ndarray, "*words n"]) -> Int[np.ndarray, "*words n1"]:
        """The states after 0, 1, ..., n symbols."""
        with collecting("Automaton") as problems:
            tokens = inputs.words(tokens, [*map(str, range(self.transitions.shape[1]))], problems)
        found = np.zeros((*tokens.shape[:-1], tokens.shape[-1] + 1), np.int64)
        for i in range(tokens.shape[-1]):
            found[..., i + 1] = self.transitions[found[..., i], tokens[..., i]]
        return found

    def accepted(self, n: int) -> int:
        """The number of words of n symbols that satisfy the formula, exact."""
        n = checked_count("Automaton", n=n)
        if self.longest is not None and n > self.longest:
            raise InputError.of("n", n, f"this one reads at most {self.longest} symbols", subject="Automaton")
        return _accepted(self, n)


@lru_cache(maxsize=1024)
def _accepted(found: Automaton, n: int) -> int:
    words = found.accepting.astype(int).astype(object)  # integers of any size
    for _ in range(n):
        words = words[found.transitions].sum(axis=1)
    return int(words[0])


@lru_cache(maxsize=256)
def reading(formula: Formula, alphabet: tuple[str, ...]) -> Reading:
    """The `Reading` of a formula; the same one each time, as it keeps the states that it has worked out."""
    return Reading(formula, alphabet)


@typed_arguments
def automaton(formula: Formula, alphabet: Sequence[str]) -> Automaton | None:
    """The minimal automaton of the words that satisfy a formula, or None where it is not found.

    It is found for formulas of symbols, Boolean connectives, Y, X, S, U, `last`, and the predicates odd, even, mod,
    exactly and first of positions and of #L counts; for comparisons of #L counts that settle when a sum passes a bound
    (`#L[Q_1] >= 3`, `dyck-1-depth-2`); and not for other comparisons (`#L[Q_1] > #L[Q_0]`), other predicates, #R, and
    formulas with more than `MOST_STATES` states before minimisation.

    >>> from jaxsens import logic
    >>> found = automaton(logic.parse("odd(#L[Q_1])"), "01")
    >>> found.transitions.tolist(), found.accepting.tolist()
    ([[0, 1], [1, 0]], [False, True])

    Raises:
        InputError: If the formula names a symbol that the alphabet lacks.
    """
    return _minimal(formula, tuple(alphabet))


def unrolled(formula: Formula, alphabet: Sequence[str], n: int) -> Automaton | None:
    """An automaton that is right about words of at most n symbols: the minimal one if it is found.

    None where it has more than `MOST_UNROLLED` states, or the formula cannot be read from left to right.
    """
    whole = automaton(formula, alphabet)
    return _unrolled(formula, tuple(alphabet), n) if whole is None else whole


@lru_cache(maxsize=64)
def _unrolled(formula: Formula, alphabet: tuple[str, ...], n: int) -> Automaton | None:
    try:
        return _explored(reading(formula, alphabet), MOST_UNROLLED, n)
    except UnreadableFormula:
        return None


@lru_cache(maxsize=256)
def _minimal(formula: Formula, alphabet: tuple[str, ...]) -> Automaton | None:
    try:
        found = _explored(reading(formula, alphabet), MOST_STATES)
    except UnreadableFormula:
        return None
    return None if found is None else _minimised(found)


def _explored(read: Reading, most: int, longest: int | None = None) -> Automaton | None:
    """The states within `longest` symbols of the start, by rising distance; None if there are more than `most`."""
    numbers: dict[State, int] = {read.start: 0}
    transitions: list[list[int]] = []
    layer, depth = [read.start], 0
    while layer and depth != longest:
        following: list[State] = []
        for state in layer:
            row = []
            for after in read.successors(state):
                if after not in numbers:
                    numbers[after] = len(numbers)
                    following.append(after)
                row.append(numbers[after])
            transitions.append(row)
            if len(numbers) > most:
                return None
        layer, depth = following, depth + 1
    # The last layer has no successors within reach: its rows are never read.
    transitions += [[0] * len(read.alphabet)] * len(layer)
    accepting = np.array([read.accepts(state) for state in numbers])
    return Automaton(np.array(transitions), accepting, longest if layer else None)


def _minimised(found: Automaton) -> Automaton:
    """Moore's algorithm: states are told apart by whether they accept, then by what is told apart after a symbol."""
    kinds = found.accepting.astype(np.int64)
    number = len(np.unique(kinds))
    while True:
        told = np.column_stack([kinds, kinds[found.transitions]])
        kinds = np.unique(told, axis=0, return_inverse=True)[1].reshape(-1)
        if int(kinds.max()) + 1 == number:
            break
        number = int(kinds.max()) + 1
    # Numbered by first appearance: states are in the order of their distance from the start.
    _, first = np.unique(kinds, return_index=True)
    rank = np.empty(number, np.int64)
    rank[np.argsort(first)] = np.arange(number)
    chosen = np.sort(first)
    return Automaton(rank[kinds][found.transitions[chosen]], found.accepting[chosen])
