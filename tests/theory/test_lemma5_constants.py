"""Constants of Lemma 5, each against a model that attains it; and the numbers of its induction's step."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import jax
import numpy as np
import pytest

from jaxsens import Transformer, TransformerConfig
from jaxsens.core.models.parts.masks import MASKS, SlidingWindow
from jaxsens.theory.lemma5 import LayerBound, LayerConstants, lemma5, next_layer
from tests import reference
from tests.small_models import random_parameters, small


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
