"""Critical inverse temperatures, against loops, and of models."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

import jaxsens
from jaxsens import InputError, Softmax
from jaxsens.analysis import (
    attention_statistics,
    critical_inverse_temperature,
    critical_temperatures,
    statistics,
)
from jaxsens.analysis.temperatures import critical_of_rows
from jaxsens.core.models.parts.schedules import Schedule
from jaxsens.core.models.parts.weighting import SinkSoftmax
from jaxsens.core.models.transformer.layers import layered_transformer
from tests.refusals import refused

ROWS = arrays.arrays(np.float64, st.integers(3, 12), elements=st.floats(-8, 8, width=32), unique=True)


def share_of_maximum(scores: np.ndarray, beta: float) -> float:
    return 1 / math.fsum(math.exp(-beta * (max(scores) - s)) for s in scores)


@pytest.mark.long
@given(scores=ROWS)
def test_at_the_critical_temperature_the_maximum_has_half_of_the_weight(scores):
    beta = float(critical_inverse_temperature(scores))
    assert share_of_maximum(scores, beta) == pytest.approx(0.5, rel=1e-9)


@given(scores=ROWS, shift=st.integers(-8, 8), factor=st.floats(0.1, 10))
@example(scores=np.array([0.0, 1.8e-17, -3.0, -1.0]), shift=0, factor=3.0)
@example(scores=np.array([0.0, -1e-18, -1.0, -3.0]), shift=0, factor=0.1)
def test_a_shift_changes_nothing_and_a_factor_divides(scores, shift, factor):
    beta = critical_inverse_temperature(scores)
    # A shift rounds gaps, and a tiny gap may decide.
    far = np.diff(np.sort(scores)).min() > 1e-3
    if far:
        np.testing.assert_allclose(critical_inverse_temperature(scores + shift), beta, rtol=1e-9)
    np.testing.assert_allclose(critical_inverse_temperature(scores * factor), beta / factor, rtol=1e-6)


def test_equal_scores_share_at_any_temperature_and_few_keys_need_none():
    assert critical_inverse_temperature([1.0, 1.0, 0.0]) == math.inf
    assert critical_inverse_temperature([1.0, 1.0]) == math.inf
    assert critical_inverse_temperature([1.0, -2.0]) == 0
    assert critical_inverse_temperature([1.0, -math.inf, -math.inf]) == 0
    assert np.isnan(critical_inverse_temperature([-math.inf, -math.inf]))
    found = critical_inverse_temperature(
        [[3.0, 1.0, 0.0]] * 3, [[True] * 3, [False, True, True], [False] * 3]
    )
    assert found[0] > 0 == found[1]
    assert np.isnan(found[2])


def critical(gaps: np.ndarray) -> float:
    """beta* of the gaps of the other keys, by bisection in 60 digits; the unit is the second gap."""
    with mpmath.workdps(60):
        g = sorted(mpmath.mpf(float(gap)) for gap in gaps)

        def excess(b: Any) -> Any:
            return sum(mpmath.exp(-b * one / g[1]) for one in g[1:]) + mpmath.expm1(-b * g[0] / g[1])

        low, high = mpmath.mpf(0), mpmath.mpf(1)
        while excess(high) > 0:
            high *= 2
        for _ in range(100):
            middle = (low + high) / 2
            low, high = (middle, high) if excess(middle) > 0 else (low, middle)
        return float(high / g[1])


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    "gaps",
    [
        [1e-18, 1.0, 3.0],  # the nearest has all but a rounding of its half
        [1e-30, 1.0, 3.0],
        [1e-300, 1e3],
        [1e-300, 1e-299, 1e3],
        [1e-300, 1e-100, 1e-10, 1.0],
        [1e-12, 1.0],
        [1.0] * 40,
        [1e-30, *[1e-12] * 40],
        [1e-30, *[1e3] * 1000],
        [1e-37, 1e-36, 1e-35, 1e3],
    ],
)
def test_gaps_of_any_size_give_the_digits_of_a_bisection_in_sixty(gaps):
    assert critical_inverse_temperature([0.0, *(-gap for gap in gaps)]) == pytest.approx(
        critical(np.array(gaps)), rel=1e-13
    )
    narrow = np.array(gaps, np.float32)
    if narrow.min() > np.finfo(np.float32).tiny:
        scores, seen = jnp.asarray([0, *-narrow], jnp.float32), jnp.ones(len(gaps) + 1, bool)
        assert float(critical_of_rows(scores, seen)) == pytest.approx(critical(narrow), rel=3e-6)


def test_gaps_beyond_the_largest_number_are_infinite():
    assert critical_inverse_temperature([1e308, -1e308, 0.0]) == 0
    assert critical_inverse_temperature([1e308, -1e308, 1e308 - 1e293, 1e308 - 2e293]) > 0


def small_model(**changes: Any) -> jaxsens.Transformer:
    config = {"width": 16, "heads": 2, "layers": 2, "positions": "sinusoidal", "dtype": "float64"}
    return jaxsens.Transformer(jaxsens.TransformerConfig(3, **(config | changes)), seed=1)


WORD = np.random.default_rng(0).integers(0, 3, 24)


@pytest.mark.quick(1)
@pytest.mark.parametrize("mask", ["none", "future", "strict-future"])
def test_a_model_at_its_critical_temperature_has_a_largest_weight_of_half(mask):
    found = critical_temperatures(small_model(mask=mask, layers=1), WORD)
    row = 20
    beta = float(found.beta[0, 1, row])
    at_it = small_model(mask=mask, layers=1, weighting=Softmax(Schedule(coefficient=beta)))
    largest = attention_statistics(at_it, WORD).largest[0, 1, row]
    assert largest == pytest.approx(0.5, rel=1e-9)
    assert critical_temperatures(at_it, WORD).beta[0, 1, row] == pytest.approx(1, rel=1e-9)


def test_rows_are_concentrated_exactly_where_their_largest_weight_exceeds_half():
    model = small_model(mask="future", weighting=Softmax(Schedule(coefficient=3.0)))
    found = critical_temperatures(model, WORD)
    largest = attention_statistics(model, WORD).largest
    np.testing.assert_array_equal(found.beta < 1, largest > 0.5)
    assert found.beta[0, 0, :2].tolist() == [0, 0]
    table = found.to_pandas()
    assert list(table) == ["layer", "head", "median", "concentrated"]
    assert table["concentrated"].between(0, 1).all()
    assert "24" in repr(found)


@pytest.mark.parametrize(
    ("weighting", "factor"), [(Softmax(Schedule(coefficient=1e6)), 1e6), (SinkSoftmax(logit=4.0), 1.0)]
)
def test_weights_that_underflow_are_counted_in_full_and_a_sink_is_left_out(weighting, factor):
    found = critical_temperatures(small_model(weighting=weighting, layers=1), WORD)
    plain = critical_temperatures(small_model(layers=1), WORD)
    np.testing.assert_allclose(found.beta * factor, plain.beta, rtol=1e-6)


@pytest.mark.parametrize(
    "weighting", ["leftmost-hard", "average-hard", "sparsemax", "sigmoid", "adaptive-temperature"]
)
def test_what_is_no_softmax_is_refused_by_name(weighting):
    model = small_model(weighting=weighting)
    name = type(model.config.layer(0).weighting).__name__
    with pytest.raises(
        InputError, match=f"^critical_temperatures has no rule for the weighting {name}; it knows Softmax"
    ):
        critical_temperatures(model, WORD)


def test_a_layered_model_is_served_as_its_transformer_and_missing_heads_and_rows_without_keys_are_nan():
    model = small_model(mask="strict-future", heads=(2, 1), head_width=4)
    own = critical_temperatures(model, WORD)
    layered = critical_temperatures((layered_transformer(model.config), model.parameters), WORD)
    np.testing.assert_allclose(layered.beta, own.beta, rtol=1e-9)
    for nothing in ((1, 1), (..., 0)):
        assert np.isnan(own.beta[nothing]).all()
    assert not np.isnan(own.beta[0, :, 1:]).any()
    assert np.isnan(own.quantile(0.5)[1, 1])
    assert not np.isnan(own.quantile(0.5)[0]).any()


def test_blocks_of_rows_give_what_all_rows_give(monkeypatch):
    # Another epsilon, so that no compiled program is used again.
    whole = critical_temperatures(small_model(layer_norm_epsilon=1e-9), WORD)
    monkeypatch.setattr(statistics, "SCORES", 7 * 2 * len(WORD))
    blocks = critical_temperatures(small_model(layer_norm_epsilon=1.1e-9), WORD)
    np.testing.assert_allclose(blocks.beta, whole.beta, rtol=1e-9)


def test_what_is_refused():
    for scores in ([math.nan, 1.0], [math.inf, 1.0], [], 3.0, "ab"):
        refused("scores", critical_inverse_temperature, scores)
    lstm = jaxsens.training.LSTM(jaxsens.training.LSTMConfig(3, width=4))
    drawn = small_model(weighting=Softmax(Schedule(coefficient=1e38)), dtype="float32")
    large = jax.tree.map(lambda values: 20 * values, drawn.parameters)
    for model in (
        lstm,
        jaxsens.Transformer(drawn.config, parameters=large),
    ):  # the scores of the latter overflow
        refused("model", critical_temperatures, model, WORD)
