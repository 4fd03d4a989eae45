"""What is sampled has the law stated: chi-squared tests against exact probabilities, with fixed seeds.

What cannot be used is refused, with every problem named.
"""

from __future__ import annotations

from collections import Counter
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from scipy.stats import chisquare

import jaxsens
from jaxsens import InputError
from jaxsens.formal.languages.base import draw
from jaxsens.languages import NAMES, Language
from tests.formal.languages.cases import CASES, LONGEST_PREFIX, LONGEST_WORD
from tests.refusals import refused

LAWS = sorted(CASES)
DRAWS = 20_000


def fits(samples, law: dict) -> None:
    """Fails if something impossible was drawn, or if the frequencies of the rest are improbable: 1 in a million."""
    counts = Counter(samples)
    assert set(counts) <= set(law)
    total = sum(law.values())
    keys = sorted(law, key=lambda key: law[key], reverse=True)
    expected = np.array([float(law[key]) / float(total) for key in keys]) * len(samples)
    observed = np.array([counts[key] for key in keys], float)
    rare = int(np.searchsorted(-expected, -5.0))  # classes that expect fewer than 5 are taken together
    if expected[rare:].sum() >= 5:
        expected = np.append(expected[:rare], expected[rare:].sum())
        observed = np.append(observed[:rare], observed[rare:].sum())
    else:
        expected, observed = expected[:rare], observed[:rare]
    if len(expected) > 1:
        assert chisquare(observed, expected * observed.sum() / expected.sum()).pvalue > 1e-6


def rows(tokens) -> list[tuple[int, ...]]:
    return [tuple(row) for row in tokens.tolist()]


@pytest.mark.quick(27)
@pytest.mark.parametrize("name", LAWS)
@pytest.mark.parametrize("n", [0, 1, 2, 3, 4, 7, 8, 12])
def test_prefixes_have_the_law_of_words_that_have_so_many_symbols(name, n):
    language, machine = CASES[name]
    n = min(n, LONGEST_PREFIX[name])
    law = {prefix: float(weight) for prefix, (weight, _) in machine.prefixes(n).items()}
    fits(rows(language.sample_prefixes(DRAWS, n, np.random.default_rng(n))), law)


@pytest.mark.quick(9)
@pytest.mark.parametrize("name", LAWS)
@pytest.mark.parametrize("longest", [6, 10])
def test_words_have_their_law_given_that_they_are_short(name, longest):
    language, machine = CASES[name]
    words = language.sample_words(DRAWS, np.random.default_rng(longest), longest=longest)
    assert (words.tokens.shape[1], words.lengths.shape) == (words.lengths.max(), (DRAWS,))
    assert words.tokens.dtype == np.int32
    drawn = []
    for row, length in zip(words.tokens.tolist(), words.lengths.tolist(), strict=True):
        assert set(row[length:]) <= {language.end}
        drawn.append(tuple(row[:length]))
    fits(drawn, machine.words(longest))


@pytest.mark.parametrize("name", [name for name in LAWS if name not in ("dyck-1", "dyck-3")])
def test_words_without_a_bound_have_the_lengths_of_the_law(name):
    language, _ = CASES[name]
    lengths = language.sample_words(DRAWS, np.random.default_rng(2)).lengths
    law = language.length_probabilities(max(400, int(lengths.max())))
    fits(lengths.tolist(), dict(enumerate(law.tolist())))


@pytest.mark.quick(9)
@pytest.mark.parametrize("name", LAWS)
@pytest.mark.parametrize("n", [4, 8])
def test_labelled_words_are_members_by_the_law_and_near_misses_each_half_of_the_time(name, n):
    language, machine = CASES[name]
    members = {word: weight for word, weight in machine.words(LONGEST_WORD[name]).items() if len(word) == n}
    tokens, labels = language.sample_labelled(DRAWS, n, np.random.default_rng(n))
    assert labels.sum() == DRAWS // 2
    assert language.member(tokens).tolist() == labels.tolist()
    fits(rows(tokens[labels]), members)
    misses = Counter()
    for word, weight in members.items():
        near = machine.near_misses(word)
        misses.update(dict.fromkeys(near, weight / len(near)))
    assert not any(map(machine.member, misses))
    fits(rows(tokens[~labels]), misses)


@pytest.mark.parametrize("name", LAWS)
def test_labels_come_in_no_order_and_an_odd_number_is_shared_by_a_coin(name):
    language, _ = CASES[name]
    draws = [language.sample_labelled(7, 4, np.random.default_rng(seed))[1] for seed in range(60)]
    assert {int(labels.sum()) for labels in draws} == {3, 4}
    first = np.mean([labels[0] for labels in draws])
    assert 0.2 < first < 0.8


