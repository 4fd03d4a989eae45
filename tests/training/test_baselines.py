"""LSTM, simple RNN, convolution and losses beside plain NumPy loops; and the hand-set RNN at the optimum."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jaxsens
from jaxsens import Softmax, Transformer, TransformerConfig
from jaxsens.core.base.programs import numerics
from jaxsens.core.models.parts.schedules import SCHEDULES
from jaxsens.core.models.parts.weighting import WEIGHTINGS
from jaxsens.core.models.transformer.module import build, check_tokens, network
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
from jaxsens.training.steps import loss_of, own_rows, readout_logits, sequence_logits
from tests import reference
from tests.refusals import refused
from tests.tolerances import FORWARD


def logistic(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def loop_layer(config: Any, layer: Any, x: list[np.ndarray]) -> list[np.ndarray]:
    """One layer, position by position."""
    n, d, rows = len(x), config.width, []
    if isinstance(config, ConvolutionConfig):
        left = (config.kernel_width - 1) // 2
        for i in range(n):
            total = np.array(layer.bias)
            for w in range(config.kernel_width):
                if 0 <= i + w - left < n:
                    total = total + x[i + w - left] @ layer.kernel[w]
            rows.append(np.maximum(total, 0))
        return rows
    h, c = np.zeros(d), np.zeros(d)
    for i in range(n):
        z = [x[i] @ layer.input[g] + h @ layer.recurrent[g] + layer.bias[g] for g in range(len(layer.bias))]
        if isinstance(config, LSTMConfig):
            c = logistic(z[1]) * c + logistic(z[0]) * np.tanh(z[2])
            h = logistic(z[3]) * np.tanh(c)
        else:
            h = np.tanh(z[0])
        rows.append(h)
    return rows


def loop_output(config: Any, parameters: Any, tokens: Any) -> tuple[np.ndarray, np.ndarray]:
    """(output, activations) on one input."""
    x = [parameters.embedding[token] for token in tokens]
    for layer in parameters.layers:
        x = loop_layer(config, layer, x)
    if isinstance(config, ConvolutionConfig):
        row = np.mean(x, axis=0) @ parameters.output + parameters.output_bias
    elif config.readout == "mean":
        row = np.mean(x, axis=0)
    else:
        row = x[len(x) - 1 if config.readout == "last" else config.readout]
    if config.logits is not None:
        row = row @ parameters.head + parameters.head_bias
    return row, np.array(x)


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


def test_parameters_of_another_config_and_bad_arguments_are_refused():
    given = RNN(RNNConfig(2, width=4)).parameters
    names = ".embedding .layers[0].bias .layers[0].input .layers[0].recurrent"
    refused(names, RNN, RNNConfig(2, width=5), parameters=given)
    refused("parameters", RNN, RNNConfig(2, width=4, layers=2), parameters=given)
    refused("end_probability", exact_parity_rnn, 1)
    refused("dtype", exact_parity_rnn, 0.1, "float16")


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


@pytest.mark.long
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


SIZES: dict[str, Any] = {"alphabet_size": 3, "width": 6, "layers": 2, "logits": 4, "dtype": "float64"}
CAUSAL: list[Any] = [
    LSTMConfig(**SIZES),
    RNNConfig(**SIZES),
    TransformerConfig(**SIZES, heads=2, feed_forward=5, mask="future", layer_norm="pre"),
    TransformerConfig(
        **SIZES, heads=2, feed_forward=5, mask="strict-future", weighting="average-hard", positions="index"
    ),
    TransformerConfig(
        **SIZES, heads=3, feed_forward=0, mask="future", weighting="sparsemax", positions="rotary"
    ),
]
TOKENS = np.array([[3, 0, 1, 2, 2], [3, 2, 2, 0, 1], [3, 1, 1, 1, 1]], np.int32)


def rows_of(config: Any, parameters: Any, word: np.ndarray) -> np.ndarray:
    """`sequence_logits` of one word, compiled whole: operation by operation takes longer."""
    with numerics("float64"):
        return np.asarray(jax.jit(partial(sequence_logits, config))(parameters, word))


def output_of(config: Any, parameters: Any, word: np.ndarray) -> np.ndarray:
    """What the model puts out on one word, in plain NumPy."""
    if isinstance(config, TransformerConfig):
        return reference.output(config, parameters, word)
    return loop_output(config, parameters, word)[0]


def outputs_of_prefixes(config: Any, parameters: Any, word: np.ndarray) -> np.ndarray:
    return np.stack([output_of(config, parameters, word[: i + 1]) for i in range(len(word))])


def parameters_of(config: Any, seed: int) -> Any:
    return jax.tree.map(np.asarray, build(config, seed=seed).parameters)


READING_THE_LENGTH = [{"positions": "length"}, {"positions": "fraction"}, {"weighting": "temperature-log"}]


def causal(**changes: Any) -> TransformerConfig:
    return TransformerConfig(**SIZES, heads=2, feed_forward=5, mask="future", **changes)


@pytest.mark.parametrize(
    ("config", "same"),
    [
        *((config, True) for config in CAUSAL),
        (causal(weighting=Softmax(SCHEDULES["log"], by="query")), True),
        *((causal(**changes), False) for changes in READING_THE_LENGTH),
    ],
)
def test_row_i_is_what_the_model_puts_out_where_the_input_ends_at_i_unless_it_reads_the_length(config, same):
    """As TrainConfig and docs/learned.md say: then it puts out something else on the prefix alone."""
    parameters = parameters_of(config, seed=1)
    rows = rows_of(config, parameters, TOKENS[0])
    ended = outputs_of_prefixes(config, parameters, TOKENS[0])
    np.testing.assert_allclose(rows[-1], ended[-1], rtol=FORWARD.relative, atol=FORWARD.absolute)
    assert np.allclose(rows, ended, rtol=FORWARD.relative, atol=FORWARD.absolute) == same
    assert np.ptp(rows, axis=0).min() > 1e-3


def reference_loss(config: Any, parameters: Any, tokens: np.ndarray, targets: np.ndarray) -> float:
    """The cross-entropy, position by position."""
    total, count = 0.0, 0
    for word, laws in zip(tokens, targets, strict=True):
        for out, law in zip(outputs_of_prefixes(config, parameters, word), laws, strict=True):
            partition = sum(np.exp(value) for value in out)
            for value, probability in zip(out, law, strict=True):
                if probability > 0:
                    total -= probability * np.log(np.exp(value) / partition)
            count += 1
    return total / count


@pytest.mark.parametrize("config", CAUSAL)
def test_the_next_symbol_loss_is_the_cross_entropy_of_a_plain_loop(config):
    parameters, rng = parameters_of(config, seed=2), np.random.default_rng(0)
    targets = rng.dirichlet([0.5] * 4, size=TOKENS.shape)
    targets[0, 1] = [0, 0, 1, 0]
    with numerics("float64"):
        loss = float(jax.jit(partial(loss_of, config, "prediction"))(parameters, TOKENS, targets))
    assert loss == pytest.approx(reference_loss(config, parameters, TOKENS, targets), rel=1e-12)


@pytest.mark.parametrize(
    "config",
    [
        ConvolutionConfig(**{**SIZES, "logits": 2}),
        TransformerConfig(**{**SIZES, "logits": 2}, heads=2, feed_forward=5, mask="none"),
    ],
)
def test_the_recognition_loss_is_that_of_the_labels_at_the_readout(config):
    parameters, tokens = parameters_of(config, seed=2), TOKENS[:, ::-1]
    targets = np.array([[0.0, 1.0], [1.0, 0.0], [0.0, 1.0]])
    with numerics("float64"):
        loss = float(jax.jit(partial(loss_of, config, "recognition"))(parameters, tokens, targets))
    expected = 0.0
    for word, target in zip(tokens, targets, strict=True):
        out = output_of(config, parameters, word)
        expected += np.log(1 + np.exp(out[int(target[0])] - out[int(target[1])])) / len(tokens)
    assert loss == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("config", [*CAUSAL, ConvolutionConfig(**SIZES)])
def test_a_row_of_the_embedding_for_every_position_changes_no_bit_of_the_output(config):
    parameters = network(config.kind).drawn(config, 3)
    with numerics("float64"):
        # As many positions as symbols, in the type of the new tokens: one program serves both.
        word, logits = jnp.asarray(TOKENS[0, :4], int), jax.jit(partial(readout_logits, config))
        usual = logits(parameters, word)
        assert np.array_equal(logits(*own_rows(config, parameters, word)), usual)


@pytest.mark.quick(2, 9)
@pytest.mark.parametrize(
    "weighting", ["softmax", "temperature-log", "average-hard", "leftmost-hard", "sparsemax"]
)
@pytest.mark.parametrize("mask", ["future", "strict-future"])
def test_the_gradient_is_that_of_the_loss_for_every_kind_of_weighting(weighting, mask):
    """Beside central differences, in random directions; hard choices do not move in so small a step."""
    assert weighting in WEIGHTINGS
    config = TransformerConfig(
        **SIZES, heads=2, feed_forward=5, mask=mask, weighting=weighting, layer_norm="pre"
    )
    parameters = jax.tree.map(np.asarray, network(config.kind).drawn(config, 0))
    rng = np.random.default_rng(1)
    targets = rng.dirichlet([1.0] * 4, size=TOKENS.shape)

    @jax.jit
    @jax.value_and_grad
    def loss_and_gradient(tree: Any) -> Any:
        return loss_of(config, "prediction", tree, jnp.asarray(TOKENS), jnp.asarray(targets))

    with numerics("float64"):
        _, gradient = loss_and_gradient(parameters)
        for _ in range(3):
            direction = jax.tree.map(lambda leaf: rng.normal(size=leaf.shape), parameters)
            ahead, behind = (
                float(loss_and_gradient(jax.tree.map(lambda p, d, h=h: p + h * d, parameters, direction))[0])
                for h in (1e-6, -1e-6)
            )
            products = jax.tree.map(lambda g, d: np.sum(np.asarray(g) * d), gradient, direction)
            slope = float(sum(jax.tree.leaves(products)))
            assert slope == pytest.approx((ahead - behind) / 2e-6, rel=1e-5, abs=1e-8)
            assert abs(slope) > 1e-3
