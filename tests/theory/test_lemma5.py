"""Lemma 5: its bounds hold, its constants are what they are said to be, and what the published proof lacks matters."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from typing import Any

import jax
import numpy as np
import pytest

from jaxsens import Softmax, Transformer, TransformerConfig
from jaxsens.core.models.parts.masks import MASKS, SlidingWindow
from jaxsens.core.models.parts.positions import Learned, Sinusoidal
from jaxsens.core.models.parts.schedules import Schedule
from jaxsens.core.models.parts.score_positions import Alibi, PartialAlibi, RelativeBias, Rotary
from jaxsens.core.models.parts.weighting import SinkSoftmax
from jaxsens.core.models.transformer.layered import readout_row
from jaxsens.theory.lemma5 import LayerBound, LayerConstants, lemma5, next_layer
from tests import reference
from tests.refusals import refusal, refused
from tests.small_models import random_parameters, small

N = 5
WORDS = tuple(itertools.product(range(2), repeat=N))
CHOICES: dict[str, list[Any]] = {
    "mask": [*MASKS, "none", ("none", "future"), ("past", "future")],
    "positions": ["none", "sinusoidal", Learned(8), "rotary", "alibi", "index", ("fraction", "first")],
    "scores": ["dot-product", "additive"],
    "layer_norm": ["none", "pre", "post"],
    "activation": ["relu", "gelu", "silu", "tanh"],
    "feed_forward": [0, 5, (3, 0)],
    "weighting": ["softmax", "softmax", "temperature-log", "temperature-linear"],
    "readout": ["last", 0, 2, "mean"],
    "logits": [None, 3],
    "heads": [2, 1, (1, 3)],
}
CHOICES["positions"].append((Rotary(30.0), Alibi(), Sinusoidal(50.0)))
CHOICES["positions"] += ["partial-rotary", PartialAlibi(1.0), RelativeBias(4, 3)]
CHOICES["mask"] += [SlidingWindow(2), (SlidingWindow(3), SlidingWindow(1))]
CHOICES["weighting"] += [Softmax(Schedule(0.7, 0.5, 1.0), by="query"), Softmax(Schedule(2.0, -1.0))]


def random_model(seed: int) -> Transformer:
    """One of all these choices; parameters so small, now and then, that the bound is far below the trivial one."""
    rng = np.random.default_rng(seed)
    chosen = {name: values[int(rng.integers(len(values)))] for name, values in CHOICES.items()}
    scale = [0.1, 0.3, 0.6][seed % 3]
    config = small(alphabet_size=2, layer_norm_epsilon=[0.5, 1e-5][seed % 2], **chosen)
    return Transformer(
        config, parameters=jax.tree.map(lambda p: scale * p, random_parameters(config, seed, N))
    )


@functools.cache
def all_levels(seed: int) -> dict[tuple[int, ...], tuple[np.ndarray, np.ndarray]]:
    """y^(0..L) and the output for every word of length N, by the reference."""
    model = random_model(seed)
    found = {}
    parameters = jax.tree.map(np.asarray, model.parameters)
    for word in itertools.product(range(2), repeat=N):
        y = np.array(reference.levels(model.config, parameters, word))
        position = readout_row(model.config.readout, N)
        row = y[-1].mean(axis=0) if position is None else y[-1][position]
        head = (parameters.head, parameters.head_bias)
        found[word] = (y, row if head[0] is None else row @ head[0] + head[1])
    return found


def pairs(words: dict[Any, Any]) -> list[tuple[int, Any, Any]]:
    """Every exchange: the position, and what belongs to the two words."""
    found = []
    for word, value in words.items():
        for i in range(len(word)):
            if word[i] == 0:
                found.append((i, value, words[(*word[:i], 1, *word[i + 1 :])]))
    return found


@pytest.mark.quick(12)
@pytest.mark.parametrize("seed", range(36))
def test_no_exchange_of_any_word_moves_any_row_of_any_layer_or_the_output_further_than_the_bounds(seed):
    model = random_model(seed)
    bounds = {norm: lemma5(model, N, measure=norm) for norm in ("l2", "l1", "linf")}
    layers = bounds["l2"].by_layer
    own = np.exp([layer.log_own for layer in layers])
    rows = np.exp([layer.log_rows for layer in layers])
    sizes = np.exp([c.log_F for c in bounds["l2"].constants])
    readout = readout_row(model.config.readout, N)
    for i, (y, out), (y2, out2) in pairs(all_levels(seed)):
        change = np.linalg.norm(y2 - y, axis=-1)
        others = np.arange(N) != i
        assert np.all(change[:, i] <= own + 1e-12)
        assert np.all(change[:, others] <= rows[:, others] + 1e-12)
        assert np.all(np.linalg.norm(y[:-1], axis=-1).max(axis=1) <= sizes)
        if i != readout:
            for norm, order in (("l2", 2), ("l1", 1), ("linf", np.inf)):
                found = bounds[norm]
                assert np.linalg.norm(out2 - out, order) <= found.bound + 1e-12
                assert found.log_bound <= min(found.log_closed_form, found.log_trivial) + 1e-12


LEARNED = np.array([[-2.0, 0.5], [1.0, -0.3]])
"""Another sink in every head of two layers."""


@pytest.mark.quick(5)
@pytest.mark.parametrize("sinks", [-1.0, 0.0, 2.0, 0.3 * LEARNED, 4.0 * LEARNED], ids=str)
@pytest.mark.parametrize(
    "choices", [{}, {"mask": ("past", "none"), "positions": "alibi"}, {"scores": "additive"}], ids=str
)
def test_the_bounds_hold_with_sinks(choices, sinks):
    plain = small(alphabet_size=2, **choices)
    parameters = jax.tree.map(lambda p: 0.3 * p, random_parameters(plain, 1, N))
    without = lemma5(Transformer(plain, parameters=parameters), N)
    if isinstance(sinks, float):
        config = plain.replace(weighting=SinkSoftmax(logit=sinks))
    else:
        config = plain.replace(weighting=SinkSoftmax(learned=True))
        each = zip(parameters.layers, sinks, strict=True)
        layers = tuple(dataclasses.replace(layer, sink=sink) for layer, sink in each)
        parameters = dataclasses.replace(parameters, layers=layers)
    bound = lemma5(Transformer(config, parameters=parameters), N)
    assert bound.log_bound == without.log_bound  # a sink only lowers weights: the same bound
    assert not bound.vacuous
    numbers = jax.tree.map(np.asarray, parameters)
    words = {word: np.array(reference.levels(config, numbers, word)) for word in WORDS}
    for i, y, y2 in pairs(words):
        change, others = np.linalg.norm(y2 - y, axis=-1), np.arange(N) != i
        for k, layer in enumerate(bound.by_layer):
            assert change[k, i] <= math.exp(layer.log_own) + 1e-12
            assert np.all(change[k, others] <= np.exp(layer.log_rows[others]) + 1e-12)


def test_the_models_tried_are_not_all_beyond_the_lemma():
    # Otherwise the test above would compare with 2 F only.
    says = [not lemma5(random_model(seed), N).vacuous for seed in range(36)]
    assert sum(says) >= 12


def by_hand(config: TransformerConfig, **matrices: Any) -> Transformer:
    """A model with these parameters of every layer, and an embedding; everything else 0."""
    parameters = jax.tree.map(lambda p: np.zeros(p.shape), Transformer(config).parameters)
    embedding, components = matrices.pop("embedding"), matrices.pop("components", None)
    layers = tuple(dataclasses.replace(layer, **matrices) for layer in parameters.layers)
    changed: dict[str, Any] = {"embedding": np.array(embedding, float), "layers": layers}
    if components is not None:
        changed["components"] = np.array(components, float)
    return Transformer(config, parameters=dataclasses.replace(parameters, **changed))


def one_dimensional(gain: float, sharpness: float = 0.0, **changes: Any) -> Transformer:
    """y = +-1 by symbol, values gain y, scores sharpness y_j y_m: every constant of the lemma can be read off."""
    sizes: dict[str, Any] = {"alphabet_size": 2, "width": 1, "heads": 1, "layers": 1, "feed_forward": 0}
    options = {"positions": "none", "end_symbol": False, "dtype": "float64"}
    config, ones = TransformerConfig(**{**sizes, **options, **changes}), np.ones((1, 1, 1))
    matrices = {"query": sharpness * ones, "key": ones, "value": gain * ones, "output": ones}
    return by_hand(config, embedding=[[-1], [1]], **matrices)


@pytest.mark.parametrize("n", [2, 7, 1000])
def test_uniform_attention_moves_the_other_rows_by_exactly_the_bound(n):
    # delta_1 = V D / n. In layer 2: V (delta_1 + (D_1 - delta_1)/n) + delta_1, which the bound has up to a term V/n.
    assert lemma5(one_dimensional(0.7), n).bound == pytest.approx(0.7 * 2 / n, rel=1e-8)
    model = one_dimensional(0.7, layers=2)
    word = np.zeros(n, int)
    changed = np.array(model(np.where(np.arange(n) == 0, 1, word)))[0] - np.array(model(word))[0]
    found = lemma5(model, n).bound
    assert changed == pytest.approx(0.7 * 2 / n * 2.7, rel=1e-9)
    assert changed <= found * (1 + 1e-12) <= changed * (1 + 0.7 / n + 1e-8)


def test_constants_of_a_model_that_can_be_read_off():
    found = lemma5(one_dimensional(0.7, 3.0), 10)
    (layer,) = found.constants
    assert (found.A, found.H, found.n) == (pytest.approx(3.0), 1, 10)
    assert np.exp([layer.log_F, layer.log_F_z, found.log_D]) == pytest.approx([1, 1, 2 * 1.7])
    assert np.exp([layer.log_values[0], layer.log_radius[0]]) == pytest.approx([0.7, 0.7])
    assert np.exp([layer.log_query[0, 0], layer.log_key[0, 0], layer.log_map]) == pytest.approx([3, 3, 1])
    fact = 1 + 0.7 + 4 * 0.7 * 3
    assert math.exp(found.log_L_fact) == pytest.approx(fact)
    assert found.closed_form == pytest.approx((2 * (1 + math.exp(6) + fact)) ** 2 * 3.4 / 10)


def dominated_by_weights() -> tuple[Transformer, np.ndarray, np.ndarray, float]:
    """Symbols 0 and 1 differ by 2 eps, but one repels and one attracts the query; symbol 2 has a value of its own.

    Coordinates: what the key reads (+-eps), the value (1 for symbol 2), a constant 1 that the query reads.
    """
    eps = 0.01
    config = TransformerConfig(
        3, 3, 1, 1, 0, head_width=1, positions="none", end_symbol=False, dtype="float64"
    )
    pick = np.eye(3)[:, :, None][None]
    model = by_hand(
        config,
        embedding=[[-eps, 0, 1], [eps, 0, 1], [0, 1, 1]],
        query=pick[:, 2],
        key=10 / eps * pick[:, 0],
        value=pick[:, 1],
        output=np.array([[[0.0, 1.0, 0.0]]]),
    )
    word = np.array([2, 0, 2, 2, 2, 2])
    flipped = np.where(np.arange(6) == 1, 1, word)
    return model, word, flipped, eps


def test_the_published_step_fails_where_weights_change_more_than_activations():
    # Published: |b - b'| <= sum_w a_jw |y_w - y'_w|, here at most 2 eps whatever the weights. Measured: about 1.
    model, word, flipped, eps = dominated_by_weights()
    changed = np.linalg.norm(np.asarray(model(flipped)) - np.asarray(model(word)))
    assert changed > 0.99
    assert changed > 49 * 2 * eps
    found = lemma5(model, 6, [0, 1])
    assert changed <= math.exp(found.by_layer[1].log_rows.max()) <= 3


def bounded_model(**changes: Any) -> Transformer:
    config = small(positions="alternating", logits=2, **changes)
    return Transformer(config, parameters=jax.tree.map(lambda p: 0.2 * p, random_parameters(config)))


@pytest.mark.quick(1)
@pytest.mark.parametrize("readout", ["last", "mean", 3])
def test_bounded_softmax_without_masks_falls_exactly_as_one_over_n(readout):
    lengths = [2**k for k in range(2, 18)]
    found = [lemma5(bounded_model(readout=readout), n) for n in lengths]
    log_n = np.log(lengths)
    closed = np.array([one.log_closed_form for one in found]) + log_n
    assert np.ptp(closed) <= 1e-12
    sharp = np.array([one.log_bound for one in found])
    assert np.all(sharp < closed - log_n)
    slopes = np.diff(sharp) / np.diff(log_n)
    assert slopes[-1] == pytest.approx(-1, abs=1e-4)
    assert np.all(slopes >= -1 - (0.05 if readout == "mean" else 1e-9))
    assert np.all(slopes[6:] < -0.9)


def test_a_causal_row_near_the_start_does_not_care_how_long_the_input_is():
    # Uniform attention: y_2 changes by V D / 2 at every n, above what the lemma would give without masks.
    lengths = [4, 64, 1024]
    changes = []
    for n in lengths:
        model = one_dimensional(0.7, mask="future", readout=1)
        word = np.zeros(n, int)
        change = float(model(np.eye(1, n, 0, int)[0])[0] - model(word)[0])
        found = lemma5(model, n)
        assert change <= found.bound * (1 + 1e-12)
        assert found.bound == pytest.approx(0.7, rel=1e-6)
        assert found.closed_form == math.inf
        assert found.reason is not None
        assert "mask future" in found.reason
        windowed = lemma5(one_dimensional(0.7, mask=SlidingWindow(4), readout=1), n)
        assert change <= windowed.bound * (1 + 1e-12)
        assert "SlidingWindow(width=4): a row sees at most 4 keys at every n" in str(windowed.reason)
        changes.append(change)
    assert changes == pytest.approx([0.7] * 3, rel=1e-12)
    unmasked = lemma5(one_dimensional(0.7, readout=1), 1024)
    assert changes[-1] > 2 * unmasked.closed_form


def test_numbers_beyond_floats_stay_finite_as_logarithms():
    config = small(layers=30, positions="cube", weighting="temperature-cubic")
    found = lemma5(Transformer(config, seed=1), 200)
    assert math.isfinite(found.log_trivial)
    assert found.log_trivial > math.log(1e20)
    assert found.log_bound <= found.log_trivial
    assert found.vacuous
    assert found.bound == math.inf or found.bound > 1e20
    assert "forbids nothing" in repr(found)


def test_without_epsilon_layer_normalisation_has_no_closed_form():
    config = small(layer_norm="pre", layer_norm_epsilon=0.0)
    found = lemma5(Transformer(config), 8)
    assert found.closed_form == math.inf
    assert "not Lipschitz" in str(found.reason)
    assert math.isfinite(found.log_bound)


def test_without_layers_other_rows_stay_and_the_mean_moves_by_one_row():
    config = small(layers=0, end_symbol=False)
    model = Transformer(config)
    embedding = np.asarray(model.parameters.embedding)
    assert lemma5(model, 6).bound == 0
    largest = max(np.linalg.norm(a - b) for a in embedding for b in embedding)
    mean = lemma5(Transformer(config.replace(readout="mean"), parameters=model.parameters), 6)
    assert mean.bound == pytest.approx(largest / 6, rel=1e-8)


def test_symbols_restrict_what_is_exchanged():
    model = by_hand(
        small(layers=0, readout="mean", end_symbol=False), embedding=np.diag([0, 1, 5, 0, 0, 0])[:3]
    )
    assert lemma5(model, 1, [0, 1]).bound == pytest.approx(1, rel=1e-8)
    assert lemma5(model, 1).bound == pytest.approx(math.sqrt(26), rel=1e-8)


def test_weightings_without_a_bound_on_weights_and_wrong_arguments_are_refused_by_name():
    sharp = ("leftmost-hard", "average-hard", "sparsemax", "entmax-1.5")
    for weighting in (*sharp, "sigmoid", "sigmoid-log", "adaptive-temperature"):
        with refusal("weighting of layer 1"):
            lemma5(Transformer(small(weighting=("softmax", weighting))), 8)
    refused("model n measure flips", lemma5, "model", 0, [1], "l3")
    refused("tokens flips.symbols", lemma5, Transformer(small(positions=Learned(12))), 13, [0, 9])


def test_rotary_embedding_turns_queries_and_keys_that_are_orthogonal_to_each_other():
    # W_Q W_K^T = 0, but not with a turn between them.
    config = small(positions="rotary", heads=1, head_width=2, layers=1, feed_forward=0)
    parameters = random_parameters(config)
    query, key = np.zeros((1, 6, 2)), np.zeros((1, 6, 2))
    query[0, 0, 0] = key[0, 0, 1] = 1
    layer = dataclasses.replace(parameters.layers[0], query=query, key=key)
    embedding = np.diag([1.0, 1.0, 1.0, 1.0, 0, 0])[:4]
    embedding[:, 0] = 1
    model = Transformer(
        config, parameters=dataclasses.replace(parameters, embedding=embedding, layers=(layer,))
    )
    turned = np.sin(np.arange(6) - np.arange(6)[:, None]) / math.sqrt(2)
    attained = np.ptp(turned, axis=1).max() / 2
    assert 0.3 < attained <= lemma5(model, 6).A


@pytest.mark.parametrize("layer_norm", ["pre", "post"])
def test_the_map_stretches_small_vectors_by_its_constant(layer_norm):
    # Of entries that are nearly equal, LN makes 1/sqrt(0.01) = 10 times the difference. tanh has slope 1 at 0.
    config = TransformerConfig(
        2, 4, 1, 1, 4, positions="none", layer_norm=layer_norm, layer_norm_epsilon=0.01, activation="tanh",
        end_symbol=False, dtype="float64",
    )  # fmt: skip
    zero = jax.tree.map(lambda p: np.zeros(p.shape), Transformer(config).parameters)
    norm = dataclasses.replace(zero.layers[0].attention_norm, scale=np.ones(4))
    layer = dataclasses.replace(
        zero.layers[0], w1=np.eye(4), w2=np.eye(4), attention_norm=norm, feed_forward_norm=norm
    )
    embedding = np.array([[0, 0, 0, 0], [1e-6, -1e-6, 1e-6, -1e-6]])
    model = Transformer(config, parameters=dataclasses.replace(zero, embedding=embedding, layers=(layer,)))
    one, zeros = (np.asarray(model(np.array([symbol]))) for symbol in (1, 0))
    stretched = np.linalg.norm(one - zeros) / 2e-6
    expected = {"pre": 1 + 10, "post": 10 * (1 + 1) * 10}[layer_norm]
    found = lemma5(model, 1)
    assert stretched == pytest.approx(expected, rel=1e-6)
    assert stretched <= math.exp(found.constants[0].log_map) <= stretched * (1 + 1e-6)
    assert math.exp(found.by_layer[1].log_own) == pytest.approx(2e-6 * expected, rel=1e-6)


# Every constant by the formulas of `LayerConstants`, in plain numbers

SLOPES = {"relu": 1.0, "tanh": 1.0, "gelu": 1.129, "silu": 1.0999}


def norm_of(matrix):
    return np.linalg.norm(np.asarray(matrix, float), 2)


def normalised(norm, epsilon, size):
    """The Lipschitz constant of a layer normalisation, and the bound on its output for inputs of at most `size`."""
    scale, bias = np.asarray(norm.scale), np.asarray(norm.bias)
    stretch = np.abs(scale).max() / math.sqrt(epsilon)
    return stretch, min(np.abs(scale).max() * math.sqrt(len(scale)), stretch * size) + np.linalg.norm(bias)


def keys_of(mask: Any, j: int, n: int) -> list[int]:
    """The keys that row j sees, as the masks are defined."""
    return [m for m in range(n) if reference.visible(mask, j, m)]


def distances(mask, n):
    """How far each row's farthest visible key is; 0 where it sees none."""
    return np.array([max((abs(i - j) for j in keys_of(mask, i, n)), default=0) for i in range(n)])


