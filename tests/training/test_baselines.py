"""LSTM, simple RNN and convolution beside plain NumPy loops; and the hand-set RNN at the optimum."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jaxsens
from jaxsens import Transformer, TransformerConfig
from jaxsens.core.models.transformer.module import check_tokens
from jaxsens.languages import Parity
from jaxsens.training.baselines import (
    LSTM,
    RNN,
    Baseline,
    BaselineConfig,
    BaselineParameters,
    Convolution,
    ConvolutionConfig,
    LSTMConfig,
    RNNConfig,
    exact_parity_rnn,
)
from jaxsens.training.evaluation import cross_entropy, logits
from tests.baseline_reference import loop_output
from tests.refusals import refusal, refused
from tests.tolerances import FORWARD

MODELS: dict[type[BaselineConfig], Any] = {LSTMConfig: LSTM, RNNConfig: RNN, ConvolutionConfig: Convolution}
CONFIGS: list[Any] = [
    LSTMConfig(3, width=5, layers=2, dtype="float64"),
    LSTMConfig(2, width=4, layers=1, logits=3, readout=1, end_symbol=False, dtype="float64"),
    RNNConfig(3, width=5, layers=2, readout="mean", dtype="float64"),
    RNNConfig(2, width=4, layers=1, logits=3, dtype="float64"),
    ConvolutionConfig(3, width=5, layers=2, kernel_width=3, dtype="float64"),
    ConvolutionConfig(3, width=5, layers=1, kernel_width=4, logits=2, dtype="float64"),
    ConvolutionConfig(2, width=4, layers=3, kernel_width=1, end_symbol=False, dtype="float64"),
]


def built(config: BaselineConfig, seed: int = 0) -> tuple[Baseline, BaselineParameters]:
    model, rng = MODELS[type(config)](config, seed), np.random.default_rng(seed)
    with jax.enable_x64(True):
        state = nnx.state(model, nnx.Param)
        nnx.update(model, jax.tree.map(lambda leaf: leaf + 0.3 * rng.normal(size=leaf.shape), state))
    return model, jax.tree.map(np.asarray, model.parameters)


def words(config: BaselineConfig, n: int, count: int = 3) -> jax.Array:
    return jnp.asarray(np.random.default_rng(n).integers(0, config.vocabulary_size, size=(count, n)))


@pytest.mark.quick(4)
@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_outputs_and_activations_are_those_of_the_loop(config):
    model, parameters = built(config)
    for n in (2, 7):
        batch = words(config, n)
        for word, output, activations in zip(batch, model(batch), model.activations(batch), strict=True):
            expected = loop_output(config, parameters, np.asarray(word))
            np.testing.assert_allclose(output, expected[0], rtol=FORWARD.relative, atol=FORWARD.absolute)
            np.testing.assert_allclose(activations, expected[1], rtol=FORWARD.relative, atol=FORWARD.absolute)
        assert model(batch).shape == (3, config.logits or config.width)
        np.testing.assert_allclose(model(batch[0]), model(batch)[0], rtol=FORWARD.relative)


@pytest.mark.parametrize("kind", MODELS)
def test_a_seed_gives_the_same_parameters_in_both_dtypes_and_shares_the_transformers_embedding(kind):
    single, double, other = (
        MODELS[kind](kind(2, width=8, layers=2, dtype=dtype), seed)
        for dtype, seed in (("float32", 3), ("float64", 3), ("float64", 4))
    )
    for low, high in zip(jax.tree.leaves(single.parameters), jax.tree.leaves(double.parameters), strict=True):
        assert (low.dtype, high.dtype) == (np.float32, np.float64)
        np.testing.assert_array_equal(low, np.asarray(high).astype(np.float32))
    assert not np.array_equal(double.parameters.embedding, other.parameters.embedding)
    transformer = Transformer(TransformerConfig(2, width=8, dtype="float64"), seed=3)
    np.testing.assert_array_equal(double.parameters.embedding, transformer.parameters.embedding)
    word = words(single.config, 6)
    assert (single(word).dtype, double(word).dtype) == (np.float32, np.float64)
    np.testing.assert_allclose(single(word), double(word), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", MODELS)
def test_initial_weights_have_the_variances_that_are_documented(kind):
    d = 64
    parameters = MODELS[kind](kind(2, width=d, dtype="float64")).parameters
    layer = parameters.layers[0]
    if kind is ConvolutionConfig:
        variances = [(layer.kernel, 2 / (3 * d)), (parameters.output, 1 / d)]
        assert not np.any(layer.bias)
    else:
        variances = [(layer.input, 1 / (2 * d)), (layer.recurrent, 1 / (2 * d))]
        remembering = [0, 1, 0, 0] if kind is LSTMConfig else [0]
        np.testing.assert_array_equal(layer.bias, np.outer(remembering, np.ones(d)))
    for matrix, variance in variances:
        assert np.var(np.asarray(matrix)) == pytest.approx(variance, rel=6 * np.sqrt(2 / matrix.size))


@pytest.mark.parametrize(
    ("kind", "changes", "arguments"),
    [
        (LSTMConfig, {"alphabet_size": 1, "readout": "first"}, ["alphabet_size", "readout"]),
        (RNNConfig, {"layers": 0, "width": 2.5, "readout": -1}, ["layers", "width", "readout"]),
        (ConvolutionConfig, {"kernel_width": 0, "dtype": "bfloat16"}, ["kernel_width", "dtype"]),
        (
            ConvolutionConfig,
            {"logits": 0, "end_symbol": 1, "layers": True},
            ["logits", "end_symbol", "layers"],
        ),
    ],
)
def test_all_problems_of_a_config_are_reported_at_once(kind, changes, arguments):
    refused(" ".join(arguments), kind, **{"alphabet_size": 2, **changes})


def test_tokens_that_cannot_be_read_are_refused():
    """The last is shorter than the readout position; other ones are refused as a transformer refuses them."""
    for tokens in ([0, 1], np.array([0, 3]), np.array([1])):
        refused("tokens", check_tokens, LSTMConfig(2, readout=1), tokens)
        refused("tokens", LSTM(LSTMConfig(2, width=4, readout=1)), tokens)


def test_parameters_of_another_config_are_refused_with_every_shape():
    given = RNN(RNNConfig(2, width=4)).parameters
    names = ".embedding .layers[0].bias .layers[0].input .layers[0].recurrent"
    refused(names, RNN, RNNConfig(2, width=5), parameters=given)
    refused("parameters", RNN, RNNConfig(2, width=4, layers=2), parameters=given)


@pytest.mark.quick(4)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("n", [0, 1, 10, 1000, 10_000])
def test_its_cross_entropy_is_the_optimum(n, dtype):
    for end_probability in (0.1, 0.5):
        found = cross_entropy(exact_parity_rnn(end_probability, dtype), Parity(end_probability), n, words=32)
        assert found.mean == pytest.approx(Parity(end_probability).optimal_cross_entropy(n), abs=1e-6)
        assert found.standard_error < 1e-6


def test_its_predictions_are_the_laws_after_every_prefix_in_both_states():
    learned, model = Parity(0.2), exact_parity_rnn(0.2)
    prefixes = learned.sample_prefixes(16, 2000, np.random.default_rng(0))
    out = logits(model.config, model.parameters, np.concatenate([np.full((16, 1), 2), prefixes], axis=1))
    predicted = np.exp(out - np.logaddexp.reduce(out, axis=-1, keepdims=True))
    laws = learned.last_probabilities(prefixes)
    assert set(laws[:, 2]) == {0.0, 0.2}
    np.testing.assert_allclose(predicted, laws, atol=1e-15)


def test_every_flip_moves_its_prediction_by_as_much_at_any_length():
    model = exact_parity_rnn()
    largest = []
    for n in (5, 50, 500):
        word = np.concatenate([[2], np.random.default_rng(n).integers(0, 2, n)])
        result = jaxsens.flip_sensitivity(model, word)
        assert len(result) == n - 1
        assert result.norms.min() == pytest.approx(result.max, rel=1e-12)
        largest.append(result.max)
    assert largest == pytest.approx([largest[0]] * 3, rel=1e-12)
    assert largest[0] > 1


def test_bad_arguments_are_refused():
    with refusal("end_probability"):
        exact_parity_rnn(1)
    refused("dtype", exact_parity_rnn, 0.1, "float16")
