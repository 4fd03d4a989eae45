"""Ranges that are followed back to the first layer hold for each of all words of a short length."""

from __future__ import annotations

import itertools
from typing import Any

import jax
import numpy as np
import pytest

from jaxsens import Transformer, TransformerConfig
from jaxsens.core.base.programs import numerics
from jaxsens.core.models.parts.masks import SlidingWindow
from jaxsens.core.models.transformer.layers import trace
from jaxsens.theory import Search, worst_input
from jaxsens.theory.certified import back_substitution
from jaxsens.theory.certified.back_substitution import Outputs, readout_ranges
from jaxsens.theory.certified.bound import certified_bound
from jaxsens.theory.certified.first_layer import FirstLayer
from jaxsens.theory.certified.intervals import Ball, overlap
from jaxsens.theory.certified.setting import settle
from tests.theory.certified_truth import drawn, inside, scaled_model, undercut

N = 5


def models() -> dict[str, Transformer]:
    config = TransformerConfig(
        2, width=8, heads=2, layers=3, feed_forward=6, positions="sinusoidal", dtype="float64"
    )
    plain: dict[str, Any] = {"layer_norm": "none"}
    return {
        "plain": Transformer(config, seed=0),
        "wide": Transformer(config.replace(heads=1, layers=4), seed=1),
        "mean, gelu": scaled_model(2, 1.0, 1.0, layers=3, readout="mean", activation="gelu", **plain),
        "additive scores, window": scaled_model(
            4, 1.0, 1.0, layers=3, scores="additive", mask=("none", SlidingWindow(4), "none"), **plain
        ),
        "no map": scaled_model(3, 1.0, 1.0, layers=3, feed_forward=0, mask="future", **plain),
    }


@pytest.mark.quick(4)
@pytest.mark.parametrize("most", [back_substitution.MOST_DIRECTIONS, 1])
@pytest.mark.parametrize("name", models())
def test_directions_of_every_layer_hold_all_words(name, most, monkeypatch):
    monkeypatch.setattr(back_substitution, "MOST_DIRECTIONS", most)
    model, symbols = models()[name], np.array([0, 1])
    setting = settle(model, N, symbols, symbols, {1: 2}, None)
    last = Outputs(setting, model.config.layers - 1, FirstLayer(setting, np.arange(N)))
    words = np.full((2 ** (N - 1), N), 2)
    words[:, [0, 2, 3, 4]] = list(itertools.product((0, 1), repeat=N - 1))
    with numerics("float64"):
        run = jax.jit(jax.vmap(lambda word: trace(model.config, model.parameters, word)))
        traced, y = jax.tree.map(np.asarray, run(words))
    layers = list(traced)
    f = np.random.default_rng(0).normal(size=(setting.config.width, 3 * setting.config.width))
    slots, outputs, below = np.where(words == 2, 1, words), readout_ranges(last), last.below
    assert below is not None
    along = below.range(f)
    for index, row in enumerate(slots):
        assert inside(layers[-1].x[index] @ f, along[np.arange(N), row])
        for one, x in ((below, layers[-1].x), (below.below, layers[-2].x)):
            assert one is not None
            assert inside(x[index], one.box[np.arange(N), row])
        if setting.readout is None:
            assert inside(y[index].mean(axis=0), outputs.box[0])
        else:
            assert inside(y[index, setting.readout], outputs.box[row[setting.readout]])


@pytest.mark.quick(2)
@pytest.mark.parametrize("seed", range(8))
def test_no_word_exceeds_the_bound_of_plain_layers(seed):
    model, options = drawn(seed, 2 + seed % 3, layer_norm="none", readout=["mean", "last"][seed % 2])
    assert undercut(model, 4 + seed % 2, **options) <= 1


@pytest.mark.quick(1)
@pytest.mark.parametrize("heads", [1, 2])
def test_three_layers_are_within_a_hundred_of_the_worst_input_found(heads):
    config = TransformerConfig(2, width=16, heads=heads, layers=3, feed_forward=32, positions="sinusoidal")
    for seed in (0, 1):
        model = Transformer(config, seed=seed)
        search = Search(restarts=8, budget=200, fixed={15: 2})
        worst = worst_input(model, 16, search=search).value
        assert worst <= certified_bound(model, 16, fixed={15: 2}).value <= 100 * worst


def test_what_overflows_is_no_bound_and_leaves_the_other():
    box, none = (
        Ball(np.array([0.0, 1.0]), np.array([1.0, 2.0])),
        Ball(np.array([np.nan, 1.0]), np.array([1.0, 0.5])),
    )
    found = overlap(box, none)
    np.testing.assert_allclose(found.mid, [0.0, 1.0], atol=1e-9)
    np.testing.assert_allclose(found.rad, [1.0, 0.5], atol=1e-9)
    assert np.isfinite(certified_bound(scaled_model(0, 1.0, 1.0, layers=3, layer_norm="none"), 4).value)
