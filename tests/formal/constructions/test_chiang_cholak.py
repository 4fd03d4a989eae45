"""Chiang and Cholak's PARITY and FIRST: they decide their language, and their gaps are those of the formulas.

PARITY in three softmax layers that know nothing of n: every short word, long ones, and the lemma behind layer 2.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import jax
import numpy as np
import pytest
from jaxtyping import Float, Int
from numpy.typing import ArrayLike
from scipy.special import softmax

import jaxsens
from jaxsens import Softmax, flip_sensitivity
from jaxsens.core.models.parts.positions import CoordinateTerm
from jaxsens.formal.constructions.chiang_cholak import ReferenceTransformer, ReferenceVariant, first, parity
from jaxsens.formal.constructions.programs import PARITY_SHARPNESS as SHARPNESS
from jaxsens.formal.constructions.programs import length_independent_parity as independent_parity
from tests.formal.constructions.many_words import activations, every_word, wrong_values
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


@pytest.mark.quick(3)
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


@pytest.mark.long
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


@pytest.mark.quick(1)
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
    growing: Any = first(log_length=True).config.layer(0).weighting
    assert not growing.bounded
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
    refused("condition", jaxsens.construction, "length-independent-parity", "temperature")
    refused("dtype read", independent_parity, dtype="float16", read="x")


# With layer normalisation rows have pairs (x, -x), so their mean is 0 and their variance is |x|^2 divided by the number
# of pairs. A row that passes two normalisations is divided by the product of both deviations, `_shrunk`.


def gaps(model: ReferenceTransformer, tokens: Int[np.ndarray, " n"]) -> Float[np.ndarray, " bits"]:
    """The gaps that `outputs` shows on one input, one for the flip of each bit in order."""
    bits = np.asarray(tokens)[:-1]
    if model.language == "first":
        return np.where(np.arange(len(bits)) == 0, _gap(model, len(bits) + 1, 0, 1), 0.0)
    ones = int(bits.sum())
    return np.array([_gap(model, len(bits) + 1, ones, ones + (1 if bit == 0 else -1)) for bit in bits])


def _gap(model: ReferenceTransformer, n: int, before: int, after: int) -> float:
    """How far `outputs` moves between two numbers of ones, or two first bits."""
    logits = {"parity": parity_logits, "first": first_logits}[model.language]
    z = logits(model.variant, n, np.array([before, after]))
    gap = abs(float(z[1] - z[0]))
    if model.outputs is not None:
        return gap
    if model.variant.layer_norm:
        return math.sqrt(2) * gap
    if model.language == "first":
        return gap
    return math.hypot(gap, 1 / n, (n - 1 in (before, after)) / n)


def parity_logits(variant: ReferenceVariant, n: int, ones: ArrayLike) -> Float[np.ndarray, " words"]:
    """The logits of words with these numbers of ones, 0 .. N - 1, on inputs of N = n >= 2 symbols.

    Without layer normalisation an odd number of ones has ceil(N/2) g / N and an even number -floor(N/2) g / N, where
    g = 4 tanh(c) / (N^2 - [N odd] tanh(c)^2) is what any flip changes: positive exactly on the language.

    With it, float64 sums over the keys, O(N) per number: every key has its own deviation, since its row holds i/N.
    """
    k = np.atleast_1d(np.asarray(ones, np.float64))
    if not variant.layer_norm:
        t = math.tanh(variant.score(n))
        gap = 4 * t / (n * n - n % 2 * t * t)
        return np.where(k % 2 == 1, (n + 1) // 2, -(n // 2)) / n * gap
    i = np.arange(1, n + 1)
    looked_up = (i == k[:, None] + 1) / n
    square = 2 + (i / n) ** 2 + (k[:, None] / n) ** 2 + 1 / n**2
    shrunk = _shrunk(variant, square, looked_up**2)
    scores = variant.score(n) * (1 - 2 * (i % 2)) / (shrunk * shrunk[:, -1:])
    weights = softmax(scores, axis=-1) - softmax(-scores, axis=-1)
    z = np.sum(weights * looked_up / shrunk, axis=-1)
    return _normalised(variant, z, (square + looked_up**2)[:, -1] / shrunk[:, -1] ** 2)


def first_logits(variant: ReferenceVariant, n: int, first: ArrayLike) -> Float[np.ndarray, " words"]:
    """The logits of words that start with these bits, on inputs of N = n >= 2 symbols. O(1) per bit.

    Without layer normalisation +-w/2, where w = e^c / (e^c + N - 1) is the attention weight of the first symbol.
    """
    bit = np.atleast_1d(np.asarray(first, np.float64))
    start, last = 1.0, 1.0
    if variant.layer_norm:
        start, last = _shrunk(variant, 2.0, bit), _shrunk(variant, 1.0, 0.0)
    weight = 1 / (1 + (n - 1) * np.exp(-variant.score(n) / (start * last)))
    z = (bit - 0.5) * weight / start
    return _normalised(variant, z, 1 / last**2) if variant.layer_norm else z


def _shrunk(variant: ReferenceVariant, square: ArrayLike, added: ArrayLike) -> np.ndarray:
    """What layer 1 divides a row by: |x|^2 is `square` at its first normalisation, and its map adds `added` to it."""
    epsilon, pairs = variant.layer_norm_epsilon, variant.pairs
    first = np.asarray(square) / pairs + epsilon
    second = (np.asarray(square) + np.asarray(added)) / first / pairs + epsilon
    return np.sqrt(first * second)


def _normalised(variant: ReferenceVariant, z: np.ndarray, row: ArrayLike) -> np.ndarray:
    """Layer 2's two normalisations of the logit z in a row with |x|^2 = `row`, which its map erases in between."""
    epsilon, pairs = variant.layer_norm_epsilon, variant.pairs
    kept = z / np.sqrt((np.asarray(row) + z**2) / pairs + epsilon)
    return kept / np.sqrt(kept**2 / pairs + epsilon)


