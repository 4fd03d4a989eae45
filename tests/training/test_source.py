"""A trained model is a sweep's model like any other: its weights are its own."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from jaxsens import flip_sensitivity
from jaxsens.core.base.errors import Problems
from jaxsens.core.sweeps.config import load_sweep_config
from jaxsens.core.sweeps.inputs import Symbols
from jaxsens.core.sweeps.points import read_point
from jaxsens.core.sweeps.sources import ModelSource, read_source
from jaxsens.core.sweeps.sweep import run_sweep
from jaxsens.training.checkpoints import load_checkpoint
from tests.core.sweeps.tiny import quiet
from tests.training.tiny import PREDICTION, RECOGNITION, TRANSFORMER, trained_into

SWEEP = """
lengths = [4, 6]
seeds = 2
[[variant]]
name = "trained"
model = {checkpoint = "run"}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with trainings for prediction and, in `told`, for recognition."""
    made = tmp_path_factory.mktemp("trained")
    trained_into(made, PREDICTION)
    trained_into(made / "told", RECOGNITION)
    trained_into(made / "soft", TRANSFORMER)
    return made


def source_of(folder, name: str) -> ModelSource:
    problems = Problems("test")
    source = read_source({"checkpoint": name}, "model", problems, folder)
    assert source is not None, [*map(str, problems)]
    return source


def sweep_of(folder, text=SWEEP):
    path = folder / "sweep.toml"
    path.write_text(text)
    return load_sweep_config(path)


@pytest.mark.long
def test_a_checkpoint_is_found_beside_the_config_and_measured_as_the_library_measures_it(folder, tmp_path):
    sweep = sweep_of(folder)
    outcome = run_sweep(sweep, tmp_path, sweep.points, quiet())
    assert (outcome.computed, outcome.failures) == (4, ())
    point = sweep.points[0]
    tokens = point.tokens()
    assert (tokens[:, 0] == 2).all()
    assert (tokens[:, 1:] < 2).all()
    model = load_checkpoint(folder / "run").model
    expected = flip_sensitivity(model, tokens)
    assert len(expected) == 2  # neither the boundary symbol nor the last symbol, which is read out
    metadata, result = read_point(point.path(tmp_path), point.key, ("mean",))
    assert np.array_equal(result.norms, expected.norms)
    assert metadata.point["model"]["fingerprint"] == load_checkpoint(folder / "run").fingerprint


def test_seeds_change_the_inputs_and_not_the_model(folder):
    first, second = sweep_of(folder).points[:2]
    assert first.source.build(4, 0) is second.source.build(6, 1)
    assert first.key != second.key


def test_where_the_boundary_symbol_stands_follows_from_the_task(folder):
    predicts, recognises = source_of(folder, "run"), source_of(folder, "told/run")
    assert predicts.symbols == Symbols(2, 2, end_first=True)
    assert recognises.symbols == Symbols(2, 2)
    assert (predicts.output_size, recognises.output_size) == (3, 2)
    assert predicts.names == ("0", "1")
    trained = load_checkpoint(folder / "run")
    assert predicts.training == {"step": trained.step, "steps": trained.config.optimiser.steps}
    assert trained.step > 0
    assert (predicts.weights, predicts.bounded, predicts.exact_length) == ("trained", True, None)


def test_the_key_is_the_fingerprints_and_not_the_folders(folder, tmp_path):
    copy = tmp_path / "elsewhere"
    shutil.copytree(folder / "run", copy / "run")
    assert [point.key for point in sweep_of(copy).points] == [point.key for point in sweep_of(folder).points]
    shutil.rmtree(copy / "run")
    trained_into(copy, f"seed = 1\n{PREDICTION}")
    assert sweep_of(copy).points[0].key != sweep_of(folder).points[0].key


def test_predicting_recognising_and_random_models_share_words(folder):
    text = SWEEP + (
        '[[variant]]\nname = "told"\nmodel = {checkpoint = "told/run"}\n'
        '[[variant]]\nname = "random"\nmodel = {alphabet_size = 2, width = 4, heads = 1, layers = 1}\n'
    )
    points = {point.variant: point.tokens() for point in sweep_of(folder, text).points if point.n == 6}
    assert np.array_equal(points["told"], points["random"])
    assert np.array_equal(points["trained"][:, 1:-1], points["told"][:, 1:-1])
    plan = {variant.name: variant for variant in sweep_of(folder, text).plan.variants}
    assert [plan[name].weights for name in ("trained", "told", "random")] == ["trained", "trained", "random"]
    assert plan["told"].outputs == "the logits of the two labels"


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"checkpoint": "nowhere"}, "model.checkpoint = 'nowhere': there is none"),
        ({"checkpoint": 3}, "model.checkpoint = 3: the name of a directory"),
        ({"checkpoint": "run", "width": 4}, "model.width: unknown key"),
        ({"checkpoint": "run", "formula": "Q_1"}, "formula and checkpoint each name a model"),
    ],
)
def test_what_cannot_be_used_is_refused_with_its_path(folder, table, message):
    problems = Problems("test")
    assert read_source(table, "model", problems, folder) is None or problems
    assert message in "\n".join([*map(str, problems)])
