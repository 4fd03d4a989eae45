"""Which engine measures constructed transformers, and that it keeps the digits of a vanishing change."""

from __future__ import annotations

import math

import numpy as np
import pytest

import jaxsens


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
    t = math.tanh(1)
    assert result.max == pytest.approx(4 * t / (501**2 - t**2), rel=2e-6)