BOTH = pytest.mark.parametrize("autoregressive", [False, True], ids=["unmasked", "future-masked"])
DTYPES = pytest.mark.parametrize("dtype", ["float32", "float64"])


def long_words(n: int) -> np.ndarray:
    """No ones, ones only, a single one in front or behind, and random words with few, half and nearly all ones."""
    single = np.eye(n, dtype=int)
    rng = np.random.default_rng(n)
    drawn = [rng.random(n) < share for share in (3 / n, 0.5, 0.5, 1 - 3 / n)]
    return np.stack([np.zeros(n, int), np.ones(n, int), single[0], single[-1], *np.array(drawn, int)])


def outputs(model, words):
    return np.asarray(model(words))[:, model.output]


# What it computes


@BOTH
@DTYPES
def test_every_word_of_up_to_ten_symbols_is_decided(autoregressive, dtype):
    model = independent_parity(autoregressive=autoregressive, dtype=dtype)
    for n in range(1, 11):
        words = every_word(2, n)
        found = activations(model.config, model.parameters, words)[..., model.output]
        truth = words.cumsum(axis=1) % 2
        decided = slice(None) if autoregressive else slice(n - 1, n)  # every prefix, or the word
        assert wrong_values(found[:, decided], truth[:, decided]) == 0


@pytest.mark.long
@pytest.mark.parametrize(("dtype", "autoregressive"), [("float32", True), ("float64", False)])
def test_long_words_are_decided(dtype, autoregressive):
    words = long_words(1501)  # no power of two, whose scores are rounded less
    model = independent_parity(autoregressive=autoregressive, dtype=dtype)
    np.testing.assert_array_equal(outputs(model, words), words.sum(axis=1) % 2)


