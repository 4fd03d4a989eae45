"""Languages of formulas: numbers of members, uniform samples, labels and errors."""

from __future__ import annotations

import numpy as np
import pytest

import jaxsens
from jaxsens import InputError, logic
from jaxsens.languages import FormulaLanguage
from tests.formal.constructions.many_words import every_word
from tests.refusals import refusal, refused

FORMULAS = {
    "automaton": "true S (Q_1 & Y Q_1) & !Q_0 S Q_1",
    "future": "true S (Q_1 & X (Q_0 U Q_1))",
    "modular": "mod(3, 1, #L[Q_1 & Y Q_0])",
    "unrolled": "#L[Q_1] > #L[Q_0] + 1",
    "unrolled twice": "#L[Q_1] = #L[Q_0] | #L[Q_1 & Y Q_1] > #L[Q_0]",
    "rejection": "#L[#L[Y Q_1] = #R[Q_1]] = 0",
    "rejection of middles": "true S (middle & Q_1)",
}


def made(text: str, **options) -> FormulaLanguage:
    found = jaxsens.language(logic.parse(text), "01", **options)
    assert isinstance(found, FormulaLanguage)
    return found


@pytest.mark.parametrize("kind", [kind for kind in FORMULAS if "rejection" not in kind])
def test_members_are_counted_exactly_at_every_length(kind):
    language = made(FORMULAS[kind])
    for n in range(1, 9):
        truth = logic.evaluate_tokens(language.formula, every_word(2, n), "01")[:, -1]
        assert language.number_of_members(n) == truth.sum()
        assert language.has_members(n) == truth.any()
    assert language.number_of_members(0) == 0


@pytest.mark.parametrize("kind", FORMULAS)
def test_members_and_non_members_are_uniform(kind):
    """Chi-square over all words of each label, beyond 4 standard deviations with probability below 1e-4."""
    language, n = made(FORMULAS[kind]), 6
    tokens, labels = language.sample_labelled(12_000, n, np.random.default_rng(1))
    truth = logic.evaluate_tokens(language.formula, every_word(2, n), "01")[:, -1]
    numbers = tokens @ (1 << np.arange(n)[::-1])
    assert labels.sum() == 6000
    for label in (True, False):
        found = np.bincount(numbers[labels == label], minlength=2**n)
        assert not found[truth != label].any()
        expected = 6000 / (truth == label).sum()
        freedom = (truth == label).sum() - 1
        statistic = ((found[truth == label] - expected) ** 2 / expected).sum()
        assert abs(statistic - freedom) < 4 * np.sqrt(2 * freedom)


@pytest.mark.parametrize("kind", FORMULAS)
def test_labels_are_those_of_the_evaluator_at_longer_lengths(kind):
    language = made(FORMULAS[kind])
    tokens, labels = language.sample_labelled(40, 50, np.random.default_rng(2))
    spoken = ["".join("01"[symbol] for symbol in word) for word in tokens]
    assert [logic.satisfies(language.formula, word) for word in spoken] == labels.tolist()
    np.testing.assert_array_equal(language.member(tokens), labels)
    members = language.sample_members(20, 50, np.random.default_rng(3))
    assert language.member(members).all()


def test_a_formula_of_parity_has_the_samples_of_a_long_length_at_once():
    language = made("odd(#L[Q_1])")
    tokens = language.sample_members(4, 5000, np.random.default_rng(0))
    assert (tokens.sum(axis=1) % 2 == 1).all()
    assert language.number_of_members(5000) == 2**4999


def test_lengths_without_members_or_without_others_have_one_label():
    none = made("#L[Q_1] = #L[Q_0]")
    tokens, labels = none.sample_labelled(10, 5, np.random.default_rng(0))
    assert not labels.any()
    assert len(np.unique(tokens, axis=0)) > 5
    assert not none.has_members(5)
    with refusal("n"):
        none.sample_members(1, 5, np.random.default_rng(0))
    every = made("true S (Q_0 | Q_1)")
    tokens, labels = every.sample_labelled(10, 5, np.random.default_rng(0))
    assert labels.all()
    assert len(np.unique(tokens, axis=0)) > 5


def test_members_that_are_too_rare_for_rejection_are_an_error_in_bounded_time():
    language = made("#R[#L[Q_1] >= 1] = 1 & #L[Q_0 & !Y Q_0] = 1")
    with refusal("n"):
        language.sample_members(1, 60, np.random.default_rng(0))


def test_only_an_automaton_gives_a_law_of_the_next_symbol():
    regular, other = made("odd(#L[Q_1])"), made("#L[Q_1] > #L[Q_0]")
    assert regular.no_law is None
    assert other.no_law is not None
    for call in (lambda: other.marginal(3), lambda: other.next_probabilities(np.zeros((1, 2), int))):
        with pytest.raises(InputError, match="recognise its words instead"):
            call()
    table = {
        "language": {"name": "formula", "formula": "#L[Q_1] > #L[Q_0]", "alphabet": "01"},
        "model": {"kind": "rnn", "width": 4},
        "optimiser": {"steps": 10},
    }
    refused("language", jaxsens.training.TrainConfig.from_table, table)
    config = jaxsens.training.TrainConfig.from_table({**table, "task": "recognition"})
    assert jaxsens.training.TrainConfig.from_table(config.table()) == config


def test_the_law_of_even_parity_is_that_of_the_class_given_more_than_no_symbols():
    """The class weighs words otherwise; the formula's law has its closed form from two states."""
    language = made("odd(#L[Q_1])", end_probability=0.25)
    # g(odd) = e + (1 - e)/2 (g(odd) + g(even)), g(even) = (1 - e)/2 (g(odd) + g(even))
    e = 0.25
    even, odd = np.linalg.solve([[1 - (1 - e) / 2, -(1 - e) / 2], [-(1 - e) / 2, 1 - (1 - e) / 2]], [0, e])
    laws = language.next_probabilities(np.array([1]))
    go = (1 - e) / 2
    np.testing.assert_allclose(laws[0], [go, go * odd / even, 0])
    np.testing.assert_allclose(laws[1], [go, go * even / odd, e / odd])


def test_settings_make_an_equal_language_and_refuse_predicates_of_ones_own():
    language = made("odd(#L[Q_1]) & last", end_probability=0.3)
    assert language.settings["formula"] == "odd(#L[Q_1]) & last"
    assert jaxsens.language(**language.settings) == language
    assert hash(jaxsens.language(**language.settings)) == hash(language)
    own = logic.PredicateFamily("odd", (), lambda value, length: value == 7)
    strange = jaxsens.language(logic.PositionPredicate(own()), "01")
    with refusal("formula"):
        _ = strange.settings


def test_errors_name_every_argument():
    wrong = {"formula": "Q_2 &", "alphabet": "0", "end_probability": 2}
    assert "expected" in refused("formula alphabet end_probability", jaxsens.language, "formula", **wrong)
    refused("formula", made, "Q_0 & Q_1")
    refused("formula", jaxsens.language, "formula", alphabet="01")
    for path, arguments in (
        ("formula", (logic.Symbol("2"), "01")),
        ("name", ("#L[Q_1] > 0", "01")),
        ("alphabet", ("parity", "01")),
    ):
        refused(path, jaxsens.language, *arguments)
