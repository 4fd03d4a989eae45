"""Length generalisation: the config and its errors, the job and its tables, and the accuracy of sets of symbols."""

from __future__ import annotations

import io

import jax
import numpy as np
import pytest
from rich.console import Console

import jaxsens
from jaxsens.cli import main
from jaxsens.core.models.transformer.module import Transformer
from jaxsens.core.sweeps.job import run
from jaxsens.languages import language
from jaxsens.training.baselines import exact_parity_rnn
from jaxsens.training.evaluation import accuracy, next_symbols
from jaxsens.training.generalisation import Generalisation
from tests.refusals import refused

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
