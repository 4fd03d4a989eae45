"""Sharpness against the length: the config and its errors, many models trained at once, the job and its tables."""

from __future__ import annotations

import io
from typing import Any

import jax
import numpy as np
import optax
import pytest
from rich.console import Console

from jaxsens import InputError
from jaxsens.cli import main
from jaxsens.experiments.jobs.job import run
from jaxsens.experiments.trained.sharpness import SharpnessExperiment, measure_model, slope
from jaxsens.models.transformer import layers
from jaxsens.models.transformer.parameters import initialise
from jaxsens.training.functions import FUNCTIONS, Trained, train_functions
from tests import reference

TINY = """
title = "tiny"
functions = ["parity", "mean"]
lengths = [3, 4]
seeds = 2
batch = 4
words = 16
draws = 3
without = ["learned"]
fitted_below = 10.0
[model]
layers = 1
width = 4
heads = 1
feed_forward = 4
positions = [{ type = "Learned", max_length = 4 }]
layer_norm = "post"
end_symbol = false
[optimiser]
steps = 4
learning_rate = 1e-2
schedule = "constant"
clip = 0.0
weight_decay = 0.1
"""


def test_the_functions_are_those_of_the_paper():
    words = np.array([[0, 1, 1], [1, 0, 0], [1, 1, 1], [0, 0, 0]])
    found = {name: function(words).tolist() for name, function in FUNCTIONS.items()}
    assert found["parity"] == [0, 1, 1, 0]
    assert found["majority"] == [1, 0, 1, 0]
    assert found["first"] == [0, 1, 1, 0]
    np.testing.assert_allclose(found["mean"], [2 / 3, 1 / 3, 1, 0], rtol=1e-6)
    np.testing.assert_allclose(FUNCTIONS["mean"](jax.numpy.asarray(words)), found["mean"], rtol=1e-6)


@pytest.mark.long
def test_models_trained_together_are_those_trained_alone_by_a_plain_loop():
    experiment = SharpnessExperiment.parse(TINY)
    config, optimiser = experiment.model, experiment.optimiser
    together = train_functions(config, ("parity", "mean"), 3, (0, 1), optimiser, batch=4)
    assert [(each.function, each.seed) for each in together] == [
        ("parity", 0), ("parity", 1), ("mean", 0), ("mean", 1)
    ]  # fmt: skip
    parameters: Any = initialise(config, 1)
    decayed = jax.tree_util.tree_map_with_path(
        lambda path, _: path[-1].name not in ("b1", "b2", "head_bias", "bias", "scale"), parameters
    )
    transform = optax.adamw(1e-2, weight_decay=0.1, mask=decayed)
    state, key = transform.init(parameters), jax.random.fold_in(jax.random.key(1), 1)

    @jax.jit
    @jax.grad
    def gradient(parameters, words):
        errors = [(layers.apply(config, parameters, word)[0] - word.sum() / 3) ** 2 for word in words]
        return sum(errors) / 4

    for step in range(4):
        words = jax.random.bernoulli(jax.random.fold_in(key, step), shape=(4, 3)).astype(np.int32)
        updates, state = transform.update(gradient(parameters, words), state, parameters)
        parameters = optax.apply_updates(parameters, updates)
    for expected, found in zip(
        jax.tree.leaves(parameters), jax.tree.leaves(together[3].parameters), strict=True
    ):
        np.testing.assert_allclose(found, expected, rtol=2e-4, atol=2e-5)


