"""What is called resolved is right to 1 %; and the oracle, programs in numbers of any width, beside mpmath."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from jax import lax

import jaxsens
from jaxsens.core.base.programs import numerics
from jaxsens.core.models.parts.choices import ACTIVATIONS, LAYER_NORMS, OUTPUT_GATES, SCORES
from jaxsens.core.models.parts.masks import MASKS, SlidingWindow
from jaxsens.core.models.transformer import layers
from jaxsens.core.results import rounding
from tests.small_models import POSITIONS_TRIED, WEIGHTINGS_TRIED, random_parameters, small
from tests.wide.numbers import Precise
from tests.wide.program import traced
from tools.cancelling import ENGINES, FUNCTIONS, NEAR, OF_OUTPUT, measured, of_function, of_output


def same(function: Any, *args: Any) -> None:
    """Compares the program of a function, in wide numbers, with JAX in float64."""
    with numerics("float64"):
        program, wanted = traced(function, *args), jax.jit(function)(*args)
    found = program.evaluate(Precise(160), *args)
    np.testing.assert_allclose(found.astype(float), wanted, rtol=1e-12, atol=1e-12)


def pick(kinds: Any, k: int, count: int = 3) -> tuple[Any, ...]:
    """`count` members of a family, others for each k."""
    listed = list(kinds.values() if isinstance(kinds, dict) else kinds)
    return tuple(listed[(count * k + i) % len(listed)] for i in range(count))


CASES = max(-(-len(WEIGHTINGS_TRIED) // 3), len(POSITIONS_TRIED))


@pytest.mark.quick(4)
@pytest.mark.parametrize("k", range(CASES))
def test_the_packages_transformers_as_in_jax(k: int) -> None:
    """Together the cases have every weighting, mask, position, normalisation, activation, score, gate and readout."""
    positions = list(POSITIONS_TRIED.values())
    config = small(
        layers=3,
        weighting=pick(WEIGHTINGS_TRIED, k),
        mask=pick([*MASKS, SlidingWindow(3)], k),
        positions=positions[k % len(positions)],
        layer_norm=pick(list(LAYER_NORMS), k, 1)[0],
        activation=pick(list(ACTIVATIONS), k, 1)[0],
        scores=pick(list(SCORES), k // 2, 1)[0],
        output_gate=pick(list(OUTPUT_GATES), k // 3, 1)[0],
        readout=pick(("last", "mean", 1), k, 1)[0],
        logits=pick((None, 3), k, 1)[0],
    )
    parameters, tokens = random_parameters(config), np.arange(6) % 3
    same(lambda parameters, tokens: layers.apply(config, parameters, tokens), parameters, tokens)


def test_one_softmax_layer_as_in_mpmath() -> None:
    """All digits of 300 bits, from the formula of one layer with one head written with mpmath's numbers."""
    config = small(layers=1, heads=1, feed_forward=0, positions="none")
    parameters, tokens = random_parameters(config), np.array([0, 2, 1, 1, 0])
    with numerics("float64"):
        program = traced(lambda p, t: layers.apply(config, p, t), parameters, tokens)
    found = program.evaluate(Precise(300), parameters, tokens)
    with mpmath.workprec(400):
        x = mpmath.matrix(parameters.embedding[tokens].tolist())
        layer = parameters.layers[0]
        query, key, value, output = (
            mpmath.matrix(np.asarray(matrix)[0].tolist())
            for matrix in (layer.query, layer.key, layer.value, layer.output)
        )
        scores = x * key * (x[4, :] * query).T / 2  # the root of head_width = 4
        powers = scores.apply(mpmath.exp)
        wanted = x[4, :] + (powers.T * x * value * output) / mpmath.fsum(powers)
        for one, right in zip(found, wanted, strict=True):
            assert abs(mpmath.mpf(str(one)) - right) < mpmath.mpf(2) ** -290


def test_a_primitive_without_rule_is_named() -> None:
    assert (
        traced(lambda x: lax.scan(lambda c, r: (c + jnp.sin(r), r), x[0], x), np.ones(3)).unsupported == "sin"
    )
    assert traced(lambda x: jnp.exp(x).sum(), np.ones(3)).unsupported is None


QUICK = (
    "variance",
    "alternating sum",
    "product by hand",
    "log-sum-exp of equal terms",
    "product",
    "hinge",
    "absolute value beside",
)
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
