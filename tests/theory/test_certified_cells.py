"""What is certified of a cell, or of all words, of two layers holds for each of all words of a short length."""

from __future__ import annotations

import itertools
from typing import Any

import jax
import numpy as np
import pytest

from jaxsens import Transformer, TransformerConfig
from jaxsens.models.layers import trace
from jaxsens.precision import numerics
from jaxsens.theory.certified import cells, ranges
from jaxsens.theory.certified.averages import Counts
from jaxsens.theory.certified.bound import certified_bound
from jaxsens.theory.certified.first_layer import at, first_layer, functional
from jaxsens.theory.certified.intervals import Ball, meet
from jaxsens.theory.certified.scores import head_scores
from jaxsens.theory.certified.setting import settle
from tests.theory.certified_truth import scaled_model

N = 5
CLOSE = 1e-9
COUNTS = [None, Counts(0, 1, 3, N)]


def inside(actual: np.ndarray, held: Ball) -> bool:
    return bool(((held.lo <= actual + CLOSE) & (actual - CLOSE <= held.hi)).all())


class Known:
    """A model's cells and ranges in a class of words, and the traces of all words of that class."""

    def __init__(self, model: Transformer, counts: Counts | None, number: int = 12) -> None:
        self.setting = settle(model, N, np.array([0, 1]), np.array([0, 1]), {1: 2}, None)
        setting, r = self.setting, N - 1
        self.first = first_layer(setting, np.arange(N), counts)
        self.row = at(self.first, np.array([r]))
        identity = np.eye(model.config.width)
        self.level = meet(self.first.y, functional(self.first, identity, supported=False))
        asked = np.concatenate(list(np.asarray(setting.layers[1].query)), axis=1)
        self.cells = [
            cell
            for kind in (0, 1)
            for cell in cells.cells_of(cells.readout_of(setting, self.row, kind, asked), number)
        ]
        self.heads = head_scores(setting, self.first, self.row, self.level, self.cells)
        self.values = ranges.second_values(self.first)
        self.ranges = ranges.second_ranges(self.first, self.cells, self.heads, self.values)
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

    def cells_of_word(self, index: int) -> list[int]:
        kind = int(self.words[index, -1])
        found = []
        for g, cell in enumerate(self.cells):
            b = self.one.b[index][:, -1]
            features = np.einsum("hc,hck->hk", b, cell.readout.features)
            held = (cell.lo - CLOSE <= features) & (features <= cell.hi + CLOSE)
            if cell.readout.kind == kind and held.all():
                found.append(g)
        return found


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
        "no map": scaled_model(3, 1.0, 1.0, layers=2, layer_norm="none", feed_forward=0, mask="future"),
    }


KNOWN: dict[Any, Known] = {}


def known(name: str, counts: Counts | None) -> Known:
    if (name, counts) not in KNOWN:
        KNOWN[name, counts] = Known(models()[name], counts)
    return KNOWN[name, counts]


@pytest.mark.parametrize("counts", COUNTS)
@pytest.mark.parametrize("name", models())
def test_every_word_lies_in_a_cell_that_holds_its_readout(name, counts):
    facts = known(name, counts)
    f = np.random.default_rng(0).normal(size=(facts.setting.config.width, 7))
    held = [cells.functional(cell, f) for cell in facts.cells]
    assert len(facts.cells) > 2
    for index in range(len(facts.words)):
        own = facts.cells_of_word(index)
        assert own
        for g in own:
            assert inside(facts.two.x[index][-1] @ f, held[g])
            h = facts.cells[g].h
            assert h is None or inside(facts.one.h[index][-1], h)


