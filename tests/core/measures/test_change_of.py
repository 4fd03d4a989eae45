"""The change of a function: never worse than subtracting by more than a few times, and far better where it is small."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxsens.core.base.programs import numerics
from jaxsens.core.measures.formulas import change_of

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


def found(f, x, dx, dtype="float32"):
    with numerics(dtype):
        return np.asarray(
            jax.jit(partial(change_of, lambda y: jnp.asarray(f(jnp, y))))(
                jnp.asarray(x, dtype), jnp.asarray(dx, dtype)
            )
        )


@pytest.mark.quick(18)
@pytest.mark.parametrize("size", [1e-13, 1e-6, 1e-3, 0.1, 1.0, 10.0])
@pytest.mark.parametrize("name", SMOOTH)
def test_the_change_of_a_smooth_function_has_the_digits_of_dx_or_of_the_subtraction(name, size):
    f = SMOOTH[name]
    expected = truth(f, X, size * DX)
    error = abs(found(f, X, size * DX) - expected)
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
