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
        found.append(
            jaxsens.flip_sensitivity(
                model, tokens, flips=jaxsens.Substitute(positions=np.unique(positions).tolist())
            ).max
        )
    return np.array(found)


def slope(model, lengths=LENGTHS) -> float:
    return float(np.polyfit(np.log(lengths), np.log(curve(model, lengths)), 1)[0])


@pytest.mark.quick(0, 2)
@pytest.mark.parametrize("condition", ["temperature", "unbounded", "temperature-bounded"])
@pytest.mark.parametrize(
    "lengths", [LENGTHS, pytest.param((16, 64, 250, 512, 1000, 1024), marks=pytest.mark.slow)]
)
def test_parity_stays_flat(condition, lengths):
    np.testing.assert_allclose(curve(jaxsens.construction("parity", condition), lengths), 1, atol=1e-12)


@pytest.mark.long
def test_the_controls_whole_vector_falls_as_one_over_n():
    model = jaxsens.construction("parity", "bounded-softmax", read="everything")
    assert abs(slope(model) + 1) < 0.05


@pytest.mark.slow
def test_the_controls_value_before_rounding_falls_as_fast_or_faster():
    """An average of alternating values hardly notices that its weights move: it falls as 1/n^2."""
    model = jaxsens.construction("parity", "bounded-softmax", read="before-rounding")
    assert slope(model) < -0.95


@pytest.mark.slow
def test_the_control_is_measured_in_float32_as_it_is_in_float64():
    """Its change falls below what subtracting float32 outputs leaves, so it must suit the engine that does not."""
    norms = []
    for dtype in ("float32", "float64"):
        model = jaxsens.construction("parity", "bounded-softmax", read="before-rounding", dtype=dtype)
        result = jaxsens.flip_sensitivity(
            model, np.arange(400) % 2, flips=jaxsens.Substitute(positions=[3, 200])
        )
        assert result.engine.name == "difference"
        norms.append(result.norms)
    np.testing.assert_allclose(norms[0], norms[1], rtol=1e-3)


def test_only_a_promised_output_is_measured_by_subtracting():
    exact = jaxsens.construction("parity")
    averages = jaxsens.construction("parity", read="before-rounding")
    control = jaxsens.construction("parity", "bounded-softmax")
    for model, engine in ((exact, "vmap"), (averages, "difference"), (control, "difference")):
        assert jaxsens.explain(model, 16).engine.name == engine


@pytest.mark.slow
def test_a_gap_that_vanishes_is_measured_by_the_difference_engine():
    """Chiang and Cholak's PARITY decides exactly, but its logit moves by 1/n^2 only."""
    model = jaxsens.construction("chiang-cholak-parity", dtype="float32")
    tokens = model.prepare("01" * 250)  # pyright: ignore[reportAttributeAccessIssue]
    result = jaxsens.flip_sensitivity(model, tokens, flips=jaxsens.Substitute(positions=[3, 100]))
    assert result.max == pytest.approx(model.closed_form(501), rel=2e-6)  # pyright: ignore[reportAttributeAccessIssue]