def by_the_formulas(config, given, n, size, inverse):
    """The constants of one layer whose inputs are at most `size`, and the bound on its outputs."""
    epsilon, dot, heads = config.layer_norm_epsilon, config.scores == "dot-product", range(config.heads)
    pre, post = config.layer_norm == "pre", config.layer_norm == "post"
    stretch, inner = normalised(given.attention_norm, epsilon, size) if pre else (1, size)
    values = np.array([norm_of(given.value[h] @ given.output[h]) for h in heads])
    queries, keys = ([norm_of(matrix[h]) for h in heads] for matrix in (given.query, given.key))
    if dot:
        if any(reference.kind(term) in ("Rotary", "PartialRotary") for term in config.positions):
            products = [q * k for q, k in zip(queries, keys, strict=True)]
        else:
            products = [norm_of(given.query[h] @ given.key[h].T) for h in heads]
        slopes = np.array(products) * inner / math.sqrt(config.head_width)
        scores, by_query, by_key = slopes * inner, slopes, slopes
    else:
        vectors = np.asarray(given.additive)
        scores, lengths = np.abs(vectors).sum(axis=1), np.linalg.norm(vectors, axis=1)
        by_query, by_key = lengths * queries, lengths * keys
    scores = np.repeat(scores[:, None], n, axis=1)
    for term in config.positions:
        if reference.kind(term) in ("Alibi", "PartialAlibi"):
            fall = np.array([reference.slope(term, h + 1, config.heads) for h in heads])
            scores = scores + fall[:, None] * distances(config.mask, n) / 2
        if reference.kind(term) == "RelativeBias":
            scores = scores + np.array([[max(row) - min(row)] for row in given.relative_bias]) / 2
    gain, size = 1.0, size + (values * inner).sum()
    if post:
        gain, size = normalised(given.attention_norm, epsilon, size)
    if config.feed_forward:
        first, second = norm_of(given.w1), norm_of(given.w2)
        inside, enters = normalised(given.feed_forward_norm, epsilon, size) if pre else (1, size)
        hidden = first * enters + np.linalg.norm(given.b1)
        if config.activation == "tanh":
            hidden = min(hidden, math.sqrt(config.feed_forward))
        gain *= 1 + first * second * SLOPES[config.activation] * inside
        size += second * hidden + np.linalg.norm(given.b2)
        if post:
            last, size = normalised(given.feed_forward_norm, epsilon, size)
            gain *= last
    whole = values + 4 * values * inner * np.maximum(by_query, by_key) * inverse
    found = {
        "F_z": inner, "lambda": stretch, "values": values, "radius": values * inner, "A": scores * inverse,
        "query": np.repeat(by_query[:, None] * inverse, n, axis=1),
        "key": np.repeat(by_key[:, None] * inverse, n, axis=1),
        "map": gain, "L_fact": gain * (1 + stretch * whole.max()),
    }  # fmt: skip
    return found, size


