"""What `worst_input` cannot use is refused at once, all of it together."""

from __future__ import annotations

from typing import Any

import pytest

import jaxsens
from jaxsens.search.worst_input import worst_input
from jaxsens.sensitivity.placement.placement import Placement
from tests.search.searching import ONE, model_of


def test_all_problems_come_together():
    problems = {
        "n": 0,
        "flips": 7,
        "measure": "l3",
        "search": "deep",
        "engine": "fast",
        "placement": "cpu",
        "progress": 1,
    }
    with pytest.raises(jaxsens.InputError) as caught:
        worst_input(model_of(), **problems)
    message = str(caught.value)
    assert f"worst_input: {len(problems)} errors" in message
    for name in problems:
        assert f"- {name} = " in message


def test_all_problems_of_a_search_come_together():
    problems: dict[str, Any] = {"objective": "median", "exact": 1, "restarts": -1, "budget": 0, "seed": -1}
    with pytest.raises(jaxsens.InputError) as caught:
        jaxsens.Search(**problems)
    message = str(caught.value)
    assert f"Search: {len(problems)} errors" in message
    for name in problems:
        assert f"- {name} = " in message
    with pytest.raises(jaxsens.InputError, match="restarts = 0: a whole number of at least 1"):
        jaxsens.Search(restarts=0)
    assert jaxsens.Search(restarts=0, start=[0, 1]).restarts == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n": 1}, r"n = 1: nothing to flip"),
        ({"n": 2, "search": jaxsens.Search(fixed={0: 1})}, r"fixed = \{0: 1\}: nothing to flip"),
        ({"n": 4, "search": jaxsens.Search(fixed={4: 1})}, r"fixed = \{4: 1\}: positions from 0 to 3"),
        ({"n": 4, "search": jaxsens.Search(fixed={0: 4})}, r"fixed = \{0: 4\}: the model reads ids 0 to 3"),
        ({"n": 4, "search": jaxsens.Search(fixed=[(0, 1)])}, r"fixed = .*: a mapping of 0-based positions"),
        ({"n": 4, "flips": [1]}, r"flips = Substitute\(\[1\]\): at least two symbols"),
        ({"n": 4, "flips": {0: [1, 2]}}, r"flips = Substitute\(\{0: \[1, 2\]\}\): symbols alone"),
        ({"n": 4, "engine": "first-order"}, r"engine = FirstOrder\(\): an engine that measures: auto, vmap"),
        ({"n": 4, "search": jaxsens.Search(start=[0, 1, 2])}, r"start = .*: words of length 4"),
        (
            {"n": 4, "search": jaxsens.Search(start=[0, 1, 2, 3])},
            r"start = 3: a symbol of \[0, 1, 2\] \(word 0, position 3\)",
        ),
        (
            {"n": 4, "search": jaxsens.Search(start=[0, 1, 2, 1], fixed={3: 3})},
            r"start = 1: the fixed symbol 3 \(word 0, position 3\)",
        ),
        (
            {"n": 4, "search": jaxsens.Search(start=[[0, 1], [2]])},
            r"start = .*: whole numbers of shape \(4,\)",
        ),
        ({"n": 4, "search": jaxsens.Search(start=0.5)}, r"start = 0.5: whole numbers"),
        ({"n": True}, r"n = True: a whole number of at least 1"),
        ({"n": 4, "measure": jaxsens.L1(outputs=[6])}, r"outputs = \[6\]: the model has the outputs 0 to 5"),
    ],
)
def test_each_problem_is_named_with_its_remedy(options, message):
    with pytest.raises(jaxsens.InputError, match=message):
        worst_input(model_of(), **options)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"budget": 2.5}, r"budget = 2.5: a whole number of at least 1, or None"),
        ({"exact": "yes"}, r"exact = 'yes': one of None, True, False"),
    ],
)
def test_each_problem_of_a_search_is_named_with_its_remedy(fields, message):
    with pytest.raises(jaxsens.InputError, match=message):
        jaxsens.Search(**fields)


def test_a_callable_needs_an_alphabet_and_must_be_fit_to_be_measured():
    with pytest.raises(jaxsens.InputError, match=r"worst_input: flips = None: say which symbols"):
        worst_input(lambda tokens: tokens.sum() * 1.0, 4)
    with pytest.raises(jaxsens.InputError, match=r"a row for each position \(shape \(4, 4\)\)"):
        worst_input(lambda tokens: tokens[:, None] * tokens * 1.0, 4, 2)


def test_an_engine_that_cannot_serve_the_model_is_refused():
    with pytest.raises(jaxsens.EngineRefusal):
        worst_input(model_of(weighting="sparsemax"), 4, engine="difference", placement=Placement(ONE))


def test_a_length_beyond_the_models_precision_is_warned_of(monkeypatch):
    monkeypatch.setattr("jaxsens.search.worst_input.beyond_precision", lambda subject, n: f"too long: {n}")
    with pytest.warns(jaxsens.PrecisionWarning, match="too long: 3"):
        worst_input(model_of(), 3, engine="vmap", placement=Placement(ONE))
