"""Which models are uniform-tieless, and by how much: beside scores computed one at a time, and every refusal."""

from __future__ import annotations

import itertools

import jax
import numpy as np
import pytest

from jaxsens import InputError, Transformer, TransformerConfig
from jaxsens.formal.constructions import soften
from jaxsens.formal.constructions.soften import all_inputs, batches, measure, uniform_heads
from tests import reference
from tests.formal.constructions.tieless_models import STRUCTURES, chooser, random_model, with_parameters
from tests.refusals import refusal, refused


def by_definition(model: Transformer, words: np.ndarray) -> tuple[dict, np.ndarray, dict]:
    """Gaps by layer and head, magnitudes, and spreads of values, from the reference's activations, row by row."""
    config, n = model.config, words.shape[1]
    parameters = jax.tree.map(np.asarray, model.parameters)
    gaps, spreads = {}, {}
    magnitudes = np.zeros((config.layers + 1, config.width))
    for word in words:
        levels = reference.levels(config, parameters, word)
        for k, x in enumerate(levels):
            magnitudes[k] = np.maximum(magnitudes[k], np.abs(x).max(axis=0))
        for k, h in itertools.product(range(config.layers), range(2)):
            if h >= config.layer(k).heads:
                continue
            layer = parameters.layers[k]
            q, keys, v = (levels[k] @ m[h] for m in (layer.query, layer.key, layer.value))
            moved = v @ layer.output[h]
            spread = moved.max(axis=0) - moved.min(axis=0)
            spreads[k, h] = np.maximum(spreads.get((k, h), 0), spread)
            for i in range(n):
                seen = [j for j in range(n) if reference.visible(config.layer(k).mask, i + 1, j + 1)]
                ordered = sorted((float(q[i] @ keys[j]) / np.sqrt(q.shape[1]) for j in seen), reverse=True)
                if len(ordered) > 1 and any(ordered):  # not all 0: not uniform
                    gaps[k, h] = min(gaps.get((k, h), np.inf), ordered[0] - ordered[1])
    return gaps, magnitudes, spreads


@pytest.mark.parametrize("structure", STRUCTURES)
def test_gaps_and_magnitudes_are_those_of_the_definition(structure):
    model = random_model(structure, seed=1)
    measured = measure(model, 4)
    gaps, magnitudes, spreads = by_definition(model, all_inputs(model.config, 4))
    for k, h in spreads:
        assert measured.gaps[k][h] == pytest.approx(gaps.get((k, h), np.inf), rel=1e-9, abs=1e-12)
        assert measured.uniform[k][h] == ((k, h) not in gaps)
        np.testing.assert_allclose(measured.spreads[k][h], spreads[k, h], rtol=1e-10, atol=1e-13)
    np.testing.assert_allclose(measured.magnitudes, magnitudes, rtol=1e-10, atol=1e-13)
    assert measured.gap == min(min(layer) for layer in measured.gaps) > 0
    assert (measured.n, measured.inputs, measured.exhaustive) == (4, 16, True)


def test_batches_change_nothing(monkeypatch):
    model = random_model("two layers of two heads", seed=2)
    whole = measure(model, 4)
    monkeypatch.setattr(soften, "PRODUCTS_IN_MEMORY", 3 * 16 * 6)
    tried = list(batches(model.config, all_inputs(model.config, 4)))
    assert [len(batch) for batch in tried] == [3] * 6
    parts = measure(model, 4)
    np.testing.assert_allclose(parts.gaps, whole.gaps, rtol=1e-9)
    np.testing.assert_allclose(parts.magnitudes, whole.magnitudes, rtol=1e-12)
    np.testing.assert_allclose(parts.spreads[1], whole.spreads[1], rtol=1e-12)


def test_rows_that_see_one_key_have_nothing_to_choose():
    assert measure(chooser(), 1).gap == np.inf
    assert measure(chooser(mask="strict-future"), 2).gap == np.inf


def test_queries_or_keys_that_are_zero_make_a_head_uniform():
    model = random_model("two layers of two heads", seed=0)
    key = np.array(model.parameters.layers[1].key)
    key[0] = 0
    assert uniform_heads(with_parameters(model, 1, key=key).parameters) == ((False, True), (True, False))


