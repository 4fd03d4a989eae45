"""What is certified of two layers and more holds for each of all words of a short length, and for each flip."""

from __future__ import annotations

import dataclasses
import functools
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
from jaxsens.theory.certified import bound as bounding
from jaxsens.theory.certified.averages import Counts
from jaxsens.theory.certified.bound import Outputs, certified_bound, readout_ranges
from jaxsens.theory.certified.first_layer import FirstLayer, folded, relaxed_map
from jaxsens.theory.certified.intervals import Ball, overlap
from jaxsens.theory.certified.setting import settle
from jaxsens.theory.certified.two_layers import AttendedHead, HeadMove, Readout, keys_of
from tests.theory.certified_truth import CLOSE, drawn, inside, scaled_model, undercut

N = 5
COUNTS = [None, Counts(1, 3, N)]


class Known:
    """What is certified of a model in a class of words, and the traces of all words of that class."""

    def __init__(self, model: Transformer, counts: Counts | None) -> None:
        every = settle(model, N, np.array([0, 1]), np.array([0, 1]), {1: 2}, None)
        self.setting = dataclasses.replace(every, counts=counts)
        self.first = FirstLayer(self.setting, np.arange(N))
        row = FirstLayer(self.setting, np.array([N - 1]))
        keys = [keys_of(self.first, h) for h in range(model.config.layer(1).heads)]
        self.readouts = [
            Readout(
                self.first, row, kind, [AttendedHead(self.first, row, *one, kind) for one in enumerate(keys)]
            )
            for kind in (0, 1)
        ]
        free = [p for p in range(N) if p != 1]
        words = np.array(list(itertools.product((0, 1), repeat=N - 1)))
        self.words = np.full((len(words), N), 2)
        self.words[:, free] = words
        if counts is not None:
            of_kind = (self.words == 0).sum(axis=1)
            self.words = self.words[(counts.least <= of_kind) & (of_kind <= counts.most)]
        with numerics("float64"):
            run = jax.jit(jax.vmap(lambda word: trace(model.config, model.parameters, word)))
            layers, self.y = jax.tree.map(np.asarray, run(self.words))
        self.one, self.two = layers

    def slots(self, index: int) -> np.ndarray:
        """The indices of a word's symbols; the fixed position's symbol has index 1."""
        return np.where(self.words[index] == 2, 1, self.words[index])

    def weights_hold(self, index: int) -> bool:
        """Whether a word's attention weights lie within those certified, up to a factor for each row."""
        held = []
        for h, head in enumerate(self.readouts[self.words[index, -1]].heads):
            width = self.two.queries.shape[-1]
            s = self.two.queries[index, h, -1] @ self.two.keys[index, h].T / np.sqrt(width)
            hi, lo = (e[0, self.slots(index), np.arange(N)] for e in (head.weights.hi, head.weights.lo))
            ratio, seen = np.exp(s[:, None] - s[None]), (hi > 0)[:, None] & (hi > 0)[None]
            held.append((ratio <= hi[:, None] / np.where(lo > 0, lo, 1)[None] * (1 + CLOSE))[seen].all())
        return all(held)


def models() -> dict[str, Transformer]:
    config = TransformerConfig(
        2, width=8, heads=2, layers=2, feed_forward=6, positions="sinusoidal", dtype="float64"
    )
    return {
        "plain": Transformer(config, seed=0),
        "wide": Transformer(config.replace(heads=1), seed=1),
        "rotary": scaled_model(
            2, 1.0, 1.0, layers=2, layer_norm="none", positions="rotary", activation="gelu"
        ),
        "window, partial rotary, relative bias": scaled_model(
            4,
            1.0,
            1.0,
            layers=2,
            layer_norm="none",
            positions=("partial-rotary", "relative-bias"),
            mask=("none", SlidingWindow(4)),
        ),
        "no map": scaled_model(3, 1.0, 1.0, layers=2, layer_norm="none", feed_forward=0, mask="future"),
    }


@functools.cache
def known(name: str, counts: Counts | None) -> Known:
    return Known(models()[name], counts)


@pytest.mark.quick(4)
@pytest.mark.parametrize("counts", COUNTS)
@pytest.mark.parametrize("name", models())
def test_directions_of_the_first_layer_hold_all_words(name, counts):
    facts = known(name, counts)
    f = np.random.default_rng(0).normal(size=(facts.setting.config.width, 7))
    held = facts.first.output_range(f)
    at_readout = [readout.row.output_range(f)[0, readout.kind] for readout in facts.readouts]
    for index, word in enumerate(facts.words):
        assert inside(facts.two.x[index] @ f, held[np.arange(N), facts.slots(index)])
        assert inside(facts.two.x[index][-1] @ f, at_readout[word[-1]])


@pytest.mark.quick(4)
@pytest.mark.parametrize("counts", COUNTS)
@pytest.mark.parametrize("name", models())
def test_weights_and_queries_of_all_words_are_certified(name, counts):
    facts = known(name, counts)
    for index, word in enumerate(facts.words):
        assert facts.weights_hold(index)
        for h, head in enumerate(facts.readouts[word[-1]].heads):
            assert inside(facts.two.queries[index, h, -1], head.query)


