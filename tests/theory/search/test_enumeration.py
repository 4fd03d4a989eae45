"""Enumeration finds what `flip_sensitivity` of every word finds, whatever the model, the devices and the memory."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

import jaxsens
from jaxsens.core.measures import Measure
from jaxsens.core.placement.placement import Placement
from jaxsens.theory.search import local_search
from jaxsens.theory.search.worst_input import WorstInput, worst_input
from tests.refusals import refusal, refused
from tests.small_models import KINDS, WEIGHTINGS_TRIED
from tests.theory.search.searching import ONE, model_of, searched, truth, words_over

EIGHT = Mesh(np.array(jax.devices()), ("flips",))
CASES = [
    *(
        {"weighting": WEIGHTINGS_TRIED[kind], "mask": mask}
        for kind, mask in zip(KINDS, ["none", "future", "past"] * 3, strict=False)
    ),
    {"weighting": "leftmost-hard", "mask": "strict-future", "heads": 3},
    {"layers": 2, "heads": 1, "layer_norm": "pre"},
    {"readout": "mean"},
    {"readout": 1, "logits": 2},
]


def assert_is_the_largest(found: WorstInput, model: Any, words: np.ndarray, **options: Any) -> None:
    at = list(found.positions)
    flips = jaxsens.Substitute(list(found.alphabet), positions=at)
    largest, mean = truth(model, words, flips=flips, **options)
    expected = largest if found.objective == "max" else mean
    assert found.exact
    assert found.words == len(words)
    np.testing.assert_allclose(found.value, expected.max(), rtol=1e-9, atol=1e-13)
    # The word and the flip that are named are those of the value.
    again = jaxsens.flip_sensitivity(model, found.tokens, flips, **options, placement=Placement(ONE))
    np.testing.assert_allclose(getattr(again, found.objective), found.value, rtol=1e-12)
    at = again.profile()[found.position, list(found.alphabet).index(found.symbol)]
    np.testing.assert_allclose(at, again.max, rtol=1e-12)
    assert found.flipped[found.position] == found.symbol != found.tokens[found.position]


@pytest.mark.quick(1, 5)
@pytest.mark.parametrize("case", CASES, ids=[*KINDS, "heads", "layers", "mean readout", "head"])
def test_the_largest_of_all_words_is_found(case):
    model = model_of(**{"alphabet_size": 2, **case})
    for objective in ("max", "mean"):
        found = searched(model, 4, objective=objective)
        assert_is_the_largest(found, model, words_over(2, 4), engine="vmap")


@pytest.mark.quick(1)
@pytest.mark.parametrize("norm", ["l1", "linf"])
def test_three_symbols_fixed_positions_norms_and_outputs(norm):
    model = model_of()
    fixed, measure = {0: 1, 4: 3}, Measure.kinds[norm](outputs=[4, 1])
    found = searched(model, 5, fixed=fixed, measure=measure)
    assert found.positions == (1, 2, 3)
    assert found.fixed == ((0, 1), (4, 3))
    assert_is_the_largest(found, model, words_over(3, 5, fixed), measure=measure, engine="vmap")


def test_with_an_end_symbol_the_value_is_that_of_flip_sensitivity_as_it_is():
    model = model_of()
    found = worst_input(model, 4, search=jaxsens.theory.Search(fixed={3: 3}), placement=Placement(ONE))
    again = jaxsens.flip_sensitivity(model, found.tokens, placement=jaxsens.Placement(ONE))
    np.testing.assert_allclose(again.max, found.value, rtol=1e-12)
    assert (again.argmax.position, again.argmax.symbol) == (found.position, found.symbol)


def test_only_some_symbols():
    model = model_of()
    found = worst_input(model, 4, flips=[3, 1], engine="vmap", placement=Placement(ONE))
    assert found.alphabet == (1, 3)
    assert_is_the_largest(found, model, words_over(2, 4) * 2 + 1, engine="vmap")


def test_any_callable_and_a_recurrent_network():
    weights = np.random.default_rng(0).normal(size=(4, 2))

    def model(tokens):
        return jax.numpy.tanh(tokens @ jax.numpy.asarray(weights))

    lstm = jaxsens.training.LSTM(jaxsens.training.LSTMConfig(alphabet_size=2, width=4, dtype="float64"))
    cases: list[tuple[Any, dict[str, Any]]] = [(model, {"flips": 2}), (lstm, {})]
    for one, given in cases:
        found = worst_input(one, 4, **given, placement=Placement(ONE))
        largest, _ = truth(one, words_over(2, 4), **given)
        np.testing.assert_allclose(found.value, largest.max(), rtol=1e-5)


@pytest.mark.long
def test_devices_batches_and_memory_change_nothing(monkeypatch):
    model = model_of()
    expected = worst_input(model, 4, engine="vmap", placement=Placement(ONE))
    monkeypatch.setattr(local_search, "_PAIRS", 5)
    ways = [Placement(EIGHT), Placement(ONE, batch_size=7), Placement(EIGHT, batch_size=3)]
    for block_bytes, where in [*((2**26, way) for way in ways), (1000, ways[0])]:
        monkeypatch.setattr(local_search, "_BLOCK_BYTES", block_bytes)
        seen = []
        found = worst_input(model, 4, engine="vmap", progress=seen.append, placement=where)
        np.testing.assert_allclose(found.value, expected.value, rtol=1e-12)
        np.testing.assert_array_equal(found.tokens, expected.tokens)
        assert [step.done for step in seen] == sorted(step.done for step in seen)
        assert seen[-1].done == seen[-1].total == 81


def test_too_many_words_are_searched_or_refused():
    model = model_of()
    assert not worst_input(model, 12, search=jaxsens.theory.Search(budget=2), placement=Placement(ONE)).exact
    with refusal("exact"):
        worst_input(model, 60, search=jaxsens.theory.Search(exact=True), placement=Placement(ONE))
    refused(
        "exact",
        worst_input,
        model,
        5,
        search=jaxsens.theory.Search(exact=True),
        placement=Placement(ONE, memory_budget=9000),
    )


def test_an_output_that_is_not_finite_is_refused():
    def model(tokens):
        return 1.0 / (tokens.sum() - 3.0)

    assert "not finite" in refused("model", worst_input, model, 4, 2, placement=Placement(ONE))


@pytest.mark.parametrize("kind", [bool, np.uint8])
def test_outputs_that_cannot_be_subtracted_as_they_are_are_searched_as_numbers(kind):
    table = jax.numpy.asarray([[0, 250], [250, 3], [7, 9]], kind)
    found = worst_input(lambda t: table[t[0]], 2, 3)
    words = [jaxsens.flip_sensitivity(lambda t: table[t[0]], [k, 0], 3).max for k in range(3)]
    assert found.value == pytest.approx(max(words))
