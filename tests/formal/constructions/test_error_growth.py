"""Lemmas 25 and 28 to 34 and Theorem 26: no softmax network errs more than they say, and the worst ones so much.

Lemmas 7 and 9: no look-up errs more than is said; rounding and comparing are exact.
"""

from __future__ import annotations

import dataclasses
import math
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxsens import Transformer
from jaxsens.core.models.parts.schedules import Schedule
from jaxsens.core.models.parts.weighting import Softmax
from jaxsens.formal.constructions.conditions import KAPPA, lookup_sharpness, lookup_value_error
from jaxsens.formal.constructions.network import AT_LEAST_ZERO, EQUALS_ZERO, ROUND, Units
from jaxsens.formal.constructions.soften import error_bound, warmest_temperature
from jaxsens.formal.constructions.uniform_tieless import UniformTieless, all_inputs, measure
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
def measured_model(structure: str, seed: int, n: int) -> tuple[Transformer, UniformTieless]:
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


def values(units: Units, z: np.ndarray) -> np.ndarray:
    return np.sum([c * np.maximum(a * z + b, 0) for c, a, b in units], axis=0)


@pytest.mark.parametrize("width", [32, 64])
@given(data=st.data())
def test_rounding_is_exact_in_floating_point(width, data):
    dtype = np.dtype(f"float{width}").type
    false = data.draw(st.floats(-(2.0**20), 0.25, width=width))
    true = data.draw(st.floats(0.75, 2.0**20, width=width))
    assert values(ROUND, np.array([false, true], dtype)).tolist() == [0.0, 1.0]
    assert values(ROUND, np.array([true], dtype)).dtype == dtype


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_comparisons_of_counts_known_to_a_quarter(dtype):
    whole = np.arange(-1000, 1001)
    for error in (-0.25, -0.1, 0.0, 0.2, 0.25):
        z = (whole + error).astype(dtype)
        np.testing.assert_allclose(values(AT_LEAST_ZERO, z), whole >= 0, rtol=0, atol=1e-4)
        np.testing.assert_allclose(values(EQUALS_ZERO, z), whole == 0, rtol=0, atol=1e-4)
        if error in (-0.25, 0.0, 0.25):  # these numbers are represented exactly
            assert (values(AT_LEAST_ZERO, z) == (whole >= 0)).all()
            assert (values(EQUALS_ZERO, z) == (whole == 0)).all()


@pytest.mark.parametrize("units", [ROUND, AT_LEAST_ZERO, EQUALS_ZERO])
def test_an_error_grows_at_most_twofold(units):
    z = np.linspace(-3, 3, 6001)
    assert np.abs(np.diff(values(units, z)) / np.diff(z)).max() == pytest.approx(2, rel=1e-9)


def looked_up(n: int, sharpness: float) -> tuple[float, float]:
    """Of a table of n rows: the largest error of the row number, and half of the weights' distance from one-hot."""
    off = np.arange(n) - np.arange(n)[:, None]
    weights = np.exp(-sharpness * off**2.0)
    weights /= weights.sum(axis=1, keepdims=True)
    return abs((weights * off).sum(axis=1)).max(), (weights * (off != 0)).sum(axis=1).max()


@pytest.mark.parametrize("sharpness", [0.5, 0.8, 1.0, 2.0, KAPPA, 6.0, 20.0])
def test_lemma_7_bounds_every_row_of_every_table_and_is_attained(sharpness):
    worst = max(looked_up(n, sharpness)[1] for n in (*range(1, 40), 100, 500))
    assert worst == pytest.approx(lookup_value_error(sharpness), rel=1e-9)


@pytest.mark.parametrize("weight", [1, 2, 5, 40])
def test_counts_looked_up_add_up_to_within_a_quarter(weight):
    assert lookup_sharpness(weight) == math.log(12 * weight)
    assert weight * max(looked_up(n, lookup_sharpness(weight))[0] for n in (1, 2, 9, 300)) <= 1 / 4
