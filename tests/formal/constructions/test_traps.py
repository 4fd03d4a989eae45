"""The traps that the constructions are known for, each with a test that falls into it if the code does."""

from __future__ import annotations

import jax
import jax.extend
import numpy as np
import pytest

import jaxsens
from jaxsens.core.base.programs import numerics
from jaxsens.core.models.transformer import layers
from jaxsens.formal.constructions.compiler import compile_formula
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
