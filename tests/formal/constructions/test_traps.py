"""The traps that the constructions are known for, each with a test that falls into it if the code does."""

from __future__ import annotations

import jax
import jax.extend
import numpy as np
import pytest

import jaxsens
from jaxsens.core.base.programs import numerics
from jaxsens.core.models.parts.schedules import SCHEDULES
from jaxsens.core.models.parts.weighting import Softmax
from jaxsens.core.models.transformer import layers
from jaxsens.formal.constructions.compiler import compile_formula
from jaxsens.formal.constructions.network import Affine, Builder
from jaxsens.logic import LIBRARY, evaluate_tokens, parse
from tests.formal.constructions.many_words import activations, wrong_values
from tests.formal.constructions.test_compiler import words, wrong


def output(model, tokens):
    return activations(model.config, model.parameters, tokens)[..., model.output]


@pytest.mark.parametrize("autoregressive", [False, True])
def test_t1_a_table_of_one_row_cannot_tell_none_from_one(autoregressive, monkeypatch):
    """Without the correction, the decoder version is wrong on all words that begin with 1, the other on the word 1."""
    parity = parse("odd(#L[Q_1])")
    right = compile_formula(parity, "01", autoregressive=autoregressive)
    monkeypatch.setattr(Builder, "single_row", lambda self, direction: Affine(constant=-2.0))
    uncorrected = compile_formula(parity, "01", autoregressive=autoregressive)
    failed = total = 0
    for n in range(1, 7):
        tokens = words(2, n)
        assert wrong(right, parity, tokens) == 0
        truth = evaluate_tokens(parity, tokens, "01")
        failed += int((output(uncorrected, tokens) != truth).any(axis=1).sum())
        total += len(tokens)
    assert (failed, total) == ((63 if autoregressive else 1), 126)


def test_t2_since_over_two_symbols_needs_no_tie_breaking():
    """At temperature 1 `Q_0 S Q_1` over {0, 1} still comes out right; `!Q_c S Q_a` over three symbols does not."""
    two, three = parse("Q_0 S Q_1"), parse("!Q_c S Q_a")
    easy = compile_formula(two, "01", "bounded-softmax")
    hard = compile_formula(three, "abc", "bounded-softmax")
    last = lambda model, formula, tokens: (  # noqa: E731
        (output(model, tokens)[:, -1] > 0.5) != evaluate_tokens(formula, tokens, model.alphabet)[:, -1]
    )
    assert last(easy, two, words(2, 8)).sum() == 0
    assert last(hard, three, words(3, 8)).mean() > 0.05


def test_t3_parity_without_predicates_is_right_at_the_last_position_only():
    entry = LIBRARY["parity-without-predicates"]
    model = compile_formula(entry.formula, entry.alphabet)
    tokens = words(2, 7)
    prefix_parity = np.cumsum(tokens, axis=1) % 2
    found = output(model, tokens)
    np.testing.assert_array_equal(found[:, -1], prefix_parity[:, -1])
    assert (found[:, :-1] != prefix_parity[:, :-1]).any(axis=1).mean() > 0.5


@pytest.mark.slow
def test_t4_majority_is_sensitive_near_a_tie_only():
    model = compile_formula("#L[Q_1] > #L[Q_0]", "01")
    one_more = np.array([1, 0] * 16 + [1])
    assert jaxsens.flip_sensitivity(model, one_more, engine="vmap").max == 1
    assert jaxsens.flip_sensitivity(model, np.array([1] * 25 + [0] * 8), engine="vmap").max == 0


@pytest.mark.long
def test_t5_the_controls_rounded_output_saturates_and_other_readings_do_not():
    found = {}
    for read in ("output", "before-rounding", "everything"):
        model = compile_formula("odd(#L[Q_1])", "01", "bounded-softmax", read=read)
        found[read] = jaxsens.flip_sensitivity(
            model, np.arange(32) % 2, flips=jaxsens.Substitute(positions=[3, 4]), engine="vmap"
        ).max
    assert found["output"] == 0
    assert 0 < found["before-rounding"] < found["everything"]


