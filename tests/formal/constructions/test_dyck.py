"""The transformer of DYCK-k against a stack: at every position of every word, exactly."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from jaxsens import InputError, Softmax
from jaxsens.core.models.parts.schedules import Schedule
from jaxsens.core.models.parts.weighting import AverageHard
from jaxsens.formal.constructions.compiler import CompiledTransformer
from jaxsens.formal.constructions.conditions import ConditionName
from jaxsens.formal.constructions.programs import dyck
from jaxsens.formal.logic.library import brackets
from tests.formal.constructions.many_words import activations, every_word, trace

PROMISED: list[tuple[ConditionName, bool]] = [
    ("temperature", False),
    ("unbounded", False),
    ("temperature-bounded", False),
    ("average-hard", False),
    ("temperature", True),
    ("average-hard", True),
]
SOFT = [each for each in PROMISED if each[0] != "average-hard"]


def balanced(word: np.ndarray, kinds: int) -> list[bool]:
    """Of each prefix, whether it is balanced, by a stack; tokens below `kinds` are left brackets."""
    stack, fine, found = [], True, []
    for token in word:
        if token < kinds:
            stack.append(token)
        else:
            fine = fine and bool(stack) and stack.pop() == token - kinds
        found.append(fine and not stack)
    return found


def wrong(model: CompiledTransformer, tokens: np.ndarray) -> int:
    """At how many positions of how many words the output is not the truth value, to the last digit."""
    kinds = len(model.alphabet) // 2
    truth = np.array([balanced(word, kinds) for word in tokens])
    return int((activations(model.config, model.parameters, tokens)[..., model.output] != truth).sum())


def member(random: np.random.Generator, n: int, kinds: int, opening: float) -> np.ndarray:
    """A random balanced word of even length n; the larger `opening`, the deeper nested, at 1 as deep as can be."""
    stack: list[int] = []
    word = []
    for left in range(n, 0, -1):
        if len(stack) == left or (stack and random.random() >= opening):
            word.append(stack.pop() + kinds)
        else:
            stack.append(int(random.integers(kinds)))
            word.append(stack[-1])
    return np.array(word)


def near_misses(random: np.random.Generator, word: np.ndarray, kinds: int) -> list[np.ndarray]:
    """The word with one symbol exchanged by any other, with one right bracket of another kind, and two exchanged."""
    any_other, other_kind, turned = word.copy(), word.copy(), word.copy()
    j = random.integers(len(word))
    any_other[j] = (word[j] + random.integers(1, 2 * kinds)) % (2 * kinds)
    j = random.choice(np.flatnonzero(word >= kinds))
    other_kind[j] = kinds + (word[j] - kinds + 1) % kinds
    j = random.integers(len(word) - 1)
    turned[[j, j + 1]] = word[[j + 1, j]]
    return [any_other, other_kind, turned]


def long_words(n: int, kinds: int, seed: int = 0) -> np.ndarray:
    random = np.random.default_rng(seed)
    words = [random.integers(2 * kinds, size=n)]
    for opening in (0.3, 0.5, 0.7, 1.0):
        word = member(random, n, kinds, opening)
        words += [word, *near_misses(random, word, kinds)]
    # Many pairs of one depth, deep inside: only the tie-break tells them apart.
    deep = np.tile([0, 1], n // 8 + 1)[: n // 4]
    pairs = np.tile([0, kinds, 1 % kinds, 1 % kinds + kinds], n)[: n - 2 * len(deep)]
    words.append(np.concatenate([deep, pairs, deep[::-1] + kinds]))
    # As deep as can be, and then nothing but left brackets, or too many right ones.
    words += [np.zeros(n, int), np.where(np.arange(n) < n // 3, 0, kinds)]
    return np.array(words)


def test_brackets_are_the_usual_ones_left_before_right():
    assert brackets(1) == ("(", ")")
    assert brackets(2) == ("(", "[", ")", "]")
    assert brackets(5) == ("(", "[", "{", "<", "(5", ")", "]", "}", ">", ")5")
    assert dyck(3).alphabet == brackets(3)


@pytest.mark.quick(3)
@pytest.mark.parametrize(
    "sizes",
    [((1, 6), (2, 5), (3, 4)), pytest.param(((1, 9), (2, 6), (3, 5), (5, 4)), marks=pytest.mark.slow)],
    ids=["short", "longer"],
)
@pytest.mark.parametrize(("condition", "autoregressive"), PROMISED)
def test_every_word_up_to_a_length_at_every_position(condition, autoregressive, sizes):
    for kinds, longest in sizes:
        model = dyck(kinds, condition, autoregressive=autoregressive)
        for n in range(1, longest + 1):
            for part in np.array_split(every_word(2 * kinds, n), -(-((2 * kinds) ** n) // 2000)):
                assert wrong(model, part) == 0, (kinds, n)


@pytest.mark.quick(3)
@pytest.mark.parametrize(
    "sizes",
    [((2, 50), (3, 122), (2, 200)), pytest.param(((2, 1026),), marks=pytest.mark.slow)],
    ids=["long", "longer"],
)
@pytest.mark.parametrize(("condition", "autoregressive"), PROMISED)
def test_long_words_balanced_nearly_balanced_and_deeply_nested(condition, autoregressive, sizes):
    for kinds, n in sizes:
        model = dyck(kinds, condition, autoregressive=autoregressive)
        for part in np.array_split(long_words(n, kinds, seed=n), -(-n // 200)):
            assert wrong(model, part) == 0, (kinds, n)


@pytest.mark.quick(2)
@pytest.mark.parametrize(("condition", "autoregressive"), SOFT)
def test_every_head_is_as_near_to_hard_attention_as_it_says(condition, autoregressive):
    model = dyck(2, condition, autoregressive=autoregressive)
    hard = model.config.replace(weighting=AverageHard())
    largest: dict[str, float] = dict.fromkeys(("average", "table", "match", "exists"), 0.0)
    for tokens in (*(every_word(4, n) for n in range(1, 5)), long_words(34, 2), long_words(100, 2)):
        soft, exact = (trace(config, model.parameters, tokens)[1] for config in (model.config, hard))
        for layer, heads in enumerate(model.heads):
            for head in heads:
                away = np.abs(soft[layer][..., head.target] - exact[layer][..., head.target]).max()
                assert away <= head.error + 1e-12, (len(tokens[0]), layer, head.kind, away)
                largest[head.kind] = max(largest[head.kind], away)
    assert largest["average"] < 1e-12
    assert largest["table"] < 1e-4
    # In autoregressive networks the sharpness grows with i, beyond a float64's digits.
    assert largest["table"] > 0 or autoregressive
    assert 1 / 257 < largest["match"] <= 1 / 8
    assert largest["exists"] > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("condition", "autoregressive"), [("temperature", False), ("unbounded", False), ("temperature", True)]
)
def test_float32_is_right_where_plain_products_would_fail(condition, autoregressive):
    """Scores are of order n^3, which single precision loses at n = 57 unless they come from differences of keys."""
    model = dyck(2, condition, autoregressive=autoregressive, dtype="float32")
    tokens = long_words(1502, 2)[[-3, 14, 10]]
    y = np.asarray(model.activations(tokens))[..., model.output]
    np.testing.assert_array_equal(y, [balanced(word, 2) for word in tokens])


def test_the_control_does_not_compute_it_and_its_flips_fade():
    """Bounded embeddings at temperature 1: wrong outputs, and the average of errors moves by O(1/n) (Hahn, Lemma 5)."""
    model = dyck(2, "bounded-softmax", read="before-rounding")
    assert model.config.bounded
    weightings: list[Any] = [model.config.layer(k).weighting for k in range(model.config.layers)]
    assert all(weighting.bounded for weighting in weightings)
    assert not model.promise.exact
    assert wrong(model, every_word(4, 4)) > 0
    assert model.outputs is not None
    largest = []
    for n in (64, 256):
        word = np.tile([0, 1, 3, 2], n // 4)
        flips = np.array(
            [word, *(np.where(np.arange(n) == j, word ^ 2, word) for j in range(0, n - 1, n // 8))]
        )
        last = activations(model.config, model.parameters, flips)[:, -1, list(model.outputs)]
        largest.append(np.abs(last[1:] - last[0]).max())
    assert 0 < largest[1] < largest[0] / 3


@pytest.mark.parametrize(
    ("options", "reasons"),
    [
        ({"kinds": 0}, ["kinds = 0"]),
        ({"kinds": True, "dtype": "f8", "read": "all"}, ["kinds = True", "dtype = 'f8'", "read = 'all'"]),
        ({"condition": "hot", "autoregressive": 1}, ["condition = 'hot'", "autoregressive = 1"]),
        ({"condition": "leftmost-hard"}, ["uniform attention", "average-hard"]),
        ({"condition": "rightmost-hard", "kinds": 2.0}, ["uniform attention", "kinds = 2.0"]),
        ({"condition": "unbounded", "autoregressive": True}, ["unbounded looks depths up", "temperature"]),
        ({"condition": "temperature-bounded", "autoregressive": True}, ["depend on n"]),
        ({"condition": "bounded-softmax", "autoregressive": True}, ["depend on n"]),
    ],
)
def test_refusals_give_every_reason_at_once(options, reasons):
    with pytest.raises(InputError) as refusal:
        dyck(**options)
    for reason in reasons:
        assert reason in str(refusal.value)


def test_sizes_and_embeddings_are_those_the_promise_states():
    for kinds in (1, 2, 4):
        promise = dyck(kinds).promise
        assert (promise.layers, promise.heads, promise.width) == (5, 6 + kinds, 16 + 4 * kinds)
        assert promise.text == f"DYCK-{kinds}"
    fractions = "fraction fraction-square fraction-over-length"
    listed: dict[tuple[ConditionName, bool], tuple[str, Softmax]] = {
        ("temperature", False): ("fraction index square", Softmax(Schedule(power=1.0))),
        ("unbounded", False): ("fraction length index length-index length-square", Softmax()),
        ("temperature-bounded", False): (fractions, Softmax(Schedule(power=3.0))),
        ("temperature", True): ("index square", Softmax(Schedule(power=2.0), by="query")),
    }
    for (condition, autoregressive), (components, weighting) in listed.items():
        model = dyck(2, condition, autoregressive=autoregressive)
        assert set(model.promise.components) == {"alternating", *components.split()}
        assert model.config.weighting == weighting
        assert model.promise.bounded == (condition == "temperature-bounded")
        assert model.promise.exact


@pytest.mark.parametrize("condition", ["temperature", "average-hard"])
def test_autoregressive_networks_know_nothing_of_what_follows(condition):
    model = dyck(2, condition, autoregressive=True)
    assert all(model.config.layer(k).mask == "future" for k in range(model.config.layers))
    words = long_words(30, 2)
    whole, start = (activations(model.config, model.parameters, tokens) for tokens in (words, words[:, :19]))
    np.testing.assert_allclose(whole[:, :19], start, rtol=0, atol=1e-9)


def test_what_is_measured_by_default():
    model = dyck(2, read="before-rounding")
    assert model.outputs == tuple(head.target for head in model.heads[-1])
    assert dyck(2, read="everything").outputs is None
    assert dyck(2).outputs == (dyck(2).output,)
