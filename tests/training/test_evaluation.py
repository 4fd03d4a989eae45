"""Cross-entropy and recognition beside exhaustive sums over all words, and at lengths and sizes that need care.

The plot and the table of a training show what its files say.
"""

from __future__ import annotations

import dataclasses
import io
import itertools
import re
import tomllib
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console

from jaxsens import Softmax, Transformer, TransformerConfig
from jaxsens.core.models.parts.schedules import SCHEDULES
from jaxsens.languages import Dyck, Parity, language
from jaxsens.training import LSTM, LSTMConfig, evaluation
from jaxsens.training.baselines import Convolution, ConvolutionConfig
from jaxsens.training.config import TrainConfig
from jaxsens.training.evaluation import accuracy, cross_entropy, logits
from jaxsens.training.loop import read_table, training_figure, training_summary, write_training_plot
from tests.core.report.synthetic import clashes
from tests.refusals import refused

SMALL = {"width": 4, "dtype": "float64"}


def predictor(symbols: int, kind: str = "lstm"):
    if kind == "lstm":
        return LSTM(LSTMConfig(symbols, logits=symbols + 1, **SMALL), seed=2)
    config = TransformerConfig(
        symbols, logits=symbols + 1, heads=2, layers=1, feed_forward=0, mask="future", **SMALL
    )
    return Transformer(config, seed=2)


def prefix_laws(learned, n: int) -> dict[tuple[int, ...], float]:
    """The probability of every prefix of n symbols given that the word has as many, by multiplying along it."""
    found = {}
    for word in itertools.product(range(len(learned.alphabet)), repeat=n):
        probability = 1.0
        for i, symbol in enumerate(word):
            law = learned.next_probabilities(np.array(word[:i], int))[-1]
            probability *= law[symbol]
            if probability == 0:
                break
        if probability:
            found[word] = probability
    total = sum(found.values())
    return {word: probability / total for word, probability in found.items()}


def by_enumeration(model, learned, n: int) -> tuple[float, float]:
    """Cross-entropy and its choice part as sums over all prefixes and outcomes."""
    mean = choice = 0.0
    for word, probability in prefix_laws(learned, n).items():
        law = learned.last_probabilities(np.array(word, int))
        out = np.asarray(model(np.array([len(learned.alphabet), *word])))
        q = np.exp(out) / np.exp(out).sum()
        mean -= probability * sum(p * np.log(v) for p, v in zip(law, q, strict=True) if p)
        if isinstance(learned, Dyck) and word and word[-1] >= 2 and law[4] == 0:
            closing = law[2:4]
            right = int(np.argmax(closing))
            choice -= probability * closing[right] * np.log(q[2 + right] / q[2:4].sum())
    return mean, choice


@pytest.mark.quick(1)
@pytest.mark.parametrize("kind", ["lstm", "transformer"])
@pytest.mark.parametrize(("name", "lengths"), [("parity", (0, 1, 7)), ("2dyck", (0, 4, 5))])
def test_the_cross_entropy_is_the_sum_over_all_prefixes(kind, name, lengths):
    learned = language(name)
    model = predictor(len(learned.alphabet), kind)
    for n in lengths:
        mean, choice = by_enumeration(model, learned, n)
        found = cross_entropy(model, learned, n, words=4000, seed=1)
        assert (found.n, found.words) == (n, 4000)
        assert found.mean == pytest.approx(mean, abs=5 * found.standard_error + 1e-12)
        assert found.standard_error < 0.03
        assert found.excess == pytest.approx(found.mean - learned.optimal_cross_entropy(n), abs=1e-12)
        if name == "2dyck":
            assert found.choice is not None
            assert found.choice_standard_error is not None
            assert found.choice == pytest.approx(choice, abs=5 * found.choice_standard_error + 1e-12)
        else:
            assert found.choice is None


