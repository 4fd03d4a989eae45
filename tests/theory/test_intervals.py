"""Interval arithmetic: what is claimed of activations, maps and normalisation holds at points."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from jaxsens.core.base.programs import numerics
from jaxsens.core.models.parts.choices import ACTIVATIONS
from jaxsens.theory.certified import intervals
from jaxsens.theory.certified.intervals import Ball, ball


def inside(x: np.ndarray, b: Ball) -> bool:
    return bool(((b.lo <= x) & (x <= b.hi)).all())


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_constants_of_the_activations_hold_on_a_grid(name):
    h = np.linspace(-30, 30, 600_001)
    facts = intervals.ACTIVATIONS[name]
    f, d = facts.function(h), facts.derivative(h)
    least, most = facts.slopes
    assert facts.least <= f.min()
    assert (np.diff(f[h > facts.turn]) >= 0).all()
    assert least <= d.min()
    assert d.max() <= most
    if name != "relu":
        assert abs(np.diff(d) / np.diff(h)).max() <= facts.curvature
        np.testing.assert_allclose(np.diff(f) / np.diff(h), (d[1:] + d[:-1]) / 2, atol=1e-6)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_are_those_of_the_models(name):
    h = np.linspace(-5, 5, 101)
    with numerics("float64"):
        of_model = np.asarray(ACTIVATIONS[name](jnp.asarray(h)))
    np.testing.assert_allclose(intervals.ACTIVATIONS[name].function(h), of_model, atol=1e-14)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_ranges_slopes_and_lines_hold_within_random_intervals(name):
    rng = np.random.default_rng(0)
    ends = np.sort(rng.normal(size=(400, 2)) * rng.choice([0.1, 1, 10], size=(400, 1)), axis=1)
    h = ball(ends[:, 0], ends[:, 1])
    t = ends[:, :1] + np.linspace(0, 1, 300) * (ends[:, 1:] - ends[:, :1])
    f = intervals.ACTIVATIONS[name].function(t)
    assert inside(f.T, intervals.activated(name, h))
    quotients = np.diff(f, axis=1) / np.diff(t, axis=1)
    d = intervals.slopes(name, h)
    assert ((d.lo - 1e-9 <= quotients.T) & (d.hi + 1e-9 >= quotients.T)).all()
    s, c = intervals.relaxed(name, h)
    assert inside((f - s[:, None] * t).T, c)


def test_maps_and_normalisation_hold_at_random_points():
    rng = np.random.default_rng(1)
    mid, rad = rng.normal(size=(50, 6)), 0.3 * rng.random((50, 6))
    points = mid + rad * rng.uniform(-1, 1, size=(200, 50, 6))
    x, matrix = Ball(mid, rad), rng.normal(size=(6, 4))
    assert inside(points @ matrix, intervals.times(x, matrix))
    scale, bias = rng.normal(size=6), rng.normal(size=6)
    centred = points - points.mean(-1, keepdims=True)
    root = np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-3)
    assert inside(centred / root * scale + bias, intervals.layer_normed(x, 1e-3, scale, bias))
    assert inside(1 / root, intervals.inverse_deviation(x, 1e-3))
    assert inside(points * points, intervals.product(x, x))


def test_spectral_and_vector_norms_are_bounds():
    rng = np.random.default_rng(2)
    matrix, vectors = rng.normal(size=(5, 7)), rng.normal(size=(1000, 5))
    ratios = np.linalg.norm(vectors @ matrix, axis=1) / np.linalg.norm(vectors, axis=1)
    assert ratios.max() <= intervals.spectral(matrix)
    assert intervals.norm_bound(np.array([3.0, 4.0]), "l2") >= 5
    assert intervals.norm_bound(np.array([3.0, 4.0]), "l1") >= 7
    assert intervals.norm_bound(np.array([3.0, 4.0]), "linf") == 4
    assert intervals.norm_bound(np.array([3e-200, 4e-200]), "l2") >= 5e-200
