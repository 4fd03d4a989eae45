"""The result of a call beside a loop of one's own; and where a model is read."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxsens
from tests.core.flip_sensitivity.formula import mesh_of
from tests.refusals import refused
from tests.small_models import word

CONFIG = jaxsens.TransformerConfig(alphabet_size=3, width=8, heads=2, layers=2, feed_forward=16)
# Inputs of nine symbols, and on eight devices nine flips or more: one program serves most of these tests.
WORD = word(9)


@pytest.fixture(scope="module")
def model():
    return jaxsens.Transformer(CONFIG, seed=0)


def loop(model, tokens, flips):
    """The user's own loop: one call a flip."""
    base = np.asarray(model(tokens))
    changed = [np.where(np.arange(len(tokens)) == i, s, tokens) for i, s in flips]
    return np.array([np.linalg.norm(np.asarray(model(x)) - base) for x in changed])


def test_the_result_matches_a_users_own_loop(model):
    result = jaxsens.flip_sensitivity(model, WORD)
    assert len(result) == 8 * 2
    expected = loop(model, WORD, zip(result.positions, result.symbols, strict=True))
    np.testing.assert_allclose(result.norms, expected, rtol=2e-5)
    assert result.max == result.norms.max()
    assert result.argmax.norm == result.max


def test_several_inputs_give_what_each_gives_alone(model):
    tokens = np.stack([word(9, seed) for seed in range(3)])
    together = jaxsens.flip_sensitivity(model, tokens)
    for k in range(3):
        alone = jaxsens.flip_sensitivity(model, tokens[k])
        part = together.of_input(k)
        # Another number of rows in a product, or another engine after many calls, sums in another order.
        np.testing.assert_allclose(part.norms, alone.norms, rtol=2e-5)
        np.testing.assert_array_equal(part.symbols, alone.symbols)
        assert part.population == alone.population == len(part)
    assert together.profile().shape == (3, 9, 3)


def test_the_readout_and_the_end_of_sequence_are_left_out_unless_asked_for(model):
    tokens = np.array([0, 3, 1, 2, 3, 0, 2, 1, 3])
    default = jaxsens.flip_sensitivity(model, tokens)
    assert set(default.positions) == {0, 2, 3, 5, 6, 7}
    assert 3 not in default.symbols
    asked = jaxsens.flip_sensitivity(model, tokens, flips=jaxsens.Substitute(positions=[1, 4, 8]))
    assert len(asked) == 3 * 3
    assert np.isnan(default.profile()[4]).all()
    assert np.isnan(default.profile()[8]).all()
    assert np.isfinite(default.profile()[0]).sum() == 2


def test_a_second_input_of_the_same_length_does_not_compile_again(model):
    fewer = np.zeros(49, int)
    alone = {"flips": [1], "placement": jaxsens.Placement(mesh_of(1))}
    jaxsens.flip_sensitivity(model, word(9, 1))
    jaxsens.flip_sensitivity(model, fewer, **alone)
    fewer[:3] = 1  # 45 flips, not 48
    other = jaxsens.Transformer(CONFIG, seed=5)
    with jax.log_compiles(), pytest.MonkeyPatch.context() as patch:
        compiled = []
        patch.setattr(
            jax.stages.Lowered, "compile", lambda *a, **k: compiled.append(a) or pytest.fail("compiled again")
        )
        jaxsens.flip_sensitivity(model, word(9, 2))
        jaxsens.flip_sensitivity(other, word(9, 3))
        jaxsens.flip_sensitivity(other, fewer, **alone)
    assert not compiled


def constant_rows(t):
    return jnp.ones((3, 2)) * t[0]


COUNTER = iter(range(100))


@pytest.mark.parametrize(
    ("path", "call", "remedy"),
    [
        ("measure.outputs", lambda m: (m, [0, 1], 3, jaxsens.L2(outputs=[8])), "the model has the outputs 0 to 7"),
        ("flips", lambda m: (lambda t: t.sum() * 1.0, [0, 1]), "say which"),
        ("tokens", lambda m: (m, [3]), "nothing to flip"),
        ("model", lambda m: (7, [0, 1]), "callable"),
        ("model", lambda m: (SimpleNamespace(model=m), [0, 1]), "pass its .model, a Transformer"),
        ("model", lambda m: (constant_rows, [0, 1, 1], 2), "shape (3, 2)"),
        ("model", lambda m: (lambda t: jnp.log(t[0] * 0.0), [0, 1], 2), "not finite"),
        ("model", lambda m: (lambda t: 1 / (1.0 - t[0]), [0, 1], 2), "not finite under 1 of 1 flips"),
        ("model", lambda m: (lambda t: t * 1.0, [0, 1, 1], 2), "its output has shape (3,)"),
        ("", lambda m: (lambda t: t.sum() * 1.0 + next(COUNTER), [0, 1], 2), "two calls on the same input differ"),
    ],
)  # fmt: skip
def test_what_cannot_be_measured_is_refused_with_the_remedy(model, path, call, remedy):
    assert remedy in refused(path, jaxsens.flip_sensitivity, *call(model))


