"""The measured table of constructions: its words are sensitive, its exactness is found, its rows are what they say."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from jaxsens.formal.constructions.compiler import compile_formula
from jaxsens.formal.constructions.conditions import Condition
from jaxsens.formal.tables import constructions_table
from jaxsens.formal.tables.constructions_table import (
    CASES,
    TablePlan,
    balanced,
    cycle,
    exact_at,
    exactness,
    measure_row,
    nested,
    plan_of,
)
from tests.formal.logic.definitions import balanced as balanced_definition
from tests.refusals import refused

BY_NAME = {case.name: case for case in CASES}
TEMPERATURE, CONTROL = Condition("temperature"), Condition("bounded-softmax")
TINY = TablePlan(lengths=(8, 10, 12), cap=12)


def flipped_truth(case, n: int) -> list[bool]:
    """Whether each flip of the case's word changes the truth value where the network is read."""
    word, read = case.tokens(n), -1 if case.at == "last" else 0
    flips = [
        np.where(np.arange(n) == i, symbol, word)
        for i in range(n)
        for symbol in range(len(case.alphabet))
        if i != read % n and symbol != word[i]
    ]
    truth = case.truth(np.array([word, *flips]))[:, read]
    return (truth[1:] != truth[0]).tolist()


@pytest.mark.quick(10)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("n", [8, 10, 32, 70])
def test_the_words_are_sensitive_at_every_length(case, n):
    assert len(case.tokens(n)) == n
    assert any(flipped_truth(case, n))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_case_can_be_built_in_its_conditions(case):
    for condition in case.conditions:
        promise = case.build(condition, "float32").promise
        assert (promise.condition, promise.autoregressive) == (condition.name, condition.autoregressive)
        assert promise.exact == condition.promises


def test_every_row_of_the_papers_table_and_every_route_is_measured():
    made = [case.build(condition, "float64").promise for case in CASES for condition in case.conditions]
    rows = {promise.table_row for promise in made}
    assert {"LTL[Y]", "LTL[X]", "LTL[S]", "LTL[U]", "LTL[Y,S]", "counting"} <= rows
    routes = {"temperature", "unbounded", "temperature-bounded", "bounded-softmax"}
    assert {promise.condition for promise in made} == routes
    decoders = {promise.condition for promise in made if promise.autoregressive}
    assert decoders == {"temperature", "unbounded", "temperature-bounded"}


@pytest.mark.long
def test_a_row_is_the_boolean_sensitivity_of_the_language():
    case = BY_NAME["until"]  # read at the first position
    row = measure_row(case, TEMPERATURE, "output", TINY)
    assert row.maxima == (1, 1, 1)
    assert row.means == tuple(np.mean(flipped_truth(case, n)) for n in TINY.lengths)
    assert row.exactness.keys() == {"float32", "float64"}
    for dtype, found in row.exactness.items():
        assert (found.longest, found.inexact) == (12, None)
        assert found.predicted == case.build(TEMPERATURE, "float64").promise.exact_to(dtype)


@pytest.mark.long
def test_the_controls_rows_fall_and_promise_nothing():
    rows = [read for case, condition, read in TINY.rows if (case.name, condition) == ("since", CONTROL)]
    assert rows == ["before-rounding", "everything"]
    before = measure_row(BY_NAME["since"], CONTROL, "before-rounding", TINY)
    everything = measure_row(BY_NAME["since"], CONTROL, "everything", TINY)
    assert before.exactness == {}
    assert 0 < before.maxima[-1] < before.maxima[0] < 1
    assert everything.maxima[0] >= before.maxima[0]


def test_exactness_closes_in_on_the_first_length_that_fails(monkeypatch):
    tried = []

    def exact_below_140(case, model, n):
        tried.append(n)
        return n < 140

    monkeypatch.setattr(constructions_table, "exact_at", exact_below_140)
    found = exactness(BY_NAME["since"], TEMPERATURE, "float32", (20, 100, 200, 300))
    assert (found.longest, found.inexact) == (139, 145)
    assert tried[:3] == [20, 100, 200]
    assert 300 not in tried
    monkeypatch.setattr(constructions_table, "exact_at", lambda case, model, n: False)
    assert exactness(BY_NAME["since"], TEMPERATURE, "float32", (20,)).longest == 0


def test_a_network_that_is_wrong_at_any_position_of_any_word_is_not_exact():
    case = BY_NAME["majority"]
    assert exact_at(case, compile_formula("#L[Q_1] - #L[Q_0] - 1 >= 0", "01"), 9)
    almost = compile_formula("#L[Q_1] - #L[Q_0] - 1 >= 0 & !(#L[Q_1] = 9)", "01")
    assert not exact_at(case, almost, 9)
    other = dataclasses.replace(case, truth=BY_NAME["parity"].truth)
    assert not exact_at(other, case.build(TEMPERATURE, "float64"), 9)


def test_balanced_is_dyck():
    words = np.random.default_rng(0).integers(0, 2, size=(200, 9))
    expected = [[balanced_definition()(["()"[s] for s in word], i + 1) for i in range(9)] for word in words]
    assert balanced(1, words).tolist() == expected
    right, wrong = [[0, 1, 3, 2, 0, 2]], [[0, 1, 2, 3, 0, 2]]
    assert balanced(2, np.array(right)).tolist() == [[False, False, False, True, False, True]]
    assert not balanced(2, np.array(wrong)).any()
    assert (cycle("ab", 5), nested("([", ")]", 8)) == ("ababa", "([([])])")


def test_plans_refuse_every_problem_at_once():
    assert "majority" in refused("name cap", plan_of, "first", cap=4)
    assert [case.name for case in plan_of("since").cases] == ["since"]
    assert plan_of(cap=500).tried == (100, 500)
    assert plan_of().cases == CASES