def test_t6_the_whole_vector_of_an_outer_count_grows_while_the_output_does_not():
    entry = LIBRARY["parity-without-predicates"]
    model = compile_formula(entry.formula, entry.alphabet)
    largest = {}
    for n in (16, 64):
        # In 10...01 all positions but the first have as many 1s before them as from them on: the count is n - 1.
        word = np.array([1] + [0] * (n - 2) + [1])
        flipped = np.where(np.eye(n, dtype=bool)[:-1], 1 - word, word)
        change = np.abs(
            activations(model.config, model.parameters, flipped)
            - activations(model.config, model.parameters, word[None])
        )[:, -1]
        assert (change[:, model.output] == 1).all()
        largest[n] = change.max()
    assert largest[64] > 3 * largest[16]


def test_t7_the_readout_position_is_not_flipped():
    result = jaxsens.flip_sensitivity(compile_formula("Y Q_1", "01"), np.array([0, 1, 1, 0]), engine="vmap")
    assert set(result.positions) == {0, 1, 2}


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


def test_t10_all_heads_share_one_temperature():
    config = compile_formula("#L[Y Q_1] > #R[Q_0]", "01").config
    assert len({config.layer(k).weighting for k in range(config.layers)}) == 1


def test_t11_tie_breaks_have_half_the_gap_over_n():
    """(-1)^j has the gap 2 and gets j/n, a Boolean the gap 1 and gets j/(2n): both lose KAPPA a step at least."""
    n = 400
    for text, alphabet, known in (("Y Q_1", "01", 1 / 257), ("!Q_c S Q_a", "abc", 1 / 16)):
        model = compile_formula(text, alphabet, read="before-rounding")
        tokens = words(len(alphabet), n, 8)
        exact = evaluate_tokens(parse(text), tokens, alphabet).astype(float)
        assert model.outputs is not None
        found = activations(model.config, model.parameters, tokens)[..., model.outputs]
        # Of Y's two heads the one for the other parity is not asked.
        distance = np.abs(found - exact[..., None]).min(axis=-1)[:, 1:].max()
        assert distance <= known * 1.01, text
    assert distance >= known * 0.5


def test_t12_the_papers_temperature_version_of_counting_still_has_unbounded_embeddings():
    assert not compile_formula("odd(#L[Q_1])", "01", "temperature").config.bounded
    assert compile_formula("odd(#L[Q_1])", "01", "temperature-bounded").config.bounded


def test_t13_the_logarithm_is_sharp_enough_for_exists_and_not_for_since():
    log = Softmax(SCHEDULES["log"])
    errors = {}
    for text, alphabet in (("true S Q_1", "01"), ("!Q_c S Q_a", "abc")):
        model = compile_formula(text, alphabet)
        tokens = words(len(alphabet), 200, 40)
        tokens[:20] = 0 if alphabet == "01" else 1  # rare events
        tokens[:20, 7] = 1 if alphabet == "01" else 0
        y = activations(model.config.replace(weighting=log), model.parameters, tokens)[..., model.output]
        errors[text] = int((np.abs(y - evaluate_tokens(parse(text), tokens, alphabet)) > 0.25).sum())
    assert errors["true S Q_1"] == 0
    assert errors["!Q_c S Q_a"] > 0


@pytest.mark.parametrize(
    ("text", "word"), [("Q_a S Q_b", "b"), ("Q_a U Q_b", "b"), ("Q_a S Q_b", "ab"), ("Q_a U Q_b", "ba")]
)
def test_t14_since_and_until_look_at_the_position_itself(text, word):
    model = compile_formula(text, "ab")
    tokens = model.encode(word)[None]
    here = (tokens == 1)[0]
    assert wrong_values(output(model, tokens)[0][here], np.ones(here.sum())) == 0


@pytest.mark.quick(8)
@pytest.mark.parametrize("condition", ["temperature", "unbounded", "temperature-bounded", "average-hard"])
@pytest.mark.parametrize(
    "text", ["even(#L[Q_1])", "odd(#L[Q_1])", "mod(3, 0, #R[Q_1])", "last(#L[Q_1])", "exactly(0, #L[Q_1])"]
)
def test_t15_a_predicate_of_the_count_zero(text, condition):
    model = compile_formula(text, "01", condition)
    for n in (1, 2, 5):
        assert wrong(model, parse(text), np.zeros((1, n), int)) == 0
