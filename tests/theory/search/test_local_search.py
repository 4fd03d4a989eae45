"""Enumeration finds the truth, local search never exceeds it and mostly reaches it; what `worst_input` refuses."""

from __future__ import annotations

import dataclasses
import json
import os
from itertools import product
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

import jaxsens
from jaxsens import Auto, Difference, Placement, Vmap
from jaxsens.core.base.errors import Problems
from jaxsens.core.base.programs import numerics
from jaxsens.core.engines.options import AskedEngine
from jaxsens.core.measures import L2, LInf, Measure, Norm
from jaxsens.core.models.adapters import as_model
from jaxsens.theory import SearchInterrupted, WorstInput
from jaxsens.theory.search import local_search
from jaxsens.theory.search.problem import Measured, SearchTask, after_one_change, problem_of, search_space
from jaxsens.theory.search.worst_input import worst_input
from tests.refusals import refused
from tests.small_models import KINDS, WEIGHTINGS_TRIED, random_parameters, small

ONE = Mesh(np.array(jax.devices()[:1]), ("flips",))


def model_of(seed: int = 0, length: int = 6, **changes: Any) -> jaxsens.Transformer:
    """A small float64 transformer with random biases, one layer if not told otherwise."""
    config = small(**{"layers": 1, **changes})
    return jaxsens.Transformer(config, parameters=random_parameters(config, seed, length))


def words_over(alphabet: int, n: int, fixed: dict[int, int] | None = None) -> np.ndarray:
    """All words, with the fixed symbols put in."""
    free = [p for p in range(n) if p not in (fixed or {})]
    words = np.zeros((alphabet ** len(free), n), int)
    words[:, free] = list(product(range(alphabet), repeat=len(free)))
    for position, symbol in (fixed or {}).items():
        words[:, position] = symbol
    return words


def truth(model: Any, words: np.ndarray, **options: Any) -> np.ndarray:
    """The largest sensitivity of every word, by `flip_sensitivity`."""
    measured = jaxsens.flip_sensitivity(model, words, **options, placement=jaxsens.Placement(ONE))
    norms = measured.norms.reshape(len(words), -1).astype(float)
    return norms.max(axis=1)


def problem(model: Any, n: int, norm: Norm | None = None, engine: AskedEngine | None = None) -> SearchTask:
    """The problem as `worst_input` makes it. For use within `numerics`."""
    subject, search = as_model(model), jaxsens.theory.Search()
    space = search_space(subject, n, np.arange(subject.alphabet_size or 0), search, Problems("test"))
    return problem_of(subject, space, search, norm or L2(), engine or Auto(), Placement(ONE))


OPTIONS = ("measure", "progress")


def searched(model: Any, n: int, flips: Any = None, engine: Any = "vmap", **options: Any) -> Any:
    """The result of `worst_input` on one device; options other than `OPTIONS` are those of the search."""
    given = {name: options.pop(name) for name in OPTIONS if name in options}
    search = jaxsens.theory.Search(**options)
    return worst_input(model, n, flips, search=search, engine=engine, placement=Placement(ONE), **given)


# What two measurements tell


def pair_of(task: SearchTask, word: np.ndarray, row: int, column: int) -> tuple[Measured, Measured]:
    here = task.measure(word)
    return here, task.measure(here.after(row, column))


def at_all_neighbours(task: SearchTask, here: Measured, row: int, column: int) -> np.ndarray:
    """The flip's norm measured anew at each word that differs from `here` in one symbol elsewhere."""
    measured = np.full(here.norms.shape, -np.inf)
    for j, t in np.ndindex(here.norms.shape):
        if j != row:
            measured[j, t] = task.few(here.after(j, t)[None], [here.flip(row, column)])[0, 0]
    return measured


@pytest.mark.quick(0, 1)
@pytest.mark.parametrize("engine", [Difference(), Vmap()])
def test_two_measurements_tell_what_a_flip_does_after_every_change(engine):
    norm = L2() if isinstance(engine, Vmap) else LInf()
    model = model_of(layers=2)
    with numerics("float64"):
        task = problem(model, 5, norm=norm, engine=engine)
        rng = np.random.default_rng(0)
        for row, column in ((0, 1), (3, 0)):
            here, there = pair_of(task, rng.integers(0, 3, 5).astype(np.int32), row, column)
            measured = at_all_neighbours(task, here, row, column)
            np.testing.assert_allclose(after_one_change(here, there, row, column), measured, rtol=1e-9)


