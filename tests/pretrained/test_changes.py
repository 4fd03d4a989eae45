"""ModelChanges of a published model: attention weights, windows, masks, positions and layers, in every engine."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jaxsens
from jaxsens.core.base.programs import numerics
from jaxsens.core.models.parts.schedules import Schedule
from jaxsens.core.models.parts.weighting import SinkSoftmax, Softmax
from jaxsens.pretrained.load import ModelChanges
from tests.pretrained.folders import by_passes, write_folder
from tests.refusals import refused
from tools.pretrained_recorded import recorded

RECORDED = {(one.family, one.name): one for one in recorded()}
IDS = [9, 10, 11, 12, 13, 14, 15, 9]


def model_of(folder: Path, family: str = "llama", **options: Any) -> jaxsens.pretrained.PretrainedModel:
    write_folder(folder, family, options)
    return jaxsens.load_pretrained(folder, dtype="float64")


def rows(model: jaxsens.pretrained.PretrainedModel, ids: list[int] = IDS) -> np.ndarray:
    return np.asarray(model(ids))


def test_a_temperature_multiplies_scores(tmp_path):
    """Queries that are log n times as large make the same scores."""
    model = model_of(tmp_path, "gpt2")
    scaled = []
    for k in range(2):
        with numerics("float64"):
            own = model.parameters["layers"][k]
        query = {key: math.log(8) * np.asarray(one) for key, one in own["query"].items()}
        scaled.append({**own, "query": query})
    expected = dataclasses.replace(model, parameters={**model.parameters, "layers": scaled})
    np.testing.assert_allclose(rows(ModelChanges("temperature-log").of(model)), rows(expected), rtol=1e-10)
    same = Softmax(Schedule(coefficient=1 / math.log(8), log_power=1.0))
    np.testing.assert_allclose(rows(ModelChanges(same).of(model)), rows(model), rtol=1e-10)


def test_a_window_and_a_mask_are_those_of_a_model_that_has_them(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    wide, narrow = (
        model_of(tmp_path / name, "mistral", sliding_window=w) for name, w in (("a", None), ("b", 3))
    )
    np.testing.assert_allclose(rows(ModelChanges(window=3).of(wide)), rows(narrow), rtol=1e-12)
    open_, causal = ModelChanges(mask="none").of(wide), rows(wide)
    assert np.abs(rows(open_)[0] - causal[0]).max() > 1e-3  # the first row sees the others now
    np.testing.assert_allclose(rows(ModelChanges(mask="future").of(open_)), causal, rtol=1e-12)
    assert open_.layered.readout == "last"


def test_stretched_positions(tmp_path):
    """Every second row of positions that are stretched by two is a row of the table; rotary angles are those of the
    linear scaling."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    learned = model_of(tmp_path / "a", "gpt2")
    longer = ModelChanges(stretch=2.0).of(learned)
    assert longer.max_length == 2 * learned.max_length
    table = np.asarray(longer.parameters["positions"])
    np.testing.assert_array_equal(table[::2], learned.parameters["positions"])
    np.testing.assert_allclose(table[1], (table[0] + table[2]) / 2, rtol=1e-14)
    plain = {"rope_scaling": None}
    turned = model_of(tmp_path / "b", "llama", **plain)
    (tmp_path / "c").mkdir()
    linear = model_of(tmp_path / "c", "llama", rope_scaling={"type": "linear", "factor": 3.0})
    np.testing.assert_allclose(rows(ModelChanges(stretch=3.0).of(turned)), rows(linear), rtol=1e-10)


def test_the_first_layers_alone(tmp_path):
    model = model_of(tmp_path, "bert")
    first = ModelChanges(layers=1).of(model)
    assert first.layered.layers == 1
    shorter = dataclasses.replace(
        model.layered, architecture=dataclasses.replace(model.architecture, layers=1)
    )
    expected = dataclasses.replace(model, layered=shorter)
    np.testing.assert_allclose(rows(first), rows(expected), rtol=1e-12)


@pytest.mark.parametrize(
    "changes",
    [
        ModelChanges("temperature-log"),
        ModelChanges(window=3, mask="none"),
        pytest.param(
            ModelChanges("temperature-sqrt", mask="future", stretch=1.5, layers=1), marks=pytest.mark.long
        ),
    ],
    ids=str,
)
def test_engines_measure_the_changed_model(tmp_path, changes: ModelChanges):
    model = changes.of(model_of(tmp_path, "llama"))
    flips = jaxsens.Substitute([5, 11, 17], positions=[1, 4])
    exact, found = (
        jaxsens.flip_sensitivity(model, IDS, flips, engine=one) for one in ("vmap", "incremental")
    )
    np.testing.assert_allclose(found.norms, exact.norms, rtol=1e-8)
    np.testing.assert_allclose(exact.norms, by_passes(model, IDS, exact, lambda rows: rows[-1]), rtol=1e-9)


def test_what_a_model_cannot_change_is_refused_by_name(tmp_path):
    RECORDED["bloom", "twelve heads"].write(tmp_path)
    model = jaxsens.load_pretrained(tmp_path)
    refused("weighting", ModelChanges(SinkSoftmax(learned=True)).of, model)
    wrong = ModelChanges("warm", 0, "past", 2.0, 9)  # pyright: ignore[reportArgumentType]
    with pytest.raises(jaxsens.InputError) as caught:
        wrong.of(model)
    for said in (
        "weighting = 'warm'",
        "window = 0",
        "mask = 'past'",
        "bloom has neither rotary nor",
        "layers = 9: at most 2",
    ):
        assert said in str(caught.value)
