"""The traps that the constructions are known for; what a promise says of sizes; and the digits of vanishing effects."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.extend
import numpy as np
import pytest

import jaxsens
from jaxsens import InputError
from jaxsens.core.base.programs import numerics
from jaxsens.core.models.transformer import layers
from jaxsens.formal.constructions.compiler import compile_formula, exact_length
from jaxsens.formal.constructions.network import Affine, Head
from jaxsens.logic import evaluate_tokens, parse
from tests.formal.constructions.test_compiler import wrong


def test_t8_products_run_at_the_highest_precision_whatever_the_default():
    model = compile_formula("odd(#L[Q_1])", "01", dtype="float32")

    def products(jaxpr):
        for equation in jaxpr.eqns:
            if equation.primitive.name == "dot_general":
                yield equation.params["precision"]
            for inner in jax.extend.core.jaxprs_in_params(equation.params):
                yield from products(inner)

    with jax.default_matmul_precision("bfloat16"), numerics("float32"):
        traced = jax.make_jaxpr(lambda tokens: layers.apply(model.config, model.parameters, tokens))(
            np.zeros(9, np.int32)
        )
    found = list(products(traced.jaxpr))
    assert len(found) > 5
    assert all(precision == (jax.lax.Precision.HIGHEST,) * 2 for precision in found)


@pytest.mark.parametrize("n", [100, 300])
def test_t9_float32_is_exact_at_lengths_that_are_no_powers_of_two(n):
    parity = parse("odd(#L[Q_1])")
    for condition in ("temperature", "unbounded"):
        model = compile_formula(parity, "01", condition, dtype="float32")
        tokens = np.ones((1, n), int)
        y = np.asarray(model.activations(tokens))[..., model.output]
        np.testing.assert_array_equal(y, evaluate_tokens(parity, tokens, "01"))


@pytest.mark.slow
@pytest.mark.parametrize("condition", ["temperature", "unbounded"])
def test_t9_look_ups_in_float32_far_beyond_where_plain_scores_fail(condition):
    parity = parse("odd(#L[Q_1])")
    model = compile_formula(parity, "01", condition, dtype="float32")
    plain = jaxsens.Transformer(model.config.replace(centred_scores=False), parameters=model.parameters)
    tokens = np.ones((1, 5001), int)
    truth = evaluate_tokens(parity, tokens, "01")
    np.testing.assert_array_equal(np.asarray(model.activations(tokens))[..., model.output], truth)
    assert (np.asarray(plain.activations(tokens))[..., model.output] != truth).any()


@pytest.mark.quick(8)
@pytest.mark.parametrize("condition", ["temperature", "unbounded", "temperature-bounded", "average-hard"])
@pytest.mark.parametrize(
    "text", ["even(#L[Q_1])", "odd(#L[Q_1])", "mod(3, 0, #R[Q_1])", "last(#L[Q_1])", "exactly(0, #L[Q_1])"]
)
def test_t15_a_predicate_of_the_count_zero(text, condition):
    model = compile_formula(text, "01", condition)
    for n in (1, 2, 5):
        assert wrong(model, parse(text), np.zeros((1, n), int)) == 0


@pytest.mark.parametrize("text", ["Q_a & odd | !Q_a & even", "Y Q_a", "odd(#L[Q_a]) & Y Q_a"])
def test_what_a_promise_says_of_heads_and_masks_is_so_in_layers_without_attention_too(text):
    model = compile_formula(text, "ab", autoregressive=True)
    each = [model.config.layer(k) for k in range(model.config.layers)]
    assert {layer.mask for layer in each} == {"future"}
    promise = model.promise
    assert promise.heads == sum(map(len, model.heads))
    assert promise.heads + promise.idle_heads == sum(layer.heads for layer in each)
    assert (f" and {promise.idle_heads} idle," in str(promise)) == (promise.idle_heads > 0)
    for heads, layer in zip(model.heads, model.parameters.layers, strict=True):
        idle = (layer.query, layer.key, layer.value, layer.output) if not heads else ()
        assert all(not np.any(np.asarray(leaf)) for leaf in idle)


def test_kinds_without_a_rule_are_refused_by_name():
    far: Any = "farthest"
    head = Head((), Affine(), 0, far, 0.0, 1.0)
    with pytest.raises(InputError, match="exact_length has no rule for the head farthest"):
        exact_length([head], [], "temperature", False, "float64")


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