@pytest.mark.parametrize(
    ("changes", "inverse"),
    [
        ({"positions": "none"}, 1.0),
        ({"positions": "none", "layer_norm": "pre", "activation": "gelu"}, 1.0),
        ({"positions": "none", "layer_norm": "pre", "layer_norm_epsilon": 1e3}, 1.0),
        ({"positions": "none", "layer_norm": "post", "activation": "tanh", "scores": "additive"}, 1.0),
        ({"positions": "alibi", "mask": "future", "activation": "silu"}, 1.0),
        ({"positions": "alibi", "mask": "past", "layer_norm": "pre", "feed_forward": 0}, 1.0),
        ({"positions": "partial-alibi", "mask": SlidingWindow(3)}, 1.0),
        ({"positions": ("partial-rotary", "relative-bias"), "mask": "future"}, 1.0),
        ({"positions": "rotary", "weighting": "temperature-sqrt", "layer_norm": "post"}, math.sqrt(7)),
        ({"positions": "none", "weighting": "temperature-linear", "scores": "additive"}, 7.0),
    ],
)
def test_every_constant_is_what_its_formula_says(changes, inverse):
    config, n = small(**changes), 7
    parameters = random_parameters(config, 3)
    found = lemma5(Transformer(config, parameters=parameters), n)
    size = np.linalg.norm(parameters.embedding, axis=1).max()
    for given, layer in zip(parameters.layers, found.constants, strict=True):
        assert math.exp(layer.log_F) == pytest.approx(size, rel=1e-7)
        expected, size = by_the_formulas(config, given, n, size, inverse)
        measured = {
            name: layer.A if name == "A" else np.exp(getattr(layer, f"log_{name}")) for name in expected
        }
        for name, value in expected.items():
            np.testing.assert_allclose(measured[name], value, rtol=1e-7, err_msg=name)
    assert math.exp(found.log_trivial) == pytest.approx(2 * size, rel=1e-7)


