"""Lemmas 25 and 28 to 34 and Theorem 26: no softmax network errs more than they say, and the worst ones so much."""

from __future__ import annotations

import dataclasses
import math
from functools import cache

import numpy as np
import pytest

from jaxsens import Transformer
from jaxsens.core.models.parts.schedules import Schedule
from jaxsens.core.models.parts.weighting import Softmax
from jaxsens.formal.constructions.soften import all_inputs, error_bound, measure, warmest_temperature
from tests.formal.constructions import many_words
from tests.formal.constructions.tieless_models import (
    FIRST,
    ONE,
    SECOND,
    STRUCTURES,
    SYMBOL,
    by_hand,
    chooser,
    choosing,
    random_model,
)


@cache
def measured_model(structure: str, seed: int, n: int):
    model = random_model(structure, seed)
    return model, measure(model, n)


def softmax_error(model: Transformer, words: np.ndarray, tau: float) -> np.ndarray:
    """The largest difference at temperature tau in each coordinate, over words and positions, in NumPy."""
    soft = model.config.replace(weighting=Softmax(Schedule(coefficient=1 / tau)))
    found = many_words.activations(soft, model.parameters, words)
    return np.abs(found - many_words.activations(model.config, model.parameters, words)).max(axis=(0, 1))


AFTER: dict[str, dict[str, np.ndarray]] = {
    "nothing": {},
    "a map": {"into": 3 * FIRST, "out": -2 * FIRST},
    "a map to another coordinate": {"into": 3 * FIRST, "out": -2 * SECOND},
    "uniform attention": {"value": -2 * FIRST, "output": SECOND},
    "uniform attention back": {"value": 2 * FIRST, "output": FIRST},
}
"""Second layers, which make the first one's error larger."""


@pytest.mark.parametrize("after", AFTER)
def test_the_growth_of_an_error_is_attained_but_for_signs(after):
    """The residual adds to what maps and heads make of an error; -2 * 3 beside 1 is 5, which the bound takes for 7."""
    model, words = by_hand(choosing(), AFTER[after]), np.array([[0, 0, 1, 0, 0]])
    bound = error_bound(model.parameters.layers, measure(model, 5, words), 1 / 0.3)
    expected = softmax_error(model, words, 0.3)
    expected[3] *= 7 / 5 if after == "a map" else 1
    np.testing.assert_allclose(bound, expected, rtol=1e-9, atol=1e-15)


@pytest.mark.parametrize(
    "second",
    [
        {"query": FIRST, "key": SYMBOL},  # the query is too small by the first layer's error,
        {"query": ONE, "key": FIRST - SYMBOL},  # or the best key is: position 1 of "10" sees itself alone
    ],
    ids=["query", "key"],
)
def test_an_error_of_scores_takes_from_the_gap(second):
    """Twice what scores move by: here one of the two moves and the other does not, which is half of it."""
    layers = choosing(), {**second, "value": SYMBOL, "output": SECOND}
    model, words = by_hand(*layers, mask="future"), np.array([[1, 0]])
    measured = measure(model, 2, words)
    for tau in (0.1, 0.4, 2.0):
        bound, found = (
            error_bound(model.parameters.layers, measured, 1 / tau),
            softmax_error(model, words, tau),
        )
        first = 1 / (1 + math.exp(1 / tau))
        shifted = 1 / (1 + math.exp((1 - first) / tau))
        assert found[3] == pytest.approx(first, rel=1e-9)
        assert found[4] == pytest.approx(shifted, rel=1e-9)
        assert bound[4] == pytest.approx(1 / (1 + math.exp((1 - 2 * first) / tau)), rel=1e-9)


@pytest.mark.quick(3)
@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("epsilon", [1 / 4, 1e-3])
def test_the_warmest_temperature_keeps_the_promise_and_one_a_hundredth_warmer_has_no_bound(
    structure, epsilon
):
    for seed in range(4):
        model, measured = measured_model(structure, seed, 6)
        warmest = warmest_temperature(model.parameters, measured, epsilon)
        assert error_bound(model.parameters.layers, measured, 1 / warmest).max() <= epsilon
        assert softmax_error(model, all_inputs(model.config, 6), warmest).max() <= epsilon
        assert error_bound(model.parameters.layers, measured, 1 / (1.01 * warmest)).max() > epsilon


def test_coordinates_that_nothing_writes_to_have_no_error():
    model = chooser(gap=1.0, position_gap=0.1)
    bound = error_bound(model.parameters.layers, measure(model, 4, np.array([[0, 1, 0, 0]])), 1.0)
    assert bound[:3].tolist() == [0, 0, 0]
    assert bound[3] > 0


def test_logits_are_bounded_too():
    model = random_model("one head", 0, logits=3)
    wide = dataclasses.replace(model.parameters, head=50 * np.asarray(model.parameters.head))
    measured = measure(model, 3)
    assert warmest_temperature(wide, measured, 0.1) < warmest_temperature(model.parameters, measured, 0.1)
