"""Lemmas 7 and 9: no look-up errs more than is said; rounding and comparing are exact."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxsens.formal.constructions.conditions import KAPPA, lookup_sharpness, lookup_value_error
from jaxsens.formal.constructions.network import AT_LEAST_ZERO, EQUALS_ZERO, ROUND, Units


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
