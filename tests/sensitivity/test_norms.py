"""The norm of a change is NumPy's, over the last axis, at every size that the dtype can hold."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxsens.asked.formulas import norm_of
from jaxsens.inputs import NORMS

ORDER = {"l1": 1, "l2": 2, "linf": np.inf}


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("size", [1.0, 1e-30, 1e30])
def test_it_is_numpys_over_the_last_axis_whatever_the_size(norm, size):
    # The squares of 1e-30 and 1e30 are beyond float32.
    change = np.random.default_rng(0).normal(size=(2, 3, 5)).astype(np.float32) * np.float32(size)
    found = norm_of(jnp.asarray(change), norm)
    assert found.dtype == jnp.float32
    expected = np.linalg.norm(change.astype(np.float64), ORDER[norm], axis=-1)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("outputs", [0, 4])
def test_no_change_has_norm_0_and_no_output_has_none(norm, outputs):
    assert norm_of(jnp.zeros((3, outputs)), norm).tolist() == [0, 0, 0]


def test_in_float64_it_stays_there():
    with jax.enable_x64(True):
        change = jnp.asarray([[3e-200, 4e-200]], jnp.float64)
        assert norm_of(change, "l2").tolist() == [pytest.approx(5e-200, rel=1e-14)]
