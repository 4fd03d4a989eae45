"""The transformer's forward pass beside the plain loops of tests/reference.py; windows; how weights are drawn."""

from __future__ import annotations

import dataclasses
import warnings
from dataclasses import replace
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import jaxsens
from jaxsens import Attention, EstimateWarning, InputError, Transformer, TransformerConfig, theory
from jaxsens.core.base.errors import Problems
from jaxsens.core.base.programs import PLATFORMS, compiled_for, numerics
from jaxsens.core.models.parts.initialisation import FAN_IN, Normal, Uniform, draw
from jaxsens.core.models.parts.masks import MASKS, SlidingWindow, TwoSidedWindow
from jaxsens.core.models.parts.positions import Learned
from jaxsens.core.models.transformer import layers, trace
from jaxsens.core.models.transformer.layers import LayeredTransformer
from jaxsens.core.models.transformer.module import build, kinds, network, plain, read_config
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


N, WIDTH = 150, 9


def unbounded(queries, keys):
    """The same window, as a rule that says nothing of what it connects."""
    return (keys <= queries) & (keys > queries - WIDTH)


@dataclasses.dataclass(frozen=True)
class Windowed(LayeredTransformer):
    """A transformer with a window in every layer."""

    bounded: bool = True

    def attention(self, layer: int) -> Attention:
        mask = SlidingWindow(WIDTH) if self.bounded else unbounded  # its spans are known, or not
        return dataclasses.replace(super().attention(layer), mask=mask)

    def at_length(self, n: int) -> Windowed:
        return dataclasses.replace(self, n=n)


def test_it_compares_by_value_and_sees_the_last_keys():
    mask = Attention(2, mask=SlidingWindow(3))
    assert mask == Attention(2, mask=SlidingWindow(3)) != Attention(2, mask=SlidingWindow(4))
    assert hash(mask) == hash(Attention(2, mask=SlidingWindow(3)))
    i = jnp.arange(6)
    seen = np.asarray(mask.sees(i[:, None], i[None, :]))
    assert seen.tolist() == [[0 <= query - key < 3 for key in range(6)] for query in range(6)]


@pytest.mark.parametrize(
    "window",
    [
        *(SlidingWindow(width) for width in (1, 3, 20, 2**30)),
        *(TwoSidedWindow(reach) for reach in (0, 1, 3, 20, 2**30)),
    ],
    ids=str,
)
def test_its_spans_are_those_of_what_it_sees(window):
    n, mask = 12, Attention(2, mask=window)
    assert mask.one_sided == (isinstance(window, SlidingWindow) or not window.reach)
    i = jnp.arange(n)
    seen = np.asarray(mask.sees(i[:, None], i[None, :]))
    for first in range(n):
        for stop in range(first + 1, n + 1):
            for bounds in ((first, stop), (jnp.asarray(first), jnp.asarray(stop))):
                rows = np.flatnonzero(seen[:, first:stop].any(1))
                assert tuple(map(int, mask.rows_that_see(bounds, n))) == (rows[0], rows[-1] + 1)


def test_theory_refuses_windows_to_both_sides_by_name():
    model = jaxsens.Transformer(jaxsens.TransformerConfig(2, mask=TwoSidedWindow(2)), seed=0)
    for bound in (theory.lemma5, theory.certified_bound):
        with pytest.raises(InputError, match=f"{bound.__name__} has no rule for the mask TwoSidedWindow"):
            bound(model, 8)


def test_a_config_takes_windows_by_layer_and_tables_of_a_file():
    sizes: dict[str, Any] = {"alphabet_size": 2, "layers": 2}
    table = {**sizes, "mask": ["none", {"type": "SlidingWindow", "width": 4}]}
    problems = Problems("")
    config = read_config(table, "model", problems)
    assert not problems
    assert config == jaxsens.TransformerConfig(**sizes, mask=("none", SlidingWindow(4)))
    assert plain(config)["mask"] == table["mask"]
    both = {**sizes, "mask": {"type": "TwoSidedWindow", "reach": 0}}
    assert read_config(both, "model", problems) == jaxsens.TransformerConfig(**sizes, mask=TwoSidedWindow(0))
    # A name is written as before: what a sweep has measured keeps its keys.
    assert plain(jaxsens.TransformerConfig(**sizes, mask="future"))["mask"] == "future"


@pytest.mark.quick(0, 1)
@pytest.mark.parametrize("engine", ["incremental", "first-order"])
def test_engines_that_skip_what_a_window_hides_compute_what_others_do(engine):
    config = jaxsens.TransformerConfig(
        alphabet_size=3, width=8, heads=2, layers=3, feed_forward=8, dtype="float64", mask="future"
    )
    with numerics("float64"):
        parameters = jaxsens.Transformer(config, seed=0).parameters
    tokens = np.random.default_rng(0).integers(0, 3, N)
    positions = [0, 77, 124, 125, 134, 140, 148]

    def measured(bounded: bool) -> np.ndarray:
        model = (Windowed(config, bounded=bounded), parameters)
        asked: Any = jaxsens.FirstOrder(verify=4) if engine == "first-order" else engine
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", EstimateWarning)
            return jaxsens.flip_sensitivity(
                model, tokens, flips=jaxsens.Substitute(3, positions=positions), engine=asked
            ).norms

    skipping, every = measured(True), measured(False)
    np.testing.assert_allclose(skipping, every, rtol=1e-10, atol=1e-14)
    assert skipping[:6].max() < 1e-14  # three layers of eight positions back: from 149 to 125
    assert skipping[6:8].max() > 1e-10
