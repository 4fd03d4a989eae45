"""The engines that compute only the rows that change, beside whole forward passes, on several blocks of rows."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxsens
from jaxsens.core.base.programs import PLATFORMS
from jaxsens.core.models.parts.masks import SlidingWindow
from jaxsens.core.models.transformer import trace
from tests.core.flip_sensitivity.conformance import engine_of, measured, programs
from tests.documented import example
from tests.small_models import WEIGHTINGS_TRIED, random_parameters, small

N = 21


def norms(engine: str, config: jaxsens.TransformerConfig, flips: list[tuple[int, int]]) -> np.ndarray:
    word = np.random.default_rng(0).integers(0, 3, N)
    built = engine_of(engine, config)
    assert built is not None
    return measured(built, random_parameters(config, 0, N), word, flips, "float64")[0]


@pytest.mark.quick(0, 1)
@pytest.mark.parametrize(
    "options",
    [
        {"mask": ("future", "past", "none"), "layer_norm": "pre"},
        {"mask": ("past", "strict-future", "future"), "readout": "mean"},
        {"mask": "none"},
        {"mask": "future"},
        {"mask": "past", "readout": 0, "positions": "alibi"},
        {"weighting": ("sigmoid", "sigmoid-log", "softmax"), "mask": ("future", "none", "none")},
        {"weighting": WEIGHTINGS_TRIED["sigmoid by-query"], "mask": "strict-past", "readout": "mean"},
        {"mask": ("none", "future", "future"), "layer_norm": "post", "scores": "additive"},
        {"weighting": WEIGHTINGS_TRIED["learned sink"], "mask": "past"},
    ],
)
@pytest.mark.parametrize(
    ("at", "backend"),
    [pytest.param([0, 1], "cpu", marks=pytest.mark.slow), ([12, 13, 19], "gpu"), ([20], "tpu")],
)
def test_blocks_that_fill_no_whole_number_of_rows(monkeypatch, options, at, backend):
    cached = replace(PLATFORMS["cpu"], cached_scores=0)
    own = {"cpu": cached, "gpu": PLATFORMS["gpu"], "tpu": replace(cached, mapped_numbers=6 * small().width)}
    monkeypatch.setitem(PLATFORMS, "cpu", own[backend])
    monkeypatch.setattr(trace, "CACHED_ROWS", 8)
    monkeypatch.setattr(trace, "SCORES_IN_MEMORY", 8 * N)
    programs.cache_clear()  # of what was traced for other blocks
    config = small(layers=3, **options)
    flips = [(position, symbol) for position in at for symbol in (0, 1, 3)]
    expected = norms("vmap", config, flips)
    for engine in ("incremental", "difference"):
        scale = max(1.0, expected.max())  # one flip puts the symbol back
        np.testing.assert_allclose(norms(engine, config, flips), expected, rtol=1e-9, atol=1e-13 * scale)


@pytest.mark.quick(0, 1)
@pytest.mark.parametrize(("mask", "readout"), [("future", "last"), ("past", 0)])
def test_long_inputs_whose_rows_attend_in_smaller_blocks_than_they_are_mapped(mask, readout):
    model = jaxsens.Transformer(small(layers=3, mask=mask, readout=readout), seed=0)
    word, at = np.random.default_rng(0).integers(0, 3, 1100), [130, 140, 700]
    for flips in (jaxsens.Substitute(positions=at), jaxsens.Delete(positions=at)):
        expected, found = (
            jaxsens.flip_sensitivity(model, word, flips, engine=name).norms
            for name in ("vmap", "incremental")
        )
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-13)


def test_a_flip_that_the_readout_does_not_see_changes_nothing():
    config = small(mask="future", readout=4)
    assert np.all(norms("incremental", config, [(9, 1), (20, 0)]) <= 1e-14)


@pytest.mark.quick(0, 1)
@pytest.mark.parametrize("readout", ["last", 0, "mean"])
def test_a_users_model_with_visible_attention_is_measured_as_by_forward_passes(readout):
    names = example()
    pair = names["Decoder"](), names["random_weights"](0)
    tokens = np.random.default_rng(1).integers(0, 100, N)
    options: dict[str, Any] = {
        "flips": jaxsens.Substitute([5, 9], positions=[0, 1, 7, N - 1]),
        "readout": readout,
    }
    found, expected = (jaxsens.flip_sensitivity(pair, tokens, engine=e, **options) for e in ("auto", "vmap"))
    assert (found.engine.name, expected.engine.name) == ("incremental", "vmap")
    np.testing.assert_allclose(found.norms, expected.norms, rtol=1e-4, atol=1e-6)


@dataclasses.dataclass(frozen=True)
class Odd(jaxsens.Layered):
    """Everything that a protocol allows: grouped heads, values wider than keys, and masks and scores of its own."""

    masks: tuple[Any, ...] = ("none", "none")
    near: bool = False
    weighting: Any = WEIGHTINGS_TRIED["softmax"]
    layers: int = 2
    alphabet_size: int | None = 7

    def attention(self, layer):
        return jaxsens.Attention(4, key_heads=2, mask=self.masks[layer], scale=0.7, weighting=self.weighting)

    def embed(self, weights, symbol, position):
        return weights["embedding"][symbol] + jnp.sin(position * weights["turn"])

    def project(self, weights, layer, row, position):
        shapes = {"query": (4, 3), "key": (2, 3), "value": (2, 5)}
        return tuple((row @ weights[name]).reshape(shape) for name, shape in shapes.items())

    def merge(self, weights, layer, row, attended):
        return row + jnp.tanh(attended.reshape(-1) @ weights["output"])

    def read(self, weights, row):
        return row @ weights["head"]

    def position_score(self, layer, head, query, key):
        return jnp.where(jnp.abs(query - key) <= 1, 0.0, -jnp.inf) if self.near else None


class OddScores(Odd):
    """With scores that are no products."""

    def score(self, weights, layer, head, query, key):
        return -jnp.sum(jnp.abs(query - key))


def odd_weights(size: float = 1.0) -> dict[str, Any]:
    shapes = {"embedding": (7, 8), "turn": (8,), "query": (8, 12), "key": (8, 6), "value": (8, 10)}
    shapes |= {"output": (20, 8), "head": (8, 4)}
    draw = np.random.default_rng(0)
    return {name: size * draw.normal(size=shape) for name, shape in shapes.items()}


def two_apart(queries, keys):
    return (queries - keys) % 2 == 0


SIGMOID = WEIGHTINGS_TRIED["sigmoid by-query"]

ODD = {
    "no mask": (Odd(), "last", 6),
    "a mask of its own": (Odd(masks=(two_apart, "future")), "mean", 5),
    "windows": (Odd(masks=(SlidingWindow(2), SlidingWindow(1))), "mean", 5),
    "keys hidden by their scores": (Odd(masks=("past", "none"), near=True), 1, 5),
    "other scores": (OddScores(masks=("strict-future", "strict-past")), "mean", 4),
    "sigmoids": (OddScores(masks=(two_apart, "past"), weighting=SIGMOID, near=True), "mean", 5),
    "one symbol": (Odd(masks=("strict-past", "none")), "last", 1),
    "two symbols": (Odd(masks=("future", SlidingWindow(1))), 0, 2),
    "one layer": (Odd(masks=("future",), layers=1), "last", 3),
}


@pytest.mark.quick(0, 3)
@pytest.mark.parametrize("name", ODD)
def test_everything_that_visible_attention_may_be(name):
    model, readout, n = ODD[name]
    tokens = np.random.default_rng(n).integers(0, 7, n)
    asked: dict[str, Any] = {"flips": jaxsens.Substitute([0, 3, 6], positions=range(n)), "readout": readout}
    found, expected = (
        jaxsens.flip_sensitivity((model, odd_weights()), tokens, engine=engine, **asked)
        for engine in ("auto", "vmap")
    )
    assert (found.engine.name, found.dtype) == ("incremental", "float64")
    np.testing.assert_allclose(found.norms, expected.norms, rtol=1e-10, atol=1e-13)


@pytest.mark.long
@pytest.mark.parametrize(
    ("weighting", "size", "closed"),
    [
        ("softmax", 1.0, True),
        ("softmax", 3.0, True),
        ("softmax", 3.5, False),
        ("sigmoid by-query", 30.0, True),
    ],
)
def test_cold_attention_keeps_its_digits(weighting, size, closed):
    """The largest scores are about 54, 490, 660 and 5e4. In a sigmoid no other key enters a weight."""
    tokens = np.random.default_rng(0).integers(0, 7, 12)
    narrow = {name: part.astype(np.float32) for name, part in odd_weights().items()}
    narrow |= {name: np.float32(size) * narrow[name] for name in ("query", "key")}
    exact = {name: part.astype(np.float64) for name, part in narrow.items()}
    asked: dict[str, Any] = {"readout": "mean", "flips": jaxsens.Substitute(positions=range(12))}
    model = Odd(weighting=WEIGHTINGS_TRIED[weighting])
    truth = jaxsens.flip_sensitivity((model, exact), tokens, engine="vmap", **asked).norms
    result = jaxsens.flip_sensitivity((model, narrow), tokens, engine="incremental", **asked)
    forward = jaxsens.flip_sensitivity((model, narrow), tokens, engine="vmap", **asked).norms
    assert result.dtype == "float32"
    assert closed == (not result.engine.elsewhere)
    off, passes = (np.max(np.abs(norms - truth)) for norms in (result.norms, forward))
    if weighting == "softmax":
        assert off <= 1e-3 * truth.max()
    else:
        assert off <= max(4 * passes, 1e-5 * truth.max())


@pytest.mark.quick(1, 2)
@pytest.mark.parametrize("weighting", ["softmax", "sigmoid", "temperature-log"])
def test_a_flip_that_brings_a_key_back_from_far_below_is_off_by_no_more_than_its_resolution(weighting):
    """Symbol 2 has scores of -3e4, so that the score of another in its place is not old score plus change."""
    config = small(layers=2, positions="none", weighting=weighting, dtype="float64")
    own = random_parameters(config, 0, 20)
    embedding, query, key = (
        np.array(part) for part in (own.embedding, own.layers[0].query, own.layers[0].key)
    )
    embedding[:, 4:], embedding[2, 5] = [1, 0], 1
    query[:, :, 0], query[:, 4, :], key[:, 5, :] = 0, 0, 0
    query[:, 4, 0], key[:, 5, 0] = 1, -3e4
    second = dataclasses.replace(
        own.layers[1], query=np.array(own.layers[1].query) / 32
    )  # of moderate scores
    layers = dataclasses.replace(own.layers[0], query=query, key=key), second
    own = jax.tree.map(np.float32, dataclasses.replace(own, embedding=embedding, layers=layers))
    word = np.random.default_rng(0).integers(0, 3, 20)
    narrow, wide = (
        jaxsens.flip_sensitivity(
            jaxsens.Transformer(
                config.replace(dtype=dtype), parameters=jax.tree.map(np.dtype(dtype).type, own)
            ),
            word,
            engine=engine,
        )
        for dtype, engine in (("float32", "incremental"), ("float64", "vmap"))
    )
    assert not narrow.engine.elsewhere
    assert np.all(np.abs(narrow.norms - wide.norms) <= narrow.resolution)


@pytest.mark.quick(0, 1)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_users_model_in_a_narrow_dtype_is_measured_by_whole_forward_passes(dtype):
    names = example()
    narrow = jax.tree.map(lambda leaf: leaf.astype(dtype), names["random_weights"](0))
    tokens = np.random.default_rng(1).integers(0, 100, 5)
    asked: dict[str, Any] = {"flips": [5, 9]}
    found, expected = (
        jaxsens.flip_sensitivity((names["Decoder"](), narrow), tokens, engine=engine, **asked)
        for engine in ("auto", "vmap")
    )
    assert "flips by a forward pass each" in found.engine.reason
    assert (
        dict(found.engine.elsewhere).keys() >= {"a forward pass each"} or "all flips" in found.engine.reason
    )
    np.testing.assert_array_equal(found.norms, expected.norms)
