"""What is called resolved is right to 1 %; and the oracle, programs in numbers of any width, beside mpmath."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

import jaxsens
from jaxsens.core.results import rounding
from tools.cancelling import ENGINES, FUNCTIONS, NEAR, OF_OUTPUT, measured, of_function, of_output

QUICK = ("variance", "log-sum-exp of equal terms", "hinge")
QUICK_OF_OUTPUT = ("narrow ramp beside",)


def some(names, quick):
    return [pytest.param(name, marks=() if name in quick else pytest.mark.long) for name in names]


@pytest.mark.parametrize("name", some(FUNCTIONS, QUICK))
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_no_change_of_a_plain_function_is_called_resolved_and_off(name, dtype):
    found = [of_function(name, dtype, kind) for kind in ("constant", "random")]
    assert [one.wrong for one in found] == [0, 0], found


@pytest.mark.parametrize("name", some(OF_OUTPUT, QUICK_OF_OUTPUT))
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("dtype", ["float32", pytest.param("float64", marks=pytest.mark.long)])
def test_no_change_of_a_function_of_the_output_is_called_resolved_and_off(name, dtype, engine):
    found = [of_output(name, dtype, kind, engine) for kind in ("constant", "random")]
    assert [one.wrong for one in found] == [0, 0], found


def test_where_many_flips_take_long_a_sample_tells_their_rounding(monkeypatch):
    def variance(p, x):
        v = jnp.asarray(p)[x]
        return jnp.mean(v * v) - jnp.mean(v) ** 2

    monkeypatch.setattr(rounding, "CHEAP", 0.0)
    found = measured((variance, np.asarray(NEAR[:2], np.float32)), np.zeros(8, int), flips=2)
    assert not found.resolved.any()
    assert np.all(np.abs(found.values - 1.094e-5) < found.resolution)


def test_a_sum_that_nothing_cancels_in_stays_resolved():
    for dtype in (np.float32, np.float64):
        numbers = np.asarray([0.1, 0.2, 0.7], dtype)
        found = measured((lambda p, x: jnp.asarray(p)[x].mean(), numbers), np.arange(60) % 3, flips=3)
        assert isinstance(found, jaxsens.FlipSensitivity)
        assert found.resolved.all()
        assert np.max(found.resolution) < 20 * np.finfo(dtype).eps
