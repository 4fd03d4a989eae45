"""Chiang and Cholak's PARITY and FIRST: they decide their language, and their gaps are those of the formulas."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from jaxsens import flip_sensitivity
from jaxsens.formal.constructions.chiang_cholak import ReferenceTransformer, first, parity
from tests.formal.constructions.many_words import every_word
from tests.formal.constructions.reference_gaps import first_logits, gaps, parity_logits
from tests.refusals import refused
from tests.tolerances import SUBTRACTED

MAKERS = {"parity": parity, "first": first}
SCALED = {"log_length": True}
NORMED = {"layer_norm": True}
SOFTENED = {"layer_norm": True, "layer_norm_epsilon": 1e-5}
EXACT: tuple[dict[str, Any], ...] = ({}, SCALED, NORMED, {**NORMED, **SCALED})
OPTIONS: tuple[dict[str, Any], ...] = (*EXACT, SOFTENED, {**SOFTENED, **SCALED})


def random_word(length: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 2, length)


def belongs(language: str, words: np.ndarray) -> np.ndarray:
    if language == "parity":
        return words.sum(axis=-1) % 2 == 1
    return words[..., 0] == 1 if words.shape[-1] else np.zeros(words.shape[:-1], bool)


def predicted_logits(model: ReferenceTransformer, words: np.ndarray) -> np.ndarray:
    n = words.shape[-1] + 1
    if model.language == "parity":
        return parity_logits(model.variant, n, words.sum(axis=-1))
    return first_logits(model.variant, n, words[..., 0])


# The models


@pytest.mark.quick(6)
@pytest.mark.parametrize("language", MAKERS)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_every_word_of_six_bits_is_decided_and_has_the_logit_of_the_formula(options, language):
    model, words = MAKERS[language](**options, sharpness=1.3), every_word(2, 6)
    tokens = model.prepare(words)
    np.testing.assert_array_equal(model.accepts(tokens), belongs(language, words))
    measured = np.asarray(model(tokens))[:, model.logit]
    np.testing.assert_allclose(measured, predicted_logits(model, words), rtol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("language", MAKERS)
@pytest.mark.parametrize("options", EXACT, ids=str)
def test_all_words_to_eight_bits_and_random_ones_to_two_hundred_are_decided(options, language):
    model = MAKERS[language](**options)
    random = np.random.default_rng(0)
    for length in (*range(9), 49, 100, 199, 200):
        words = every_word(2, length) if length < 9 else random.integers(0, 2, (20, length))
        if length >= 9:
            words[0], words[1], words[2], words[3] = 0, 1, np.arange(length) == 0, np.arange(length) > 0
        accepted = model.accepts(model.prepare(words))
        np.testing.assert_array_equal(accepted, belongs(language, words), err_msg=f"length {length}")


@pytest.mark.parametrize("language", MAKERS)
def test_long_words_and_the_empty_one_are_decided(language):
    model = MAKERS[language]()
    assert model.accepts(model.prepare("")) is False
    words = np.stack([random_word(150, seed) for seed in range(8)] + [np.zeros(150, int), np.ones(150, int)])
    np.testing.assert_array_equal(model.accepts(model.prepare(words)), belongs(language, words))


@pytest.mark.slow
@pytest.mark.parametrize("options", EXACT, ids=str)
def test_float32_decides_up_to_the_length_predicted(options):
    model = parity(**options, dtype="float32")
    n = model.exact_length
    assert n is not None
    assert n > 400
    ones = np.array([0, 1, n // 2, n - 2, n - 1])
    words = np.stack([random_word(n - 1, k).argsort(kind="stable").argsort() < k for k in ones]).astype(int)
    np.testing.assert_array_equal(model.accepts(model.prepare(words)), ones % 2 == 1)


def test_precision_limits_parity_and_not_first():
    def limit(**options: Any) -> int:
        return parity(**options).exact_length or 0

    narrow = {"dtype": "float32"}
    assert limit(**narrow) > limit(**narrow, **NORMED) > limit(**narrow, **NORMED, **SCALED) > 400
    assert limit() == pytest.approx(limit(**narrow) * 2**14.5, rel=1e-3)
    assert first(dtype="float32").exact_length is None


# Gaps


@pytest.mark.quick(1, 4)
@pytest.mark.parametrize(
    ("language", "options", "length", "engine", "read"),
    [
        ("parity", {}, 16, "vmap", "everything"),
        ("parity", SCALED, 33, "vmap", "output"),
        ("parity", NORMED, 33, "difference", "output"),
        ("parity", {**NORMED, **SCALED}, 8, "vmap", "everything"),
        ("parity", SOFTENED, 9, "vmap", "output"),
        ("first", {}, 8, "vmap", "output"),
        ("first", SCALED, 33, "difference", "everything"),
        ("first", NORMED, 33, "difference", "output"),
        ("first", {**SOFTENED, **SCALED}, 8, "difference", "everything"),
    ],
    ids=str,
)
def test_each_flip_has_the_gap_of_the_formula(language, options, length, engine, read):
    model = MAKERS[language](**options, sharpness=0.7, read=read)
    tokens = model.prepare(random_word(length - 1, seed=length))
    result = flip_sensitivity(model, tokens, engine=engine)
    assert result.asked.outputs == ((model.logit,) if read == "output" else None)
    assert result.positions.tolist() == list(range(length - 1))
    # An engine that subtracts outputs has their rounding; one that carries the change has none where there is none.
    rounding = SUBTRACTED["float64"].absolute if engine == "vmap" else 0
    np.testing.assert_allclose(result.norms, gaps(model, tokens), rtol=1e-9, atol=rounding)


@pytest.mark.parametrize("n", [63, 256])
def test_any_flip_moves_paritys_logit_as_one_over_n_square(n):
    model = parity(sharpness=0.8)
    result = flip_sensitivity(model, model.prepare(random_word(n - 1, seed=n)), engine="vmap")
    t = math.tanh(0.8)
    np.testing.assert_allclose(result.norms, np.full(n - 1, 4 * t / (n**2 - n % 2 * t**2)), rtol=1e-9)


def test_the_word_of_all_ones_puts_the_tent_on_the_classification_symbol():
    model = parity(read="everything")
    tokens = model.prepare([[1] * 15, [1] * 14 + [0]])
    result = flip_sensitivity(model, tokens, engine="vmap")
    predicted = np.concatenate([gaps(model, row) for row in tokens])
    np.testing.assert_allclose(result.norms, predicted, rtol=1e-10)
    assert result.max == pytest.approx(math.hypot(math.sqrt(2) / 16, 4 * math.tanh(1) / 256), rel=1e-10)


@pytest.mark.parametrize(
    ("options", "e_c"), [({"sharpness": 1.3}, math.exp(1.3)), ({**SCALED, "sharpness": 0.7}, 64**0.7)]
)
def test_firsts_gap_is_the_attention_weight_of_the_first_symbol(options, e_c):
    model = first(**options)
    result = flip_sensitivity(model, model.prepare(random_word(63, seed=2)), engine="vmap")
    assert result.norms[0] == pytest.approx(e_c / (e_c + 63), rel=1e-12)
    assert result.norms[1:].max() == 0


# Layer normalisation


@pytest.mark.parametrize(("language", "pairs"), [("parity", 10), ("first", 6)])
def test_layer_norm_without_epsilon_keeps_the_gap_at_any_length(language, pairs):
    model = MAKERS[language](layer_norm=True)
    for length in (1, 30, 255):
        word = random_word(length, seed=1)
        words = np.stack([word, np.where(np.arange(length) == 0, 1 - word, word)])
        signs = np.where(belongs(language, words), 1, -1)
        logits = np.asarray(model(model.prepare(words)))[:, model.logit]
        np.testing.assert_allclose(logits, signs * math.sqrt(pairs), rtol=1e-9)


# Use and misuse


def test_models_are_ordinary_transformers_with_hashable_marks():
    model = parity(read="everything")
    assert (model.config.width, model.config.heads, model.config.layers) == (10, 2, 2)
    assert parity(layer_norm=True).config.width == 20
    assert (first().config.width, first(layer_norm=True).config.width) == (6, 12)
    assert first(log_length=True).config.bounded_temperature is False
    assert all(make().config.bounded for make in MAKERS.values())
    assert model.outputs is None
    assert first().outputs == (5,)
    hash((model.variant, model.read, model.language, first().outputs))


def test_prepare_puts_the_classification_symbol_last():
    model = parity()
    np.testing.assert_array_equal(model.prepare("0110"), [0, 1, 1, 0, 2])
    np.testing.assert_array_equal(model.prepare([[0, 1], [1, 1]]), [[0, 1, 2], [1, 1, 2]])
    np.testing.assert_array_equal(model.prepare([]), [2])


def test_what_cannot_be_used_is_refused_by_name():
    model = parity()
    for word in ("012", "ab", [0, 2], [-1], 1, [0.5]):
        refused("word", model.prepare, word)
    for tokens in ([0, 1], [2, 2], [0, 3], [0.0, 2.0], 2, []):
        refused("tokens", model.accepts, np.array(tokens))
    wrong: dict[str, Any] = {"sharpness": 0.0, "layer_norm_epsilon": 1e-5, "log_length": 1}
    refused(" ".join(wrong), parity, **wrong)
    refused("layer_norm_epsilon", first, layer_norm=True, layer_norm_epsilon=-1)
    for options in ({"sharpness": math.inf}, {"read": "nothing"}, {"dtype": "float16"}):
        refused(" ".join(options), first, **options)
