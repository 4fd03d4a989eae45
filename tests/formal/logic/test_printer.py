"""A formula's text reads back as the same formula, and holds no more parentheses than are useful."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from jaxsens import logic
from tests.formal.logic.random_formulas import formulas
from tests.lanes import examples
from tests.refusals import refused


@settings(deadline=None, max_examples=examples(300))
@given(formulas)
def test_the_text_of_any_formula_reads_back_as_an_equal_formula(formula):
    assert logic.parse(str(formula)) == formula
    assert str(logic.parse(str(formula))) == str(formula)


@settings(deadline=None, max_examples=examples(100))
@given(formulas)
def test_the_repr_is_an_expression_for_the_formula(formula):
    assert eval(repr(formula), {"parse": logic.parse}) == formula


@pytest.mark.parametrize(
    "text",
    [
        "Q_a & Q_b & Q_c",
        "Q_a & (Q_b & Q_c)",
        "Q_a | Q_b & !Q_c",
        "(Q_a | Q_b) & Q_c",
        "Q_a S Q_b S Q_c",
        "(Q_a S Q_b) U Q_c",
        "!(Q_a S Q_b)",
        "!Y X Q_a",
        "Y (Q_a & Q_b)",
        "#L[Q_1] > #L[Q_0]",
        "2*#L[Q_1] + #R[Q_0] >= 3*#R[Q_1] + 5",
        "#L[Q_a] = 0 & odd(#R[Y Q_a])",
        "#L[Q_a] <= 4",
        "#L[Q_a] + 2 <= 0",
        "!(#L[Q_a] >= 2) S (#R[Q_a] != 1)",
        "#L[#L[Q_a] = #R[Q_a]] = 0",
        "0 >= 1",
        "3 >= 0",
        "0 = 1",
        "#L[Q_a] >= 1",
        "#L[Q_a] >= #R[Q_a]",
        "mod(3, 1, #L[true])",
        '"(" | "\\"" | "\\\\" | "two words"',
    ],
)
def test_a_text_without_needless_parentheses_is_printed_as_it_was_read(text):
    assert str(logic.parse(text)) == text


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("((Q_a))", "Q_a"),
        ("(Q_a & Q_b) & Q_c", "Q_a & Q_b & Q_c"),
        ("Q_a S (Q_b U Q_c)", "Q_a S Q_b U Q_c"),
        ("!#L[Q_a] >= 1", "!(#L[Q_a] >= 1)"),
        ("~Q_a -> Q_b", "!!Q_a | Q_b"),
        ("Q_a <-> Q_b", "Q_a & Q_b | !Q_a & !Q_b"),
        ("#L[Q_1] - #L[Q_0] - 1 >= 0", "#L[Q_1] > #L[Q_0]"),
        ("3 < #L[Q_a]", "#L[Q_a] >= 4"),
        ("#L[Q_a] + 1 > #R[Q_a]", "#L[Q_a] >= #R[Q_a]"),
        ("-#L[Q_a] == -2", "#L[Q_a] = 2"),
    ],
)
def test_other_spellings_are_printed_in_one_way(text, printed):
    assert str(logic.parse(text)) == printed


def test_parentheses_are_all_needed():
    for text in ["Q_a & (Q_b | Q_c)", "(Q_a S Q_b) S Q_c", "Y (Q_a S Q_b)", "Q_a | (Q_b | Q_c)"]:
        assert str(logic.parse(text)) == text
        assert logic.parse(text.replace("(", "").replace(")", "")) != logic.parse(text)


def test_a_text_that_would_fill_the_memory_is_refused_and_its_beginning_still_shown():
    formula = logic.hop_induction(60, "a", "abc")
    refused("formula", str, formula)
    assert repr(formula).startswith("<formula Q_a & !Y Q_a S (Y Q_a & (Q_a &")
    assert "not in the fragment" in str(logic.violations(formula, "LTL[S]")[0])
