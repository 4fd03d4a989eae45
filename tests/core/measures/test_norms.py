"""The norm of a change is NumPy's, over the last axis, at every size that the dtype can hold; and of two parts."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from jaxsens.core.measures import L1, L2, LInf

NORMS = {"l1": (L1(), 1), "l2": (L2(), 2), "linf": (LInf(), np.inf)}


@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize("size", [1.0, 1e-30, 1e30])
def test_it_is_numpys_over_the_last_axis_whatever_the_size(name, size):
    norm, order = NORMS[name]
    # The squares of 1e-30 and 1e30 are beyond float32.
    change = np.random.default_rng(0).normal(size=(2, 3, 5)).astype(np.float32) * np.float32(size)
    found = norm.of(jnp.asarray(change))
    assert found.dtype == jnp.float32
    expected = np.linalg.norm(change.astype(np.float64), order, axis=-1)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    np.testing.assert_allclose(norm.of_array(change.astype(np.float64)), expected, rtol=1e-12)
    apart = (
        norm.of_array(change[..., :2].astype(np.float64)),
        norm.of_array(change[..., 2:].astype(np.float64)),
    )
    np.testing.assert_allclose(norm.combined(*apart), expected, rtol=1e-12)
