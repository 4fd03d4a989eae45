"""The languages once more, as plain Python: step-by-step generators of words, and predicates of membership.

Probabilities are fractions where the law has rational ones. Nothing here comes from the package, and nothing is clever:
DYCK is derived from its grammar, MAJORITY's chances are found by letting words go on step by step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from itertools import pairwise, product
from typing import Any

import numpy as np

END = -1
Word = tuple[int, ...]


@dataclass(frozen=True)
class Machine:
    """A language by its definition.

    `steps(state)`: what may come next, as (probability, symbol or END, next state). `near_misses(word)`: the
    non-members that recognition sets beside a member, equally probable. `shortest_rest(state)`: how many symbols must
    come at least.
    """

    start: Any
    steps: Callable[[Any], Sequence[tuple[Any, int, Any]]]
    member: Callable[[Word], bool]
    word_probability: Callable[[Word], float]
    near_misses: Callable[[Word], list[Word]]
    shortest_rest: Callable[[Any], int] = lambda state: 0

    def prefixes(self, n: int) -> dict[Word, tuple[Any, Any]]:
        """Every prefix of n symbols: its probability to begin a word, and the state it leads to."""
        return _prefixes(self, n)

    def words(self, longest: int) -> dict[Word, float]:
        """Each word of at most so many symbols, with its probability."""
        return _words(self, longest)

    def derive(self, word, weight, state, longest) -> Iterator[tuple[Word, float]]:
        for chance, symbol, after in self.steps(state):
            if symbol == END and chance > 0:
                yield word, float(weight * chance)
            elif chance > 0 and len(word) + 1 + self.shortest_rest(after) <= longest:
                yield from self.derive((*word, symbol), weight * chance, after, longest)

    def law(self, state: Any, outcomes: int) -> np.ndarray:
        """The law of what comes next, the end last."""
        law = np.zeros(outcomes)
        for chance, symbol, _ in self.steps(state):
            law[symbol] += float(chance)  # END is the last one's index
        return law


@cache
def _prefixes(machine: Machine, n: int) -> dict[Word, tuple[Any, Any]]:
    if n == 0:
        return {(): (Fraction(1), machine.start)}
    return {
        (*word, symbol): (weight * chance, state)
        for word, (weight, before) in machine.prefixes(n - 1).items()
        for chance, symbol, state in machine.steps(before)
        if symbol != END and chance > 0
    }


@cache
def _words(machine: Machine, longest: int) -> dict[Word, float]:
    return dict(machine.derive((), Fraction(1), machine.start, longest))


def exchanged(symbols: int) -> Callable[[Word], list[Word]]:
    """All words that differ in one symbol."""

    def near_misses(word: Word) -> list[Word]:
        return [
            (*word[:i], symbol, *word[i + 1 :])
            for i in range(len(word))
            for symbol in range(symbols)
            if symbol != word[i]
        ]

    return near_misses


def parity(p: Fraction) -> Machine:
    def steps(odd):
        if odd:
            return [(Fraction(1, 2), 0, True), (Fraction(1, 2), 1, False)]
        return [((1 - p) / 2, 0, False), ((1 - p) / 2, 1, True), (p, END, None)]

    def word_probability(word):
        evens = sum(sum(word[:t]) % 2 == 0 for t in range(len(word)))
        return float(p) * (1 - float(p)) ** evens * 0.5 ** len(word)

    return Machine(False, steps, lambda word: sum(word) % 2 == 0, word_probability, exchanged(2))


def dyck(kinds: int, p: Fraction) -> Machine:
    """Leftmost derivations of S -> (S)S | ... | empty. The state is what is still to be expanded or written."""

    def steps(pending):
        if not pending:
            return [(Fraction(1), END, None)]
        head, rest = pending[0], pending[1:]
        if head != "S":
            return [(Fraction(1), head, rest)]
        opened = [(p / kinds, kind, ("S", kinds + kind, "S", *rest)) for kind in range(kinds)]
        return opened + [((1 - p) * chance, symbol, after) for chance, symbol, after in steps(rest)]

    def member(word):
        stack = []
        for symbol in word:
            if symbol < kinds:
                stack.append(symbol)
            elif not stack or stack.pop() != symbol - kinds:
                return False
        return not stack

    def word_probability(word):
        pairs = len(word) // 2
        return float(p) ** pairs * (1 - float(p)) ** (pairs + 1) / kinds**pairs

    def other_kinds(word):
        return [
            miss
            for miss in exchanged(2 * kinds)(word)
            if all((a < kinds) == (b < kinds) for a, b in zip(word, miss, strict=True))
        ]

    def owed(pending):
        return sum(item != "S" for item in pending or ())

    misses = other_kinds if kinds > 1 else exchanged(2)
    return Machine(("S",), steps, member, word_probability, misses, owed)


def one_star(p: Fraction) -> Machine:
    def steps(state):
        return [(1 - p, 1, state), (p, END, None)]

    def word_probability(word):
        return float(p * (1 - p) ** len(word))

    return Machine(0, steps, lambda word: 0 not in word, word_probability, exchanged(2))


def equal_blocks(p: Fraction) -> Machine:
    def steps(state):
        phase, owed = state
        if phase == "a":
            stop = [(p, END, None)] if owed == 0 else [(p, 1, ("b", owed - 1))]
            return [(1 - p, 0, ("a", owed + 1)), *stop]
        return [(Fraction(1), 1, ("b", owed - 1))] if owed else [(Fraction(1), END, None)]

    def member(word):
        half = len(word) // 2
        return word == (0,) * half + (1,) * half

    def word_probability(word):
        return float(p * (1 - p) ** (len(word) // 2))

    return Machine(
        ("a", 0), steps, member, word_probability, exchanged(2), lambda state: state[1] if state else 0
    )


def flip_flop(q: Fraction, e: Fraction) -> Machine:
    """Symbols w r i 0 1 are 0 to 4. The state: the instruction just read, or what may follow, and the memory."""
    other = (1 - q) / 2
    coin = Fraction(1, 2)

    def steps(state):
        place, memory = state
        if place == "first":
            return [(Fraction(1), 0, ("w", 0))]
        if place == "w":
            return [(coin, 3, ("pair", 0)), (coin, 4, ("pair", 1))]
        if place == "i":
            return [(coin, 3, ("pair", memory)), (coin, 4, ("pair", memory))]
        if place == "r":
            return [(Fraction(1), 3 + memory, ("read", memory))]
        end = e if place == "read" else Fraction(0)
        go_on = [(other, 0, ("w", memory)), (other, 1, ("r", memory)), (q, 2, ("i", memory))]
        return [((1 - end) * chance, symbol, after) for chance, symbol, after in go_on] + [(end, END, None)]

    def member(word):
        if len(word) < 4 or len(word) % 2 or word[0] != 0 or word[-2] != 1:
            return False
        memory = None
        for instruction, bit in zip(word[::2], word[1::2], strict=True):
            if instruction > 2 or bit < 3:
                return False
            if instruction == 0:
                memory = bit
            if instruction == 1 and bit != memory:
                return False
        return True

    def word_probability(word):
        later = word[2::2]
        reads, ignores = later.count(1), later.count(2)
        free = len(later) + 1 - reads
        share = float(other) ** (len(later) - ignores) * float(q) ** ignores * 0.5**free
        return share * float(1 - e) ** (reads - 1) * float(e)

    def misses(word):
        reads = [i for i in range(2, len(word), 2) if word[i] == 1]
        return [(*word[: i + 1], 7 - word[i + 1], *word[i + 2 :]) for i in reads]

    return Machine(("first", 0), steps, member, word_probability, misses)


def set_complement(k: int, r: Fraction) -> Machine:
    """The state: the symbols that have occurred. Words in which all do, the last one for the first time."""
    everything = frozenset(range(k))

    def steps(seen):
        if seen == everything:
            return [(Fraction(1), END, None)]
        new = Fraction(1) if not seen else 1 - r
        return [
            (r / len(seen) if symbol in seen else new / (k - len(seen)), symbol, seen | {symbol})
            for symbol in range(k)
        ]

    def member(word):
        return set(word) == everything and word[-1] not in word[:-1]

    def word_probability(word):
        probability = 1 / k
        for t in range(1, len(word)):
            d = len(set(word[:t]))
            probability *= float(r) / d if word[t] in word[:t] else float(1 - r) / (k - d)
        return probability

    def misses(word):
        return [(*word[:-1], symbol) for symbol in range(k) if symbol != word[-1]]

    def rest(seen):
        return k - len(seen)

    return Machine(frozenset(), steps, member, word_probability, misses, rest)


def majority(e: float) -> Machine:
    """Fair bits, ending with e before each, given more 1s than 0s: chances by going on for a very long time."""
    reach = 1200
    differences = np.arange(-reach, reach + 1)
    wins = np.zeros(2 * reach + 1)
    for _ in range(1000):
        spread = np.pad(wins, 1)
        wins = e * (differences > 0) + (1 - e) / 2 * (spread[2:] + spread[:-2])

    @cache
    def steps(d):
        here = wins[d + reach]
        bits = [
            ((1 - e) / 2 * wins[d + step + reach] / here, bit, d + step) for bit, step in ((0, -1), (1, 1))
        ]
        return [*bits, (e / here if d > 0 else 0.0, END, None)]

    def word_probability(word):
        return e * ((1 - e) / 2) ** len(word) / wins[reach]

    def others(word) -> list[Word]:
        return [other for other in product((0, 1), repeat=len(word)) if 2 * sum(other) <= len(word)]

    return Machine(0, steps, lambda word: 2 * sum(word) > len(word), word_probability, others)


def two_ones_in_a_row(e: float) -> Machine:
    """Fair bits, ending with e before each, given that two 1s in a row occur. The state: 1s at the end, 2 for ever."""
    after = {0: (0, 1), 1: (0, 2), 2: (2, 2)}
    good = [0.0, 0.0, 0.0]
    for _ in range(2000):
        good = [e * (q == 2) + (1 - e) / 2 * sum(good[after[q][bit]] for bit in (0, 1)) for q in after]

    def steps(q):
        bits = [((1 - e) / 2 * good[after[q][bit]] / good[q], bit, after[q][bit]) for bit in (0, 1)]
        return [*bits, (e * (q == 2) / good[q], END, None)]

    def member(word) -> bool:
        return (1, 1) in pairwise(word)

    def word_probability(word):
        return e * ((1 - e) / 2) ** len(word) / good[0]

    def others(word) -> list[Word]:
        return [other for other in product((0, 1), repeat=len(word)) if not member(other)]

    return Machine(0, steps, member, word_probability, others)
