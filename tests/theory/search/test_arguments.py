"""What `worst_input` cannot use is refused at once, all of it together."""

from __future__ import annotations

from typing import Any

import pytest

import jaxsens
from jaxsens.core.placement.placement import Placement
from jaxsens.theory.search.worst_input import worst_input
from tests.refusals import refused
from tests.theory.search.searching import ONE, model_of


def test_all_problems_come_together():
    problems: dict[str, Any] = {"n": 0, "flips": 7, "measure": "l3", "search": "deep"}
    problems |= {"engine": "fast", "placement": "cpu", "progress": 1}
    assert "worst_input: 7 errors" in refused(" ".join(problems), worst_input, model_of(), **problems)
    problems = {"objective": "median", "exact": 1, "restarts": -1, "budget": 0, "seed": -1}
    assert "Search: 5 errors" in refused(" ".join(problems), jaxsens.theory.Search, **problems)
    for fields in ({"restarts": 0}, {"budget": 2.5}, {"exact": "yes"}):
        refused(" ".join(fields), jaxsens.theory.Search, **fields)
    assert jaxsens.theory.Search(restarts=0, start=[0, 1]).restarts == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n": 1}, "n"),
        ({"n": 2, "search": jaxsens.theory.Search(fixed={0: 1})}, "fixed"),
        ({"n": 4, "search": jaxsens.theory.Search(fixed={4: 1})}, "fixed"),
        ({"n": 4, "search": jaxsens.theory.Search(fixed={0: 4})}, "fixed"),
        ({"n": 4, "search": jaxsens.theory.Search(fixed=[(0, 1)])}, "fixed"),
        ({"n": 4, "flips": [1]}, "flips"),
        ({"n": 4, "flips": {0: [1, 2]}}, "flips"),
        ({"n": 4, "engine": "first-order"}, "engine"),
        ({"n": 4, "search": jaxsens.theory.Search(start=[0, 1, 2])}, "start"),
        ({"n": 4, "search": jaxsens.theory.Search(start=[0, 1, 2, 3])}, "start"),
        ({"n": 4, "search": jaxsens.theory.Search(start=[0, 1, 2, 1], fixed={3: 3})}, "start"),
        ({"n": 4, "search": jaxsens.theory.Search(start=[[0, 1], [2]])}, "start"),
        ({"n": 4, "search": jaxsens.theory.Search(start=0.5)}, "start"),
        ({"n": True}, "n"),
        ({"n": 4, "measure": jaxsens.L1(outputs=[6])}, "measure.outputs"),
    ],
)
def test_each_problem_is_named_with_its_remedy(options, message):
    refused(message, worst_input, model_of(), **options)


def test_a_callable_needs_an_alphabet_and_must_be_fit_to_be_measured():
    refused("flips", worst_input, lambda tokens: tokens.sum() * 1.0, 4)
    with pytest.raises(jaxsens.InputError, match=r"a row for each position \(shape \(4, 4\)\)"):
        worst_input(lambda tokens: tokens[:, None] * tokens * 1.0, 4, 2)


def test_an_engine_that_cannot_serve_the_model_is_refused():
    with pytest.raises(jaxsens.EngineRefusal):
        worst_input(model_of(weighting="sparsemax"), 4, engine="difference", placement=Placement(ONE))


def test_a_length_beyond_the_models_precision_is_warned_of(monkeypatch):
    monkeypatch.setattr(
        "jaxsens.theory.search.worst_input.beyond_precision", lambda subject, n: f"too long: {n}"
    )
    with pytest.warns(jaxsens.PrecisionWarning, match="too long: 3"):
        worst_input(model_of(), 3, engine="vmap", placement=Placement(ONE))
