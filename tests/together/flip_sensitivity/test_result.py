"""Results: their statistics, what is no number; on disk and in notebooks every kind of result."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

import jaxsens
from jaxsens import InputError, Placement, theory
from jaxsens.analysis import RowChanges
from jaxsens.core.base.sealed import decoded, encoded, write_sealed
from jaxsens.core.base.text import html_facts
from jaxsens.core.engines.engine import Engine, FlipBlock
from jaxsens.core.flips.flip_table import FlipTable
from jaxsens.core.measures import L2
from jaxsens.core.models.parts.masks import SlidingWindow
from jaxsens.core.placement import run
from jaxsens.theory import CertifiedBound, Lemma5, certified_bound, lemma5
from jaxsens.theory.lemma5 import LayerBound, LayerConstants
from tests.core.flip_sensitivity.formula import EXPECTED, INPUTS, POSITIONS, SYMBOLS, TOKENS, Formula, mesh_of
from tests.made_results import made
from tests.refusals import refused
from tests.small_models import small


def weights(n):
    return jnp.asarray(np.random.default_rng(0).exponential(size=n), jnp.float32)


@pytest.fixture(scope="module")
def result():
    w = weights(40)
    return jaxsens.flip_sensitivity(lambda t: jnp.stack([w @ t, t[0] * 2.0]), np.zeros((2, 40), int), 2)


@pytest.mark.long
def test_an_exhaustive_result_has_no_uncertainty(result):
    assert result.exhaustive
    assert result.mean_interval() == (result.mean, result.mean)


@pytest.fixture(scope="module")
def sampled():
    """15 of 5 + 16 = 21 flips: the first input has an end-of-sequence from position 5 on, which stays."""
    w = 1 + weights(17)  # no change is near the rounding of the sum
    words = np.array([[0] * 5 + [2] * 12, [1] * 17])
    return jaxsens.flip_sensitivity(lambda t: w @ t, words, flips=jaxsens.Substitute(2, sample=15, seed=1))


def test_the_part_of_a_sample_knows_how_many_flips_its_input_has(sampled, tmp_path):
    sampled.save(tmp_path / "s.parquet")
    for whole in (sampled, jaxsens.load_result(tmp_path / "s.parquet")):
        parts = [whole.of_input(k) for k in range(2)]
        assert [part.population for part in parts] == [5, 16]
        assert [len(part) for part in parts] == np.bincount(sampled.inputs).tolist()
        assert not parts[1].exhaustive
        again = parts[1].of_input(0)
        assert (again.population, again.norms.tolist()) == (16, parts[1].norms.tolist())


def test_the_part_of_a_sample_that_happens_to_have_all_flips_of_its_input_is_exhaustive(sampled):
    kept = sampled.inputs == 1
    for more in (0, 1):
        populations = np.array([5, int(kept.sum()) + more])
        whole = dataclasses.replace(
            sampled, flips=dataclasses.replace(sampled.flips, populations=populations)
        )
        assert whole.of_input(1).exhaustive == (not more)


def test_quantiles_are_interpolated_between_the_values():
    result = made(np.arange(11.0))
    assert [result.quantile(q) for q in (0, 0.25, 0.5, 0.95, 1)] == pytest.approx([0, 2.5, 5, 9.5, 10])


def test_results_that_hold_arrays_equal_themselves_alone_and_can_be_hashed(result):
    again = dataclasses.replace(result)
    assert result == result != again
    assert len({result, again}) == 2
    for kind in (FlipTable, RowChanges, LayerBound, LayerConstants, theory.WorstInput, theory.Restriction):
        assert (kind.__eq__, kind.__hash__) == (object.__eq__, object.__hash__)


@pytest.mark.parametrize("wrong", ["a", None, [0.1, 0.9], True, float("nan"), -0.1, 90])
def test_what_is_no_share_or_no_input_is_refused(result, wrong):
    for path, call in (("q", result.quantile), ("confidence", result.mean_interval), ("k", result.of_input)):
        refused(path, call, wrong)


def test_a_flip_measured_as_nan_is_told_from_one_not_measured_yet():
    def model(tokens: Any) -> Any:
        return jnp.where(tokens[1] == 1, jnp.nan, jnp.sum(tokens).astype(jnp.float32))

    tokens, seen = np.zeros(64, np.int32), []

    def stop(done: int, total: int) -> None:
        seen.append(done)
        raise KeyboardInterrupt

    with pytest.raises(jaxsens.MeasurementInterrupted) as caught:
        jaxsens.flip_sensitivity(
            model, tokens, 2, progress=stop, placement=jaxsens.Placement(mesh_of(1), batch_size=2)
        )
    partial = caught.value.partial
    assert len(partial) == seen[-1] < partial.population
    assert partial.positions[np.isnan(partial.norms)].tolist() == [1]
    with pytest.raises(InputError, match="not finite under 1 of 63 flips, first at position 1"):
        partial.joined(jaxsens.flip_sensitivity(model, tokens, partial.remaining))


def test_flips_under_which_an_engine_overflows_go_to_the_fallback():
    @dataclass(frozen=True)
    class Overflowing(Formula):
        def changes(self, parameters: Any, prepared: Any, block: FlipBlock) -> Any:
            change = super().changes(parameters, prepared, block)
            return jnp.where(block.places % 4 == 0, jnp.inf, change)

        @property
        def fallback(self) -> Engine:
            return Formula(self.measure, self.outputs, scale=-1.0)

    # Changes, since the norm of what holds inf is NaN.
    flips = INPUTS, POSITIONS[:, None], SYMBOLS[:, None]
    changes, declined = run.Measuring(
        Overflowing(L2(), None), jnp.float32(1), TOKENS, *flips, Placement(mesh_of(1))
    ).changes()
    np.testing.assert_array_equal(np.abs(changes[:, 0]), EXPECTED)
    assert declined


FLOATS = arrays.arrays(
    st.sampled_from([np.float32, np.float64, np.int32, np.int64, np.bool_]),
    arrays.array_shapes(min_dims=0, min_side=0),
)


def assert_same(one: Any, other: Any) -> None:
    """NaN equals NaN here."""
    assert type(one) is type(other)
    np.testing.assert_equal(dataclasses.asdict(one), dataclasses.asdict(other))


@given(array=FLOATS)
def test_arrays_come_back_bit_for_bit(array):
    if array.dtype.kind == "f":
        array = np.where(np.isnan(array), np.array(np.nan, array.dtype), array)  # one NaN of many
    found = decoded(encoded(array))
    assert (found.dtype, found.shape, found.tobytes()) == (array.dtype, array.shape, array.tobytes())


def test_what_has_no_place_in_a_record_and_damaged_or_missing_files_are_named(tmp_path):
    with pytest.raises(TypeError, match="no place for a function"):
        encoded({"a": (1, lambda: 0)})
    path = tmp_path / "bound.json"
    refused("path", Lemma5.load, path)
    write_sealed(path, "a kind", {"value": 1.0})
    path.write_text(path.read_text().replace("1.0", "2.0"))
    refused("path", Lemma5.load, path)


def model(**changes: object) -> jaxsens.Transformer:
    return jaxsens.Transformer(small(layers=1, feed_forward=0, **changes))


def bounds_of(**changes: object) -> list[object]:
    return [certified_bound(model(**changes), 6), lemma5(model(**changes), 6)]


@pytest.mark.parametrize("mask", ["none", "future", SlidingWindow(3)], ids=str)
def test_bounds_come_back(mask, tmp_path):
    certified, lemma = bounds_of(mask=mask)
    for found, load in ((certified, CertifiedBound.load), (lemma, Lemma5.load)):
        found.save(tmp_path / "found.json")  # pyright: ignore[reportAttributeAccessIssue]
        assert_same(load(tmp_path / "found.json"), found)
        said = refused("path", jaxsens.analysis.RowChanges.load, tmp_path / "found.json")
        assert "give a file of RowChanges.save" in said


def test_changes_of_rows_come_back_with_their_names(tmp_path):
    for measure in (jaxsens.analysis.layer_changes, jaxsens.analysis.influence_matrix):
        found = measure(model(), [0, 1, 2, 0, 3])
        for one in (found, dataclasses.replace(found, names={0: "a", 1: "b", 2: "c", 3: "end"})):
            one.save(tmp_path / "found.json")
            assert_same(jaxsens.analysis.RowChanges.load(tmp_path / "found.json"), one)


def test_notebooks_show_results_of_the_theory_with_their_texts_escaped():
    certified, lemma = bounds_of()
    worst = jaxsens.theory.worst_input(model(), 4)
    hard = jaxsens.theory.restrict(model(weighting="leftmost-hard"), 12, 0.7)
    for result in (certified, lemma, worst, hard):
        assert "<table" in result._repr_html_()  # pyright: ignore[reportAttributeAccessIssue]
    assert f"{worst.value:.4g}" in worst._repr_html_()
    assert "&lt;b&gt;" in html_facts("<b>", {"<i>": "<script>"}, "<p>")
    assert not {"<b>", "<i>", "<script>"} & set(html_facts("<b>", {"<i>": "<script>"}).split(">"))
