"""Membership, laws of the next symbol and cross-entropies, against enumeration of all words and prefixes."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxsens.languages import Dyck, EqualBlocks, Majority, OneStar, Parity
from tests.formal.languages import machines
from tests.formal.languages.cases import CASES, LONGEST_PREFIX, LONGEST_WORD, array
from tests.lanes import examples

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


@pytest.mark.quick(9)
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
