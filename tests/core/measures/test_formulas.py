"""Measures of an output and its change: the digits of small changes, at all sizes; also of functions."""

from __future__ import annotations

from decimal import localcontext
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxsens.core.base.programs import numerics
from jaxsens.core.measures import Measure
from jaxsens.core.measures.formulas import change_of
from tests.lanes import examples
from tests.measure_reference import DIGITS, exact, measured

OUTPUTS = 7
MEASURES = {name: kind() for name, kind in Measure.kinds.items() if not kind.arguments}


def expected(name, y, changes):
    with localcontext(DIGITS):
        before = exact(y)
        return np.array(
            [
                measured(before, [a + d for a, d in zip(before, exact(dy), strict=True)], name)
                for dy in changes
            ]
        )


MEASURED = {
    (name, dtype): jax.jit(MEASURES[name].of_changes) for name in MEASURES for dtype in ("float32", "float64")
}


def found(name, y, changes, dtype):
    with numerics(dtype):
        dy = jnp.asarray(changes, dtype)
        value, _ = MEASURED[name, dtype](jnp.asarray(y, dtype), dy, jnp.zeros(len(dy), dtype))
        assert value.dtype == dtype
        return np.asarray(value)


def drawn(seed, size, dtype, spread=1.0, count=5):
    rng = np.random.default_rng(seed)
    y, changes = spread * rng.normal(size=OUTPUTS), size * rng.normal(size=(count, OUTPUTS))
    return y.astype(dtype), changes.astype(dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("size", [1e-14, 1e-4, 1e-2, 1.0, 30.0])
@pytest.mark.parametrize("name", [name for name in MEASURES if name != "decision"])
def test_changes_of_all_sizes_keep_their_digits(name, size, dtype):
    y, changes = drawn(0, size, dtype)
    np.testing.assert_allclose(
        found(name, y, changes, dtype), expected(name, y, changes), rtol=64 * np.finfo(dtype).eps
    )


@pytest.mark.parametrize("name", ["l1", "l2", "linf"])
def test_norms_of_sizes_whose_squares_float32_lacks(name):
    for size in (1e-30, 1e30):
        y, changes = drawn(0, size, "float32")
        np.testing.assert_allclose(found(name, y, changes, "float32"), expected(name, y, changes), rtol=1e-6)


SIZES = st.floats(-18, 1.5).map(lambda power: 10**power)


@given(st.integers(0, 10**6), SIZES, st.sampled_from([0.1, 1.0, 5.0]), st.sampled_from(["cosine", "kl"]))
@settings(max_examples=examples(100), deadline=None)
def test_any_change_of_any_output(seed, size, spread, name):
    y, changes = drawn(seed, size, "float32", spread, count=3)
    # The part of a change that a measure leaves out (along y, or common to all outputs) costs digits of the rest.
    truth = expected(name, y, changes)
    rest = np.sqrt(np.maximum(truth, 1e-300)) * (np.linalg.norm(y) if name == "cosine" else 1.0)
    lost = np.finfo(np.float32).eps * np.linalg.norm(changes, axis=1) / np.minimum(rest, 1.0)
    value = found(name, y, changes, "float32")
    assert np.all(np.abs(value - truth) <= (2e-5 + 64 * lost) * truth + 1e-37)
    assert np.all(value >= 0)


def test_a_divergence_of_logits_far_apart():
    y = np.array([0.0, -200.0, -40.0], np.float32)
    changes = np.array([[0, 0, 39], [0, 300, 0], [0, 199, 1], [-1e4, 1e4, 0], [5e3, 5e3, 5e3]], np.float32)
    truth = expected("kl", y, changes)
    np.testing.assert_allclose(found("kl", y, changes, "float32"), truth, rtol=2e-5, atol=1e-30)


def test_opposite_and_equal_directions_and_none():
    y = np.array([3.0, 4.0], np.float32)
    changes = np.array([[3, 4], [-6, -8], [-3, -4], [-7, -1], [0, 0]], np.float32)
    np.testing.assert_allclose(found("cosine", y, changes, "float32"), [0, 2, np.nan, 1, 0], rtol=1e-6)
    assert np.isnan(found("cosine", np.zeros(2), changes, "float32")).all()


# (output, change, whether the decision changes)
DECISIONS = [
    ([1, 2], [0, 0], 0),
    ([1, 2], [1, 0], 1),  # a tie after the change: the first of equals
    ([2, 1], [0, 1], 0),
    ([1, 1], [0, 1e-12], 1),  # a tie before, told apart by a change that 1 + 1e-12 loses
    ([1, 1], [1e-12, 0], 0),
    ([1, 1, 3], [0, 5, 1], 1),
    ([1], [-1], 1),
    ([1], [-0.5], 0),
    ([0], [1], 1),
    ([0], [-1], 0),
    ([-1], [1], 0),
    ([1e6], [-1e6 - 1], 1),
]


@pytest.mark.parametrize(("y", "change", "changed"), DECISIONS)
def test_decisions(y, change, changed):
    assert found("decision", y, [change], "float32").tolist() == [changed]
    assert expected("decision", y, [change]).tolist() == [changed]
    if max(map(abs, change)) > 1e-6:
        old, new = jnp.asarray(y, float), jnp.asarray([np.add(y, change)], float)
        value, _ = MEASURES["decision"].of_outputs(old, new, new - old, jnp.zeros(1))
        assert value.tolist() == [changed]


@pytest.mark.parametrize("name", MEASURES)
def test_what_an_engine_declines_stays_declined(name):
    for bad in (np.nan, np.inf):
        value = found(name, [1.0, 2.0], [[bad, 0.0], [1.0, 0.0]], "float32")
        assert not np.isfinite(value[0])
        assert np.isfinite(value[1])


X = np.random.default_rng(0).normal(size=7)
DX = np.random.default_rng(1).normal(size=7)
WEIGHTS = np.random.default_rng(2).normal(size=7)

SMOOTH = {
    "linear": lambda np, y: (WEIGHTS.astype(y.dtype) * y).sum(),
    "difference": lambda np, y: y[3] - y[1],
    "log-probability": lambda np, y: (y - y.max())[2] - np.log(np.exp(y - y.max()).sum()),
    "probability": lambda np, y: np.exp(y[2]) / np.exp(y).sum(),
    "norm": lambda np, y: np.sqrt((y * y).sum()),
    "tanh": lambda np, y: np.tanh(y).sum(),
}
"""Each as a function of (numpy or jax.numpy, vector), for the truth in extended precision."""


def truth(f, x, dx):
    """The change in extended precision, of the vectors that float32 holds."""
    x, dx = (np.asarray(v, np.float32).astype(np.longdouble) for v in (x, dx))
    return f(np, x + dx) - f(np, x)


def change_found(f, x, dx, dtype="float32"):
    with numerics(dtype):
        return np.asarray(
            jax.jit(partial(change_of, lambda y: jnp.asarray(f(jnp, y))))(
                jnp.asarray(x, dtype), jnp.asarray(dx, dtype)
            )
        )


@pytest.mark.quick(8)
@pytest.mark.parametrize("size", [1e-13, 1e-6, 1e-3, 0.1, 1.0, 10.0])
@pytest.mark.parametrize("name", SMOOTH)
def test_the_change_of_a_smooth_function_has_the_digits_of_dx_or_of_the_subtraction(name, size):
    f = SMOOTH[name]
    expected = truth(f, X, size * DX)
    error = abs(change_found(f, X, size * DX) - expected)
    conditioned = abs(
        np.asarray(jax.grad(lambda y: f(jnp, y))(jnp.asarray(X, jnp.float32))) * DX * size
    ).sum()
    rounding = 40 * np.finfo(np.float32).eps
    # Small changes: relative to the sum of the terms, not to f. Large ones: as two values, subtracted.
    assert error <= rounding * (conditioned if size < 1e-2 else max(1, abs(expected)) * max(1, size))


STEPS = {
    "step": lambda y: jnp.where(y[0] > 0.5, 1.0, 0.0),
    "small step": lambda y: jnp.where(y[0] > 0.5, 1e-9, 0.0),
    "step where x is": lambda y: jnp.where(y[1] >= 1.0, 1.0, 0.0),
    "rounded": lambda y: jnp.round(y[0]),
    "kink": lambda y: jax.nn.relu(y[0] - 0.5),
    "argmax": lambda y: y[jnp.argmax(y[:2])] * 0 + jnp.argmax(y[:2]),
}


@pytest.mark.quick(12)
@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("step", [(0.2, -1e-3), (0.9, 0.0), (0.0, -1e-6), (1e-9, 0.0), (0.0, -0.9)])
def test_steps_and_kinks_are_subtracted(name, step):
    f, x, dx = STEPS[name], jnp.array([0.4, 1.0]), jnp.asarray(step)
    plain = f(x + dx) - f(x)
    assert change_of(f, x, dx) == pytest.approx(float(plain), rel=1e-6, abs=1e-12)


def test_functions_without_a_derivative_are_subtracted():
    def called_back(y):
        return jax.pure_callback(lambda v: np.float32(v.sum()), jax.ShapeDtypeStruct((), jnp.float32), y)

    @jax.custom_vjp
    def backward_only(y):
        return (y * y).sum()

    backward_only.defvjp(lambda y: (backward_only(y), y), lambda y, g: (2 * g * y,))
    x, dx = jnp.ones(3), jnp.full(3, 0.5)
    assert change_of(called_back, x, dx) == 1.5
    assert change_of(backward_only, x, dx) == 3.75
    assert change_of(lambda y: jnp.argmax(y), x, jnp.array([0.0, 0.0, 1.0])) == 2


def test_a_value_that_is_not_finite_stays_so():
    assert np.isnan(change_of(lambda y: jnp.log(y[0]), jnp.ones(1), jnp.full(1, -2.0)))
    assert change_of(lambda y: jnp.sqrt(y[0]), jnp.zeros(1), jnp.full(1, 4.0)) == 2
