"""Averages under attention weights."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxsens.models.weighting import WEIGHTINGS, averages, weights


@pytest.mark.parametrize("exact_rows", [False, True])
@pytest.mark.parametrize("name", ["softmax", "average-hard"])
@pytest.mark.parametrize("n", [10_007, 50_021])
def test_uniform_averages_of_zeros_and_ones_are_correctly_rounded_quotients(name, n, exact_rows):
    rng = np.random.default_rng(n)
    counts = [n // 3, n // 2, n - 1, n]
    values = np.stack([rng.permutation(n) < count for count in counts], axis=-1).astype(np.float32)
    scores, seen = jnp.full((1, 2, n), 0.5), jnp.ones((1, 2, n), bool)
    found = averages(WEIGHTINGS[name], scores, seen, jnp.asarray(values)[None], exact_rows)
    expected = np.array(counts, np.float32) / np.float32(n)
    np.testing.assert_array_equal(found[0], np.stack([expected, expected]))


@pytest.mark.parametrize("name", WEIGHTINGS)
def test_averages_are_those_under_the_weights(name):
    rng = np.random.default_rng(0)
    scores = jnp.asarray(rng.integers(0, 3, size=(2, 3, 5)), jnp.float32)
    seen = jnp.asarray(rng.random((2, 3, 5)) < 0.6).at[0, 0].set(False)
    values = jnp.asarray(rng.normal(size=(2, 5, 4)), jnp.float32)
    weight = weights(WEIGHTINGS[name], scores, seen)
    np.testing.assert_allclose(weight.sum(-1), seen.any(-1), rtol=1e-6)
    assert not weight[~seen].any()
    found = averages(WEIGHTINGS[name], scores, seen, values, False)
    np.testing.assert_allclose(found, jnp.einsum("hij,hjd->hid", weight, values), rtol=1e-5, atol=1e-6)


def test_equal_fractions_of_different_rows_are_equal_numbers():
    # Row i averages i zeros and ones of which a third are ones.
    values = (jnp.arange(30) % 3 == 0).astype(jnp.float32)[None, :, None]
    lengths = jnp.arange(3, 31, 3)
    seen = (jnp.arange(30) < lengths[:, None])[None]
    compiled = jax.jit(averages, static_argnums=(0, 4))
    for name in ("softmax", "average-hard"):
        found = compiled(WEIGHTINGS[name], jnp.zeros(seen.shape), seen, values, True)
        np.testing.assert_array_equal(found, np.full(found.shape, np.float32(1) / np.float32(3)))


def test_averages_have_gradients():
    def mean(values):
        scores, seen = jnp.zeros((1, 1, 4)), jnp.ones((1, 1, 4), bool)
        return averages(WEIGHTINGS["softmax"], scores, seen, values, False).sum()

    np.testing.assert_allclose(jax.grad(mean)(jnp.ones((1, 4, 2))), 0.25)