@pytest.mark.slow
@BOTH
@DTYPES
def test_words_of_thousands_of_symbols_are_decided(autoregressive, dtype):
    model = independent_parity(autoregressive=autoregressive, dtype=dtype)
    for word in long_words(6001):
        assert model.accepts(word) == bool(word.sum() % 2)


# What it is made of


def test_nothing_in_it_depends_on_n():
    unmasked, masked = independent_parity(), independent_parity(autoregressive=True)
    jax.tree.map(np.testing.assert_array_equal, unmasked.parameters, masked.parameters)
    for model in (unmasked, masked):
        config = model.config
        layers = [config.layer(k) for k in range(config.layers)]
        assert len(layers) == 3
        assert all(layer.weighting == Softmax() and layer.layer_norm == "none" for layer in layers)
        assert {layer.mask for layer in layers} == {"future" if model is masked else "none"}
        for term in config.position_terms:
            assert isinstance(term, CoordinateTerm)
            np.testing.assert_array_equal(term.values(40), term.values(97)[:40])
            assert np.abs(term.values(97)).max() <= 97**2


@pytest.mark.long
@BOTH
@DTYPES
def test_every_flip_changes_the_output_by_one(autoregressive, dtype):
    model = jaxsens.construction("length-independent-parity", autoregressive=autoregressive, dtype=dtype)
    words = long_words(24)
    result = jaxsens.flip_sensitivity(model, words, flips=jaxsens.Substitute(positions=range(24)))
    assert len(result) == words.size
    np.testing.assert_array_equal(result.norms, 1)


# Layer 2


def count_error(n: int) -> float:
    """The largest error of the count over C = 0 .. n, from the weights of layer 2, in loops."""
    errors = []
    for c in range(n + 1):
        centre = n / 4 + c / 2 + 1 / 2
        weights = [np.exp(-SHARPNESS / n * (j - centre) ** 2) for j in range(1, n + 1)]
        mean = sum(j * weight for j, weight in enumerate(weights, 1)) / sum(weights)
        errors.append(abs(2 * mean - n / 2 - 1 - c))
    return max(errors)


def count_error_bound(n: int) -> float:
    """How far 2 z - n/2 - 1 may be from C at n keys, for every C from 0 to n, in exact arithmetic; see layer 2.

    With a = K/n, q = e^(-pi^2/a) and d = n/4 + 1/2, the least distance of T from a position that is cut off, Poisson
    summation bounds the sum of (j - T) e^(-a (j - T)^2) over all whole j by sqrt(pi/a) (2 pi/a) sum_k k q^(k^2), and
    that of the weights from below by sqrt(pi/a) (1 - 2 sum_k q^(k^2)). The sums over the two ends that are cut off have
    opposite signs; each is at most that of (d + m) e^(-a (d + m)^2) over m >= 0.

    It is below 1/8 from n = 4 on, and falls from there.
    """
    a, d = SHARPNESS / n, n / 4 + 0.5
    q, steps = math.exp(-(math.pi**2) / a), range(1, 40)
    width = math.sqrt(math.pi / a)
    everywhere = width * (2 * math.pi / a) * sum(k * q ** (k * k) for k in steps)
    weights = width * (1 - 2 * sum(q ** (k * k) for k in steps))
    tail = [math.exp(-a * (d + m) ** 2) for m in range(int(d) + 40)]
    cut = sum((d + m) * weight for m, weight in enumerate(tail))
    return 2 * (everywhere + cut) / (weights - 2 * sum(tail))


def test_the_mean_of_the_gaussian_is_its_centre():
    for n in range(2, 40):
        assert count_error(n) < 1 / 8
        assert count_error(n) <= count_error_bound(n) * (1 + 1e-9) + 1e-12
    assert [round(count_error(n), 3) for n in (2, 3)] == [0.036, 0.117]
    bounds = [count_error_bound(n) for n in range(4, 400)]
    assert bounds[0] < 1 / 8
    assert all(later <= earlier for earlier, later in itertools.pairwise(bounds))
    assert count_error(1) == pytest.approx(1 / 2)