@pytest.mark.parametrize(
    ("name", "n"), [("2dyck", 5), ("equal-blocks", 5), ("flip-flop", 2), ("flip-flop", 7)]
)
def test_lengths_without_members_give_prefixes_labelled_false(name, n):
    language, machine = CASES[name]
    tokens, labels = language.sample_labelled(DRAWS, n, np.random.default_rng(0))
    assert not labels.any()
    assert not language.member(tokens).any()
    fits(rows(tokens), {prefix: float(weight) for prefix, (weight, _) in machine.prefixes(n).items()})


@pytest.mark.parametrize("name", LAWS)
def test_the_empty_word_is_labelled_as_what_it_is_and_no_words_at_all_can_be_asked_for(name):
    language, machine = CASES[name]
    tokens, labels = language.sample_labelled(3, 0, np.random.default_rng(0))
    assert tokens.shape == (3, 0)
    assert labels.tolist() == [machine.member(())] * 3
    generator = np.random.default_rng(0)
    assert language.sample_prefixes(0, 5, generator).shape == (0, 5)
    assert [array.shape for array in language.sample_words(0, generator, longest=6)] == [(0, 0), (0,)]
    assert [array.shape for array in language.sample_labelled(0, 4, generator)] == [(0, 4), (0,)]
    assert language.next_probabilities(np.zeros((0, 5), int)).shape == (0, 6, language.outcomes)
    assert language.member(np.zeros((2, 0, 3), int)).shape == (2, 0)


@pytest.mark.parametrize("name", LAWS)
def test_samples_are_determined_by_the_generator_and_differ_between_seeds(name):
    language, _ = CASES[name]

    def samples(seed):
        generator = np.random.default_rng(seed)
        words = language.sample_words(20, generator, longest=12)
        labelled = language.sample_labelled(20, 12, generator)
        return [*words, language.sample_prefixes(20, 13, generator), *labelled]

    same = [np.array_equal(a, b) for a, b in zip(samples(1), samples(1), strict=True)]
    other = [np.array_equal(a, b) for a, b in zip(samples(1), samples(2), strict=True)]
    assert all(same)
    # Words, their lengths, prefixes, labelled words, labels. The prefix of one-star is all 1s, whatever is drawn.
    assert [k for k, equal in enumerate(other) if equal] == ([2] if name == "one-star" else [])


@pytest.mark.parametrize("name", LAWS)
def test_samples_too_large_for_one_part_are_made_in_parts(name, monkeypatch):
    language, machine = CASES[name]
    monkeypatch.setattr("jaxsens.formal.languages.base.CELLS", 50)
    law = {prefix: float(weight) for prefix, (weight, _) in machine.prefixes(4).items()}
    fits(rows(language.sample_prefixes(2003, 4, np.random.default_rng(3))), law)


def test_what_is_impossible_is_not_drawn_even_at_the_ends_of_the_unit_interval():
    generator = Mock(np.random.Generator)
    generator.random.return_value = np.array([0.0, np.nextafter(0.5, 0), 0.5, np.nextafter(1, 0)])
    law = np.array([0.0, 0.25, 0.0, 0.25, 0.0])  # as a law cut off need not add up to 1
    assert draw(law, 4, generator).tolist() == [1, 1, 3, 3]


@pytest.mark.parametrize("name", sorted(CASES))
def test_settings_give_the_language_again(name):
    language, _ = CASES[name]
    assert jaxsens.language(**language.settings) == language
    assert language.settings["name"] in NAMES
    assert repr(jaxsens.language("dyck", kinds=np.int64(3)).settings["kinds"]) == "3"


@pytest.mark.parametrize("name", NAMES)
def test_every_name_makes_a_language_with_default_options(name):
    language = jaxsens.language(name, **({"formula": "Q_a", "alphabet": "ab"} if name == "formula" else {}))
    assert isinstance(language, Language)
    assert language.outcomes == language.end + 1 == len(language.alphabet) + 1
    assert len(set(language.alphabet)) == len(language.alphabet)


