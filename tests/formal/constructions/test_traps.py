"""The traps that the constructions are known for, what a promise says of sizes, digits of vanishing effects; names."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.extend
import numpy as np
import pytest

import jaxsens
from jaxsens import InputError, compile_formula
from jaxsens.core.base.programs import numerics
from jaxsens.core.models.transformer import layers
from jaxsens.formal.constructions.catalogue import REFERENCES, names
from jaxsens.formal.constructions.compiler import exact_length
from jaxsens.formal.constructions.network import Affine, Head
from jaxsens.logic import LIBRARY, evaluate_tokens, parse
from tests.formal.constructions.many_words import activations
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


@pytest.mark.parametrize("name", names())
def test_every_name_makes_a_model_that_reads_words(name):
    model = jaxsens.construction(name)
    assert isinstance(model, jaxsens.Transformer)
    word = np.zeros(3, int)
    # The formulas' networks are deep, and long in compiling: they are read in NumPy here.
    found = activations(model.config, model.parameters, word[None]) if name in LIBRARY else model(word)
    assert np.isfinite(np.asarray(found)).all()


@pytest.mark.parametrize(
    ("name", "condition", "theorem"),
    [
        ("previous", "temperature", "Theorem 13(c)"),
        ("previous", "unbounded", "Theorem 13(d) with the factor i in place of i^2"),
        ("since", "temperature", "Theorem 16(a)"),
        ("since", "average-hard", "the hard attention that Theorem 16 simulates, with the scores of (b)"),
        ("majority", "average-hard", "the hard attention that Theorem 21 simulates"),
        (
            "dyck-1",
            "average-hard",
            "the hard attention that Corollary 23 simulates, with the scores of Corollary 18(b) for S",
        ),
    ],
)
def test_autoregressive_theorems_have_the_letters_of_the_paper(name, condition, theorem):
    assert jaxsens.construction(name, condition, autoregressive=True).promise.theorem == theorem  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize("name", REFERENCES)
def test_words_are_accepted_as_text_and_as_tokens(name):
    model = jaxsens.construction(name)
    assert model.accepts("100")
    assert not model.accepts("011" if "first" in name else "0110")


@pytest.mark.parametrize(
    ("name", "options", "reasons"),
    [
        ("partiy", {}, ["partiy", "parity"]),
        ("parity", {"foo": 1, "condition": "leftmost-hard"}, ["foo = 1", "average-hard"]),
        ("dyck", {"kinds": 0, "foo": 1, "condition": "leftmost-hard"}, ["kinds = 0", "foo = 1", "leftmost-hard"]),
        ("parity", {"name": "first"}, ["name = 'first'"]),
        ("dyck", {"condition": "unbounded", "autoregressive": True}, ["autoregressive"]),
        (
            "chiang-cholak-parity",
            {"dtype": "float16", "kinds": 2, "read": "x", "sharpness": -1},
            ["dtype = 'float16'", "kinds = 2", "read = 'x'", "sharpness = -1"],
        ),
        ("chiang-cholak-first", {"condition": "temperature", "autoregressive": True}, ["condition", "autoregressive"]),
    ],
)  # fmt: skip
def test_refusals_give_every_reason(name, options, reasons):
    with pytest.raises(jaxsens.InputError) as refusal:
        jaxsens.construction(name, **options)
    for reason in reasons:
        assert reason in str(refusal.value)