def test_a_local_maximum_is_one():
    # Of every neighbour of the pair: the same flip after one change, and all flips at either end.
    model = model_of(layers=2)
    found = searched(model, 6, exact=False, restarts=2)
    with numerics("float64"):
        task = problem(model, 6, engine=Vmap())
        for end in found.restarts:
            assert end.converged
            here = task.measure(np.array(end.tokens, np.int32))
            np.testing.assert_allclose(here.value, end.value, rtol=1e-12)
            row, column = here.largest
            there = task.measure(here.after(row, column))
            neighbours = at_all_neighbours(task, here, row, column)
            assert max(neighbours.max(), there.value) <= end.value * (1 + 1e-8)


# How good it is


@pytest.mark.quick(1, 1)
@pytest.mark.parametrize("options", [{"layers": 2}, {"weighting": "leftmost-hard"}])
def test_most_searches_reach_the_maximum_and_none_exceeds_it(options):
    reached = []
    for seed in range(8):
        model = model_of(seed, alphabet_size=2, **options)
        given = {"engine": "vmap", "placement": Placement(ONE)}
        exact = worst_input(model, 8, **given)
        # Half of the starts that a search has by default must do.
        search = jaxsens.theory.Search(exact=False, seed=seed, restarts=4)
        found = worst_input(model, 8, search=search, **given)
        assert exact.exact
        assert not found.exact
        assert found.converged
        assert found.value <= exact.value * (1 + 1e-9)
        reached.append(found.value >= exact.value * (1 - 1e-9))
    assert np.mean(reached) >= 0.75


@pytest.mark.long
def test_the_value_is_what_flip_sensitivity_measures_and_above_random_words():
    model = model_of(layers=2)
    found = searched(model, 16, restarts=2, budget=40)
    np.testing.assert_allclose(found.value, truth(model, found.tokens[None], engine="vmap")[0], rtol=1e-12)
    words = np.random.default_rng(0).integers(0, 3, (found.measurements, 16))
    assert found.value > 1.2 * truth(model, words, engine="vmap").max()


def test_plateaus_are_walked_on():
    # The output is a lookup of the first 1: flips behind it do nothing, and from most words neither does any pair.
    def model(tokens):
        first = jax.numpy.argmax(tokens == 1)
        return jax.numpy.where(jax.numpy.any(tokens == 1), first**2 * 1.0, 0.0)

    found = searched(model, 20, 2, restarts=4, exact=False)
    # 1 at the last position but one, all before it 0, and 1 at the first: from 18^2 to 0; the readout is not flipped.
    assert found.value == 19**2


def test_a_constant_model_ends_the_search():
    def model(tokens):
        return tokens.sum() * 0.0

    found = searched(model, 20, 2, engine="auto", restarts=20, exact=False)
    assert found.value == 0
    assert found.converged
    assert len({end.start for end in found.restarts}) == 20  # more than there are words of one or two symbols


def test_float32_models():
    model = model_of(dtype="float32")
    found = searched(model, 16, engine="auto", restarts=2, budget=20)
    assert found.dtype == "float32"
    np.testing.assert_allclose(truth(model, found.tokens[None])[0], found.value, rtol=1e-6)


@pytest.mark.slow
def test_the_folded_engine_serves_the_search():
    config = jaxsens.TransformerConfig(2, width=8, heads=2, layers=2, feed_forward=16, dtype="float64")
    model = jaxsens.Transformer(config)
    found = worst_input(
        model, 512, search=jaxsens.theory.Search(budget=7), engine="difference", placement=Placement(ONE)
    )
    assert "folded" in found.engine.reason
    np.testing.assert_allclose(truth(model, found.tokens[None])[0], found.value, rtol=1e-9)
    plain = searched(model, 512, engine="auto", budget=7, start=found.tokens, restarts=0)
    assert plain.value >= found.value


# Budget, seeds, starts


def test_the_budget_is_kept_and_a_larger_one_begins_alike(monkeypatch):
    model, measure, counted = model_of(), SearchTask.measure, []

    def counting(self, word):
        counted.append(word)
        return measure(self, word)

    monkeypatch.setattr(SearchTask, "measure", counting)
    options = {"engine": "vmap", "placement": Placement(ONE)}
    search = jaxsens.theory.Search(exact=False, restarts=2)
    whole = worst_input(model, 6, search=search, **options)
    for budget in (1, 2, 3, 5, whole.measurements, whole.measurements + 5):
        counted.clear()
        seen = []
        limited = dataclasses.replace(search, budget=budget)
        found = worst_input(model, 6, search=limited, progress=seen.append, **options)
        assert found.measurements == len(counted) == len(seen) == min(budget, whole.measurements)
        assert [step.done for step in seen] == list(range(1, len(seen) + 1))
        assert {step.total for step in seen} == {budget}
        assert seen[-1].value == found.value
        assert found.history == tuple(entry for entry in whole.history if entry[0] <= budget)
        assert found.converged == (budget >= whole.measurements)
        assert sum(end.measurements for end in found.restarts) <= found.measurements
    assert sum(end.measurements for end in whole.restarts) == whole.measurements
    np.testing.assert_allclose(max(end.value for end in whole.restarts), whole.value, rtol=1e-9)