def test_constants_of_float32_parameters_are_computed_in_float64():
    config = small(positions="none", layer_norm="pre")
    given = jax.tree.map(lambda p: np.asarray(p, np.float32), random_parameters(config))
    wide = jax.tree.map(lambda p: np.asarray(p, np.float64), given)
    models = (config.replace(dtype="float32"), given), (config, wide)
    found = (lemma5(Transformer(kind, parameters=each), 5).constants for kind, each in models)
    for one, other in zip(*found, strict=True):
        for field in dataclasses.fields(one):
            np.testing.assert_array_equal(getattr(one, field.name), getattr(other, field.name))


ALL_MASKS = ["none", *(mask for mask in MASKS if mask != "none"), *map(SlidingWindow, (1, 2, 4))]


def random_layer(rng: np.random.Generator, mask: Any, heads: int, n: int) -> LayerConstants:
    """Constants of all sizes: now this term of the step is the largest, now that."""

    def drawn(*shape: int) -> np.ndarray:
        return rng.normal(scale=1.5, size=shape)

    return LayerConstants(
        log_F=float(drawn()),
        log_F_z=float(drawn()),
        log_lambda=float(drawn()),
        log_values=drawn(heads),
        log_radius=drawn(heads),
        A=np.exp(drawn(heads, n)),
        log_query=drawn(heads, n),
        log_key=drawn(heads, n),
        log_map=float(drawn()),
        mask=mask,
    )


