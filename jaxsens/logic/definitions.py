"""The named formulas' languages and properties, once more, in plain Python and without any logic.

Each takes a word (a sequence of symbols) and a position from 1 to n, and says whether the property holds there. Where
the property is a language, it is whether the prefix that ends there belongs to it. Tests compare the formulas with
these; they are written for reading, not for speed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TypeAlias

Word: TypeAlias = Sequence[str]
Definition: TypeAlias = Callable[[Word, int], bool]


def odd_ones(word: Word, position: int) -> bool:
    """PARITY: an odd number of 1s."""
    return list(word[:position]).count("1") % 2 == 1


def ones_divisible_by_three(word: Word, position: int) -> bool:
    """A number of 1s that three divides."""
    return list(word[:position]).count("1") % 3 == 0


def more_ones(word: Word, position: int) -> bool:
    """MAJORITY: more 1s than 0s."""
    prefix = list(word[:position])
    return prefix.count("1") > prefix.count("0")


def first_is_one(word: Word, position: int) -> bool:
    """FIRST: the first symbol is 1."""
    return word[0] == "1"


def some_one(word: Word, position: int) -> bool:
    """A 1 occurs."""
    return "1" in word[:position]


def all_ones(word: Word, position: int) -> bool:
    """1*: no other symbol occurs."""
    return set(word[:position]) <= {"1"}


def one_before(word: Word, position: int) -> bool:
    """The symbol before is 1."""
    return position > 1 and word[position - 2] == "1"


def last_of_a_and_c_is_a(word: Word, position: int) -> bool:
    """Of the symbols a and c, the last to occur is a."""
    kept = [symbol for symbol in word[:position] if symbol in ("a", "c")]
    return bool(kept) and kept[-1] == "a"


def ends_with(*gram: str) -> Definition:
    """An occurrence of `gram` ends at the position."""
    return lambda word, position: tuple(word[max(0, position - len(gram)) : position]) == gram


def begins_with(*gram: str) -> Definition:
    """An occurrence of `gram` begins at the position."""
    return lambda word, position: tuple(word[position - 1 : position - 1 + len(gram)]) == gram


def hop(hops: int, output: str) -> Definition:
    """k-hop induction: k times go from i to the last j <= i with w_(j-1) = w_i; the symbol there is `output`."""

    def holds(word: Word, position: int) -> bool:
        for _ in range(hops):
            wanted = word[position - 1]
            earlier = [j for j in range(2, position + 1) if word[j - 2] == wanted]
            if not earlier:
                return False
            position = earlier[-1]
        return word[position - 1] == output

    return holds


def flip_flop(word: Word, position: int) -> bool:
    """Every symbol right after an r tells (1 or not) what the symbol right after the last w told; 0 before any w."""
    memory = False
    for before, symbol in pairwise(word[:position]):
        if before == "w":
            memory = symbol == "1"
        if before == "r" and symbol in ("0", "1") and (symbol == "1") != memory:
            return False
    return True


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


def equal_blocks(word: Word, position: int) -> bool:
    """a^n b^n."""
    half = position // 2
    return list(word[:position]) == ["a"] * half + ["b"] * half