def test_a_record_that_holds_a_model_is_refused_everywhere(model):
    record: Any = SimpleNamespace(model=model)
    refused("model", jaxsens.analysis.layer_changes, record, [0, 1])
    refused("model flips", jaxsens.theory.lemma5, record, 4)


def test_the_l2_norm_does_not_underflow_in_float32():
    result = jaxsens.flip_sensitivity(lambda t: jnp.array([3e-30, 4e-30]) * t[0], [0, 1], 2)
    np.testing.assert_allclose(result.norms, [5e-30], rtol=1e-6)


measure = jaxsens.flip_sensitivity
TOKENS = np.array([0, 1, 1, 0, 1, 0])
EMBEDDING = jax.random.normal(jax.random.key(0), (2, 4))
MIXING = jax.random.normal(jax.random.key(1), (12, 12))


def rows(tokens):
    """(n, d): every row depends on every symbol, each in its own way."""
    n = tokens.shape[0]
    return jnp.tanh(MIXING[:n, :n] @ EMBEDDING[tokens])


def vector(tokens):
    return rows(tokens)[0]


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    ("readout", "left_out"),
    [("auto", {5}), ("last", {5}), (0, {0}), (3, {3}), ("mean", set()), (None, set())],
)
def test_of_a_model_that_returns_a_vector_it_only_says_what_is_not_flipped(readout, left_out):
    result = jaxsens.flip_sensitivity(vector, TOKENS, 2, readout=readout)
    assert set(result.positions) == set(range(6)) - left_out
    everywhere = jaxsens.flip_sensitivity(vector, TOKENS, flips=jaxsens.Substitute(2, positions=range(6)))
    np.testing.assert_array_equal(result.norms, everywhere.norms[result.positions])
    assert result.readout == ("last" if readout == "auto" else readout)


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("readout", "chosen"), [("last", lambda y: y[-1]), (0, lambda y: y[0]), ("mean", lambda y: y.mean(0))]
)
def test_of_a_model_that_returns_rows_it_selects_too(readout, chosen):
    result = jaxsens.flip_sensitivity(rows, TOKENS, 2, readout=readout)
    expected = jaxsens.flip_sensitivity(lambda t: chosen(rows(t)), TOKENS, 2, readout=readout)
    np.testing.assert_allclose(result.norms, expected.norms, rtol=1e-6)
    np.testing.assert_array_equal(result.positions, expected.positions)
    assert result.readout == readout
    assert result.norms.max() > 0.01


def test_rows_without_a_readout_a_batch_axis_and_a_matrix_of_one_size_are_refused():
    for readout in ("auto", None):
        assert 'readout="last"' in refused("readout", measure, rows, TOKENS, 2, readout=readout)
    for model, options in (lambda t: rows(t)[None], {"readout": 0}), (lambda t: rows(t)[:1], {}):
        assert "lambda tokens: model(tokens)[0]" in refused("model", measure, model, TOKENS, 2, **options)
    for n in (2, 3):  # a matrix of one size has no row for each position
        refused("model", measure, lambda t, n=n: jnp.ones((n, 2)) * t[0], [0, 1, 1][:n], 2, readout=0)


def test_rows_of_a_model_for_one_length_only_are_selected():
    weights = jax.random.normal(jax.random.key(2), (6, 6))
    result = jaxsens.flip_sensitivity(lambda t: weights @ EMBEDDING[t], TOKENS, 2, readout="last")
    change = EMBEDDING[1] - EMBEDDING[0]
    np.testing.assert_allclose(result.norms, jnp.abs(weights[-1, :-1]) * jnp.linalg.norm(change), rtol=1e-4)


@pytest.mark.parametrize("readout", [-1, -3, 6, "cls", True, 1.0, np.array([0, 1])], ids=str)
def test_what_is_no_readout_is_refused_with_the_remedy(readout):
    message = refused("readout", measure, vector, TOKENS, 2, readout=readout)
    assert "give n - 3" in message or str(readout) != "-3"


@pytest.mark.quick(2)
@pytest.mark.parametrize("own", ["last", 1, "mean"])
def test_a_jaxsens_transformer_is_read_where_its_config_says_and_nowhere_else(own):
    config = jaxsens.TransformerConfig(
        alphabet_size=2, width=4, heads=1, layers=1, feed_forward=4, readout=own
    )
    model = jaxsens.Transformer(config)
    assert jaxsens.flip_sensitivity(model, TOKENS).readout == own
    assert jaxsens.flip_sensitivity(model, TOKENS, readout=own).readout == own
    for other in {"last", 1, "mean", None, 0} - {own}:
        refused("readout", measure, model, TOKENS, readout=other)


def test_a_baseline_is_read_where_its_config_says():
    model = jaxsens.training.LSTM(jaxsens.training.LSTMConfig(alphabet_size=2, width=4, layers=1))
    assert jaxsens.flip_sensitivity(model, TOKENS).readout == "last"
    refused("readout", measure, model, TOKENS, readout=0)
