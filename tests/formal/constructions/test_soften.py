"""`soften` keeps its promise on every word, at every position; a warmer softmax would break it."""

from __future__ import annotations

import itertools
import math
from functools import cache
from typing import Any

import numpy as np
import pytest
from flax import nnx

import jaxsens
from jaxsens import InputError, Softmax, Transformer, compile_formula
from jaxsens.core.models.parts.masks import SlidingWindow
from jaxsens.core.models.parts.schedules import Schedule
from jaxsens.formal.constructions.soften import SoftenedTransformer, all_inputs, largest_difference, soften
from tests.formal.constructions import many_words
from tests.formal.constructions.tieless_models import (
    FRACTION,
    STRUCTURES,
    chooser,
    random_model,
    with_parameters,
)
from tests.refusals import refusal, refused

EPSILONS = (1 / 4, 1e-3)


@cache
def softened(structure: str, seed: int, n: int, epsilon: float) -> tuple[SoftenedTransformer, Transformer]:
    hard = random_model(structure, seed)
    return soften(hard, n, epsilon), hard


def difference(soft: Transformer, hard: Transformer, words: np.ndarray, warmer: float = 1.0) -> float:
    """As `largest_difference`, in NumPy; with the temperature times `warmer`."""
    config = soft.config
    if warmer != 1:
        assert isinstance(config.weighting, Softmax)
        inverse = config.weighting.inverse_temperature.coefficient
        config = config.replace(weighting=Softmax(Schedule(coefficient=inverse / warmer)))
    found = many_words.activations(config, soft.parameters, words)
    return float(np.abs(found - many_words.activations(hard.config, hard.parameters, words)).max())


def keeps_its_promise(structure: str, seed: int, n: int, epsilon: float) -> bool:
    soft, hard = softened(structure, seed, n, epsilon)
    return difference(soft, hard, all_inputs(hard.config, n)) <= epsilon


@pytest.mark.quick(1)
@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("epsilon", EPSILONS)
def test_every_activation_on_every_word_is_within_epsilon(structure, epsilon):
    assert all(keeps_its_promise(structure, seed, n, epsilon) for seed in range(5) for n in (1, 6))


@pytest.mark.slow
@pytest.mark.parametrize("structure", STRUCTURES)
def test_every_activation_on_every_word_of_every_length_is_within_epsilon(structure):
    for seed, n, epsilon in itertools.product(range(10), range(1, 9), (1.0, *EPSILONS, 1e-8)):
        assert keeps_its_promise(structure, seed, n, epsilon)


@pytest.mark.parametrize("structure", STRUCTURES)
def test_a_hundred_times_the_temperature_breaks_the_promise(structure):
    broken = [
        difference(*softened(structure, seed, 6, 1e-3), all_inputs(random_model(structure, 0).config, 6), 100)
        > 1e-3
        for seed in range(5)
    ]
    assert all(broken)


def test_the_difference_measured_on_the_models_themselves():
    soft, hard = softened("two layers of two heads", 0, 6, 1 / 4)
    found = largest_difference(soft, hard)
    assert found == pytest.approx(difference(soft, hard, all_inputs(hard.config, 6)), rel=1e-6)
    assert 0 < found <= soft.promise.epsilon
    some = all_inputs(hard.config, 6)[5:9]
    assert largest_difference(soft, hard, some) == pytest.approx(difference(soft, hard, some), rel=1e-6)


def test_the_promise_says_where_it_comes_from():
    soft, hard = softened("three layers", 0, 6, 1 / 4)
    promise = soft.promise
    assert (promise.measured.n, promise.epsilon) == (6, 1 / 4)
    assert (promise.measured.inputs, promise.measured.exhaustive) == (64, True)
    assert promise.measured.gap == min(min(layer) for layer in promise.measured.gaps)
    assert promise.measured.gaps[1] == (math.inf,)
    assert soft.config.weighting == Softmax(Schedule(coefficient=1 / promise.tau))
    assert soft.config.replace(weighting="average-hard") == hard.config
    assert hash(promise) == hash(soften(hard, 6, 1 / 4).promise)


def test_a_softened_model_is_an_ordinary_one():
    soft, _ = softened("one head", 0, 6, 1 / 4)
    graph, state = nnx.split(soft)
    again = nnx.merge(graph, state)
    word = np.array([0, 1, 1, 0, 1, 0])
    np.testing.assert_array_equal(again(word), soft(word))
    assert soft(word[:3]).shape == (4,)
    hard_with_outputs = random_model("one head", 0)
    hard_with_outputs.outputs = (2,)  # pyright: ignore[reportAttributeAccessIssue]
    assert soften(hard_with_outputs, 2, 1 / 4).outputs == (2,)
    assert soft.outputs is None
    assert jaxsens.formal.soften is soften


@pytest.mark.long
@pytest.mark.filterwarnings(
    "ignore::jaxsens.PrecisionWarning"
)  # so cold that moved weights choose other keys
def test_the_flip_sensitivity_of_the_softened_model_is_that_of_the_hard_one_within_two_epsilon():
    epsilon = 1e-3
    soft, hard = softened("one head", 0, 6, epsilon)
    words = all_inputs(hard.config, 6)[::7]
    found, expected = (
        jaxsens.flip_sensitivity(model, words, measure="linf", engine="vmap") for model in (soft, hard)
    )
    np.testing.assert_allclose(found.norms, expected.norms, rtol=0, atol=2 * epsilon)
    # At this temperature the two may agree to the last digit: that one of them is soft is seen in its config only.
    assert isinstance(soft.config.weighting, Softmax)
    assert found.norms.max() > 0