def step_in_plain_numbers(
    layer: LayerConstants, own: float, rows: np.ndarray, f_next: float
) -> tuple[float, np.ndarray]:
    """`next_layer` as its module's docstring states it, row by row, key by key and head by head, without logarithms."""
    n, lam, f_z = len(rows), math.exp(layer.log_lambda), math.exp(layer.log_F_z)
    dz, own_dz = np.minimum(lam * rows, 2 * f_z), min(lam * own, 2 * f_z)
    others, flipped = np.zeros(n), np.zeros(n)
    for j in range(n):
        keys = keys_of(layer.mask, j, n)
        others[j], flipped[j] = rows[j], own
        if not keys:
            continue
        largest, total = max(dz[m] for m in keys), sum(dz[m] for m in keys)
        for h in range(layer.heads):
            v, r = math.exp(layer.log_values[h]), math.exp(layer.log_radius[h])
            query, key, a = math.exp(layer.log_query[h, j]), math.exp(layer.log_key[h, j]), layer.A[h, j]
            w = 1 / (1 + (len(keys) - 1) * math.exp(-2 * a))
            # Another row is flipped, which this one sees, unless it sees itself alone.
            seen = any(m != j for m in keys)
            change = v * min(largest, w * total) + seen * v * w * own_dz
            change += r * (query * dz[j] + key * min(largest, 2 * w * total))
            change += seen * 2 * r * w * min(1, query * dz[j] + key * own_dz, 2 * a)
            others[j] += min(change, 2 * r)
            # The row itself is flipped.
            nearest = max(largest, own_dz) if j in keys else largest
            change = v * (largest + (j in keys) * w * own_dz)
            flipped[j] += min(change + r * min(query * own_dz + key * nearest, 2 * a), 2 * r)
    lip = math.exp(layer.log_map)
    return min(lip * flipped.max(), 2 * f_next), np.minimum(lip * others, 2 * f_next)


@pytest.mark.parametrize("mask", ALL_MASKS)
def test_the_step_is_what_the_derivation_says_in_plain_numbers(mask):
    for seed in range(60):
        rng = np.random.default_rng(seed)
        n = int(rng.integers(1, 7))
        layer = random_layer(rng, mask, int(rng.integers(1, 4)), n)
        own, rows = float(rng.exponential()), rng.exponential(size=n) * 10.0 ** rng.integers(-4, 1)
        rows[rng.random(n) < 0.2] = 0
        f_next = float(rng.exponential()) * 10.0 ** rng.integers(0, 4)
        with np.errstate(divide="ignore"):
            now = LayerBound(math.log(own), np.log(rows))
        found = next_layer(layer, now, math.log(f_next))
        expected_own, expected = step_in_plain_numbers(layer, own, rows, f_next)
        np.testing.assert_allclose(np.exp(found.log_rows), expected, rtol=1e-12)
        assert math.exp(found.log_own) == pytest.approx(expected_own, rel=1e-12)
        assert math.exp(found.log_rows.max()) == pytest.approx(max(expected), rel=1e-12)
