"""Where a model is read: what is left out of the flips, and which row is selected."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxsens
from tests.refusals import refused

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


def test_rows_without_a_readout_are_refused_not_guessed():
    for readout in ("auto", None):
        assert 'readout="last"' in refused("readout", measure, rows, TOKENS, 2, readout=readout)


@pytest.mark.parametrize("n", [2, 3])
def test_a_matrix_of_one_size_has_no_row_for_each_position(n):
    refused("model", measure, lambda t: jnp.ones((n, 2)) * t[0], [0, 1, 1][:n], 2, readout=0)


def test_a_batch_axis_is_refused_with_the_way_to_take_it_off():
    for model, options in (lambda t: rows(t)[None], {"readout": 0}), (lambda t: rows(t)[:1], {}):
        assert "lambda tokens: model(tokens)[0]" in refused("model", measure, model, TOKENS, 2, **options)


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
