"""Truth of a formula straight from the definitions of sections 4.1 to 4.4, with quantifiers over positions.

Independent of the evaluator: positions are numbers from 1 to n, S and U are their definitions and not their expansions,
counts are sizes of sets. For each formula of the library also what it says, in plain Python, without any logic: whether
a property holds at a position (from 1) of a word; of a language, whether the prefix that ends there is in it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TypeAlias

from jaxsens import logic


def truth(formula: logic.Formula, word: Sequence[str]) -> list[bool]:  # noqa: C901  a case for each definition
    """Truth at positions 1 ... n."""
    n = len(word)
    inner = [dict(enumerate(truth(child, word), start=1)) for child in formula.children]

    def size(count: logic.Count, f: dict[int, bool], i: int) -> int:
        if isinstance(count, logic.CountLeft):
            return len({j for j in range(1, i + 1) if f[j]})
        return len({j for j in range(i, n + 1) if f[j]})

    def at(i: int) -> bool:
        match formula:
            case logic.Symbol(name):
                return word[i - 1] == name
            case logic.Constant(value):
                return value
            case logic.Not():
                return not inner[0][i]
            case logic.And():
                return inner[0][i] and inner[1][i]
            case logic.Or():
                return inner[0][i] or inner[1][i]
            case logic.Yesterday():
                return i > 1 and inner[0][i - 1]
            case logic.Next():
                return i < n and inner[0][i + 1]
            case logic.Since():
                f, g = inner
                return any(g[j] and all(f[k] for k in range(j + 1, i + 1)) for j in range(1, i + 1))
            case logic.Until():
                f, g = inner
                return any(g[j] and all(f[k] for k in range(i, j)) for j in range(i, n + 1))
            case logic.PositionPredicate(predicate):
                return predicate.holds(i, n)
            case logic.CountComparison(terms, constant, relation):
                total = sum(
                    weight * size(count, f, i) for (weight, count), f in zip(terms, inner, strict=True)
                )
                total += constant
                return total >= 0 if relation == ">=" else (total == 0) == (relation == "=")
            case logic.CountPredicate(predicate, count):
                return predicate.holds(size(count, inner[0], i), n)
        raise TypeError(type(formula))

    return [at(i) for i in range(1, n + 1)]


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