@pytest.mark.long
def test_the_standard_error_is_how_the_means_of_other_samples_scatter():
    model, learned = predictor(2), Parity(0.3)
    found = [cross_entropy(model, learned, 5, words=50, seed=seed) for seed in range(200)]
    scatter = np.std([each.mean for each in found])
    assert np.mean([each.standard_error for each in found]) == pytest.approx(scatter, rel=0.15)


@pytest.mark.parametrize("name", ["parity", "2dyck"])
def test_accuracy_and_margin_are_those_of_a_plain_loop(name):
    learned = language(name)
    config = ConvolutionConfig(len(learned.alphabet), logits=2, **SMALL)
    model = Convolution(config, seed=1)
    found = accuracy(model, learned, 6, words=40, seed=3)
    words, labels = learned.sample_labelled(40, 6, np.random.default_rng((3, 3, 6)))
    margins = []
    for word, label in zip(words, labels, strict=True):
        out = np.asarray(model(jnp.array([*word, len(learned.alphabet)])))
        margins.append(out[1] - out[0] if label else out[0] - out[1])
    assert found.margin == pytest.approx(np.mean(margins), rel=1e-10)
    assert found.accuracy == np.mean([margin > 0 for margin in margins])
    assert found.margin_standard_error == pytest.approx(np.std(margins, ddof=1) / np.sqrt(40), rel=1e-9)
    assert 0 < found.accuracy_standard_error < 0.1


def test_a_model_that_cannot_tell_has_no_answer_right():
    config = ConvolutionConfig(2, logits=2, **SMALL)
    model = Convolution(config)
    parameters = dataclasses.replace(model.parameters, head=np.zeros((4, 2)), head_bias=np.zeros(2))
    assert accuracy((config, parameters), Parity(0.1), 5).accuracy == 0


@pytest.mark.parametrize("kind", ["lstm", "transformer"])
def test_many_words_are_taken_a_few_at_a_time_with_the_same_result(kind, monkeypatch):
    model = predictor(2, kind)
    tokens = np.random.default_rng(0).integers(0, 2, (7, 9)).astype(np.int32)
    at_once = logits(model.config, model.parameters, tokens)
    np.testing.assert_allclose(at_once, np.asarray(model(jnp.asarray(tokens))), rtol=1e-12)
    monkeypatch.setattr(evaluation, "_NUMBERS_IN_MEMORY", 500)
    np.testing.assert_allclose(logits(model.config, model.parameters, tokens), at_once, rtol=1e-12)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"n": -1}, "n"),
        ({"words": 1}, "words"),
        ({"seed": None}, "seed"),
        ({"subject": "model"}, "subject"),
        ({"learned": "parity"}, "language"),
        ({"learned": language("2dyck")}, "subject"),
        ({"subject": LSTM(LSTMConfig(2, logits=2))}, "subject"),
        ({"subject": LSTM(LSTMConfig(2, logits=3, end_symbol=False))}, "subject"),
    ],
)
def test_what_cannot_be_evaluated_is_refused(change, problem):
    given = {"subject": predictor(2), "learned": Parity(0.1), "n": 3, "words": 4, "seed": 0, **change}
    refused(problem, cross_entropy, *(given[name] for name in ("subject", "learned", "n", "words", "seed")))


def test_inputs_longer_than_a_learned_embedding_are_refused():
    config = TransformerConfig(
        2, logits=3, heads=1, positions="learned", mask="future", layers=1, feed_forward=0, **SMALL
    )
    longest = config.position_terms[0].max_length  # pyright: ignore[reportAttributeAccessIssue]
    assert "max_length" in refused(
        "tokens", cross_entropy, Transformer(config), Parity(0.1), longest, words=2
    )
    refused("n", accuracy, Convolution(ConvolutionConfig(2, logits=2)), Parity(0.1), 0)


METRICS = (
    "step,length,loss,optimum,gradient_norm,learning_rate\n10,4,1.5,0.8,0.1,0.01\n20,8,1.0,0.8,0.1,0.01\n"
)
PREDICTED = (
    "step,n,cross_entropy,excess,standard_error,choice,choice_standard_error\n"
    "10,4,1.25,0.25,0.01,,\n10,8,1.5,0.5,0.01,,\n20,4,1.0,0.0,0.01,,\n20,8,1.125,0.125,0.01,,\n"
)
RECOGNISED = "step,n,accuracy,accuracy_standard_error,margin,margin_standard_error\n20,4,0.75,0.1,1.5,0.1\n"


