"""What a compiler asks of a formula."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from jaxsens import logic
from tests.formal.logic.brute_force import truth
from tests.formal.logic.random_formulas import formulas
from tests.lanes import examples


@settings(deadline=None, max_examples=examples(100))
@given(formulas)
def test_subformulas_come_once_each_and_after_their_children(formula):
    parts = logic.subformulas(formula)
    assert parts[-1] == formula
    assert len(set(parts)) == len(parts) == logic.size(formula)
    for place, part in enumerate(parts):
        assert set(part.children) <= set(parts[:place])


def test_equal_parts_built_twice_are_one_subformula():
    formula = logic.parse("Y Q_a & (X Y Q_a | #L[Y Q_a] >= 1)")
    assert [str(part) for part in logic.subformulas(formula)] == [
        "Q_a",
        "Y Q_a",
        "X Y Q_a",
        "#L[Y Q_a] >= 1",
        "X Y Q_a | #L[Y Q_a] >= 1",
        str(formula),
    ]
    assert logic.depth(formula) == 4


def test_symbols_counts_predicates_and_operators_are_listed():
    formula = logic.parse("#L[#R[Q_b] >= 2] > #L[Q_a] & odd(#L[Q_a]) | mod(3, 1) & Y Q_b")
    assert set(logic.symbols(formula)) == {"a", "b"}
    assert [str(count) for count in logic.counts(formula)] == ["#R[Q_b]", "#L[#R[Q_b] >= 2]", "#L[Q_a]"]
    assert {str(each) for each in logic.predicates(formula)} == {"odd", "mod(3, 1)"}
    assert logic.operators(formula) == {"Y", "#L", "#R"}


@pytest.mark.parametrize(
    ("text", "future", "counting", "past"),
    [
        ("Q_a | !Q_b", False, False, True),
        ("Y Q_a S Q_b", False, False, True),
        ("X Q_a", True, False, False),
        ("Y (Q_a U Q_b)", True, False, False),
        ("odd(#L[Q_a]) & mod(3, 1)", False, True, True),
        ("#L[Q_a] = #R[Q_a]", True, True, False),
        ("last", False, False, False),
        ("middle(#L[Q_a])", False, True, False),
    ],
)
def test_past_future_and_counting_are_told_apart(text, future, counting, past):
    formula = logic.parse(text)
    assert (logic.uses_future(formula), logic.uses_counting(formula), logic.is_past(formula)) == (
        future,
        counting,
        past,
    )


@settings(deadline=None, max_examples=examples(150))
@given(formulas)
def test_a_past_formula_does_not_see_what_comes_later(formula):
    if logic.is_past(formula):
        word = "abcab"
        assert truth(formula, word)[:3] == truth(formula, word[:3])
        assert logic.evaluate(formula, word)[:3].tolist() == logic.evaluate(formula, word[:3]).tolist()