@pytest.mark.quick(4)
@pytest.mark.parametrize("counts", COUNTS)
@pytest.mark.parametrize("name", models())
def test_values_and_outputs_of_all_words_are_in_their_ranges(name, counts):
    facts = known(name, counts)
    u = np.random.default_rng(1).normal(size=(facts.setting.config.width, 3))
    carried = [facts.first.output_range(head.carried @ u) for head in facts.readouts[0].heads]
    ranges = [readout.ranges() for readout in facts.readouts]
    for index, word in enumerate(facts.words):
        for h, held in enumerate(carried):
            output = np.asarray(facts.setting.layers[1].output)[h]
            assert inside(facts.two.values[index, h] @ output @ u, held[np.arange(N), facts.slots(index)])
        h_range, outputs = ranges[word[-1]]
        assert inside(facts.y[index, -1], outputs.box[0])
        bent = outputs.bent
        rad = bent.straight.rad[0] + bent.bend[0] @ bent.onto.size
        assert inside(facts.y[index, -1], Ball(bent.straight.mid[0], rad))
        assert facts.two.h is None or inside(facts.two.h[index, -1], h_range)


@pytest.mark.quick(3)
@pytest.mark.parametrize("name", models())
def test_no_flip_moves_an_average_by_more_than_its_bound(name):
    facts = known(name, None)
    width = facts.setting.config.width
    g, flips = np.random.default_rng(3).normal(size=(width, 4)), np.array([0, 2, 3])
    number = {tuple(word): index for index, word in enumerate(facts.words)}
    output = np.asarray(facts.setting.layers[1].output)
    for readout in facts.readouts:
        for h, head in enumerate(readout.heads):
            ((moved,),) = [list(HeadMove(readout, head, g, abs(g)).over(flips))]
            b = facts.two.b[:, h, -1] @ output[h] @ g
            for index, word in enumerate(facts.words):
                for bound, i in zip(moved, flips, strict=True):
                    other = word.copy()
                    other[i] = 1 - word[i]
                    if word[-1] == readout.kind:
                        assert (abs(b[number[tuple(other)]] - b[index]) <= bound + CLOSE).all()


def test_directions_are_folded_through_the_map():
    facts = known("plain", None)
    s = np.random.default_rng(2).uniform(size=6)
    g, sizes = folded(facts.setting, 1, facts.setting.out, s)
    w1, w2 = facts.setting.matrices(1, "w1", "w2")
    np.testing.assert_allclose(g, facts.setting.out + w1 @ np.diag(s) @ w2 @ facts.setting.out)
    assert (sizes >= abs(g)).all()
    h, _ = facts.readouts[0].ranges()
    line = relaxed_map(facts.setting, 1, h, facts.setting.out)
    for index, word in enumerate(facts.words):
        if word[-1] == 0:
            assert inside(facts.y[index, -1] - facts.two.attended[index, -1] @ line.g, line.rest)


def test_classes_are_the_default_for_two_layers_and_their_hull_holds_all_words():
    model = models()["plain"]
    bound = certified_bound(model, N)
    assert [c[:2] for c in bound.classes] == [(0, 0), (1, 1), (2, 2), (3, 3), (4, 5)]
    words = np.array(list(itertools.product((0, 1), repeat=N)))
    outputs = np.asarray(model(words))
    for kind in (0, 1):
        own = outputs[words[:, -1] == kind]
        apart = np.linalg.norm(own[:, None] - own[None], axis=-1).max()
        assert apart <= bound.diameter * (1 + CLOSE)


def deep_models() -> dict[str, Transformer]:
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
@pytest.mark.parametrize("most", [bounding.MOST_DIRECTIONS, 1])
@pytest.mark.parametrize("name", deep_models())
def test_directions_of_every_layer_hold_all_words(name, most, monkeypatch):
    monkeypatch.setattr(bounding, "MOST_DIRECTIONS", most)
    model, symbols = deep_models()[name], np.array([0, 1])
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


@pytest.mark.quick(0, 1)
@pytest.mark.parametrize("heads", [1, 2])
def test_three_layers_are_within_a_hundred_of_the_worst_input_found(heads):
    config = TransformerConfig(2, width=16, heads=heads, layers=3, feed_forward=32, positions="sinusoidal")
    for seed in (0, 1):
        model = Transformer(config, seed=seed)
        search = Search(restarts=8, budget=200, fixed={15: 2})
        worst = worst_input(model, 16, search=search).value
        assert worst <= certified_bound(model, 16, fixed={15: 2}).value <= 100 * worst


def test_what_overflows_is_no_bound_and_leaves_the_other():
    box = Ball(np.array([0.0, 1.0]), np.array([1.0, 2.0]))
    found = overlap(box, Ball(np.array([np.nan, 1.0]), np.array([1.0, 0.5])))
    np.testing.assert_allclose(found.mid, [0.0, 1.0], atol=1e-9)
    np.testing.assert_allclose(found.rad, [1.0, 0.5], atol=1e-9)
    assert np.isfinite(certified_bound(scaled_model(0, 1.0, 1.0, layers=3, layer_norm="none"), 4).value)