@pytest.mark.long
def test_a_model_is_measured_as_by_the_slow_reference():
    experiment = SharpnessExperiment.parse(TINY)
    parameters = jax.tree.map(np.asarray, initialise(experiment.model, 5))
    found = measure_model(experiment, 3, Trained("parity", 5, parameters))
    from jaxsens.models.parts.initialisation import generator

    words = generator(5, "sharpness.n=3").integers(0, 2, (16, 3))

    def output(word):
        return float(reference.output(experiment.model, parameters, word)[0])

    assert found.loss == pytest.approx(
        np.mean([(output(word) - word.sum() % 2) ** 2 for word in words]), rel=1e-4
    )
    changes = []
    for word in words:
        flipped = [np.where(np.arange(3) == i, 1 - word, word) for i in range(3)]
        changes.append(sum((output(other) - output(word)) ** 2 for other in flipped))
    assert found.sensitivity == pytest.approx(np.mean(changes), rel=1e-4)
    leaves = [leaf for leaf in jax.tree.leaves(parameters) if leaf is not parameters.learned]
    assert found.norm == pytest.approx(np.sqrt(sum(np.sum(leaf**2) for leaf in leaves)), rel=1e-5)


@pytest.mark.slow
def test_the_job_keeps_what_is_done_and_writes_tables(tmp_path, capsys):
    experiment, console = SharpnessExperiment.parse(TINY), Console(file=io.StringIO())
    outcome = run(experiment.job(tmp_path), console)
    assert (outcome.exit_code, outcome.computed) == (0, 2)
    assert [row.n for row in outcome.records] == [3, 4]
    again = run(experiment.job(tmp_path), console)
    assert (again.computed, again.records) == (0, outcome.records)
    more = SharpnessExperiment.parse(TINY.replace("draws = 3", "draws = 4"))
    assert more.job(tmp_path).state(more.job(tmp_path).items[0]) == "missing"
    table, _ = experiment.write(tmp_path, outcome.records)
    lines = (tmp_path / "sharpness.csv").read_text().splitlines()
    assert lines[0].startswith("function,n,seed,loss,sharpness")
    assert len(lines) == 1 + 2 * 4
    parity = [model for model in outcome.records[0].models if model.function == "parity"]
    assert f"| parity | 3 | 2 of 2 | {np.mean([model.sharpness for model in parity]):.3g} |" in table
    assert "parity: slope of the sharpness against n" in table
    strict = SharpnessExperiment.parse(TINY.replace("fitted_below = 10.0", "fitted_below = 1e-9"))
    assert "| parity | 3 | 0 of 2 |  |  |  |  |" in strict.markdown(outcome.records)
    assert len(experiment.figure(outcome.records).axes) == 3
    (tmp_path / "tiny.toml").write_text(TINY)
    command = ["sharpness", str(tmp_path / "tiny.toml"), "--out", str(tmp_path)]
    assert main([*command, "--compilation-cache", "off"]) == 0
    assert table in capsys.readouterr().out
    assert (tmp_path / "sharpness.md").read_text() == f"# tiny\n\n{table}\n"
    assert (tmp_path / "sharpness.png").stat().st_size > 1000


def test_slopes_have_students_interval():
    x = np.array([1.0, 2.0, 3.0, 4.0])
    found = slope(list(zip(x, 2 * x + np.array([0.1, -0.1, -0.1, 0.1]), strict=True)))
    assert found is not None
    assert found[0] == pytest.approx(2)
    # s^2 = 0.04 / 2, divided by sum (x - mean)^2 = 5; t(0.975, 2) = 4.303
    assert found[2] - found[0] == pytest.approx(4.3027 * np.sqrt(0.02 / 5), rel=1e-4)
    assert slope([(1.0, 1.0), (2.0, 2.0)]) is None


def test_errors_of_a_config_are_listed_with_where_they_are():
    wrong = TINY.replace('"mean"]', '"median"]').replace("words = 16", "words = 1")
    wrong = wrong.replace("steps = 4", "steps = 0").replace("width = 4", "width = 4\nlogits = 2")
    with pytest.raises(InputError) as error:
        SharpnessExperiment.parse(wrong)
    for part in ("functions", "words", "optimiser.steps", "model.logits"):
        assert part in str(error.value)
    with pytest.raises(InputError, match="length"):
        SharpnessExperiment.parse(TINY.replace("lengths = [3, 4]", "lengths = [3, 5]"))
