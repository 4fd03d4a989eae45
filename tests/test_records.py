"""Results on disk and in notebooks: what is saved comes back bit for bit, and what is shown is escaped."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

import jaxsens
from jaxsens.core.base.sealed import decoded, encoded, write_sealed
from jaxsens.core.base.text import html_facts
from jaxsens.core.models.parts.masks import SlidingWindow
from jaxsens.theory import CertifiedBound, Lemma5, certified_bound, lemma5
from tests.refusals import refused
from tests.small_models import small

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


def test_what_has_no_place_in_a_record_is_refused_by_name():
    with pytest.raises(TypeError, match="no place for a function"):
        encoded({"a": (1, lambda: 0)})


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


def test_damaged_and_missing_files_are_named(tmp_path):
    path = tmp_path / "bound.json"
    refused("path", Lemma5.load, path)
    write_sealed(path, "a kind", {"value": 1.0})
    path.write_text(path.read_text().replace("1.0", "2.0"))
    refused("path", Lemma5.load, path)


def test_notebooks_show_every_result_with_its_texts_escaped():
    certified, lemma = bounds_of()
    worst = jaxsens.theory.worst_input(model(), 4)
    hard = jaxsens.theory.restrict(model(weighting="leftmost-hard"), 12, 0.7)
    changes = jaxsens.analysis.layer_changes(model(), [0, 1, 2, 0, 3])
    attention = jaxsens.analysis.attention_statistics(model(), [0, 1, 2, 0, 3])
    for result in (certified, lemma, worst, hard, changes, attention):
        assert "<table" in result._repr_html_()  # pyright: ignore[reportAttributeAccessIssue]
    assert f"{worst.value:.4g}" in worst._repr_html_()
    assert "&lt;b&gt;" in html_facts("<b>", {"<i>": "<script>"}, "<p>")
    assert not {"<b>", "<i>", "<script>"} & set(html_facts("<b>", {"<i>": "<script>"}).split(">"))
