"""The compiler against the evaluator, which is its specification: at every position of every word, exactly."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import lru_cache
from random import Random
from typing import Any

import numpy as np
import pytest
from jax import tree

import jaxsens
from jaxsens import InputError, compile_formula
from jaxsens.core.base.errors import Problems
from jaxsens.core.models.parts.weighting import AverageHard
from jaxsens.formal.constructions.compiler import CompiledTransformer
from jaxsens.formal.constructions.conditions import Condition, refuse
from jaxsens.logic import (
    LIBRARY,
    CountComparison,
    Formula,
    PositionPredicate,
    PredicateFamily,
    evaluate_tokens,
    formula,
    hop_induction,
    parse,
)
from tests import reference
from tests.formal.constructions.many_words import SUMMED, activations, trace, wrong_values
from tests.formal.logic.random_formulas import OPERATORS, random_formula
from tests.refusals import refused

EXACT = ("temperature", "unbounded", "temperature-bounded", "average-hard", "leftmost-hard", "rightmost-hard")
FRAGMENTS = (OPERATORS, ("Y", "S"), ("Y", "S", "#L"), ("#L",), ("Y", "X", "S", "U"), ("#L", "#R"))


def words(symbols: int, n: int, most: int = 512, seed: int = 0) -> np.ndarray:
    """All words of a length, or random ones where there are more than `most`."""
    if symbols**n <= most:
        return np.array(list(itertools.product(range(symbols), repeat=n)))
    return np.random.default_rng(seed).integers(0, symbols, size=(most, n))


@lru_cache(maxsize=256)  # every named formula in every condition, for all tests
def compiled(source: Formula, alphabet, condition: str, autoregressive: bool) -> CompiledTransformer | None:
    """The model, or None where the condition does not promise this formula; there is no other reason to have none."""
    problems = Problems(condition)
    refuse(source, Condition(condition, autoregressive), problems)  # pyright: ignore[reportArgumentType]
    if problems:
        return None
    return compile_formula(source, alphabet, condition, autoregressive=autoregressive)  # pyright: ignore[reportArgumentType]


def wrong(model: CompiledTransformer, source: Formula, tokens: np.ndarray) -> int:
    """At how many positions of all these words together the output is not the truth value."""
    y = activations(model.config, model.parameters, tokens)[..., model.output]
    return wrong_values(y, evaluate_tokens(source, tokens, model.alphabet))


@pytest.mark.quick(4, 13)
@pytest.mark.parametrize("name", LIBRARY)
def test_named_formulas_equal_the_evaluator_at_every_position(name):
    """In every condition that promises it; which those are, the next test says."""
    entry = LIBRARY[name]
    for condition, autoregressive in itertools.product(EXACT, (False, True)):
        model = compiled(entry.formula, entry.alphabet, condition, autoregressive)
        if model is not None:
            for n, most in ((1, 64), (2, 64), (3, 64), (4, 64), (7, 64), (8, 256), (24, 16), (255, 2)):
                found = wrong(model, entry.formula, words(len(entry.alphabet), n, most, seed=n))
                assert found == 0, (condition, autoregressive, n)


def promised() -> set[tuple[str, str, bool]]:
    return {
        (name, condition, autoregressive)
        for name, entry in LIBRARY.items()
        for condition in EXACT
        for autoregressive in (False, True)
        if compiled(entry.formula, entry.alphabet, condition, autoregressive) is not None
    }


@pytest.mark.long
def test_every_named_formula_is_promised_where_the_paper_gives_it():
    """So that no test above is skipped by a compiler that refuses too much."""
    given = promised()
    counting = {
        "parity", "parity-without-predicates", "parity-without-predicates-since", "ones-divisible-by-three", "majority",
        "dyck-1", "dyck-1-depth-2", "equal-blocks",
    }  # fmt: skip
    future = {"parity-without-predicates", "parity-without-predicates-since", "3-gram-ahead"}
    looked_up = {"parity", "ones-divisible-by-three"}
    for name in LIBRARY:
        for condition in EXACT:
            uniform = condition in ("leftmost-hard", "rightmost-hard") and name in counting
            assert ((name, condition, False) in given) == (not uniform), (name, condition)
            without_n = {"unbounded": counting, "temperature-bounded": looked_up}.get(condition, set())
            masked = not (uniform or name in future or name in without_n)
            assert ((name, condition, True) in given) == masked, (name, condition)


@pytest.mark.parametrize(
    ("count", "seed", "lengths", "most"),
    [(12, 0, (1, 2, 5, 8), 32), pytest.param(300, 1, (*range(1, 9), 64), 256, marks=pytest.mark.slow)],
)
def test_random_formulas_equal_the_evaluator_at_every_position(count, seed, lengths, most):
    random, tried = Random(seed), 0
    for k in range(count):
        source = random_formula(random, 3, "ab", operators=FRAGMENTS[k % len(FRAGMENTS)])
        for condition, autoregressive in itertools.product(EXACT, (False, True)):
            model = compiled(source, "ab", condition, autoregressive)
            if model is None:
                continue
            tried += 1
            for n in lengths:
                found = wrong(model, source, words(2, n, most if n < 9 else 4, seed))
                assert found == 0, f"{source} in {condition}, autoregressive {autoregressive}, n = {n}"
    assert tried >= 6 * count


@pytest.mark.parametrize("name", ["parity", "majority", "since", "previous", "equal-blocks", "3-gram-ahead"])
def test_every_head_is_as_near_to_hard_attention_as_its_lemma_says(name):
    """The coordinates that heads write, beside those of the same network with average hard attention."""
    entry = LIBRARY[name]
    for condition, autoregressive in itertools.product(EXACT[:3], (False, True)):
        model = compiled(entry.formula, entry.alphabet, condition, autoregressive)
        if model is None:
            continue
        hard = model.config.replace(weighting=AverageHard())
        largest = 0.0
        for n in (1, 2, 3, 4, 7, 31):
            tokens = words(len(entry.alphabet), n, 64)
            soft, exact = (trace(config, model.parameters, tokens)[1] for config in (model.config, hard))
            for layer, heads in enumerate(model.heads):
                for head in heads:
                    away = np.abs(soft[layer][..., head.target] - exact[layer][..., head.target]).max()
                    assert away <= head.error + 1e-12, (condition, autoregressive, n, layer, head.kind, away)
                    largest = max(largest, away)
        assert 0 < largest <= 1 / 4


@pytest.mark.parametrize("condition", ["temperature", "unbounded", "temperature-bounded"])
def test_parameters_do_not_depend_on_n_and_do_not_grow(condition):
    """All dependence on n is in embeddings and temperature: the largest parameter of any named formula is small."""
    for entry in LIBRARY.values():
        model = compile_formula(entry.formula, entry.alphabet, condition)
        assert max(float(np.abs(leaf).max()) for leaf in tree.leaves(model.parameters)) <= 24, entry.name
        assert model.config.bounded or condition != "temperature-bounded", entry.name


def test_output_is_a_constant_for_constant_formulas():
    for text, value in (("true", 1.0), ("false", 0.0), ("0 >= 1", 0.0), ("#L[Q_a] >= #L[Q_a]", 1.0)):
        model = compile_formula(text, "ab")
        y = activations(model.config, model.parameters, words(2, 5))[..., model.output]
        assert wrong_values(y, np.full(y.shape, value)) == 0, text
        assert model.promise.theorem.startswith("no attention")


def test_shared_subformulas_are_computed_once():
    once = compile_formula("Y Q_a", "ab").config.width
    twice = compile_formula("Y Q_a & !Y Q_a | Y Q_a", "ab").config.width
    assert twice <= once + 3  # a conjunction, a disjunction, and no second search for the neighbour


@pytest.mark.parametrize("sign", ["&", "|"])
def test_a_chain_is_one_hidden_unit_however_long(sign):
    alphabet = [f"s{k}" for k in range(300)]
    model = compile_formula(f" {sign} ".join(f"Q_{name}" for name in alphabet), alphabet)
    assert model.promise.feed_forward == 1
    assert model.config.width <= len(alphabet) + 2
    shared = parse("Q_a & Q_b")
    for _ in range(50):
        shared = shared & shared
    assert compile_formula(shared, "ab").config.width == 3


@pytest.mark.parametrize(
    ("text", "heads"),
    [
        ("Q_a & odd | !Q_a & even", 0),  # one position needs no attention
        (
            "(Q_a & odd) & last | Y (Q_a & odd)",
            1,
        ),  # an inner conjunction that something else reads is made for that
    ],
)
def test_what_is_read_is_made_and_nothing_else(text, heads):
    model = compile_formula(text, "ab")
    assert wrong(model, parse(text), words(2, 6)) == 0
    assert (model.promise.heads > 0) == heads


@pytest.mark.parametrize(
    ("name", "text"),
    [("square", "square(#L[Q_1])"), ("square", "#L[Q_1] >= 2 & square"), ("alternating", "Y Q_1 & alternating"),
     ("fraction", "fraction & Y Q_1"), ("index", "index(#L[Q_1])"), ("length", "length & Y Q_1")],
)  # fmt: skip
def test_predicates_may_be_called_as_position_components_are(name, text):
    source = parse(text, predicates=[PredicateFamily(name, (), is_square)])
    for condition, autoregressive in itertools.product(EXACT, (False, True)):
        model = compiled(source, "01", condition, autoregressive)
        if model is not None:
            assert wrong(model, source, words(2, 5)) == 0, (condition, autoregressive)
            assert f"[i {name}]" in model.promise.components


def is_square(value: int, length: int) -> bool:
    return value in (0, 1, 4)


def test_two_families_of_one_name_and_a_predicate_that_fails_are_refused_by_name():
    late, early = (PredicateFamily("late", (), lambda v, n, k=k: v > k) for k in (2, 3))
    both = PositionPredicate(late()) & PositionPredicate(early())
    assert "2 different families" in refused("formula", compile_formula, both, "01")
    broken = PredicateFamily("broken", (), lambda value, length: 1 // (value - 3) > 0)
    model = compile_formula(parse("broken", predicates=[broken]), "01")
    with pytest.raises(InputError, match="broken: it fails for the value 3 at n = 4, with ZeroDivisionError"):
        model(np.zeros(4, int))


def test_deep_formulas_compile():
    deep = parse("Q_a")
    for _ in range(40):
        deep = ~(deep & parse("Q_b"))
    model = compile_formula(deep, "ab")
    assert wrong(model, deep, words(2, 3)) == 0


@pytest.mark.parametrize(
    ("arguments", "options", "reasons"),
    [
        (("Y Q_c & U", "ab"), {}, ["column"]),
        (("Y Q_c & X Q_d", "ab"), {}, ["'c'", "'d'"]),
        (("Y Q_c & X Q_a", "ab"), {"autoregressive": True, "dtype": "f8"}, ["'c'", "X looks at later", "dtype = 'f8'"]),
        (("#L[Q_a] > #R[Q_b]", "ab", "rightmost-hard"), {"autoregressive": True}, ["#R", "average-hard"]),
        (("odd(#L[Q_a])", "ab", "unbounded"), {"autoregressive": True}, ["Theorem 21"]),
        (("last & Y Q_a", "ab"), {"autoregressive": True}, ["depends on the word's length"]),
        (("Q_a", "a"), {}, ["at least two different symbols"]),
        (("Q_a", [["a"], ["b"]], ["temperature"]), {}, ["alphabet", "condition"]),
        (("Q_a", "ab", "hot"), {"read": "all"}, ["condition = 'hot'", "read = 'all'"]),
        (("X Q_a", "ab", "hot"), {"autoregressive": True}, ["condition = 'hot'", "X looks at later positions"]),
        ((3, "ab"), {"autoregressive": 1}, ["formula = 3", "autoregressive = 1"]),
    ],
)  # fmt: skip
def test_refusals_give_every_reason_at_once(arguments, options, reasons):
    with pytest.raises(InputError) as refusal:
        compile_formula(*arguments, **options)
    for reason in reasons:
        assert reason in str(refusal.value)


def test_encode_and_accept():
    model = compile_formula("odd(#L[Q_1])", "01")
    assert model.encode("0110").tolist() == [0, 1, 1, 0]
    assert [model.accepts(word) for word in ("0110", "1000", "0000", "1011")] == [False, True, False, True]
    assert model.accepts(np.array([0, 1, 0, 0]))
    assert model.accepts(np.array([[0, 1], [1, 1]])).tolist() == [True, False]
    for word in ("0x", [0, "x"]):
        with pytest.raises(InputError, match="x"):
            model.encode(word)  # pyright: ignore[reportArgumentType]
    for word in (None, [[0], [0, 1]], ["01", "11"]):
        with pytest.raises(InputError, match="encode: word"):
            model.accepts(word)  # pyright: ignore[reportArgumentType]
    refused("dtype", model.promise.exact_to, "float16")


LARGE = (
    "#L[Q_1] <= 20000000",
    "#L[Q_1] != 20000000",
    "5000*#L[Q_1] > 4999*#L[Q_0]",
    "100003*#L[Q_1] >= 100002*#R[Q_0] + 1",
    "100000*#L[Q_1] - 99999*#R[Q_1] + 5199848 >= 0",
    "100*#L[Q_1] >= 99*#R[Q_0] + 7",
)


@pytest.mark.parametrize("condition", ["temperature", "unbounded", "temperature-bounded"])
def test_large_coefficients_shorten_the_exact_length(condition):
    """A sum of order H n + |c| has no digits left for its last unit; the promise knows, and float64 is right."""
    for text in LARGE:
        comparison = parse(text)
        assert isinstance(comparison, CountComparison)
        model = compile_formula(text, "01", condition)
        largest, constant = model.promise.exact_to("float32"), abs(comparison.constant)
        assert largest * comparison.weight + constant <= max(2**20, constant), text
        for tokens in (np.ones((1, 150), int), words(2, 101, 2), words(2, 1)):
            assert wrong(model, comparison, tokens) == 0, text


@pytest.mark.slow
@pytest.mark.parametrize("condition", ["temperature", "unbounded", "temperature-bounded", "average-hard"])
def test_float32_models_are_exact_up_to_their_exact_length_or_400(condition):
    random = Random(5)
    sources = [parse(text) for text in LARGE] + [random_formula(random, 2, "01") for _ in range(12)]
    for source in sources:
        model = compile_formula(source, "01", condition, dtype="float32")
        n = min(model.exact_length or 0, 400)
        if n:
            halves = np.arange(n) < n // 2
            tokens = np.stack([np.ones(n), np.arange(n) % 2, halves, words(2, n, 1)[0]]).astype(int)
            y = np.asarray(model.activations(tokens))[..., model.output]
            np.testing.assert_array_equal(y, evaluate_tokens(source, tokens, "01"), err_msg=str(source))


def test_formulas_whose_text_would_fit_no_disk_compile():
    model = compile_formula(hop_induction(12, "a", "abc"), "abc")
    assert len(model.promise.text) <= 300
    assert len(str(model.promise)) < 2000


@pytest.mark.parametrize("name", ["parity", "since", "majority"])
def test_the_control_has_the_parameters_of_the_temperature_version_and_promises_nothing(name):
    entry = LIBRARY[name]
    hot, cold = (
        compile_formula(entry.formula, entry.alphabet, each) for each in ("bounded-softmax", "temperature")
    )
    for one, other in zip(tree.leaves(hot.parameters), tree.leaves(cold.parameters), strict=True):
        np.testing.assert_array_equal(one, other)
    assert wrong(hot, entry.formula, words(len(entry.alphabet), 12)) > 0
    assert hot.config.bounded
    weightings: list[Any] = [hot.config.layer(k).weighting for k in range(hot.config.layers)]
    assert all(weighting.bounded for weighting in weightings)
    assert hot.exact_length is None
    assert compile_formula("Q_1", "01", "bounded-softmax").promise.exact


@pytest.mark.long
def test_another_weighting_changes_nothing_else_of_a_network_and_promises_nothing():
    network = compile_formula("odd(#L[Q_1])", "01", "temperature-bounded", read="everything")
    warm = network.with_weighting("softmax")
    for one, other in zip(tree.leaves(network.parameters), tree.leaves(warm.parameters), strict=True):
        np.testing.assert_array_equal(one, other)
    assert replace(warm.config, weighting=network.config.weighting) == network.config
    assert (warm.promise.temperature, network.promise.temperature) == ("1", "1/n^3")
    assert (warm.promise.components, warm.promise.bounded) == (network.promise.components, True)
    assert (warm.promise.exact, warm.exact_length, warm.exact_outputs) == (False, None, ())
    means = [jaxsens.flip_sensitivity(warm, np.arange(n) % 2, engine="vmap").mean for n in (16, 64)]
    assert means[0] / means[1] == pytest.approx(4, rel=1e-2)  # as 1/n, by the temperature alone
    refused("weighting", network.with_weighting, "cold")


def test_promise_says_what_the_model_is():
    model = compile_formula(formula("parity"), "01", "temperature")
    promise = model.promise
    assert promise.theorem == "Theorem 20(a)"
    assert promise.table_row == "counting"
    assert promise.temperature == "1/n"
    assert not promise.bounded
    assert (promise.layers, promise.width) == (model.config.layers, model.config.width)
    assert "[i odd]" in promise.components
    for word in ("odd(#L[Q_1])", "Theorem 20(a)", "1/n", "unbounded"):
        assert word in str(promise)


CASES = [
    ("#L[Q_1] > #R[Y Q_0]", "temperature", False),
    ("X Q_1 U Q_0 & odd(#L[Q_1])", "unbounded", False),
    ("#L[Q_1] = #R[Q_0]", "temperature-bounded", False),
    ("Q_0 S Y Q_1", "temperature", True),
    ("odd(#L[Q_1])", "average-hard", True),
    ("X Q_1 & Q_0 S Q_1", "leftmost-hard", False),
    ("X Q_1 & Q_0 S Q_1", "rightmost-hard", False),
    ("even(#L[Q_1])", "bounded-softmax", False),
]


@pytest.mark.quick(2)
@pytest.mark.parametrize(("text", "condition", "autoregressive"), CASES)
def test_all_passes_agree(text, condition, autoregressive):
    model = compile_formula(text, "01", condition, autoregressive=autoregressive)
    tokens = np.random.default_rng(0).integers(0, 2, size=(2, 9))
    parameters = tree.map(np.asarray, model.parameters)
    batched = activations(model.config, parameters, tokens)
    for word, found in zip(tokens, batched, strict=True):
        np.testing.assert_allclose(
            found, reference.activations(model.config, parameters, word), rtol=1e-10, atol=1e-10
        )
    np.testing.assert_allclose(batched, np.asarray(model.activations(tokens)), rtol=1e-10, atol=1e-10)


def test_what_the_order_of_sums_leaves_is_not_wrong_and_more_is():
    found = np.array([1.4e-14, 1 - 1.4e-14, 2 * SUMMED, 1 - 2 * SUMMED, np.nan])
    assert wrong_values(found[:2], np.array([False, True])) == 0
    assert [wrong_values(found[k:], np.array([0, 1, 0, 1, 0])[k:]) for k in (2, 3, 4)] == [3, 2, 1]
