"""The evaluator against the definitions, and every named formula against its own, on all short words."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from operator import eq, ge, gt, le, lt, ne
from random import Random

import numpy as np
import pytest

import jaxsens
from jaxsens import InputError, logic
from jaxsens.formal.logic.formulas import Unary
from tests.formal.logic import brute_force
from tests.formal.logic.brute_force import truth
from tests.formal.logic.random_formulas import random_formula
from tests.refusals import refusal, refused


@pytest.mark.quick(5)
@pytest.mark.parametrize("seed", range(10))
def test_random_formulas_mean_what_the_definitions_say_on_all_words_up_to_length_6(seed):
    random = Random(seed)
    formulas = [random_formula(random, depth=1 + number % 3) for number in range(40)]
    used = frozenset().union(*map(logic.operators, formulas))
    assert used == {"Y", "X", "S", "U", "#L", "#R"}
    for length in range(1, 7):
        words = list(product("ab", repeat=length))
        tokens = np.array([["ab".index(symbol) for symbol in word] for word in words])
        for formula in formulas:
            measured = logic.evaluate_tokens(formula, tokens, "ab")
            expected = [truth(formula, word) for word in words]
            assert measured.tolist() == expected, str(formula)


@pytest.mark.parametrize(
    ("text", "word", "expected"),
    [
        ("Q_a", "aba", "101"),
        ("Y Q_a", "aba", "010"),
        ("X Q_a", "abaa", "0110"),
        ("Q_a S Q_b", "aabaacaa", "00111000"),  # the c ends it
        ("Q_a U Q_b", "caab", "0111"),
        ("true S Q_b", "aba", "011"),
        ("false S Q_b", "aba", "010"),  # non-strict: it holds where its right side holds, whatever the left
        ("#L[Q_a] = 2", "abab", "0011"),
        ("#R[Q_a] = 2", "abab", "1000"),
        ("2*#L[Q_a] - #R[Q_b] >= 1", "abab", "0011"),
        ("first", "aaa", "100"),
        ("last", "aaa", "001"),
        ("middle", "aaaa", "0100"),
        ("odd", "aaaa", "1010"),
        ("mod(3, 2)", "aaaaa", "01001"),
        ("exactly(4)", "aaaaa", "00010"),
        ("square", "aaaaaaaaa", "100100001"),
        ("prime", "aaaaaaa", "0110101"),
        ("even(#L[Q_a])", "baa", "101"),  # theta(0)
        ("true", "", ""),
    ],
)
def test_each_operator_on_an_example(text, word, expected):
    values = logic.evaluate(logic.parse(text), word)
    assert values.dtype == np.bool_
    assert "".join("01"[int(value)] for value in values) == expected


RELATIONS = {"<": lt, "<=": le, "=": eq, "!=": ne, ">=": ge, ">": gt}


@pytest.mark.parametrize("relation", RELATIONS)
def test_each_relation_compares_the_numbers_on_its_two_sides(relation):
    formula = logic.parse(f"2*#L[Q_a] - #R[Q_b] + 1 {relation} #L[Q_b] - #R[Q_c] - 1")
    seen = set()
    for word in product("abc", repeat=4):
        for i, value in enumerate(logic.evaluate(formula, word)):
            so_far, from_here = word[: i + 1], word[i:]
            left = 2 * so_far.count("a") - from_here.count("b") + 1
            assert value == RELATIONS[relation](left, so_far.count("b") - from_here.count("c") - 1)
            seen.add(bool(value))
    assert seen == {True, False}


def test_words_in_a_batch_are_independent_and_keep_their_shape():
    random = Random(3)
    tokens = np.array([[random.randrange(3) for _ in range(7)] for _ in range(6)]).reshape(2, 3, 7)
    for _ in range(40):
        formula = random_formula(random, depth=3, alphabet="abc")
        together = logic.evaluate_tokens(formula, tokens, "abc")
        assert together.shape == (2, 3, 7)
        for place in np.ndindex(2, 3):
            word = ["abc"[token] for token in tokens[place]]
            assert together[place].tolist() == logic.evaluate(formula, word).tolist()


def test_formulas_deeper_than_the_stack_or_of_exponential_text_are_cheap():
    formula: logic.Formula = logic.Symbol("a")
    for _ in range(5000):
        formula = ~formula
    assert logic.evaluate(formula, "ab").tolist() == [True, False]
    formula = logic.hop_induction(60, "a", "abc")
    assert len(logic.subformulas(formula)) < 60 * 15
    assert logic.evaluate(formula, "abcabc").shape == (6,)


def test_a_word_satisfies_what_is_true_at_its_last_position():
    assert logic.satisfies(logic.parse("Y Q_a"), "bab")
    assert not logic.satisfies(logic.parse("Y Q_a"), "aba")
    refused("", logic.satisfies, logic.TRUE, "")


def test_symbols_names_and_parameters_that_cannot_be_used_are_refused_together():
    unknown = logic.parse("Q_x & Q_a | Q_y"), np.array([0, 2]), "ab"
    assert "'x', 'y'" in refused("formula tokens", logic.evaluate_tokens, *unknown)
    refused("tokens", logic.evaluate_tokens, logic.TRUE, np.array([0.0]), "ab")
    refused("formula", logic.evaluate_tokens, "Q_a", np.array([0]), "ab")
    for call in (logic.evaluate, logic.satisfies):
        refused("formula", call, None, "ab")
        refused("word", call, logic.TRUE, None)
    refused("word", logic.evaluate, logic.TRUE, [0, 1])
    assert "the library has parity, " in refused("name", logic.formula, "partiy")
    refused("hops", logic.hop_induction, 0, "a", "ab")
    refused("output", logic.hop_induction, 1, "z", "ab")
    with refusal(""):
        logic.n_gram("")
    for depth in (0, "2"):
        refused("largest_depth", logic.dyck_1, depth)  # pyright: ignore[reportArgumentType]
    refused("hops output", logic.hop_induction, "2", 3, "abc")  # pyright: ignore[reportArgumentType]


class Maybe(Unary):
    """A formula that came later."""


@dataclass(frozen=True)
class CountNear(logic.Count):
    sign = "#N"


def test_kinds_without_a_rule_are_refused_by_name():
    maybe, near = Maybe(logic.Symbol("a")), CountNear(logic.Symbol("a")) >= 1
    for call, formula, kind in (
        (logic.evaluate, maybe, "formula Maybe"),
        (logic.evaluate, near, "count CountNear"),
        (jaxsens.compile_formula, ~maybe, "formula Maybe"),
    ):
        with pytest.raises(InputError, match=f"{call.__name__} has no rule for the {kind}"):
            call(formula, "ab")


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
            expected = [brute_force.DEFINITIONS[entry.name](word, i) for i in range(first, length + 1)]
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
            assert ending.tolist() == [brute_force.ends_with(*gram)(word, i) for i in positions]
            assert beginning.tolist() == [brute_force.begins_with(*gram)(word, i) for i in positions]


@pytest.mark.parametrize("hops", [1, 2, 3])
def test_at_most_one_output_of_a_hop_is_true(hops):
    outputs = [logic.hop_induction(hops, output, "ab") for output in "ab"]
    for length, words in all_words("ab", 7):
        values = [truths(formula, words, "ab") for formula in outputs]
        assert not (values[0] & values[1]).any()
        for output, measured in zip("ab", values, strict=True):
            expected = [
                [brute_force.hop(hops, output)(word, i) for i in range(1, length + 1)] for word in words
            ]
            assert measured.tolist() == expected


@pytest.mark.parametrize("largest", [1, 3])
def test_bounded_depth_is_counted_in_open_brackets(largest):
    formula = logic.dyck_1(largest)
    nested = "(" * largest + ")" * largest
    assert logic.satisfies(formula, nested)
    assert not logic.satisfies(formula, f"({nested})")
    assert logic.satisfies(logic.dyck_1(), f"({nested})")