def test_the_alphabet_of_dyck_has_opening_brackets_first_in_the_order_of_the_constructions():
    from jaxsens.formal.logic.library import brackets

    for kinds in (1, 2, 6):
        assert jaxsens.language("dyck", kinds=kinds).alphabet == brackets(kinds)


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        ({"name": "no-such"}, "name"),
        ({"name": "parity", "p": 0.1}, "p"),
        ({"name": "2dyck", "kinds": 2}, "kinds"),
        ({"name": "parity", "end_probability": 1}, "end_probability"),
        ({"name": "majority", "end_probability": True}, "end_probability"),
        ({"name": "one-star", "end_probability": "0.1"}, "end_probability"),
        ({"name": "equal-blocks", "stop_probability": float("nan")}, "stop_probability"),
        ({"name": "dyck", "kinds": 0, "open_probability": 0.0}, "kinds open_probability"),
        ({"name": "flip-flop", "ignore_probability": 2, "end_probability": -1}, "ignore_probability end_probability"),
        ({"name": "set-complement", "size": 1}, "size"),
        ({"name": "set-complement", "size": 63}, "size"),
    ],
)  # fmt: skip
def test_bad_options_are_refused(arguments, names):
    refused(names, jaxsens.language, **arguments)


def test_bad_counts_lengths_generators_and_symbols_are_refused_together():
    parity = jaxsens.language("parity")
    for method in (parity.sample_prefixes, parity.sample_labelled):
        refused("count generator n", method, -1, 2.5, 7)
    for tokens in ([[0, 2]], [[-1, 0]], [[0.5]], 1, [["0"]]):
        with pytest.raises(InputError, match="parity: tokens"):
            parity.member(np.array(tokens))


@pytest.mark.parametrize("name", sorted(CASES))
def test_lengths_below_zero_are_refused_and_numpys_whole_numbers_mean_the_same_as_pythons(name):
    for method in ("marginal", "optimal_cross_entropy", "unigram_cross_entropy", "chance_cross_entropy"):
        refused("n", getattr(CASES[name][0], method), -1)
    language, n = CASES[name][0], 120  # n + n is beyond int8
    as_numpy: Any = np.int8
    for method in ("marginal", "optimal_cross_entropy", "chance_cross_entropy", "length_probabilities"):
        np.testing.assert_array_equal(getattr(language, method)(as_numpy(n)), getattr(language, method)(n))
    mine, its = (
        language.sample_labelled(count, length, np.random.default_rng(0))
        for count, length in ((4, n), (as_numpy(4), as_numpy(n)))
    )
    np.testing.assert_array_equal(mine[0], its[0])
    refused("n", language.marginal, np.bool_(True))


@pytest.mark.parametrize("name", sorted(CASES))
def test_symbols_of_any_integer_type_mean_the_same(name):
    """Differences of unsigned numbers wrap around: none may be taken."""
    language, _ = CASES[name]
    symbols, n = len(language.alphabet), 4
    words = np.stack(np.meshgrid(*[np.arange(symbols)] * n, indexing="ij"), axis=-1).reshape(-1, n)
    prefixes = language.sample_prefixes(50, 8, np.random.default_rng(0))
    expected = language.next_probabilities(prefixes)
    for dtype in (np.uint8, np.uint32, np.uint64, np.int8):
        if name == "flip-flop":
            assert not language.member(np.array([0, 0, 1, 4], dtype))
        np.testing.assert_array_equal(language.member(words.astype(dtype)), language.member(words))
        np.testing.assert_array_equal(language.next_probabilities(prefixes.astype(dtype)), expected)
        for word in words[:: max(1, len(words) // 40)]:
            assert begins(language, word.astype(dtype)) == begins(language, word)


def begins(language: Language, word: np.ndarray) -> bool:
    try:
        language.last_probabilities(word)
    except InputError:
        return False
    return True


@pytest.mark.parametrize(
    ("name", "rows", "message"),
    [
        ("2dyck", [[0, 2, 0], [0, 3, 0]], r"first 2 symbols of row \(1,\), which end in '\(\]'"),
        ("equal-blocks", [[0, 1, 0]], r"first 3 symbols of row \(0,\), which end in 'aba'"),
        ("flip-flop", [[[0, 3, 1, 4]]], r"first 4 symbols of row \(0, 0\), which end in 'w0r1'"),
        ("one-star", [[1, 0, 1]], "first 2 symbols"),
    ],
)
def test_what_begins_no_word_has_no_next_symbol(name, rows, message):
    for method in ("next_probabilities", "last_probabilities"):
        with pytest.raises(InputError, match=message):
            getattr(jaxsens.language(name), method)(np.array(rows))


@pytest.mark.parametrize("p", [0.5, 0.6])
def test_words_that_may_be_endless_need_a_bound_that_some_word_keeps(p):
    dyck, flip_flop = jaxsens.language("2dyck", open_probability=p), jaxsens.language("flip-flop")
    generator = np.random.default_rng(0)
    refused("longest", dyck.sample_words, 1, generator)
    refused("longest", flip_flop.sample_words, 1, generator, longest=3)
    assert dyck.sample_words(50, generator, longest=8).lengths.max() <= 8