@pytest.mark.parametrize("counts", COUNTS)
@pytest.mark.parametrize("name", models())
def test_weights_lie_within_those_of_the_cell_and_of_all_words(name, counts):
    facts = known(name, counts)
    at_key = np.arange(N)
    for index, word in enumerate(facts.words):
        kind, slots = word[-1], np.where(word == 2, 1, word)
        for h, head in enumerate(facts.heads):
            width = facts.two.queries.shape[-1]
            s = facts.two.queries[index, h, -1] @ facts.two.keys[index, h].T / np.sqrt(width)
            for w, row in [(head.weights, kind)] + [
                (head.in_cells[g], 0) for g in facts.cells_of_word(index)
            ]:
                hi, lo = w.hi[row, slots, at_key], w.lo[row, slots, at_key]
                # Softmax does not notice a number added to all scores.
                ratio = np.exp(s[:, None] - s[None])
                seen = (hi > 0)[:, None] & (hi > 0)[None]
                assert (ratio <= hi[:, None] / lo[None] * (1 + CLOSE))[seen].all()


@pytest.mark.parametrize("counts", COUNTS)
@pytest.mark.parametrize("name", models())
def test_values_and_outputs_of_all_words_are_in_their_ranges(name, counts):
    facts = known(name, counts)
    rng = np.random.default_rng(1)
    for index, word in enumerate(facts.words):
        slots = np.where(word == 2, 1, word)
        for h, values in enumerate(facts.values):
            actual = facts.two.values[index, h]
            u = rng.normal(size=(actual.shape[1], 3))
            assert inside(actual @ u, values.along(u, None)[np.arange(N), slots])
        assert inside(facts.y[index, -1], facts.ranges.outputs[word[-1]])
        if facts.ranges.h is not None:
            assert inside(facts.two.h[index, -1], facts.ranges.h[word[-1]])


@pytest.mark.parametrize("counts", COUNTS)
def test_folded_directions_bound_values_through_the_map(counts):
    facts = known("plain", counts)
    s = np.random.default_rng(2).uniform(size=6)
    folded = ranges.fold(facts.setting, s)
    parameters = facts.setting.layers[1]
    f, w1, w2 = facts.setting.out, np.asarray(parameters.w1), np.asarray(parameters.w2)
    np.testing.assert_allclose(folded.g, f + w1 @ np.diag(s) @ w2 @ f)
    assert (folded.sizes >= abs(folded.g)).all()
    for h, values in enumerate(facts.values):
        u = np.asarray(parameters.output)[h] @ folded.g
        held, box = values.along(u, folded.combination), values.along(u, None)
        assert (held.rad <= box.rad + CLOSE).all()
        for index, word in enumerate(facts.words):
            slots = np.where(word == 2, 1, word)
            assert inside(facts.two.values[index, h] @ u, held[np.arange(N), slots])


def test_cells_tighten_scores_and_outputs():
    model = models()["wide"]
    one, many = Known(model, None, 1), Known(model, None, 24)
    assert many.heads[0].width < 0.95 * one.heads[0].width
    assert (many.ranges.outputs.rad[:2] <= one.ranges.outputs.rad[:2] + CLOSE).all()


def test_a_planted_narrow_cell_is_caught(monkeypatch):
    def narrow(readout, lo, hi):
        middle, half = (lo + hi) / 2, (hi - lo) / 2
        return sound(readout, middle - 0.05 * half, middle + 0.05 * half)

    sound = cells.cell_of
    monkeypatch.setattr(cells, "cell_of", narrow)
    facts = Known(models()["wide"], None, 2)
    f = np.eye(facts.setting.config.width)
    held = [cells.functional(cell, f) for cell in facts.cells]
    inputs = facts.two.x[:, -1]
    caught = [not any(inside(x, one) for one in held) for x in inputs]
    assert any(caught)


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


def test_symbols_of_fixed_positions_alone_share_an_index():
    model = scaled_model(0, layers=1)
    setting = settle(model, 4, np.array([0, 1]), np.array([2]), {0: 2, 1: 1}, None)
    assert setting.kinds.tolist() == [[0, 2], [0, 1], [0, 1], [0, 2]]
    assert setting.allowed.tolist() == [[False, True], [False, True], [True, True], [False, True]]
    assert setting.slots == 2
