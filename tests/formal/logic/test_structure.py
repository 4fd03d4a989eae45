"""Formulas as values, and what a compiler asks of one."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

from jaxsens import logic
from jaxsens.formal.logic.counting import MODULO, ODD
from tests.formal.logic.brute_force import truth
from tests.formal.logic.random_formulas import formulas
from tests.lanes import examples
from tests.refusals import refused


@settings(deadline=None, max_examples=examples(100))
@given(formulas)
def test_subformulas_come_once_each_and_after_their_children(formula):
    parts = logic.subformulas(formula)
    assert parts[-1] == formula
    assert len(set(parts)) == len(parts)
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


def test_symbols_predicates_and_operators_are_listed():
    formula = logic.parse("#L[#R[Q_b] >= 2] > #L[Q_a] & odd(#L[Q_a]) | mod(3, 1) & Y Q_b")
    assert set(logic.symbols(formula)) == {"a", "b"}
    assert {str(each) for each in logic.predicates(formula)} == {"odd", "mod(3, 1)"}
    assert logic.operators(formula) == {"Y", "#L", "#R"}


@settings(deadline=None, max_examples=examples(150))
@given(formulas)
def test_a_past_formula_does_not_see_what_comes_later(formula):
    ahead = logic.operators(formula) & {"X", "U", "#R"}
    if not ahead and not any(each.needs_length for each in logic.predicates(formula)):
        word = "abcab"
        assert truth(formula, word)[:3] == truth(formula, word[:3])
        assert logic.evaluate(formula, word)[:3].tolist() == logic.evaluate(formula, word[:3]).tolist()


A, B = logic.Symbol("a"), logic.Symbol("b")


@settings(deadline=None, max_examples=examples(100))
@given(formulas, formulas)
def test_formulas_are_equal_when_their_texts_are(left, right):
    assert (left == right) == (str(left) == str(right))
    again = copy.deepcopy(left)
    assert again == left
    assert hash(again) == hash(left)


def test_what_looks_alike_but_differs_is_not_equal():
    assert logic.Since(A, B) != logic.Until(A, B)
    assert A & B != B & A
    assert logic.CountLeft(A) != logic.CountRight(A)
    assert (logic.CountLeft(A) >= 1) != (logic.CountRight(A) >= 1)
    assert logic.Symbol("true") != logic.TRUE
    assert A != "Q_a"


def test_two_separately_built_shared_formulas_are_compared_without_unfolding_them():
    def doubled(times):
        formula = logic.Symbol("a")
        for _ in range(times):
            formula = logic.And(formula, formula)
        return formula

    assert doubled(200) == doubled(200)
    assert doubled(200) != doubled(201)
    assert len(logic.subformulas(doubled(200))) == 201


def test_a_formula_pickled_in_another_process_is_found_in_a_dictionary_here():
    code = (
        "import pickle, sys\nfrom jaxsens import logic\n"
        "sys.stdout.buffer.write(pickle.dumps(logic.parse('Y Q_a & odd(#L[Q_b])')))"
    )
    sent = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        check=True,
        cwd=Path(__file__).resolve().parents[3],
        env={**os.environ, "PYTHONHASHSEED": "7", "PYTHONPATH": "."},
    ).stdout
    formula = logic.parse("Y Q_a & odd(#L[Q_b])")
    assert {formula: 1}[pickle.loads(sent)] == 1


def test_sums_of_counts_become_the_normal_form():
    left, right = logic.CountLeft(A), logic.CountRight(B)
    comparison = 3 - 2 * right + left * 2 > left - 4
    assert comparison == logic.CountComparison(((1, left), (-2, right)), 6, ">=")
    assert comparison.weight == 3
    assert comparison.directions == {"#L", "#R"}
    assert (left <= right) == (right >= left)
    assert (left < right) == (right > left)
    assert left.equals(2) == (-left).equals(-2)
    assert (left - left >= 0).terms == ()
    assert (1 + left >= 0) == (left - (-1) >= 0)
    for relation in ("<", "<=", "=", "!=", ">=", ">"):
        assert logic.compare(left - 1, relation) == logic.parse(f"#L[Q_a] {relation} 1")


def test_predicates_are_compared_by_family_and_arguments():
    assert MODULO(3, 1) == MODULO(3, 1) != MODULO(3, 2)
    assert MODULO(3, 1).table(4) == [False, True, False, False, True]


@pytest.mark.parametrize(
    ("path", "kind", "arguments"),
    [
        ("operand", logic.Not, ("a",)),
        ("right", logic.And, (A, 1)),
        ("", logic.CountLeft, ("a",)),
        ("predicate", logic.PositionPredicate, (ODD,)),
        ("count", logic.CountPredicate, (ODD(), A)),
        ("terms", logic.CountComparison, (((1, A),), 0, ">=")),
        ("terms", logic.CountComparison, (((0.5, logic.CountLeft(A)),), 0, ">=")),
        ("relation", logic.CountComparison, ((), 0, "<")),
        ("relation", logic.compare, (logic.CountLeft(A), "=>")),
        ("", logic.compare, (logic.CountLeft(A) - 2**40, ">=")),
        ("name", logic.Symbol, ("",)),
        ("", MODULO, (3, 3)),
        ("", ODD, (1,)),
    ],
)
def test_parts_that_cannot_be_used_are_refused_when_building(path, kind, arguments):
    refused(path, kind, *arguments)


def test_formulas_have_no_truth_value_and_counts_no_fractions():
    for build in (lambda: bool(A), lambda: A and B):
        with pytest.raises(TypeError, match=r"with & \| ~"):
            build()
    count: Any = logic.CountLeft(A)
    for build in (lambda: count + 0.5, lambda: 0.5 * count):
        with pytest.raises(TypeError):
            build()
