"""What each formula of the library says, in plain Python, without any logic: to be read, not to be fast.

A definition says whether a property holds at a position (from 1) of a word. A property that is a language holds where
the prefix that ends there is in the language.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TypeAlias

Word: TypeAlias = Sequence[str]
Definition: TypeAlias = Callable[[Word, int], bool]


def ends_with(*gram: str) -> Definition:
    """An occurrence of `gram` ends at the position."""
    return lambda word, position: tuple(word[max(0, position - len(gram)) : position]) == gram


def begins_with(*gram: str) -> Definition:
    """An occurrence of `gram` begins at the position."""
    return lambda word, position: tuple(word[position - 1 : position - 1 + len(gram)]) == gram


def hop(hops: int, output: str) -> Definition:
    """k-hop induction: k times, go from i to the last j <= i with w_(j-1) = w_i; the symbol there is `output`."""

    def holds(word: Word, position: int) -> bool:
        for _ in range(hops):
            wanted = word[position - 1]
            earlier = [j for j in range(2, position + 1) if word[j - 2] == wanted]
            if not earlier:
                return False
            position = earlier[-1]
        return word[position - 1] == output

    return holds


def balanced(largest_depth: int | None = None) -> Definition:
    """DYCK-1: balanced brackets, nowhere nested deeper than `largest_depth` (None: any depth)."""

    def holds(word: Word, position: int) -> bool:
        depth = 0
        for symbol in word[:position]:
            depth += 1 if symbol == "(" else -1
            if depth < 0 or (largest_depth is not None and depth > largest_depth):
                return False
        return depth == 0

    return holds


def ones(word: Word, position: int) -> int:
    return list(word[:position]).count("1")


def _odd_ones(word: Word, position: int) -> bool:
    return ones(word, position) % 2 == 1


def _remembers(word: Word, position: int) -> bool:
    """Every bit right after an r repeats the symbol right after the last w (as 1 or not); 0 before any w."""
    memory = False
    for before, symbol in pairwise(word[:position]):
        if before == "w":
            memory = symbol == "1"
        if before == "r" and symbol in ("0", "1") and (symbol == "1") != memory:
            return False
    return True


DEFINITIONS: dict[str, Definition] = {
    "parity": _odd_ones,
    "parity-without-predicates": _odd_ones,
    "parity-without-predicates-since": _odd_ones,
    "ones-divisible-by-three": lambda word, position: ones(word, position) % 3 == 0,
    "majority": lambda word, position: 2 * ones(word, position) > position,
    "first": lambda word, position: word[0] == "1",
    "exists": lambda word, position: "1" in word[:position],
    "all-ones": lambda word, position: set(word[:position]) <= {"1"},
    "previous": lambda word, position: position > 1 and word[position - 2] == "1",
    "since": lambda word, position: [each for each in word[:position] if each in ("a", "c")][-1:] == ["a"],
    "3-gram": ends_with("a", "a", "b"),
    "3-gram-ahead": begins_with("a", "a", "b"),
    "induction-head": hop(1, "a"),
    "2-hop": hop(2, "a"),
    "flip-flop": _remembers,
    "dyck-1": balanced(),
    "dyck-1-depth-2": balanced(2),
    "equal-blocks": lambda word, position: (
        list(word[:position]) == ["a"] * (position // 2) + ["b"] * (position // 2)
    ),
}