def test_a_tie_is_refused_with_head_position_and_word():
    with pytest.raises(
        InputError, match=r"layer 0, head 0 = 'gap 0 at position 0 of \[0, 0, 0\]'.*one largest score"
    ):
        measure(chooser(), 3)
    single = np.array([[0, 1, 0], [1, 0, 0]])
    measured = measure(chooser(), 3, single)
    assert (measured.gap, measured.inputs, measured.exhaustive) == (pytest.approx(1.0, abs=1e-12), 2, False)
    with pytest.raises(InputError, match=r"position 0 of \[1, 0, 1\]"):
        measure(chooser(), 3, np.array([[0, 1, 0], [1, 0, 1]]))


def test_a_tie_is_no_tie_where_only_one_of_them_is_seen():
    assert measure(chooser(mask="future"), 3, np.array([[1, 0, 0]])).gap == pytest.approx(1, abs=1e-12)
    with pytest.raises(InputError, match=r"position 1 of \[0, 0, 1\]"):
        measure(chooser(mask="future"), 3, np.array([[0, 0, 1]]))


def test_all_heads_that_tie_are_named_but_no_uniform_one():
    """Without position embeddings equal symbols have equal keys."""
    with refusal("layer 0, head 0", "layer 1, head 0", "layer 1, head 1"):
        measure(random_model("two layers of two heads", seed=0, positions="none"), 2)


def test_a_gap_that_rounding_could_have_made_is_no_gap():
    """2e-6 beside scores of 1: a tie in float32 for all one can say, and a gap in float64."""
    searching = {"gap": 1.0, "position_gap": 4e-6, "mask": "future"}
    assert measure(chooser(**searching), 2).gap == pytest.approx(2e-6, rel=1e-6)
    with refusal("layer 0, head 0"):
        measure(chooser(**searching, dtype="float32"), 2)


def test_every_reason_is_given_at_once():
    config = TransformerConfig(
        alphabet_size=2,
        width=8,
        heads=2,
        layers=2,
        weighting=("softmax", "average-hard"),
        scores="additive",
        layer_norm="pre",
        activation="gelu",
        positions=("alibi", "rotary"),
    )
    both = [
        f"layer {k}: {name}" for k in (0, 1) for name in ("scores", "layer_norm", "activation", "positions")
    ]
    with refusal(*both, "layer 0: weighting", "n"):
        measure(Transformer(config), 0)


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: measure("a model", 3), "model"),  # pyright: ignore[reportArgumentType]
        (lambda: measure(chooser(), 2.0), "n"),  # pyright: ignore[reportArgumentType]
        (lambda: measure(chooser(readout=4), 3), "tokens"),
        (lambda: measure(chooser(), 17), "n"),
        (lambda: measure(chooser(), 3, np.zeros((2, 4), int)), "words"),
        (lambda: measure(chooser(), 3, np.zeros((0, 3), int)), "words"),
        (lambda: measure(chooser(), 3, np.full((1, 3), 2)), "words.tokens"),
        (lambda: measure(chooser(), 3, np.zeros((1, 3))), "words.tokens"),
    ],
)
def test_what_cannot_be_measured_is_refused_by_name(call, named):
    refused(named, call)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_activations_that_are_no_numbers_are_refused(value):
    broken = np.full((1, 5, 1), value)
    refused("model", measure, with_parameters(chooser(), 0, value=broken), 2)


def test_scores_that_overflow_are_refused():
    huge = np.full((1, 5, 1), 1e200)
    with refusal("layer 0, head 0"):
        measure(with_parameters(chooser(), 0, query=huge, key=huge), 2)


def test_all_inputs_are_all_words_and_those_that_end_with_the_end_symbol():
    plain = all_inputs(TransformerConfig(alphabet_size=3, end_symbol=False), 2)
    assert plain.tolist() == [[a, b] for a in range(3) for b in range(3)]
    ended = all_inputs(TransformerConfig(alphabet_size=2, end_symbol=True), 3)
    assert {tuple(word) for word in ended} == {
        *itertools.product((0, 1), repeat=3),
        *((a, b, 2) for a in (0, 1) for b in (0, 1)),
    }
    assert len(ended) == 12
    assert len(all_inputs(TransformerConfig(alphabet_size=2, end_symbol=False), 16)) == 2**16
    assert all_inputs(TransformerConfig(alphabet_size=3, end_symbol=True), 1).tolist() == [[0], [1], [2], [3]]