def test_seeds_are_reproducible_and_differ():
    model = model_of()

    first, again, other = (
        searched(model, 14, exact=False, restarts=3, budget=9, seed=seed) for seed in (1, 1, 2)
    )
    assert first.description() == again.description()
    assert first.restarts[0].start != other.restarts[0].start


def test_starts_are_used_first_and_hold_what_is_fixed():
    model = model_of()
    starts = np.array([[0, 1, 2, 0, 1, 3], [2, 2, 2, 2, 2, 3]])
    found = searched(model, 6, fixed={5: 3}, start=starts, restarts=3, exact=False)
    assert [end.start for end in found.restarts][:2] == [tuple(word) for word in starts.tolist()]
    assert len(found.restarts) == 5
    assert {end.tokens[5] for end in found.restarts} == {3}
    assert found.tokens[5] == 3


def test_an_interrupted_search_has_what_was_found_and_a_new_one_goes_on_from_there():
    model = model_of()
    whole = searched(model, 6, exact=False, restarts=3)
    for after in range(1, whole.measurements, max(3, whole.measurements // 4)):

        def stop(step: Any, after: int = after) -> None:
            if step.done == after:
                raise KeyboardInterrupt

        with pytest.raises(SearchInterrupted) as caught:
            searched(model, 6, exact=False, restarts=3, progress=stop)
        partial = caught.value.partial
        assert (partial.measurements, partial.converged) == (after, False)
        assert partial.history == tuple(entry for entry in whole.history if entry[0] <= after)
        assert partial.restarts[:-1] == whole.restarts[: max(len(partial.restarts) - 1, 0)]
        options = {"exact": False, "restarts": 0, "start": partial.tokens}
        assert searched(model, 6, **options).value >= partial.value


def test_ctrl_c_before_anything_was_found_is_a_plain_one(monkeypatch):
    def stop(*_: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr("jaxsens.core.placement.run.prepared_on", stop)
    with pytest.raises(KeyboardInterrupt) as caught:
        searched(model_of(), 6, exact=False)
    assert not isinstance(caught.value, SearchInterrupted)


# The result as a file


def test_a_result_is_read_back_as_it_was(tmp_path):
    # NumPy's whole numbers go into the file like Python's.
    as_numpy: Any = np.int64
    found = searched(model_of(), 14, budget=as_numpy(3), seed=as_numpy(0), fixed={13: 3})
    path = tmp_path / "found.json"
    found.save(path)
    read = WorstInput.load(path)
    assert read.description() == found.description()
    np.testing.assert_array_equal(read.tokens, found.tokens)
    assert read.restarts == found.restarts
    assert repr(read) == repr(found)
    table = json.loads(path.read_text())
    table["content"]["value"] = 1.0
    path.write_text(json.dumps(table))
    assert "checksum" in refused("path", WorstInput.load, path)
    path.write_text('{"value": 1.0}')
    assert "not written by jaxsens" in refused("path", WorstInput.load, path)
    os.remove(path)
    assert "no such file" in refused("path", WorstInput.load, path)


ONE_LAYER = jaxsens.TransformerConfig(2, width=6, heads=2, layers=1, feed_forward=5, end_symbol=False)


def test_a_budget_that_ends_between_two_starts_leaves_a_search_that_has_not_converged():
    model = jaxsens.Transformer(ONE_LAYER, seed=0)
    whole = worst_input(model, 9, search=jaxsens.theory.Search(exact=False, restarts=3, seed=0))
    assert whole.converged
    assert whole.starts == len(whole.restarts) == 3
    first = worst_input(model, 9, search=jaxsens.theory.Search(exact=False, restarts=1, seed=0))
    stopped = worst_input(
        model, 9, search=jaxsens.theory.Search(exact=False, restarts=3, seed=0, budget=first.measurements)
    )
    assert stopped.restarts == first.restarts
    assert first.converged
    assert not stopped.converged


def test_all_problems_come_together():
    problems: dict[str, Any] = {"n": 0, "flips": 7, "measure": "l3", "search": "deep"}
    problems |= {"engine": "fast", "placement": "cpu", "progress": 1}
    assert "worst_input: 7 errors" in refused(" ".join(problems), worst_input, model_of(), **problems)
    problems = {"exact": 1, "restarts": -1, "budget": 0, "seed": -1}
    assert "Search: 4 errors" in refused(" ".join(problems), jaxsens.theory.Search, **problems)
    for fields in ({"restarts": 0}, {"budget": 2.5}, {"exact": "yes"}):
        refused(" ".join(fields), jaxsens.theory.Search, **fields)
    assert jaxsens.theory.Search(restarts=0, start=[0, 1]).restarts == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n": 1}, "n"),
        ({"n": 2, "search": jaxsens.theory.Search(fixed={0: 1})}, "fixed"),
        ({"n": 4, "search": jaxsens.theory.Search(fixed={4: 1})}, "fixed"),
        ({"n": 4, "search": jaxsens.theory.Search(fixed={0: 4})}, "fixed"),
        ({"n": 4, "search": jaxsens.theory.Search(fixed=[(0, 1)])}, "fixed"),
        ({"n": 4, "flips": [1]}, "flips"),
        ({"n": 4, "flips": {0: [1, 2]}}, "flips"),
        ({"n": 4, "engine": "first-order"}, "engine"),
        ({"n": 4, "search": jaxsens.theory.Search(start=[0, 1, 2])}, "start"),
        ({"n": 4, "search": jaxsens.theory.Search(start=[0, 1, 2, 3])}, "start"),
        ({"n": 4, "search": jaxsens.theory.Search(start=[0, 1, 2, 1], fixed={3: 3})}, "start"),
        ({"n": 4, "search": jaxsens.theory.Search(start=[[0, 1], [2]])}, "start"),
        ({"n": 4, "search": jaxsens.theory.Search(start=0.5)}, "start"),
        ({"n": True}, "n"),
        ({"n": 4, "measure": jaxsens.L1(outputs=[6])}, "measure.outputs"),
    ],
)
def test_each_problem_is_named_with_its_remedy(options, message):
    refused(message, worst_input, model_of(), **options)


def test_models_and_engines_that_cannot_be_used_are_refused():
    refused("flips", worst_input, lambda tokens: tokens.sum() * 1.0, 4)
    with pytest.raises(jaxsens.InputError, match=r"a row for each position \(shape \(4, 4\)\)"):
        worst_input(lambda tokens: tokens[:, None] * tokens * 1.0, 4, 2)
    with pytest.raises(jaxsens.EngineRefusal):
        worst_input(model_of(weighting="sparsemax"), 4, engine="difference", placement=Placement(ONE))


def test_a_length_beyond_the_models_precision_is_warned_of():
    model: Any = model_of()
    model.exact_length = 2
    with pytest.warns(jaxsens.PrecisionWarning):
        worst_input(model, 3, engine="vmap", placement=Placement(ONE))


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
    expected = truth(model, words, flips=flips, **options)
    assert found.exact
    assert found.words == len(words)
    np.testing.assert_allclose(found.value, expected.max(), rtol=1e-9, atol=1e-13)
    # The word and the flip that are named are those of the value.
    again = jaxsens.flip_sensitivity(model, found.tokens, flips, **options, placement=Placement(ONE))
    np.testing.assert_allclose(again.max, found.value, rtol=1e-12)
    at = again.profile()[found.position, list(found.alphabet).index(found.symbol)]
    np.testing.assert_allclose(at, again.max, rtol=1e-12)
    assert found.flipped[found.position] == found.symbol != found.tokens[found.position]


@pytest.mark.quick(1, 4)
@pytest.mark.parametrize("case", CASES, ids=[*KINDS, "heads", "layers", "mean readout", "head"])
def test_the_largest_of_all_words_is_found(case):
    model = model_of(**{"alphabet_size": 2, **case})
    assert_is_the_largest(searched(model, 4), model, words_over(2, 4), engine="vmap")


@pytest.mark.long
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


@pytest.mark.long
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
        largest = truth(one, words_over(2, 4), **given)
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
    search, tight = jaxsens.theory.Search(exact=True), Placement(ONE, memory_budget=9000)
    refused("exact", worst_input, model, 60, search=search, placement=Placement(ONE))
    refused("exact", worst_input, model, 5, search=search, placement=tight)


def test_an_output_that_is_not_finite_is_refused():
    def model(tokens):
        return 1.0 / (tokens.sum() - 3.0)

    assert "not finite" in refused("model", worst_input, model, 4, 2, placement=Placement(ONE))


@pytest.mark.long
@pytest.mark.parametrize("kind", [bool, np.uint8])
def test_outputs_that_cannot_be_subtracted_as_they_are_are_searched_as_numbers(kind):
    table = jax.numpy.asarray([[0, 250], [250, 3], [7, 9]], kind)
    found = worst_input(lambda t: table[t[0]], 2, 3)
    words = [jaxsens.flip_sensitivity(lambda t: table[t[0]], [k, 0], 3).max for k in range(3)]
    assert found.value == pytest.approx(max(words))
