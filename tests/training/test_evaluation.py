"""Cross-entropy and recognition beside exhaustive sums over all words, and at lengths and sizes that need care."""

from __future__ import annotations

import dataclasses
import itertools

import jax.numpy as jnp
import numpy as np
import pytest

from jaxsens import Transformer, TransformerConfig
from jaxsens.languages import Dyck, Parity, language
from jaxsens.training import LSTM, LSTMConfig, evaluation
from jaxsens.training.baselines import Convolution, ConvolutionConfig
from jaxsens.training.evaluation import accuracy, cross_entropy, logits
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
