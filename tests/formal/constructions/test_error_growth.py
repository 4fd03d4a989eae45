"""Lemmas 25 and 28 to 34 and Theorem 26: no softmax network errs more than they say, and the worst ones so much.

Lemmas 7 and 9: no look-up errs more than is said; rounding and comparing are exact. Which models are uniform-tieless.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from functools import cache

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxsens import InputError, Softmax, Transformer, TransformerConfig
from jaxsens.core.models.parts.schedules import Schedule
from jaxsens.formal.constructions import soften
from jaxsens.formal.constructions.conditions import KAPPA, lookup_sharpness, lookup_value_error
from jaxsens.formal.constructions.network import AT_LEAST_ZERO, EQUALS_ZERO, ROUND, Units
from jaxsens.formal.constructions.soften import (
    all_inputs,
    batches,
    error_bound,
    measure,
    uniform_heads,
    warmest_temperature,
)
from tests import reference
from tests.formal.constructions import many_words
from tests.formal.constructions.tieless_models import (
    FIRST,
    ONE,
    SECOND,
    STRUCTURES,
    SYMBOL,
    by_hand,
    chooser,
    choosing,
    random_model,
    with_parameters,
)
from tests.refusals import refusal, refused


@cache
def measured_model(structure: str, seed: int, n: int):
    model = random_model(structure, seed)
    return model, measure(model, n)


def softmax_error(model: Transformer, words: np.ndarray, tau: float) -> np.ndarray:
    """The largest difference at temperature tau in each coordinate, over words and positions, in NumPy."""
    soft = model.config.replace(weighting=Softmax(Schedule(coefficient=1 / tau)))
    found = many_words.activations(soft, model.parameters, words)
    return np.abs(found - many_words.activations(model.config, model.parameters, words)).max(axis=(0, 1))


AFTER: dict[str, dict[str, np.ndarray]] = {
    "nothing": {},
    "a map": {"into": 3 * FIRST, "out": -2 * FIRST},
    "a map to another coordinate": {"into": 3 * FIRST, "out": -2 * SECOND},
    "uniform attention": {"value": -2 * FIRST, "output": SECOND},
    "uniform attention back": {"value": 2 * FIRST, "output": FIRST},
}
"""Second layers, which make the first one's error larger."""


@pytest.mark.parametrize("after", AFTER)
def test_the_growth_of_an_error_is_attained_but_for_signs(after):
    """The residual adds to what maps and heads make of an error; -2 * 3 beside 1 is 5, which the bound takes for 7."""
    model, words = by_hand(choosing(), AFTER[after]), np.array([[0, 0, 1, 0, 0]])
    bound = error_bound(model.parameters.layers, measure(model, 5, words), 1 / 0.3)
    expected = softmax_error(model, words, 0.3)
    expected[3] *= 7 / 5 if after == "a map" else 1
    np.testing.assert_allclose(bound, expected, rtol=1e-9, atol=1e-15)


@pytest.mark.parametrize(
    "second",
    [
        {"query": FIRST, "key": SYMBOL},  # the query is too small by the first layer's error,
        {"query": ONE, "key": FIRST - SYMBOL},  # or the best key is: position 1 of "10" sees itself alone
    ],
    ids=["query", "key"],
)
def test_an_error_of_scores_takes_from_the_gap(second):
    """Twice what scores move by: here one of the two moves and the other does not, which is half of it."""
    layers = choosing(), {**second, "value": SYMBOL, "output": SECOND}
    model, words = by_hand(*layers, mask="future"), np.array([[1, 0]])
    measured = measure(model, 2, words)
    for tau in (0.1, 0.4, 2.0):
        bound, found = (
            error_bound(model.parameters.layers, measured, 1 / tau),
            softmax_error(model, words, tau),
        )
        first = 1 / (1 + math.exp(1 / tau))
        shifted = 1 / (1 + math.exp((1 - first) / tau))
        assert found[3] == pytest.approx(first, rel=1e-9)
        assert found[4] == pytest.approx(shifted, rel=1e-9)
        assert bound[4] == pytest.approx(1 / (1 + math.exp((1 - 2 * first) / tau)), rel=1e-9)


@pytest.mark.quick(3)
@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("epsilon", [1 / 4, 1e-3])
def test_the_warmest_temperature_keeps_the_promise_and_one_a_hundredth_warmer_has_no_bound(
    structure, epsilon
):
    for seed in range(4):
        model, measured = measured_model(structure, seed, 6)
        warmest = warmest_temperature(model.parameters, measured, epsilon)
        assert error_bound(model.parameters.layers, measured, 1 / warmest).max() <= epsilon
        assert softmax_error(model, all_inputs(model.config, 6), warmest).max() <= epsilon
        assert error_bound(model.parameters.layers, measured, 1 / (1.01 * warmest)).max() > epsilon


