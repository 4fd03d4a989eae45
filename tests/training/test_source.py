"""A trained model is a sweep's model like any other: its weights are its own. And the job of length generalisation."""

from __future__ import annotations

import io
import shutil

import jax
import numpy as np
import pytest
from rich.console import Console

import jaxsens
from jaxsens import Transformer, flip_sensitivity
from jaxsens.cli import main
from jaxsens.core.base.errors import Problems
from jaxsens.core.sweeps.config import load_sweep_config
from jaxsens.core.sweeps.inputs import Symbols
from jaxsens.core.sweeps.job import run
from jaxsens.core.sweeps.points import read_point
from jaxsens.core.sweeps.sources import ModelSource, read_source
from jaxsens.core.sweeps.sweep import run_sweep
from jaxsens.languages import language
from jaxsens.training.baselines import exact_parity_rnn
from jaxsens.training.checkpoints import load_checkpoint
from jaxsens.training.evaluation import accuracy, next_symbols
from jaxsens.training.generalisation import Generalisation
from tests.core.sweeps.tiny import quiet
from tests.refusals import refused
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


TINY = """
title = "tiny"
claim = "Short words suffice."
seeds = 2
bins = [[1, 4], [5, 9]]
lengths_per_bin = 2
words = 8
[data]
lengths = [2, 2]
batch = 4
steps_per_call = 2
[optimiser]
steps = 4
[[language]]
label = "ends-in-b"
name = "formula"
formula = "Q_b"
alphabet = "ab"
[[language]]
label = "more-b"
task = "recognition"
name = "formula"
formula = "#L[Q_b] > #L[Q_a]"
alphabet = "ab"
[[model]]
label = "rnn"
kind = "rnn"
width = 3
"""


@pytest.mark.long
def test_every_language_is_trained_with_every_seed_and_what_is_done_is_kept(tmp_path, capsys):
    experiment = Generalisation.parse(TINY)
    assert experiment.lengths == ((2, 4), (7, 9))
    assert [str(each) for each in experiment.job(tmp_path).items] == [
        f"{name}, rnn, seed {seed}" for name in ("ends-in-b", "more-b") for seed in (0, 1)
    ]
    console = Console(file=io.StringIO())
    outcome = run(experiment.job(tmp_path), console)
    assert (outcome.exit_code, outcome.computed) == (0, 4)
    assert len({row.fingerprint for row in outcome.records}) == 4
    row = outcome.records[2]
    model = jaxsens.training.load_checkpoint(tmp_path / "models" / "more-b" / "rnn" / "seed=0")
    found = [accuracy(model, model.config.language, n, 8, 2**31) for n in (7, 9)]
    assert row.accuracies[1] == pytest.approx(np.mean([each.accuracy for each in found]))
    again = run(experiment.job(tmp_path), console)
    assert (again.computed, again.records) == (0, outcome.records)
    other = Generalisation.parse(TINY.replace("words = 8", "words = 16"))
    assert run(other.job(tmp_path), console).computed == 4
    table = experiment.write(tmp_path, outcome.records)[0].splitlines()
    lines = (tmp_path / "accuracy.csv").read_text().splitlines()
    assert len(lines) == 1 + 4 * 2
    assert lines[1].startswith("ends-in-b,rnn,0,1,4,16,")
    means = [np.mean([row.accuracies[k] for row in outcome.records[:2]]) for k in (0, 1)]
    assert table[2].startswith(f"| ends-in-b | rnn | {means[0]:.3f} [")
    figure = experiment.figure(outcome.records)
    written = [text.get_text() for text in figure.axes[0].texts]
    assert f"{means[0]:.2f}" in written
    (tmp_path / "tiny.toml").write_text(TINY)
    command = ["generalisation", str(tmp_path / "tiny.toml"), "--out", str(tmp_path)]
    assert main([*command, "--compilation-cache", "off"]) == 0
    assert table[2] in capsys.readouterr().out
    assert (tmp_path / "accuracy.md").read_text().splitlines() == [
        "# tiny",
        "",
        "Short words suffice.",
        "",
        *table,
    ]
    assert (tmp_path / "accuracy.png").stat().st_size > 1000


def test_errors_of_a_config_are_listed_with_where_they_are():
    for before, after, names in (
        ("bins = [[1, 4], [5, 9]]", "bins = [[1, 4], [4, 9]]", "bins"),
        ("words = 8", "words = 1", "words"),
        ('label = "rnn"', 'label = "a/b"', "model[0].label"),
        ("width = 3", "width = 0", "model.width"),
        ("#L[Q_b] > #L[Q_a]", "#L[Q_b] = #L[Q_a]", "bins"),
        ('task = "recognition"\n', "", "language"),
    ):
        refused(names, Generalisation.parse, TINY.replace(before, after))


def test_a_model_that_knows_the_law_predicts_every_set_and_one_without_weights_few():
    parity = language("parity", end_probability=0.3)
    assert next_symbols(exact_parity_rnn(0.3), parity, 12, words=20) == (1.0, 0.0)
    config = jaxsens.TransformerConfig(
        alphabet_size=2, width=4, heads=1, layers=1, feed_forward=0, mask="future", logits=3
    )
    flat = jax.tree.map(np.zeros_like, Transformer(config).parameters)
    # Equal logits predict all three outcomes, which is right at even places only: half of them, and the first.
    assert next_symbols((config, flat), parity, 12, words=50)[0] < 0.1


def test_sets_are_those_of_a_loop_over_the_beginnings():
    learned = language("formula", formula="!(true S (Q_0 & Y Q_0))", alphabet="01")
    config = jaxsens.TransformerConfig(
        alphabet_size=2, width=4, heads=1, layers=1, feed_forward=4, mask="future", positions="none", logits=3
    )
    model = Transformer(config, seed=3)
    share, error = next_symbols(model, learned, 5, words=9, seed=4)
    prefixes = learned.sample_prefixes(9, 5, np.random.default_rng((4, 2, 5)))
    right = []
    for word in prefixes:
        places = []
        for i in range(6):
            law = learned.last_probabilities(word[:i])
            read = np.concatenate([[2], word[:i]]).astype(np.int32)
            predicted = np.asarray(jax.nn.softmax(model(read)))
            places.append(all((predicted > law[law > 0].min() / 2) == (law > 0)))
        right.append(all(places))
    assert share == pytest.approx(np.mean(right))
    assert error == pytest.approx(np.std(right, ddof=1) / 3)
