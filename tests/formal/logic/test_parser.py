"""A formula's text: read, printed, and read back."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxsens import InputError, logic
from jaxsens.formal.logic.counting import EXACTLY, MODULO, ODD
from tests.formal.logic.random_formulas import formulas
from tests.lanes import examples
from tests.refusals import refused

A, B, C = (logic.Symbol(name) for name in "abc")


@pytest.mark.parametrize(
    ("text", "formula"),
    [
        ("Q_a", A),
        ('"a"', A),
        ("Q_ab_1", logic.Symbol("ab_1")),
        ("true | false", logic.TRUE | logic.FALSE),
        ("Q_a | Q_b & Q_c", A | (B & C)),
        ("!Q_a & Q_b", (~A) & B),
        ("Y Q_a S Q_b", logic.Since(logic.Yesterday(A), B)),
        ("Q_a S Q_b & Q_c", logic.Since(A, B) & C),
        ("Q_a U Q_b S Q_c", logic.Until(A, logic.Since(B, C))),
        ("Q_a -> Q_b -> Q_c", ~A | (~B | C)),
        ("Q_a & Q_b -> Q_c", ~(A & B) | C),
        ("Q_a | Q_b | Q_c", (A | B) | C),
        ("X\n Q_a\t", logic.Next(A)),
        ("odd", logic.PositionPredicate(ODD())),
        ("odd(#L[Q_a])", logic.CountPredicate(ODD(), logic.CountLeft(A))),
        ("mod(3,1)", logic.PositionPredicate(MODULO(3, 1))),
        ("mod(3,1,#R[Q_a])", logic.CountPredicate(MODULO(3, 1), logic.CountRight(A))),
        ("2*#L[Q_a] - #R[Q_b] + 1 >= 0", 2 * logic.CountLeft(A) - logic.CountRight(B) + 1 >= 0),
        ("1 - #R[Q_b] < 3 + #L[Q_a]", 1 - logic.CountRight(B) < 3 + logic.CountLeft(A)),
        ("#L[Q_a] = #L[Q_b]", logic.CountLeft(A).equals(logic.CountLeft(B))),
        ("#L[Q_a] != 2", logic.CountLeft(A).differs(2)),
        ("#L[Q_a] >= 1 & Q_b", (logic.CountLeft(A) >= 1) & B),
    ],
)
def test_a_text_becomes_the_formula_that_the_grammar_gives(text, formula):
    assert logic.parse(text) == formula


@pytest.mark.parametrize(
    ("text", "column", "expected", "found"),
    [
        ("", 1, "a formula", "the end"),
        ("Q_a &", 6, "a formula", "the end"),
        ("Q_a & & Q_b", 7, "a formula", "'&'"),
        ("Q_a Q_b", 5, "an operator (<-> -> | & S U) or the end", "'Q_b'"),
        ("(Q_a", 5, "')' or an operator", "the end"),
        ("Q_a)", 4, "or the end", "')'"),
        ("#L(Q_a) > 0", 3, "'[' and the formula to count", "'('"),
        ("#L[Q_a > 0", 8, "']' or an operator", "'>'"),
        ("#L[Q_a]", 8, "+, - or a comparison", "the end"),
        ("2 * Q_a > 1", 5, "a count", "'Q_a'"),
        ("#L[Q_a] > Q_b", 11, "an integer or a count", "'Q_b'"),
        ("1 < #L[Q_a] < 3", 13, "an operator", "'<'"),
        ("mod(3)", 6, "',' and the remainder", "')'"),
        ("mod(x, 1)", 5, "the integer modulus of mod", "'x'"),
        ("mod(3, 3)", 1, "remainder must be one of", "'mod'"),
        ("mod", 1, "wanted are modulus, remainder", "'mod'"),
        ("odd(2)", 5, "a count (#L[...] or #R[...])", "'2'"),
        ("odd()", 5, "a count", "')'"),
        ("strange", 1, "one of the numerical predicates even, exactly, first", "'strange'"),
        ("YQ_a", 1, "operators stand apart", "'YQ_a'"),
        ("S Q_a", 1, "a formula", "'S'"),
        ("Q_a @ Q_b", 5, "a word of the grammar", "'@'"),
        ('Q_a & "b', 7, "a closing", "the end"),
        ('""', 1, "at least one character", "an empty one"),
        ("#L[Q_a] > 99999999999", 11, "an integer up to", "'99999999999'"),
        ("2000000000*#L[Q_a] + 2000000000*#L[Q_a] > 0", 41, "smaller coefficients", "'>'"),
        ("(" * 500 + "Q_a" + ")" * 500, 101, "at most 100 formulas", "'('"),
    ],
)
def test_a_refusal_points_at_the_column_and_says_what_was_expected(text, column, expected, found):
    with pytest.raises(logic.FormulaSyntaxError) as refusal:
        logic.parse(text)
    problem = refusal.value
    assert (problem.line, problem.column) == (1, column)
    assert expected in problem.expected
    assert found == problem.found
    _, line, carets = str(problem).split("\n")
    assert line == "    " + text
    assert carets == " " * (4 + column - 1) + "^"


def test_the_line_is_found_in_a_text_of_several_lines():
    with pytest.raises(logic.FormulaSyntaxError) as refusal:
        logic.parse("Q_a &\n\tQ_b |\n\t\t& Q_c\n")
    assert (refusal.value.line, refusal.value.column) == (3, 3)
    assert str(refusal.value).endswith("\n    \t\t& Q_c\n    \t\t^")


def test_deep_nesting_within_the_limit_is_read():
    assert logic.parse("(" * 99 + "Q_a" + ")" * 99) == A
    assert len(logic.subformulas(logic.parse("#L[" * 99 + "Q_a" + "] = 1" * 99))) == 100
    assert len(logic.subformulas(logic.parse("!" * 2000 + "Q_a"))) == 2001


def test_all_unknown_symbols_are_named_and_marked_at_once():
    with pytest.raises(InputError) as refusal:
        logic.parse('Q_2 & Q_1 | #L["x y"] > 0 & Q_2', alphabet="01")
    text = str(refusal.value)
    assert "'2', 'x y': " in text
    assert text.split("\n")[-1] == "    ^              ^            ^"
    assert logic.parse("Q_0 | Q_1", alphabet="01") == logic.Symbol("0") | logic.Symbol("1")


def test_own_predicates_are_read_by_name_and_may_replace_built_in_ones():
    above = logic.PredicateFamily("above", ("bound",), lambda value, length, bound: value > bound)
    formula = logic.parse("above(1) & above(2, #L[Q_a])", predicates=[above])
    assert logic.evaluate(formula, "aaaa").tolist() == [False, False, True, True]
    assert logic.parse(str(formula), predicates=[above]) == formula
    never = logic.PredicateFamily("odd", (), lambda value, length: False)
    assert not logic.evaluate(logic.parse("odd", predicates=[never]), "aaa").any()


@pytest.mark.parametrize(
    ("paths", "call", "arguments"),
    [
        # names that the grammar reads otherwise
        *(
            ("name", logic.PredicateFamily, (name, (), lambda value, length: True))
            for name in ("", "S", "true", "Q_x", "two words", "1st")
        ),
        ("name parameters function needs_length problem", logic.PredicateFamily, (3, ["bound"], None, 1, 2)),
        # arguments that no text can have
        *(("", EXACTLY, (value,)) for value in (-2, True, 2**31)),
        *(("", MODULO, pair) for pair in ((3.5, 1.5), ("3", 1))),
        ("text", logic.parse, (A,)),
    ],
)
def test_what_is_refused(paths, call, arguments):
    refused(paths, call, *arguments)


def test_predicates_built_with_the_numbers_of_numpy_are_those_of_the_text():
    built = logic.PositionPredicate(MODULO(np.int64(3), np.int8(1)))  # pyright: ignore[reportArgumentType]
    assert logic.parse(str(built)) == built == logic.PositionPredicate(MODULO(3, 1))


WORDS = [
    "Q_a",
    '"("',
    "&",
    "|",
    "!",
    "Y",
    "S",
    "(",
    ")",
    "#L",
    "[",
    "]",
    "1",
    "*",
    ">=",
    "odd",
    "mod",
    ",",
    "->",
    "-",
]


@settings(deadline=None, max_examples=examples(300))
@given(st.one_of(st.lists(st.sampled_from(WORDS), max_size=9).map(" ".join), st.text(max_size=12)))
def test_any_text_is_a_formula_or_is_refused_at_a_column_of_it(text):
    refusal = None
    try:
        formula = logic.parse(text)
    except logic.FormulaSyntaxError as problem:
        refusal = problem
    else:
        assert logic.parse(str(formula)) == formula
    if refusal is not None:
        lines = text.split("\n")
        assert 1 <= refusal.line <= len(lines)
        assert 1 <= refusal.column <= len(lines[refusal.line - 1]) + 1


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
