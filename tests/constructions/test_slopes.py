"""How the sensitivity of constructed transformers scales: the point of the second paper, tested by slope."""

from __future__ import annotations

import numpy as np
import pytest

import jaxsens

LENGTHS = (16, 40, 100)


def curve(model, lengths=LENGTHS) -> np.ndarray:
    """The largest sensitivity over a few flips spread over a random word, by length."""
    found = []
    for n in lengths:
        tokens = np.random.default_rng(n).integers(0, 2, n)
        positions = np.linspace(0, n - 2, 8).astype(int)
        found.append(jaxsens.flip_sensitivity(model, tokens, positions=np.unique(positions).tolist()).max)
    return np.array(found)


def slope(model, lengths=LENGTHS) -> float:
    """The exponent of n."""
    return float(np.polyfit(np.log(lengths), np.log(curve(model, lengths)), 1)[0])


@pytest.mark.parametrize("condition", ["temperature", "unbounded", "temperature-bounded"])
def test_parity_stays_flat(condition):
    np.testing.assert_allclose(curve(jaxsens.construction("parity", condition)), 1, atol=1e-12)


def test_the_controls_whole_vector_falls_as_one_over_n():
    model = jaxsens.construction("parity", "bounded-softmax", read="everything")
    assert abs(slope(model) + 1) < 0.05


def test_the_controls_value_before_rounding_falls_as_fast_or_faster():
    """An average of alternating values hardly notices that its weights move: it falls as 1/n^2."""
    model = jaxsens.construction("parity", "bounded-softmax", read="before-rounding")
    assert slope(model) < -0.95


@pytest.mark.slow
@pytest.mark.parametrize("condition", ["temperature", "unbounded", "temperature-bounded"])
@pytest.mark.parametrize("name", ["parity", "parity-without-predicates"])
def test_parity_stays_flat_to_1024(name, condition):
    np.testing.assert_allclose(
        curve(jaxsens.construction(name, condition), (16, 64, 250, 512, 1000, 1024)), 1, atol=1e-12
    )
