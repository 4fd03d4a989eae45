"""What cannot be used is refused, with every problem named; and a language is told by its settings."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import jaxsens
from jaxsens.core.base.errors import InputError
from jaxsens.languages import NAMES, Language
from tests.formal.languages.cases import CASES
from tests.refusals import refused


@pytest.mark.parametrize("name", sorted(CASES))
def test_settings_give_the_language_again(name):
    language, _ = CASES[name]
    assert jaxsens.language(**language.settings) == language
    assert language.settings["name"] in NAMES


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


@pytest.mark.parametrize("method", ["sample_prefixes", "sample_labelled"])
def test_bad_counts_lengths_and_generators_are_refused_together(method):
    refused("count generator n", getattr(jaxsens.language("parity"), method), -1, 2.5, 7)


@pytest.mark.parametrize("name", sorted(CASES))
def test_lengths_below_zero_are_refused(name):
    for method in ("marginal", "optimal_cross_entropy", "unigram_cross_entropy", "chance_cross_entropy"):
        refused("n", getattr(CASES[name][0], method), -1)


@pytest.mark.parametrize("name", sorted(CASES))
def test_whole_numbers_of_numpy_mean_the_same_as_pythons(name):
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


def test_the_settings_of_a_language_are_plain_numbers():
    assert repr(jaxsens.language("dyck", kinds=np.int64(3)).settings["kinds"]) == "3"


@pytest.mark.parametrize("tokens", [[[0, 2]], [[-1, 0]], [[0.5]], 1, [["0"]]])
def test_what_are_no_symbols_is_refused(tokens):
    with pytest.raises(InputError, match="parity: tokens"):
        jaxsens.language("parity").member(np.array(tokens))


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
