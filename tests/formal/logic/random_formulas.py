"""Random formulas: a seeded generator for tests that need a certain number, a strategy for tests of properties."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from random import Random
from typing import cast

from hypothesis import strategies as st

from jaxsens import logic
from jaxsens.formal.logic.counting import (
    BUILT_IN,
    EVEN,
    EXACTLY,
    FIRST,
    LAST,
    MIDDLE,
    MODULO,
    ODD,
    PRIME,
    SQUARE,
)

OPERATORS = ("Y", "X", "S", "U", "#L", "#R")
RELATIONS = ("<", "<=", "=", "!=", ">=", ">")


def random_formula(
    random: Random,
    depth: int,
    alphabet: Sequence[str] = "ab",
    operators: Collection[str] = OPERATORS,
    predicates: Sequence[logic.Predicate] = (
        *(ODD(), EVEN(), MODULO(3, 1), EXACTLY(2), FIRST(), LAST()),
        *(SQUARE(), PRIME(), MIDDLE()),
    ),
) -> logic.Formula:
    """A formula at most `depth` operators deep, with the given temporal and counting operators and predicates."""

    def inner() -> logic.Formula:
        return random_formula(random, depth - 1, alphabet, operators, predicates)

    def count() -> logic.Count:
        sign = random.choice([sign for sign in ("#L", "#R") if sign in operators])
        return logic.CountLeft(inner()) if sign == "#L" else logic.CountRight(inner())

    if depth == 0 or random.random() < 0.1:
        leaf = random.random()
        if leaf < 0.1:
            return random.choice((logic.TRUE, logic.FALSE))
        if leaf < 0.25 and predicates:
            return logic.PositionPredicate(random.choice(predicates))
        return logic.Symbol(random.choice(alphabet))
    match random.choice(("!", "&", "|", *operators)):
        case "!":
            return ~inner()
        case "&":
            return inner() & inner()
        case "|":
            return inner() | inner()
        case "Y":
            return logic.Yesterday(inner())
        case "X":
            return logic.Next(inner())
        case "S":
            return logic.Since(inner(), inner())
        case "U":
            return logic.Until(inner(), inner())
    if predicates and random.random() < 0.3:
        return logic.CountPredicate(random.choice(predicates), count())
    total = logic.LinearSum((), random.randint(-3, 3))
    for _ in range(random.randint(1, 3)):
        total = total + random.choice((-2, -1, -1, 1, 1, 2)) * count()
    return logic.compare(total, random.choice(RELATIONS))


def _arguments(family: logic.PredicateFamily) -> st.SearchStrategy[logic.Predicate]:
    if family is MODULO:
        return st.integers(1, 9).flatmap(lambda m: st.builds(MODULO, st.just(m), st.integers(0, m - 1)))
    return st.builds(family, *[st.integers(0, 9)] * len(family.parameters))


_PREDICATES = st.sampled_from(BUILT_IN).flatmap(_arguments)
_LEAVES = st.one_of(
    st.sampled_from("abcQS").map(logic.Symbol),
    st.text(min_size=1, max_size=4).map(logic.Symbol),
    st.sampled_from((logic.TRUE, logic.FALSE)),
    _PREDICATES.map(logic.PositionPredicate),
)


def _larger(inner: st.SearchStrategy[logic.Formula]) -> st.SearchStrategy[logic.Formula]:
    counts = st.one_of(inner.map(logic.CountLeft), inner.map(logic.CountRight))
    terms = st.lists(st.tuples(st.integers(-3, 3), counts), max_size=3).map(tuple)
    sums = st.builds(logic.LinearSum, terms, st.integers(-4, 4))
    return st.one_of(
        *(inner.map(kind) for kind in (logic.Not, logic.Yesterday, logic.Next)),
        *(st.builds(kind, inner, inner) for kind in (logic.And, logic.Or, logic.Since, logic.Until)),
        st.builds(logic.compare, sums, st.sampled_from(RELATIONS)),
        st.builds(logic.CountPredicate, _PREDICATES, counts),
    )


formulas = cast("st.SearchStrategy[logic.Formula]", st.recursive(_LEAVES, _larger, max_leaves=12))
