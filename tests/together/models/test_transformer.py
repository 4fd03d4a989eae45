"""The transformer's forward pass beside the plain loops of tests/reference.py; and how its weights are drawn."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from jaxsens import Transformer, TransformerConfig
from jaxsens.core.base.programs import PLATFORMS, compiled_for, numerics
from jaxsens.core.models.parts.initialisation import FAN_IN, Normal, Uniform, draw
from jaxsens.core.models.parts.masks import MASKS
from jaxsens.core.models.parts.positions import Learned
from jaxsens.core.models.transformer import layers, trace
from jaxsens.core.models.transformer.module import build, kinds, network, plain
from jaxsens.core.models.transformer.parameters import TransformerParameters, initialise, shapes
from jaxsens.training import LSTMConfig
from tests import reference
from tests.refusals import refusal, refused
from tests.small_models import (
    POSITIONS_TRIED,
    WEIGHTINGS_AND_MASKS,
    WEIGHTINGS_TRIED,
    random_parameters,
    small,
    tying,
)
from tests.tolerances import FORWARD

WORD = np.array([2, 0, 1, 0, 3])


def assert_close(found, expected, config: TransformerConfig) -> None:
    np.testing.assert_allclose(
        np.asarray(found), expected, rtol=FORWARD.relative, atol=FORWARD.absolute, err_msg=str(config)
    )


def uncompiled(function, config: TransformerConfig, parameters: TransformerParameters, tokens) -> np.ndarray:
    """A forward pass operation by operation: JAX compiles each once for all configs of a size, not every config."""
    with numerics("float64"):
        return np.asarray(function(config, jax.tree.map(jnp.asarray, parameters), jnp.asarray(tokens)))


SCORES_AND_POSITIONS: list[Any] = list(product(("dot-product", "additive"), POSITIONS_TRIED.values()))


def dealt(whole: list[Any], hand: int, hands: int) -> list[Any]:
    """One hand of a list dealt out: what is combined with all hands is combined with the whole list."""
    return whole[hand % hands :: hands]


@pytest.mark.quick(24)
@pytest.mark.parametrize("k", range(len(WEIGHTINGS_AND_MASKS)))
@pytest.mark.parametrize("hands", [len(MASKS), pytest.param(1, marks=pytest.mark.slow)])
def test_every_weighting_and_mask_and_each_of_them_with_every_score_and_embedding(k, hands):
    weighting, mask = WEIGHTINGS_AND_MASKS[k]  # the masks of a kind of weighting follow each other
    for scores, positions in dealt(SCORES_AND_POSITIONS, k + k // len(MASKS), hands):
        config = small(
            layers=1, weighting=WEIGHTINGS_TRIED[weighting], mask=mask, scores=scores, positions=positions
        )
        parameters = random_parameters(config, seed=3)
        found = uncompiled(layers.activations, config, parameters, WORD)
        assert_close(found, reference.activations(config, parameters, WORD), config)


LAYER_NORMS = ("none", "pre", "post")
READOUTS = list(product(("last", 0, 3, "mean"), (None, 3), (5, (5, 0))))


@pytest.mark.quick(6)
@pytest.mark.parametrize("layer_norm", LAYER_NORMS)
@pytest.mark.parametrize("activation", ["relu", "gelu", "silu", "tanh"])
@pytest.mark.parametrize("hands", [3, pytest.param(1, marks=pytest.mark.slow)])
def test_every_layer_norm_and_activation_with_every_readout(layer_norm, activation, hands):
    for readout, logits, hidden in dealt(READOUTS, LAYER_NORMS.index(layer_norm), hands):
        config = small(
            layer_norm=layer_norm,
            layer_norm_epsilon=0.01,
            activation=activation,
            readout=readout,
            logits=logits,
            feed_forward=hidden,
        )
        parameters = random_parameters(config, seed=4)
        found = uncompiled(layers.apply, config, parameters, WORD)
        assert_close(found, reference.output(config, parameters, WORD), config)


@pytest.mark.quick(1)
@pytest.mark.parametrize("n", [1, 2, 9])
def test_every_length_compiled_with_layers_that_differ(n):
    config = small(
        layers=5,
        heads=(1, 2, 3, 2, 1),
        head_width=(6, 4, 2, 2, 8),
        feed_forward=(5, 0, 7, 3, 0),
        weighting=("sparsemax", "leftmost-hard", "temperature-log", "average-hard", "temperature-linear"),
        mask=("none", "strict-future", "past", "strict-past", "future"),
        positions=("sinusoidal", "rotary", "log-length"),
        layer_norm="pre",
    )
    parameters = random_parameters(config, seed=n)
    model = Transformer(config, parameters=parameters)
    words = jnp.asarray(np.random.default_rng(n).integers(0, config.vocabulary_size, size=(6, n)))
    for word, found in zip(words, model.activations(words), strict=True):
        assert_close(found, reference.activations(config, parameters, word), config)


# At n = 5 and 7 a library's matrix product was seen to give equal keys scores an ulp apart (float64, CPU).
@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("scores", "width", "heads", "n"),
    [("dot-product", 6, 2, 7), ("additive", 6, 2, 7), ("dot-product", 16, 4, 5), ("dot-product", 33, 3, 23)],
)
def test_ties_are_broken_as_defined_under_every_mask(scores, width, heads, n):
    config, parameters = tying(scores, width=width, heads=heads)
    words = jnp.asarray(np.random.default_rng(0).integers(0, config.vocabulary_size, size=(4, n)))
    found = Transformer(config, parameters=parameters).activations(words)
    for word, activations in zip(words, found, strict=True):
        assert_close(activations, reference.activations(config, parameters, word), config)


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    "options",
    [
        {"positions": "alibi", "mask": "future"},
        {"scores": "additive", "mask": "strict-past"},
        {"layer_norm": "pre", "weighting": "temperature-log"},
        {"weighting": "sparsemax", "positions": "rotary"},
        {"readout": "mean"},
        {"weighting": WEIGHTINGS_TRIED["learned sink"], "mask": "past"},
    ],
)
@pytest.mark.parametrize("rows", [2, 4])
def test_attention_by_head_and_maps_in_blocks_of_rows_are_the_same(monkeypatch, options, rows):
    config = small(**options)
    parameters = random_parameters(config)
    mapped = (rows + 1) * config.width  # maps of rows have blocks of their own
    own = replace(PLATFORMS["cpu"], cached_scores=0, mapped_numbers=mapped)
    monkeypatch.setitem(PLATFORMS, "cpu", own)
    monkeypatch.setattr(trace, "CACHED_ROWS", rows)
    assert trace.leaves_cache(config.layer(0).heads, len(WORD), compiled_for())
    found = uncompiled(layers.activations, config, parameters, WORD)
    assert_close(found, reference.activations(config, parameters, WORD), config)
    found = uncompiled(layers.apply, config, parameters, WORD)
    assert_close(found, reference.output(config, parameters, WORD), config)


def test_a_batch_is_its_inputs_one_by_one():
    config = small(weighting="temperature-sqrt", logits=2)
    model = Transformer(config, seed=5)
    words = jnp.asarray(np.random.default_rng(5).integers(0, 3, size=(2, 3, 4)))
    found = model(words)
    assert found.shape == (2, 3, 2)
    assert_close(
        found[1, 2], reference.output(config, jax.tree.map(np.asarray, model.parameters), words[1, 2]), config
    )
    for i, j in product(range(2), range(3)):
        np.testing.assert_allclose(found[i, j], model(words[i, j]), rtol=FORWARD.relative)


@pytest.mark.parametrize(
    "tokens",
    [
        np.array([0.0, 1.0]),
        [[0, 1], [1]],
        None,
        np.array([0, 1, 4]),
        np.array([-1, 2, 1]),
        np.array(1),
        np.zeros(0, int),
        np.zeros(13, int),  # longer than the learned positions
        np.zeros(2, int),  # shorter than the readout position
    ],
    ids=str,
)
def test_tokens_that_cannot_be_read_are_refused(tokens):
    refused("tokens", Transformer(small(positions=Learned(12), readout=2, layers=1)), tokens)


def test_parameters_of_another_config_are_refused_with_all_that_is_wrong():
    parameters = random_parameters(small(width=8))
    parts = [
        f".layers[{k}].{name}"
        for k in (0, 1)
        for name in ("query", "key", "value", "output", "w1", "w2", "b2")
    ]
    with refusal(".embedding", *parts):
        Transformer(small(), parameters=parameters)
    refused("parameters", Transformer, small(layers=1), parameters=random_parameters(small()))


@pytest.mark.parametrize("seed", [-1, 1.5, "a", None, True])
def test_a_seed_or_a_config_that_is_none_is_refused(seed):
    refused("seed", Transformer, small(), seed=seed)
    refused("config seed", Transformer, LSTMConfig(2), seed=seed)


def test_shapes_are_those_of_the_parameters():
    config = small(positions=("learned", "length"), layer_norm="post", scores="additive", logits=3)
    found = jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), initialise(config, 0))
    assert found == jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), shapes(config))


SMALL = {"width": 8, "layers": 1, "logits": 2, "dtype": "float64"}


def leaves(config, seed=0):
    paths, _ = jax.tree_util.tree_flatten_with_path(build(config, seed=seed).parameters)
    return {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in paths}


@pytest.mark.parametrize("kind", kinds())
@pytest.mark.parametrize(
    ("initialisation", "law"),
    [(Uniform(10), stats.uniform(-10, 20)), (Normal(0.3), stats.norm(0, 0.3))],
    ids=["uniform", "normal"],
)
def test_every_random_entry_has_the_distribution_and_no_other_changes(kind, initialisation, law):
    config = network(kind).of(3, **SMALL, initialisation=initialisation)
    default, own = leaves(config.replace(initialisation=FAN_IN)), leaves(config)
    constant = {name for name, leaf in default.items() if np.unique(leaf).size <= 2}
    assert constant
    assert constant < set(own)
    for name in constant:
        np.testing.assert_array_equal(own[name], default[name])
    drawn = np.concatenate([own[name].ravel() for name in own.keys() - constant])
    assert stats.kstest(drawn, law.cdf).pvalue > 1e-4
    assert np.unique(drawn).size == drawn.size


def test_every_parameter_has_a_stream_of_its_own_for_each_seed():
    one, other, next_seed = (
        draw(Uniform(10), seed, name, (2, 3), 0.1, "float64")
        for seed, name in ((0, "query"), (0, "key"), (1, "query"))
    )
    assert not np.array_equal(one, other)
    assert not np.array_equal(one, next_seed)
    np.testing.assert_allclose(one, 10 * draw(Uniform(1), 0, "query", (2, 3), 5.0, "float64"), rtol=1e-13)
    single = draw(Uniform(10), 0, "query", (2, 3), 0.1, "float32")
    np.testing.assert_array_equal(single, one.astype(np.float32))


def test_the_default_is_left_out_of_what_determines_a_model():
    for config in (TransformerConfig(2), LSTMConfig(2)):
        assert config.initialisation == FAN_IN
        assert "initialisation" not in plain(config)
        assert plain(config.replace(initialisation=Uniform(2)))["initialisation"] == {
            "type": "Uniform",
            "bound": 2,
        }
    assert TransformerConfig(2, initialisation="fan-in") == TransformerConfig(2)