def written(folder, evaluations):
    (folder / "metrics.csv").write_text(METRICS)
    if evaluations:
        (folder / "evaluation.csv").write_text(evaluations)
    return folder


def told(folder) -> str:
    console = Console(file=io.StringIO(), width=120)
    console.print(training_summary(folder))
    return console.file.getvalue()  # pyright: ignore[reportAttributeAccessIssue]


def test_the_plot_has_the_loss_its_optimum_and_evaluations_and_the_summary_is_the_last_of_these(tmp_path):
    folder = written(tmp_path, PREDICTED)
    assert write_training_plot(folder) == folder / "training.png"
    assert (folder / "training.png").read_bytes().startswith(b"\x89PNG")
    assert b"<svg" in (folder / "training.svg").read_bytes()
    text = told(folder)
    assert ["1.125" in text, "1.25" in text, "choice" in text] == [True, False, False]
    figure = training_figure(read_table(folder / "metrics.csv"), read_table(folder / "evaluation.csv"))
    loss, evaluations = figure.axes
    np.testing.assert_array_equal(np.asarray(loss.lines[0].get_xydata()), [[10, 1.5], [20, 1.0]])
    np.testing.assert_array_equal(loss.lines[1].get_ydata(), [0.8, 0.8])
    drawn = {line.get_label(): np.asarray(line.get_ydata()).tolist() for line in evaluations.lines}
    assert drawn["n = 4"] == [0.25, 0.0]
    assert drawn["n = 8"] == [0.5, 0.125]
    assert clashes(figure) == []


def test_recognition_shows_accuracy(tmp_path):
    folder = written(tmp_path, RECOGNISED)
    figure = training_figure(read_table(folder / "metrics.csv"), read_table(folder / "evaluation.csv"))
    assert figure.axes[1].get_ylabel() == "share of words labelled correctly"
    assert "0.75" in told(folder)


@pytest.mark.parametrize("evaluations", ["", PREDICTED.splitlines()[0] + "\n"])
def test_without_evaluations_the_last_loss_is_told(tmp_path, evaluations):
    folder = written(tmp_path, evaluations)
    figure = training_figure(read_table(folder / "metrics.csv"), read_table(folder / "evaluation.csv"))
    assert len(figure.axes) == 1
    assert "20" in told(folder)


TEXT = (Path(__file__).resolve().parents[2] / "docs" / "learned.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", TEXT, flags=re.DOTALL)


@pytest.mark.long
def test_the_example_in_python_runs_in_an_empty_directory_and_gives_what_is_shown(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (code,) = blocks("python")
    *lines, last = code.rstrip().splitlines()
    shown, _, result = last.partition("  # ")
    names: dict[str, object] = {}
    exec("\n".join(lines), names)
    assert repr(eval(shown, names)) == result == "True"
    assert {path.name for path in tmp_path.iterdir()} == {"trained"}


def test_the_example_of_a_config_is_one():
    (text,) = blocks("toml")
    config = TrainConfig.from_table(tomllib.loads(text), "the example")
    assert (config.task, config.language.name, config.optimiser.steps) == ("prediction", "parity", 800)


def test_the_temperature_that_is_recommended_is_one_by_query():
    (written,) = re.findall(r"`(\{ type = \"Softmax\".*?\})`", TEXT)
    model = {"width": 8, "heads": 1, **tomllib.loads(f"weighting = {written}")}
    table = {"language": {"name": "parity"}, "model": model, "optimiser": {"steps": 10}}
    read = TrainConfig.from_table(table, "the docs").model
    assert isinstance(read, TransformerConfig)
    assert read.layer(0).weighting == Softmax(SCHEDULES["log"], by="query")
