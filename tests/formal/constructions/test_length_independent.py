"""PARITY in three softmax layers that know nothing of n: every short word, long ones, and the lemma behind layer 2."""

from __future__ import annotations

import itertools
import math

import jax
import numpy as np
import pytest

import jaxsens
from jaxsens import Softmax
from jaxsens.core.models.parts.positions import CoordinateTerm
from jaxsens.formal.constructions.programs import PARITY_SHARPNESS as SHARPNESS
from jaxsens.formal.constructions.programs import length_independent_parity as parity
from tests.formal.constructions.many_words import activations, every_word, wrong_values
from tests.refusals import refused

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
    model = parity(autoregressive=autoregressive, dtype=dtype)
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
    model = parity(autoregressive=autoregressive, dtype=dtype)
    np.testing.assert_array_equal(outputs(model, words), words.sum(axis=1) % 2)


@pytest.mark.slow
@BOTH
@DTYPES
def test_words_of_thousands_of_symbols_are_decided(autoregressive, dtype):
    model = parity(autoregressive=autoregressive, dtype=dtype)
    for word in long_words(6001):
        assert model.accepts(word) == bool(word.sum() % 2)


# What it is made of


def test_nothing_in_it_depends_on_n():
    unmasked, masked = parity(), parity(autoregressive=True)
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


@pytest.mark.quick(1)
@BOTH
@DTYPES
def test_every_flip_changes_the_output_by_one(autoregressive, dtype):
    model = jaxsens.construction("length-independent-parity", autoregressive=autoregressive, dtype=dtype)
    words = long_words(24)
    result = jaxsens.flip_sensitivity(model, words, flips=jaxsens.Substitute(positions=range(24)))
    assert len(result) == words.size
    np.testing.assert_array_equal(result.norms, 1)


def test_another_condition_is_refused_by_name():
    refused("condition", jaxsens.construction, "length-independent-parity", "temperature")
    refused("dtype read", parity, dtype="float16", read="x")


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
