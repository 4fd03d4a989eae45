"""Logits at every position and the losses on them, beside plain NumPy loops, which compile nothing."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxsens.core.base.programs import numerics
from jaxsens.core.models.parts.schedules import SCHEDULES
from jaxsens.core.models.parts.weighting import WEIGHTINGS, Softmax
from jaxsens.core.models.transformer.config import TransformerConfig
from jaxsens.core.models.transformer.module import build
from jaxsens.training.baselines import ConvolutionConfig, LSTMConfig, RNNConfig
from jaxsens.training.steps import (
    initial_parameters,
    loss_of,
    own_rows,
    readout_logits,
    sequence_logits,
)
from tests import reference
from tests.baseline_reference import loop_output
from tests.tolerances import FORWARD

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


READING_THE_LENGTH = [
    {"positions": "length"},
    {"positions": "fraction"},
    {"weighting": "temperature-log"},
]


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
    parameters = initial_parameters(config, 3)
    with numerics("float64"):
        # As many positions as symbols, in the type of the new tokens: one program serves both.
        word, logits = jnp.asarray(TOKENS[0, :4], int), jax.jit(partial(readout_logits, config))
        usual = logits(parameters, word)
        assert np.array_equal(logits(*own_rows(config, parameters, word)), usual)


@pytest.mark.quick(2)
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
    parameters = jax.tree.map(np.asarray, initial_parameters(config, 0))
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
