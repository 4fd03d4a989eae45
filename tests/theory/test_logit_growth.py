"""How the logit bound grows: the forms it takes, that it bounds the logits that occur, and what is said about it."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

from jaxsens import Transformer
from jaxsens.core.models.parts.masks import SlidingWindow
from jaxsens.core.models.parts.schedules import Schedule
from jaxsens.core.models.parts.weighting import Softmax
from jaxsens.theory.lemma5 import lemma5
from jaxsens.theory.logit_growth import LogitGrowth, logit_growth
from tests.refusals import refusal, refused
from tests.small_models import random_parameters, small

LENGTHS = (16, 32, 64, 128)


def growth(scale: float = 0.3, **changes: Any) -> LogitGrowth:
    config = small(**{"positions": "none", "feed_forward": 0, **changes})
    parameters = jax.tree.map(lambda p: scale * p, random_parameters(config))
    return logit_growth(Transformer(config, parameters=parameters), LENGTHS, words=2)


CASES = [
    # what, form and exponent of A, exponent of the attained logits, tolerance of the latter
    ({}, "constant", 0, 0, 0.05),
    ({"weighting": "temperature-quadratic"}, "power", 2, 2, 0.05),
    ({"weighting": "temperature-sqrt", "mask": "future"}, "power", 0.5, 0.5, 0.1),
    ({"weighting": Softmax(Schedule(1.0, 1.0), by="query"), "mask": "future"}, "power", 1, 1, 0.1),
    ({"positions": "index", "scale": 2.0, "layers": 1}, "power", 2, 2, 0.3),
    ({"positions": "alibi", "scores": "additive", "scale": 0.05}, "power", 1, 1, 0.1),
]


@pytest.mark.quick(3)
@pytest.mark.parametrize(("changes", "form", "exponent", "attained", "tolerance"), CASES)
def test_the_bound_and_the_logits_grow_alike(changes, form, exponent, attained, tolerance):
    found = growth(**changes)
    assert found.A.shape == found.attained.shape == (4, changes.get("layers", 2))
    assert np.all(found.attained <= found.A)
    assert np.all(found.attained > 0)
    assert found.form == form
    # ALiBi's penalty and an index are added to what is there already: exponents come from below.
    assert found.exponent == pytest.approx(exponent, abs=0.2 if "positions" in changes else 0.02)
    assert found.attained_exponent == pytest.approx(attained, abs=tolerance)
    assert found.bounded == (form == "constant")
    expected = "Lemma 5 gives O(1/n)" if found.bounded else "exp(2A)/n grows, Lemma 5 forbids nothing"
    assert expected in found.verdict


def test_a_temperature_of_log_n_is_told_from_a_power_and_its_coefficient_decides():
    def scaled(coefficient: float) -> LogitGrowth:
        return growth(weighting=Softmax(Schedule(coefficient, log_power=1.0)), layers=1)

    at_one = scaled(1.0)
    assert at_one.form == at_one.attained_form == "logarithm"
    assert at_one.exponent == pytest.approx(at_one.A[0, 0] / np.log(16), rel=1e-9)
    strong, weak = scaled(0.6 / at_one.exponent), scaled(0.2 / at_one.exponent)
    assert "0.60 log n: exp(2A)/n is about n^0.20, Lemma 5 forbids nothing" in strong.verdict
    assert "0.20 log n: Lemma 5 gives O(n^-0.60), up to powers of log n" in weak.verdict


def test_the_numbers_are_those_of_lemma_5():
    config = small(positions="none", weighting="temperature-log")
    model = Transformer(config, parameters=random_parameters(config))
    found = logit_growth(model, [64, 8, 8, 16], words=0)
    assert found.lengths == (8, 16, 64)
    for row, n in enumerate(found.lengths):
        one = lemma5(model, n)
        assert found.A[row].tolist() == [layer.logit_bound for layer in one.constants]
        assert found.log_bound[row] == one.log_bound
        assert found.log_closed_form[row] == one.log_closed_form
        assert found.log_trivial[row] == one.log_trivial


def test_attained_logits_are_the_largest_spread_of_a_row():
    # One head, no positions: a row's logits are tau^-1 E_s W_Q W_K^T E_t / sqrt(d_k), and words of 64 symbols have all.
    config = small(positions="none", heads=1, layers=1, end_symbol=False, weighting="temperature-sqrt")
    parameters = random_parameters(config)
    found = logit_growth(Transformer(config, parameters=parameters), (64, 81, 100))
    e, layer = np.asarray(parameters.embedding), parameters.layers[0]
    s = (
        e
        @ np.asarray(layer.query[0])
        @ np.asarray(layer.key[0]).T
        @ e.T
        / np.sqrt(config.layer(0).head_width)
    )
    spread = np.ptp(s, axis=1).max() / 2
    assert found.attained[:, 0] == pytest.approx(spread * np.sqrt([64, 81, 100]), rel=1e-10)


def test_masked_models_are_promised_less():
    assert "O((log n)^(L-1)/n)" in growth(mask="future").verdict
    windowed = growth(mask=("none", SlidingWindow(3)))
    assert windowed.bounded
    assert "a row sees at most 3 keys at every n, Lemma 5 forbids nothing" in windowed.verdict


def test_every_wrong_argument_is_named_at_once():
    names = ["weighting of layer 0", "weighting of layer 1", "lengths", "words", "seed"]
    with refusal(*names):
        logit_growth(Transformer(small(weighting="sparsemax")), [4, 4, 1], words=-1, seed=0.5)  # pyright: ignore[reportArgumentType]
    refused("model", logit_growth, Transformer(small(layers=0)), LENGTHS)
