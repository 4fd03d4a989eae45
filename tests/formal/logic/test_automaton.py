"""Automata of formulas against evaluation of all words, and against the number of words that must be told apart."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from jaxsens import logic
from jaxsens.formal.logic.counting import LAST
from jaxsens.formal.logic.reading import unrolled
from tests.formal.constructions.many_words import every_word
from tests.formal.logic.random_formulas import random_formula
from tests.refusals import refused

# The states of each formula's minimal automaton; None where counts have no bound, or #R occurs.
STATES = {
    "parity": 2, "parity-without-predicates": None, "parity-without-predicates-since": None,
    "ones-divisible-by-three": 4, "majority": None, "first": 3, "exists": 2, "all-ones": 3, "previous": 4, "since": 2,
    "3-gram": 4, "3-gram-ahead": 1, "induction-head": 17, "2-hop": 31, "flip-flop": 7, "dyck-1": None,
    "dyck-1-depth-2": 5, "equal-blocks": None,
}  # fmt: skip


def satisfied(formula: logic.Formula, alphabet, n: int) -> np.ndarray:
    if n == 0:
        return np.zeros(1, bool)
    return logic.evaluate_tokens(formula, every_word(len(alphabet), n), alphabet)[:, -1]


def check(found: logic.Automaton, formula: logic.Formula, alphabet, longest: int) -> None:
    for n in range(longest + 1):
        wanted = satisfied(formula, alphabet, n)
        ends = found.states(every_word(len(alphabet), n))[:, -1]
        np.testing.assert_array_equal(found.accepting[ends], wanted, err_msg=f"{formula}, n = {n}")
        assert found.accepted(n) == wanted.sum()


@pytest.mark.parametrize("name", logic.LIBRARY)
def test_the_library_has_these_automata(name):
    entry = logic.named_formula(name)
    found = logic.automaton(entry.formula, entry.alphabet)
    assert (None if found is None else len(found)) == STATES[name]
    longest = {2: 8, 3: 6, 5: 4}[len(entry.alphabet)]
    read = unrolled(entry.formula, entry.alphabet, longest)
    assert (read is None) == ("#R" in logic.operators(entry.formula))
    if read is not None:
        check(read, entry.formula, entry.alphabet, longest)


def test_random_formulas_have_the_right_automata_of_any_length_and_of_one(monkeypatch):
    monkeypatch.setattr("jaxsens.formal.logic.reading.MOST_STATES", 100)
    kinds = {"minimal": 0, "unrolled": 0, "none": 0}
    operators = ("Y", "X", "S", "U", "#L")
    for seed in range(160):
        formula = random_formula(Random(seed), 3, operators=operators)
        whole, read = logic.automaton(formula, "ab"), unrolled(formula, "ab", 5)
        kinds["minimal" if whole is not None else "unrolled" if read is not None else "none"] += 1
        if read is not None:
            check(read, formula, "ab", 5)
    assert min(kinds.values()) >= 8


@pytest.mark.parametrize(
    "text",
    [
        "Y (Q_a & Y Q_b)", "X (Q_a U Q_b) | Q_b", "true S (Q_a & X Q_a)", "mod(3, 1, #L[Q_a S Q_b])",
        "last & Q_a & odd", "first(#L[Q_b])",
        "#L[Q_a] >= 3", "#L[Q_a] + #L[Q_b & Y Q_a] <= 2", "2*#L[Q_a] != 4", "exactly(2, #L[Y Q_a])",
        "!(true S (Q_a & last))", "true S (exactly(3) & Q_a)", "!(true S !(Q_a U (Q_b & X Q_a)))",
    ],
)  # fmt: skip
def test_states_are_as_many_as_prefixes_that_are_told_apart(text):
    """Myhill and Nerode: two prefixes share a state if and only if no continuation tells them apart."""
    formula = logic.parse(text)
    found = logic.automaton(formula, "ab")
    assert found is not None
    check(found, formula, "ab", 7)
    truth = {n: satisfied(formula, "ab", n) for n in range(11)}
    classes = set()
    for n in range(6):
        # Continuations of a prefix are consecutive in the order of `words`.
        rows = [truth[n + more].reshape(2**n, -1) for more in range(6)]
        classes |= {row.tobytes() for row in np.concatenate(rows, axis=1)}
    assert len(found) == len(classes)


def test_what_is_settled_is_forgotten():
    """Brackets that can no longer become balanced, and counts past their bound, need no counter."""
    deep = logic.dyck_1(largest_depth=5)
    found = logic.automaton(deep, "()")
    assert found is not None
    assert len(found) == 8  # depths 0 to 5, the start, which accepts nothing, and one without a way back
    assert found.accepted(12) == 131  # Catalan number 132, less the one word of depth 6


def test_numbers_of_words_are_exact_beyond_float64():
    found = logic.automaton(logic.parse("true S Q_1"), "01")
    assert found is not None
    assert found.accepted(200) == 2**200 - 1


def test_an_automaton_for_short_words_refuses_long_ones():
    read = unrolled(logic.parse("#L[Q_1] > #L[Q_0]"), "01", 5)
    assert read is not None
    assert "at most 5 symbols" in refused("n", read.accepted, 6)


def test_a_predicate_of_ones_own_is_told_apart_by_its_number():
    late = logic.PredicateFamily("even_square", (), lambda value, length: value in (4, 16))
    formula = logic.PositionPredicate(late()) & logic.Symbol("a")
    assert logic.automaton(formula, "ab") is None
    read = unrolled(formula, "ab", 5)
    assert read is not None
    check(read, formula, "ab", 5)
    assert unrolled(logic.CountPredicate(LAST(), logic.CountLeft(logic.Symbol("a"))), "ab", 4) is None


def test_unknown_symbols_are_refused():
    refused("formula", logic.automaton, logic.parse("Q_c"), "ab")
