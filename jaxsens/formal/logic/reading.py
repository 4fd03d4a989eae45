"""Reads words symbol by symbol, keeping of each prefix only what the formula's truth at later positions depends on.

What is kept is a state, a set of *threads*. A thread has a cell for each subformula:

- `Y f`: the truth of f at the last position read; `f S g`: its own truth there.
- a comparison of `#L` counts: its sum; a numerical predicate: the position or the count, as far as the predicate tells
  numbers apart (modulo m, or up to k + 1).
- `X f`, `f U g`, `last`: the truth that was guessed for it, which the next symbol confirms or refutes. A thread is one
  series of guesses. Each word confirms exactly one.

The truth of the whole formula at the last position comes last. What is settled for all later positions is replaced by
that truth, and what no longer matters by a constant: so `dyck-1-depth-2` has finitely many states although it counts.

The automaton of a formula is minimal where the states are few, and unrolled to one length where they are not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import eq
from typing import Any

import numpy as np
from jaxtyping import Bool, Int

from jaxsens.core.base import inputs
from jaxsens.core.base.errors import InputError, collecting, no_rule
from jaxsens.core.base.inputs import checked_count
from jaxsens.core.base.strict import typed_arguments
from jaxsens.formal.logic import counting, formulas
from jaxsens.formal.logic.evaluator import operators_of, symbols
from jaxsens.formal.logic.formulas import Formula, shortened, subformulas

Cell = int | str
Thread = tuple[Cell, ...]
State = frozenset[Thread]

ALWAYS, NEVER = "always", "never"
"""The cell of a subformula that is settled: true, or false, at all later positions."""

_NO_GUESS = -1


class UnreadableFormula(InputError):
    """A formula that cannot be read symbol by symbol, since it counts or measures what has not been read yet."""


class Reading:
    """Reads words for one formula.

    Attributes:
        formula: The formula.
        alphabet: The symbols, in the order of their numbers.
        start: The state before the first symbol.

    Raises:
        UnreadableFormula: If the formula has #R, or a predicate other than `last` of a position that uses the length.
        InputError: If it names a symbol that the alphabet lacks.
    """

    def __init__(self, formula: Formula, alphabet: Sequence[str]) -> None:
        unknown = [symbol for symbol in symbols(formula) if symbol not in alphabet]
        if unknown:
            raise InputError.note("formula", f"it names {unknown}, which the alphabet {list(alphabet)} lacks")
        self.formula, self.alphabet = formula, tuple(alphabet)
        self._parts = subformulas(formula)
        place = {part: k for k, part in enumerate(self._parts)}
        self._children = [tuple(place[child] for child in part.children) for part in self._parts]
        self._successors: dict[State, tuple[State, ...]] = {}
        self.start: State = frozenset([(*(_first_cell(part) for part in self._parts), 0)])

    def successors(self, state: State) -> tuple[State, ...]:
        """The state after each symbol of the alphabet. Kept: each state is worked out once."""
        if state not in self._successors:
            found = []
            for symbol in self.alphabet:
                read = (after for thread in state for after in self._read(thread, symbol))
                found.append(frozenset(kept for after in read if (kept := self._forget(after)) is not None))
            self._successors[state] = tuple(found)
        return self._successors[state]

    def accepts(self, state: State) -> bool:
        """Whether the formula is true at the last position of the words that lead here. False before any symbol."""
        # The word's end confirms guesses of `last`, and refutes those of what follows.
        refuted = [0 if _is_last(part) else 1 if _guesses(part) else None for part in self._parts]
        return any(thread[-1] and not any(map(eq, refuted, thread)) for thread in state)

    def _read(self, thread: Thread, symbol: str) -> list[Thread]:
        """The threads after one more symbol, for each guess that does not contradict the guesses so far."""
        found: list[tuple[tuple[bool, ...], Thread]] = [((), ())]
        wanted = {
            self._children[k][0]: bool(thread[k])
            for k, part in enumerate(self._parts)
            if isinstance(part, formulas.Next) and thread[k] != _NO_GUESS
        }
        if any(_is_last(part) and thread[k] == 1 for k, part in enumerate(self._parts)):
            return []  # the symbol before was guessed to be the last one
        for k, part in enumerate(self._parts):
            found = [
                ((*truths, truth), (*cells, cell))
                for truths, cells in found
                for truth, cell in _options(part, [truths[c] for c in self._children[k]], thread[k], symbol)
                if wanted.get(k, truth) == truth
            ]
        return [(*cells, int(truths[-1])) for truths, cells in found]

    def _forget(self, thread: Thread) -> Thread | None:
        """The thread without what no longer matters; None if the formula is false here and at all later positions."""
        settled: list[bool | None] = []
        for k, part in enumerate(self._parts):
            settled.append(_settled(part, [settled[c] for c in self._children[k]], thread[k]))
        if settled[-1] is False and not thread[-1]:
            return None
        matters = self._that_matter(thread, settled)
        cells: list[Cell] = []
        for k, part in enumerate(self._parts):
            if _guesses(part) or not isinstance(part, _REMEMBERING):
                cells.append(thread[k])
            elif (truth := settled[k]) is not None:
                cells.append(ALWAYS if truth else NEVER)
            else:
                cells.append(thread[k] if k in matters else NEVER)
        return (*cells, thread[-1])

    def _that_matter(self, thread: Thread, settled: list[bool | None]) -> set[int]:
        """The subformulas on whose later truth that of the formula, or a guess still open, depends."""
        found: set[int] = set()
        stack = [len(self._parts) - 1]
        stack += [k for k, part in enumerate(self._parts) if _guesses(part) and thread[k] != _NO_GUESS]
        guessed = set(stack[1:])
        while stack:
            k = stack.pop()
            if k in found or (settled[k] is not None and k not in guessed):
                continue
            found.add(k)
            stack.extend(self._children[k])
        return found


_OF_COUNTS = counting.CountComparison | counting.CountPredicate
_REMEMBERING = formulas.Yesterday | formulas.Since | counting.PositionPredicate | _OF_COUNTS


def _is_last(part: Formula) -> bool:
    return isinstance(part, counting.PositionPredicate) and part.predicate.family == counting.LAST


def _guesses(part: Formula) -> bool:
    """Whether the truth of this subformula itself depends on later symbols."""
    return isinstance(part, formulas.Next | formulas.Until) or _is_last(part)


def _first_cell(part: Formula) -> Cell:
    if _guesses(part):
        return _NO_GUESS
    reason = None
    if isinstance(part, counting.PositionPredicate | counting.CountPredicate) and part.predicate.needs_length:
        reason = f"{part.predicate} depends on the word's length"
    elif isinstance(part, counting.CountPredicate | counting.CountComparison) and "#R" in operators_of(part):
        reason = "#R counts what has not been read yet"
    if reason is not None:
        raise UnreadableFormula(f"{shortened(part)}: {reason}, so words cannot be read from left to right")
    # Otherwise false, or a number, or not used.
    return _clamped(part, part.constant) if isinstance(part, counting.CountComparison) else 0


def _options(part: Formula, children: list[bool], cell: Cell, symbol: str) -> list[tuple[bool, Cell]]:
    """What the truth of a subformula may be at the position just read, each with its cell after it."""
    if cell in (ALWAYS, NEVER):
        return [(cell == ALWAYS, cell)]
    if isinstance(part, formulas.Next) or _is_last(part):
        return [(True, 1), (False, 0)]
    if isinstance(part, formulas.Until):
        left, right = children
        known = right or not left  # otherwise it is true here if it is true at the next position
        found: list[tuple[bool, Cell]] = [(right, _NO_GUESS)] if known else [(True, 1), (False, 0)]
        return [(truth, after) for truth, after in found if cell in (_NO_GUESS, int(truth))]
    return [_determined(part, children, cell, symbol)]


def _determined(part: Formula, children: list[bool], cell: Any, symbol: str) -> tuple[bool, Cell]:
    """The truth at the position just read of a subformula that depends on nothing later, and its cell after it."""
    match part:
        case formulas.Symbol(name):
            return name == symbol, 0
        case formulas.Constant(value):
            return bool(value), 0
        case formulas.Not():
            return not children[0], 0
        case formulas.And():
            return all(children), 0
        case formulas.Or():
            return any(children), 0
        case formulas.Yesterday():
            return bool(cell), int(children[0])
        case formulas.Since():
            truth = children[1] or (children[0] and bool(cell))
            return truth, int(truth)
        case counting.PositionPredicate(predicate):
            value = _told_apart(predicate, cell + 1)
            return predicate.holds(value, value), value
        case counting.CountPredicate(predicate, _):
            value = _told_apart(predicate, cell + children[0])
            return predicate.holds(value, value), value
        case counting.CountComparison(terms):
            weights = (weight for weight, _ in terms)
            total = cell + sum(weight * truth for weight, truth in zip(weights, children, strict=True))
            return part.holds(total), _clamped(part, total)
    raise no_rule("Reading", "formula", part)


def _settled(part: Formula, children: list[bool | None], cell: Any) -> bool | None:
    """The truth of a subformula at all later positions, where that is known."""
    if cell in (ALWAYS, NEVER):
        return cell == ALWAYS
    match part:
        case formulas.Constant(value):
            return bool(value)
        case formulas.Not():
            return None if children[0] is None else not children[0]
        case formulas.And():
            return False if False in children else None if None in children else True
        case formulas.Or():
            return True if True in children else None if None in children else False
        case formulas.Yesterday():
            return children[0] if children[0] is bool(cell) else None
        case formulas.Since():
            return _settled_since(children[0], children[1], bool(cell))
        case formulas.Next():
            return False if children[0] is False else None
        case formulas.Until():
            return children[1]  # if it is settled, that of f U g is
        case counting.CountComparison():
            # Sums whose terms all grow, or all fall, may have passed the point; others stay where nothing is counted.
            stays = cell in (_clamped(part, cell + 1), _clamped(part, cell - 1))
            return part.holds(cell) if stays or all(child is False for child in children) else None
        case counting.PositionPredicate(predicate):
            return False if cell >= _last_hit(predicate) else None
        case counting.CountPredicate(predicate, _):
            if children[0] is False:
                return predicate.holds(cell, cell)
            return False if cell > _last_hit(predicate) else None
        case formulas.Symbol():
            return None
    raise no_rule("Reading", "formula", part)


def _settled_since(left: bool | None, right: bool | None, now: bool) -> bool | None:
    if right is True or (now and left is True):
        return True
    return False if right is False and (left is False or not now) else None


def _clamped(part: counting.CountComparison, total: int) -> int:
    """The sum, or where its truth cannot change any more the number nearest to 0 with this property."""
    signs = {weight > 0 for weight, _ in part.terms}
    if signs == {True}:
        return min(total, 0 if part.relation == ">=" else 1)
    if signs == {False}:
        return max(total, -1)
    return total


def _last_hit(predicate: counting.Predicate) -> float:
    """The largest number for which a predicate holds; infinite where that is not known."""
    if predicate.family == counting.EXACTLY:
        return predicate.arguments[0]
    return 1 if predicate.family == counting.FIRST else float("inf")


def _told_apart(predicate: counting.Predicate, value: int) -> int:
    """A number for which the predicate says the same as for `value`, now and after any increase."""
    if predicate.family in (counting.ODD, counting.EVEN):
        return value % 2
    if predicate.family == counting.MODULO:
        return value % predicate.arguments[0]
    return int(min(value, _last_hit(predicate) + 1))


MOST_STATES = 2**12
"""A formula that has more states before minimisation counts as one without a finite automaton."""

MOST_UNROLLED = 2**17
"""The most states of an automaton for words of at most a given length."""


@dataclass(frozen=True, eq=False)
class Automaton:
    """A deterministic automaton that is complete: each state has a successor for every symbol.

    >>> from jaxsens.logic import parse
    >>> automaton(parse("odd(#L[Q_1])"), "01").accepted(10)
    512

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
    return _explored(formula, tuple(alphabet), MOST_UNROLLED, n) if whole is None else whole


@lru_cache(maxsize=256)
def _minimal(formula: Formula, alphabet: tuple[str, ...]) -> Automaton | None:
    found = _explored(formula, alphabet, MOST_STATES)
    return None if found is None else _minimised(found)


@lru_cache(maxsize=64)
def _explored(
    formula: Formula, alphabet: tuple[str, ...], most: int, longest: int | None = None
) -> Automaton | None:
    """The states within `longest` symbols of the start, by rising distance; None if there are more than `most`, or the
    formula cannot be read from left to right."""
    try:
        read = reading(formula, alphabet)
    except UnreadableFormula:
        return None
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
