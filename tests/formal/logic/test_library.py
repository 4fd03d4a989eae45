"""Every named formula against its plain definition, on all words up to length 8 (6 for alphabets of more than two)."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from jaxsens import logic
from tests.formal.logic import definitions
from tests.refusals import refusal, refused

ENTRIES = list(logic.LIBRARY.values())


def all_words(alphabet, longest):
    for length in range(1, longest + 1):
        yield length, list(product(alphabet, repeat=length))


def truths(formula, words, alphabet):
    tokens = np.array([[alphabet.index(symbol) for symbol in word] for word in words])
    return logic.evaluate_tokens(formula, tokens, alphabet)


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_a_named_formula_says_what_its_definition_says(entry):
    seen = set()
    for length, words in all_words(entry.alphabet, 8 if len(entry.alphabet) == 2 else 6):
        measured = truths(entry.formula, words, entry.alphabet)
        first = 1 if entry.positions == "every" else length
        for word, values in zip(words, measured, strict=True):
            expected = [definitions.DEFINITIONS[entry.name](word, i) for i in range(first, length + 1)]
            assert values[first - 1 :].tolist() == expected, word
            seen |= set(expected)
    assert seen == {True, False}  # a definition that is constant would compare nothing


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_a_named_formula_reads_back_and_is_described(entry):
    assert logic.parse(str(entry.formula), entry.alphabet) == entry.formula
    assert entry.description
    assert logic.formula(entry.name) is entry.formula


@pytest.mark.parametrize("gram", ["a", "ab", "bba", "abab"])
def test_n_grams_of_any_length_in_both_directions(gram):
    ends, begins = logic.n_gram(gram), logic.n_gram(gram, ahead=True)
    for length, words in all_words("ab", 6):
        for word, ending, beginning in zip(
            words, truths(ends, words, "ab"), truths(begins, words, "ab"), strict=True
        ):
            positions = range(1, length + 1)
            assert ending.tolist() == [definitions.ends_with(*gram)(word, i) for i in positions]
            assert beginning.tolist() == [definitions.begins_with(*gram)(word, i) for i in positions]


@pytest.mark.parametrize("hops", [1, 2, 3])
def test_at_most_one_output_of_a_hop_is_true(hops):
    outputs = [logic.hop_induction(hops, output, "ab") for output in "ab"]
    for length, words in all_words("ab", 7):
        values = [truths(formula, words, "ab") for formula in outputs]
        assert not (values[0] & values[1]).any()
        for output, measured in zip("ab", values, strict=True):
            expected = [
                [definitions.hop(hops, output)(word, i) for i in range(1, length + 1)] for word in words
            ]
            assert measured.tolist() == expected


@pytest.mark.parametrize("largest", [1, 3])
def test_bounded_depth_is_counted_in_open_brackets(largest):
    formula = logic.dyck_1(largest)
    nested = "(" * largest + ")" * largest
    assert logic.satisfies(formula, nested)
    assert not logic.satisfies(formula, f"({nested})")
    assert logic.satisfies(logic.dyck_1(), f"({nested})")


def test_an_unknown_name_and_unusable_parameters_are_refused():
    assert "the library has parity, " in refused("name", logic.formula, "partiy")
    with refusal("hops"):
        logic.hop_induction(0, "a", "ab")
    with refusal("output"):
        logic.hop_induction(1, "z", "ab")
    with refusal(""):
        logic.n_gram("")
    for depth in (0, "2"):
        with refusal("largest_depth"):
            logic.dyck_1(depth)  # pyright: ignore[reportArgumentType]
    with refusal("hops", "output"):
        logic.hop_induction("2", 3, "abc")  # pyright: ignore[reportArgumentType]
