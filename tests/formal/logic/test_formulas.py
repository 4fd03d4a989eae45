"""Formulas as values: equality, hashing, building in Python, refusals."""

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
from tests.formal.logic.random_formulas import formulas
from tests.lanes import examples
from tests.refusals import refused

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
    assert logic.size(doubled(200)) == 201


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
