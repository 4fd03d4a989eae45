"""Languages: laws, members, samples and cross-entropies, against enumeration."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jaxsens
from jaxsens import InputError, logic
from jaxsens.languages import Dyck, EqualBlocks, FormulaLanguage, Majority, OneStar, Parity
from tests.formal.constructions.many_words import every_word
from tests.formal.languages import machines
from tests.formal.languages.cases import CASES, LONGEST_PREFIX, LONGEST_WORD, array
from tests.lanes import examples
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


def test_lengths_without_members_or_without_others_have_one_label_and_rare_members_are_an_error():
    none = made("#L[Q_1] = #L[Q_0]")
    tokens, labels = none.sample_labelled(10, 5, np.random.default_rng(0))
    assert not labels.any()
    assert len(np.unique(tokens, axis=0)) > 5
    assert not none.has_members(5)
    refused("n", none.sample_members, 1, 5, np.random.default_rng(0))
    every = made("true S (Q_0 | Q_1)")
    tokens, labels = every.sample_labelled(10, 5, np.random.default_rng(0))
    assert labels.all()
    assert len(np.unique(tokens, axis=0)) > 5
    language = made("#R[#L[Q_1] >= 1] = 1 & #L[Q_0 & !Y Q_0] = 1")
    refused("n", language.sample_members, 1, 60, np.random.default_rng(0))


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


NAMES = sorted(CASES)


def same(found, expected) -> None:
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_membership_is_right_for_all_short_strings(name):
    language, machine = CASES[name]
    symbols = len(language.alphabet)
    for n in range(13 if symbols == 2 else 7 if symbols < 6 else 5):
        strings = array(product(range(symbols), repeat=n), n)
        expected = [machine.member(tuple(string)) for string in strings.tolist()]
        assert language.member(strings).tolist() == expected


@pytest.mark.parametrize("name", NAMES)
def test_probabilities_multiplied_along_a_word_give_the_words_probability(name):
    language, machine = CASES[name]
    words = machine.words(LONGEST_WORD[name])
    for n in range(LONGEST_WORD[name] + 1):
        tokens = array((word for word in words if len(word) == n), n)
        laws = language.next_probabilities(tokens)
        taken = np.pad(tokens, ((0, 0), (0, 1)), constant_values=language.end)
        product_along = np.take_along_axis(laws, taken[..., None], axis=-1)[..., 0].prod(axis=-1)
        expected = [machine.word_probability(tuple(word)) for word in tokens.tolist()]
        np.testing.assert_allclose(product_along, expected, rtol=1e-12)
        np.testing.assert_allclose([words[tuple(word)] for word in tokens.tolist()], expected, rtol=1e-12)


@settings(max_examples=examples(60), deadline=None)
@given(
    name=st.sampled_from(["parity", "2dyck", "one-star", "equal-blocks", "majority"]),
    p=st.floats(0.05, 0.95),
    seed=st.integers(0, 2**32),
)
def test_words_of_any_length_have_their_probability_and_their_laws_add_up_to_one(name, p, seed):
    of_law = {
        "parity": (Parity(p), machines.parity),
        "2dyck": (Dyck(2, p), lambda p: machines.dyck(2, p)),
        "one-star": (OneStar(p), machines.one_star),
        "equal-blocks": (EqualBlocks(p), machines.equal_blocks),
        "majority": (Majority(p), machines.majority),
    }
    language, machine = of_law[name][0], of_law[name][1](p)
    words = language.sample_words(5, np.random.default_rng(seed), longest=150)
    for row, length in zip(words.tokens, words.lengths, strict=True):
        word = row[:length]
        laws = language.next_probabilities(word)
        same(laws.sum(axis=-1), np.ones(length + 1))
        along = laws[np.arange(length + 1), np.append(word, language.end)].prod()
        np.testing.assert_allclose(along, machine.word_probability(tuple(word.tolist())), rtol=1e-10)


@pytest.mark.parametrize("name", NAMES)
def test_lengths_have_the_probabilities_of_all_their_words_together(name):
    language, machine = CASES[name]
    longest = LONGEST_WORD[name]
    expected = np.zeros(longest + 1)
    for word, weight in machine.words(longest).items():
        expected[len(word)] += weight
    same(language.length_probabilities(longest), expected)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "dyck-1"])
def test_lengths_add_up_to_one_where_words_are_finite_with_certainty(name):
    language, _ = CASES[name]
    tail = 1e-3 if name == "dyck-3" else 1e-12  # at p = 1/2, P(length > n) falls like 1/sqrt(n)
    assert 1 - tail < language.length_probabilities(2**21).sum() < 1 + 1e-12


def test_words_of_a_grammar_that_opens_more_than_it_closes_never_end_with_the_right_probability():
    language, _ = CASES["dyck-1"]  # p = 5/8: the derivation dies out with probability (1 - p)/p
    np.testing.assert_allclose(language.length_probabilities(4000).sum(), 0.6, rtol=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_the_law_after_every_prefix_is_the_machines(name):
    language, machine = CASES[name]
    n = LONGEST_PREFIX[name] - 1
    prefixes = machine.prefixes(n)
    tokens = np.array(list(prefixes), np.int64)
    expected = np.array([machine.law(state, language.outcomes) for _, state in prefixes.values()])
    laws = language.next_probabilities(tokens)
    same(laws[:, -1], expected)
    np.testing.assert_allclose(laws.sum(axis=-1), 1, rtol=1e-12)
    np.testing.assert_array_equal(language.last_probabilities(tokens), laws[:, -1])
    # and after each of its prefixes, in any shape of batch
    one = tokens[len(tokens) // 2]
    for t in range(n + 1):
        np.testing.assert_array_equal(
            language.next_probabilities(one[None, None, :t])[0, 0, -1], laws[len(tokens) // 2, t]
        )


@pytest.mark.parametrize("name", NAMES)
def test_marginal_and_cross_entropies_are_those_of_all_prefixes_weighted(name):
    language, machine = CASES[name]
    for n in range(LONGEST_PREFIX[name] + 1):
        prefixes = machine.prefixes(n).values()
        weights = np.array([float(weight) for weight, _ in prefixes])
        weights /= weights.sum()
        laws = np.array([machine.law(state, language.outcomes) for _, state in prefixes])
        marginal = weights @ laws
        logs = np.log(laws, out=np.zeros_like(laws), where=laws > 0)
        average = marginal[marginal > 0]
        same(language.marginal(n), marginal)
        same(language.optimal_cross_entropy(n), -weights @ (laws * logs).sum(1))
        same(language.unigram_cross_entropy(n), -average @ np.log(average))
        assert language.chance_cross_entropy(n) == np.log(len(language.alphabet) + 1)


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("n", [99_999, 100_000])
def test_long_words_have_laws_too(name, n):
    language, _ = CASES[name]
    prefixes = language.sample_prefixes(2, n, np.random.default_rng(5))
    assert prefixes.shape == (2, n)
    assert prefixes.dtype == np.int32
    np.testing.assert_allclose(language.last_probabilities(prefixes).sum(axis=-1), 1, rtol=1e-12)
    np.testing.assert_allclose(language.marginal(n).sum(), 1, rtol=1e-12)
    optimum, unigram = language.optimal_cross_entropy(n), language.unigram_cross_entropy(n)
    assert 0 <= optimum <= unigram + 1e-12 <= language.chance_cross_entropy(n) + 2e-12
    words = language.sample_words(3, np.random.default_rng(6), longest=3000)
    for word, length in zip(words.tokens, words.lengths, strict=True):
        assert language.member(word[:length]).item() is True