def test_words_given_are_what_the_promise_is_about():
    hard, words = chooser(), np.array([[0, 1, 0, 0], [1, 0, 0, 0]])
    soft = soften(hard, 4, 0.1, words=words)
    assert (soft.promise.measured.exhaustive, soft.promise.measured.inputs) == (False, 2)
    assert 0.099 < largest_difference(soft, hard, words) <= 0.1  # nothing to spare: the warmest there is
    with refusal("layer 0, head 0"):
        soften(hard, 4, 0.1)


def test_nothing_is_promised_about_other_words():
    """Values j/n, and of several 1s the last, by little: softmax averages them."""
    hard = with_parameters(chooser(position_gap=0.01), 0, value=FRACTION.reshape(1, 5, 1))
    words = np.array([[0, 1, 0, 0], [1, 0, 0, 0]])
    soft = soften(hard, 4, 0.05, words=words)
    assert largest_difference(soft, hard, words) <= 0.05
    assert largest_difference(soft, hard) > 0.05


def test_uniform_heads_alone_are_softmax_already():
    hard = with_parameters(chooser(), 0, query=np.zeros((1, 5, 1)))
    soft = soften(hard, 5, 1e-9)
    assert soft.promise.tau == 1
    assert soft.promise.measured.gap == math.inf
    assert largest_difference(soft, hard) < 1e-14


@pytest.mark.parametrize(
    ("changes", "n", "epsilon"),
    [
        ({"mask": "strict-past"}, 4, 1e-3),  # a row sees no key
        ({"mask": SlidingWindow(2)}, 5, 1e-3),
        ({"dtype": "float32"}, 4, 0.01),
    ],
)
def test_other_masks_and_float32_keep_the_promise(changes, n, epsilon):
    hard = random_model("one head", 2, **changes)
    soft = soften(hard, n, epsilon)
    assert soft.config.dtype == hard.config.dtype
    assert 0 < largest_difference(soft, hard) <= epsilon


def test_logits_are_within_epsilon():
    hard = random_model("one head", 3, logits=2)
    soft = soften(hard, 4, 1e-7)
    words = all_inputs(hard.config, 4)
    assert np.abs(np.asarray(soft(words)) - np.asarray(hard(words))).max() <= 1e-7
    assert largest_difference(soft, hard) <= 1e-7


@pytest.mark.parametrize("n", [2, 5])
def test_a_formula_compiled_for_average_hard_attention_is_uniform_tieless(n):
    hard = compile_formula("Q_0 S Q_1", "01", "average-hard")
    soft = soften(hard, n, 1 / 4)
    words = all_inputs(hard.config, n)
    assert difference(soft, hard, words) <= 1 / 4
    output = many_words.activations(soft.config, soft.parameters, words)[..., hard.output]
    np.testing.assert_array_equal(output, output.round())  # it rounds: exact after all
    assert soft.outputs == (hard.output,)
    assert 1 / soft.promise.tau < 3 * n  # the paper's construction has 1/tau = n


@pytest.mark.parametrize(
    ("model", "n", "reasons"),
    [
        (chooser(), 0, ["n = 0"]),
        ("x", 0, ["model = 'str'", "n = 0"]),
        (jaxsens.construction("parity"), "a", ["layer 0: weighting", "n = 'a'"]),
    ],
)
def test_refusals_give_every_reason_at_once(model, n, reasons):
    ragged: Any = [[0, 1], [1]]
    with pytest.raises(InputError) as refusal:
        soften(model, n, -1, words=ragged)
    for reason in [*reasons, "epsilon = -1"]:
        assert reason in str(refusal.value)
    refused("words", soften, chooser(), 3, 0.1, words=ragged)


def test_the_numbers_of_numpy_are_numbers():
    promise = soften(random_model("one head", 0), np.int64(3), np.float32(0.25)).promise  # pyright: ignore[reportArgumentType]
    assert (promise.measured.n, promise.epsilon) == (3, 0.25)
    assert (type(promise.measured.n), type(promise.epsilon)) == (int, float)


def test_what_the_theorem_does_not_serve_is_refused_and_differences_may_be_no_numbers():
    for epsilon in (0, -1.0, math.nan, math.inf, True, "1/4"):
        refused("epsilon", soften, chooser(), 3, epsilon)
    refused("epsilon", soften, random_model("one head", 0), 2, 1e-16)  # below rounding
    refused("epsilon", soften, random_model("one head", 1, dtype="float32"), 4, 1e-6)
    biased = random_model("two layers of two heads", 0, layer_positions=("none", "relative-bias"))
    for named, model in (
        ("layer 1: positions", biased),
        ("layer 0: weighting", softened("one head", 0, 2, 1 / 4)[0]),
    ):
        with refusal(named):
            soften(model, 5, 1e-3)
    hard = chooser()
    refused("words", largest_difference, hard, hard)
    broken = with_parameters(hard, 0, value=np.full((1, 5, 1), np.nan))
    assert math.isnan(largest_difference(broken, hard, np.array([[0, 1]])))
