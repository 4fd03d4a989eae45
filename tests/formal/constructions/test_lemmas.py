"""Lemmas 6 and 7: no scores exceed the bounds, and the worst ones come as near to them as is said."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxsens.formal.constructions import lemmas
from jaxsens.formal.constructions.lemmas import KAPPA
from tests.refusals import refused

ROUNDING = 1 + 1e-12
"""Bounds that are attained may be passed by rounding."""


def softmax(scores) -> np.ndarray:
    shifted = np.exp(np.asarray(scores, np.float64) - np.max(scores, axis=-1, keepdims=True))
    return shifted / shifted.sum(axis=-1, keepdims=True)


def distance_from_one_hot(weights: np.ndarray, chosen: int) -> float:
    """The 1-norm, without the cancellation of 1 - weight."""
    others = np.delete(weights, chosen)
    return float(2 * others.sum())


gaps = st.floats(1e-3, 40)


@given(gap=gaps, chosen=st.integers(0, 30), extra=st.lists(st.floats(0, 50), min_size=1, max_size=31))
def test_lemma_6_bounds_every_vector_that_falls_off_linearly(gap, chosen, extra):
    n = len(extra)
    chosen %= n
    below = gap * np.abs(np.arange(n) - chosen) + np.where(np.arange(n) == chosen, 0, extra)
    found = distance_from_one_hot(softmax(7.5 - below), chosen)
    assert found <= lemmas.linear_gap_error(gap) * ROUNDING
    assert lemmas.linear_gap_error(gap) <= lemmas.linear_gap_error(gap, simple=True)


@pytest.mark.parametrize("gap", [0.05, 0.5, 1.0, KAPPA, 8.0])
def test_lemma_6_is_tight_in_the_middle_of_a_long_input(gap):
    j = np.arange(1601)
    found = distance_from_one_hot(softmax(-gap * np.abs(j - 800)), 800)
    assert found >= 0.999999 * lemmas.linear_gap_error(gap)


def test_the_simple_form_of_lemma_6_is_tight_as_the_gap_grows():
    assert lemmas.linear_gap_error(20.0) >= 0.99999 * lemmas.linear_gap_error(20.0, simple=True)


@given(gap=gaps, extra=st.lists(st.floats(0, 50), max_size=30))
def test_a_gap_alone_bounds_the_distance(gap, extra):
    n = 1 + len(extra)
    found = distance_from_one_hot(softmax([0.0, *(-gap - value for value in extra)]), 0)
    assert found <= lemmas.gap_error(gap, n) * ROUNDING
    assert lemmas.gap_error(gap, n) <= lemmas.gap_error(gap, n, simple=True)


@pytest.mark.parametrize("n", [2, 3, 50])
def test_the_bound_by_the_gap_alone_is_attained_and_its_simple_form_nearly(n):
    found = distance_from_one_hot(softmax([0.0] + [-5.0] * (n - 1)), 0)
    assert found == pytest.approx(lemmas.gap_error(5.0, n), rel=1e-12)
    assert lemmas.gap_error(30.0, 1000) >= 0.998 * lemmas.gap_error(30.0, 1000, simple=True)


@given(
    weights=st.lists(st.floats(0, 1), min_size=2, max_size=8),
    other=st.lists(st.floats(0, 1), min_size=8, max_size=8),
    values=st.lists(st.floats(-3, 5), min_size=8, max_size=8),
)
def test_a_change_of_weights_moves_an_average_by_half_of_its_norm_times_the_spread(weights, other, values):
    a, v = np.array(weights) + 1e-3, np.array(values[: len(weights)])
    b = np.array(other[: len(weights)]) + 1e-3
    a, b = a / a.sum(), b / b.sum()
    moved = abs(a @ v - b @ v)
    assert moved <= lemmas.value_error(float(np.abs(a - b).sum()), float(np.ptp(v))) + 1e-12


def test_the_bound_on_a_moved_average_is_attained():
    assert lemmas.value_error(2.0, 8.0) == abs(
        np.array([1.0, 0.0]) @ [5, -3] - np.array([0.0, 1.0]) @ [5, -3]
    )


@pytest.mark.parametrize("error", [1e-9, 1e-3, 1 / 8, 1 / 4, 1.0, 1.9])
def test_the_inverses_give_the_least_gap_for_an_error(error):
    for bound, inverse in (
        (lemmas.linear_gap_error, lemmas.linear_gap_for),
        (partial(lemmas.linear_gap_error, simple=True), partial(lemmas.linear_gap_for, simple=True)),
        (lambda gap: lemmas.gap_error(gap, 9), lambda wanted: lemmas.gap_for(wanted, 9)),
        (
            lambda gap: lemmas.gap_error(gap, 9, simple=True),
            lambda wanted: lemmas.gap_for(wanted, 9, simple=True),
        ),
    ):
        gap = inverse(error)
        if gap > 0:
            assert bound(gap) == pytest.approx(error, rel=1e-9)
            assert bound(0.999 * gap) > error
        else:
            assert bound(1e-9) <= error


def test_kappa_retrieves_a_boolean_within_an_eighth():
    assert lemmas.linear_gap_for(1 / 4, simple=True) == KAPPA
    assert lemmas.value_error(lemmas.linear_gap_error(KAPPA, simple=True)) == pytest.approx(1 / 8, rel=1e-12)
    assert lemmas.linear_gap_for(1 / 4) == pytest.approx(math.log(15), rel=1e-12)
    assert lemmas.gap_for(1 / 4, 50, simple=True) == pytest.approx(math.log(400), rel=1e-12)


def lookup(asked: np.ndarray, n: int, sharpness: float) -> tuple[np.ndarray, np.ndarray]:
    """Signed error of the row number and distance of the weights from one-hot, for each q asked."""
    j = np.arange(1, n + 1)
    below = sharpness * (j - asked[:, None]) ** 2.0
    weights = softmax(-below)
    off = j - asked[:, None]
    return (weights * off).sum(axis=1), 2 * (weights * (off != 0)).sum(axis=1)


@pytest.mark.parametrize("sharpness", [0.5, 0.6, 0.8, 1.0, 1.5, 2.0, 3.0, 6.0, 20.0])
def test_lemma_7_bounds_every_row_of_every_table(sharpness):
    errors, distances = [], []
    for n in [*range(1, 40), 100, 500]:
        error, distance = lookup(np.arange(1, n + 1), n, sharpness)
        errors.append(np.abs(error).max())
        distances.append(distance.max())
    supremum, weight = lemmas.lookup_error(sharpness), lemmas.lookup_weight_error(sharpness)
    assert supremum * (1 - 1e-9) <= max(errors) <= supremum * ROUNDING  # attained, and not passed
    assert weight * (1 - 1e-9) <= max(distances) <= weight * ROUNDING
    one_sided, simple = lemmas.lookup_error_one_sided(sharpness), lemmas.lookup_error_simple(sharpness)
    assert supremum < one_sided < simple
    assert simple <= (3 if sharpness >= 1 else 4) * math.exp(-sharpness)
    assert weight < lemmas.linear_gap_error(sharpness, simple=True)


def test_the_one_sided_form_of_lemma_7_is_tight_as_the_sharpness_grows_and_the_simple_one_twice_too_large():
    assert lemmas.lookup_error(600.0) >= 0.999 * lemmas.lookup_error_one_sided(600.0)
    assert lemmas.lookup_error(600.0) == pytest.approx(lemmas.lookup_error_simple(600.0) / 2, rel=1e-3)


@given(n=st.integers(1, 60), q=st.integers(1, 60), sharpness=st.floats(0.5, 8))
def test_the_scores_of_a_lookup_are_those_of_lemma_7(n, q, sharpness):
    q = min(q, n)
    weights = softmax(lemmas.lookup_scores(float(q), n, sharpness))
    j = np.arange(1, n + 1)
    assert abs(weights @ j - q) <= lemmas.lookup_error(sharpness) + 1e-9
    assert np.abs(weights - (j == q)).sum() <= lemmas.lookup_weight_error(sharpness) + 1e-9


def test_outside_the_table_a_lookup_returns_its_nearest_row():
    for asked, n, row in ((0, 9, 1), (10, 9, 9), (0, 1, 1), (5, 1, 1)):
        found = softmax(lemmas.lookup_scores(float(asked), n, 6.0)) @ np.arange(1, n + 1)
        assert found == pytest.approx(row, abs=0.01)


@pytest.mark.parametrize("weight", [1, 2, 5, 40])
def test_counts_looked_up_add_up_to_within_a_quarter(weight):
    sharpness = lemmas.lookup_sharpness(weight)
    assert sharpness == math.log(12 * weight)
    assert weight * lemmas.lookup_error_simple(sharpness) <= 1 / 4
    needed = lemmas.lookup_sharpness_for(1 / (4 * weight))
    assert needed < sharpness - 0.9
    assert lemmas.lookup_error(needed) == pytest.approx(1 / (4 * weight), rel=1e-9)


@pytest.mark.parametrize("error", [1e-12, 1e-3, 0.4, 0.6, 0.99])
def test_the_least_sharpness_for_an_error(error):
    sharpness = lemmas.lookup_sharpness_for(error)
    assert lemmas.lookup_error(sharpness) <= error
    assert sharpness == 0.5 or lemmas.lookup_error(0.999 * sharpness) > error


def test_the_numbers_of_numpy_are_numbers_and_are_calculated_with_in_double_precision():
    three: Any = np.float32(3)
    many: Any = np.int8(100)
    assert lemmas.linear_gap_error(three) == lemmas.linear_gap_error(3.0)
    assert lemmas.gap_error(three, many) == lemmas.gap_error(3.0, 100)
    assert lemmas.gap_for(0.25, many, simple=True) == lemmas.gap_for(0.25, 100, simple=True)
    assert lemmas.value_error(three, 0.1) == lemmas.value_error(3.0, 0.1)
    assert lemmas.lookup_error_simple(three) == lemmas.lookup_error_simple(3.0)


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: lemmas.linear_gap_error(0.0), "gap"),
        (lambda: lemmas.linear_gap_error(math.nan), "gap"),
        (lambda: lemmas.linear_gap_for(2.0), "error"),
        (lambda: lemmas.linear_gap_for(0.0, simple=True), "error"),
        (lambda: lemmas.gap_error(1.0, 0), "n"),
        (lambda: lemmas.gap_for(0.1, True), "n"),
        (lambda: lemmas.lookup_error(0.49), "sharpness"),
        (lambda: lemmas.lookup_error(True), "sharpness"),
        (lambda: lemmas.gap_error(-0.1, 2), "gap"),
        (lambda: lemmas.lookup_sharpness(0), "weight"),
        (lambda: lemmas.lookup_sharpness_for(1.0), "error"),
        (lambda: lemmas.value_error(-0.1), "weight_error"),
    ],
)
def test_arguments_outside_a_lemma_are_refused_by_name(call, named):
    refused(named, call)