def test_coordinates_that_nothing_writes_to_have_no_error():
    model = chooser(gap=1.0, position_gap=0.1)
    bound = error_bound(model.parameters.layers, measure(model, 4, np.array([[0, 1, 0, 0]])), 1.0)
    assert bound[:3].tolist() == [0, 0, 0]
    assert bound[3] > 0


def test_logits_are_bounded_too():
    model = random_model("one head", 0, logits=3)
    wide = dataclasses.replace(model.parameters, head=50 * np.asarray(model.parameters.head))
    measured = measure(model, 3)
    assert warmest_temperature(wide, measured, 0.1) < warmest_temperature(model.parameters, measured, 0.1)


def values(units: Units, z: np.ndarray) -> np.ndarray:
    return np.sum([c * np.maximum(a * z + b, 0) for c, a, b in units], axis=0)


@pytest.mark.parametrize("width", [32, 64])
@given(data=st.data())
def test_rounding_is_exact_in_floating_point(width, data):
    dtype = np.dtype(f"float{width}").type
    false = data.draw(st.floats(-(2.0**20), 0.25, width=width))
    true = data.draw(st.floats(0.75, 2.0**20, width=width))
    assert values(ROUND, np.array([false, true], dtype)).tolist() == [0.0, 1.0]
    assert values(ROUND, np.array([true], dtype)).dtype == dtype


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_comparisons_of_counts_known_to_a_quarter(dtype):
    whole = np.arange(-1000, 1001)
    for error in (-0.25, -0.1, 0.0, 0.2, 0.25):
        z = (whole + error).astype(dtype)
        np.testing.assert_allclose(values(AT_LEAST_ZERO, z), whole >= 0, rtol=0, atol=1e-4)
        np.testing.assert_allclose(values(EQUALS_ZERO, z), whole == 0, rtol=0, atol=1e-4)
        if error in (-0.25, 0.0, 0.25):  # these numbers are represented exactly
            assert (values(AT_LEAST_ZERO, z) == (whole >= 0)).all()
            assert (values(EQUALS_ZERO, z) == (whole == 0)).all()


@pytest.mark.parametrize("units", [ROUND, AT_LEAST_ZERO, EQUALS_ZERO])
def test_an_error_grows_at_most_twofold(units):
    z = np.linspace(-3, 3, 6001)
    assert np.abs(np.diff(values(units, z)) / np.diff(z)).max() == pytest.approx(2, rel=1e-9)


def looked_up(n: int, sharpness: float) -> tuple[float, float]:
    """Of a table of n rows: the largest error of the row number, and half of the weights' distance from one-hot."""
    off = np.arange(n) - np.arange(n)[:, None]
    weights = np.exp(-sharpness * off**2.0)
    weights /= weights.sum(axis=1, keepdims=True)
    return abs((weights * off).sum(axis=1)).max(), (weights * (off != 0)).sum(axis=1).max()


@pytest.mark.parametrize("sharpness", [0.5, 0.8, 1.0, 2.0, KAPPA, 6.0, 20.0])
def test_lemma_7_bounds_every_row_of_every_table_and_is_attained(sharpness):
    worst = max(looked_up(n, sharpness)[1] for n in (*range(1, 40), 100, 500))
    assert worst == pytest.approx(lookup_value_error(sharpness), rel=1e-9)


@pytest.mark.parametrize("weight", [1, 2, 5, 40])
def test_counts_looked_up_add_up_to_within_a_quarter(weight):
    assert lookup_sharpness(weight) == math.log(12 * weight)
    assert weight * max(looked_up(n, lookup_sharpness(weight))[0] for n in (1, 2, 9, 300)) <= 1 / 4


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


def test_a_tie_is_refused_with_head_position_and_word_where_both_are_seen():
    with pytest.raises(
        InputError, match=r"layer 0, head 0 = 'gap 0 at position 0 of \[0, 0, 0\]'.*one largest score"
    ):
        measure(chooser(), 3)
    single = np.array([[0, 1, 0], [1, 0, 0]])
    measured = measure(chooser(), 3, single)
    assert (measured.gap, measured.inputs, measured.exhaustive) == (pytest.approx(1.0, abs=1e-12), 2, False)
    with pytest.raises(InputError, match=r"position 0 of \[1, 0, 1\]"):
        measure(chooser(), 3, np.array([[0, 1, 0], [1, 0, 1]]))
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


def test_activations_that_are_no_numbers_and_scores_that_overflow_are_refused():
    for value in (np.nan, np.inf):
        refused("model", measure, with_parameters(chooser(), 0, value=np.full((1, 5, 1), value)), 2)
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
