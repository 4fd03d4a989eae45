"""Lemma 8: over all Boolean scores and random ones with a gap, softmax chooses the one it should, and only just."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxsens import InputError
from jaxsens.formal.constructions import lemmas as tie_breaking
from jaxsens.formal.constructions.lemmas import KAPPA, LEFTMOST, RIGHTMOST, RIGHTMOST_RECIPROCAL, TieBreak
from tests.refusals import refusal, refused

LEFTMOST_RECIPROCAL = TieBreak("leftmost", None)
ALL = [
    RIGHTMOST,
    LEFTMOST,
    RIGHTMOST_RECIPROCAL,
    LEFTMOST_RECIPROCAL,
    TieBreak("rightmost", 1.0),
    TieBreak("leftmost", 1.0),
    TieBreak("rightmost", 0.3),
]


def distance(rule: TieBreak, scores: np.ndarray, gap: float, tau: float, positions, n: int) -> np.ndarray:
    """||one-hot of the chosen - softmax||_1 for each row of scores at these positions of n, without cancellation."""
    broken = (scores + rule.terms(gap, np.asarray(positions), n)) / tau
    best = scores == scores.max(axis=-1, keepdims=True)
    last = scores.shape[-1] - 1
    chosen = last - best[:, ::-1].argmax(axis=-1) if rule.side == "rightmost" else best.argmax(axis=-1)
    below = np.take_along_axis(broken, chosen[:, None], axis=-1) - broken
    others = np.exp(-below)
    np.put_along_axis(others, chosen[:, None], 0, axis=-1)
    y = others.sum(axis=-1)
    return 2 * y / (1 + y)


def booleans(n: int) -> np.ndarray:
    return np.array(list(product((0.0, 1.0), repeat=n)))


@pytest.mark.parametrize("rule", ALL, ids=str)
def test_all_boolean_scores(rule):
    for n in range(1, 11):
        for error in (1 / 16, 1 / 4):
            tau = rule.temperature(1.0, n, error)
            found = distance(rule, booleans(n), 1.0, tau, range(1, n + 1), n) / 2
            assert found.max() <= error * (1 + 1e-12)


@pytest.mark.parametrize("rule", ALL, ids=str)
def test_all_scores_of_three_values_on_every_visible_subset(rule):
    n, gap = 6, 0.7
    tau = rule.temperature(gap, n)
    for visible in booleans(n)[1:]:
        positions = 1 + np.flatnonzero(visible)
        scores = np.array(list(product((0.0, -gap, -5 * gap), repeat=len(positions))))
        assert distance(rule, scores, gap, tau, positions, n).max() <= rule.error(gap, n, tau) * (1 + 1e-12)


@pytest.mark.parametrize("rule", ALL, ids=str)
@given(
    gap=st.floats(1e-3, 100),
    sharpness=st.floats(0.05, 8),
    below=st.lists(st.one_of(st.just(0.0), st.floats(1, 30)), max_size=40),
    best=st.integers(0, 40),
)
def test_random_scores_with_a_gap(rule, gap, sharpness, below, best):
    below.insert(best, 0.0)
    n = len(below)
    scores = 3.0 - gap * np.array([below])
    tau = rule.fall_off(gap, n) / sharpness
    found = distance(rule, scores, gap, tau, range(1, n + 1), n).max()
    assert found <= rule.error(gap, n, tau) * (1 + 1e-6)
    assert rule.error(gap, n, tau, simple=True) == 2 * rule.error(gap, n, tau)


@pytest.mark.quick(5)
@pytest.mark.parametrize("rule", ALL, ids=str)
@pytest.mark.parametrize("error", [0.02, 1 / 4])
def test_the_bound_is_tight_where_the_last_scores_of_a_long_input_tie(rule, error):
    n, tied = 30_000, 12
    tau = rule.temperature(2.0, n, error)
    scores = np.where(np.arange(n) < n - tied, -2.0, 0.0)[None]
    found = distance(rule, scores, 2.0, tau, range(1, n + 1), n).max()
    assert 0.98 * rule.error(2.0, n, tau) <= found <= rule.error(2.0, n, tau) * (1 + 1e-9)


def test_steeper_terms_than_slope_one_choose_wrong():
    """A slope above 1 lifts the last position above the best one: the class refuses it, and rightly so."""
    n, scores = 10, np.array([[1.0] + [0.0] * 9])
    lifted = scores + 1.2 * np.arange(1, n + 1) / n
    assert lifted.argmax() == n - 1
    refused("slope", TieBreak, "rightmost", 1.2)


def test_the_temperatures_of_the_paper():
    assert RIGHTMOST.temperature(1.0, 7, 1 / 8, simple=True) == pytest.approx(1 / (2 * KAPPA * 7), rel=1e-12)
    assert LEFTMOST.temperature(3.0, 7, 1 / 8, simple=True) == pytest.approx(3 / (2 * KAPPA * 7), rel=1e-12)
    assert RIGHTMOST_RECIPROCAL.temperature(1.0, 7, 1 / 8, simple=True) == pytest.approx(
        1 / (KAPPA * 49), rel=1e-12
    )
    assert TieBreak("rightmost", 1.0).temperature(1.0, 7) == pytest.approx(1 / (math.log(4) * 7), rel=1e-12)


def test_only_the_reciprocal_does_without_the_length():
    assert RIGHTMOST_RECIPROCAL.terms(2.0, 4) == -0.5
    assert LEFTMOST_RECIPROCAL.terms(2.0, 4) == 0.5
    with refusal("n"):
        RIGHTMOST.terms(2.0, 4)


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: TieBreak("middle", 0.5), "side = 'middle'"),  # pyright: ignore[reportArgumentType]
        (lambda: TieBreak("leftmost", 0.0), "slope = 0.0"),
        (lambda: RIGHTMOST.terms(1.0, np.array([0, 1]), 3), "j = "),
        (lambda: RIGHTMOST.terms(1.0, 4, 3), "j = 4"),
        (lambda: RIGHTMOST.terms(-1.0, 1, 3), "gap = -1.0"),
        (lambda: RIGHTMOST.error(1.0, 3, 0.0), "tau = 0.0"),
        (lambda: RIGHTMOST.temperature(1.0, 3, 1.0), "error = 1.0"),
        (lambda: tie_breaking.LEFTMOST.fall_off(1.0, 0), "n = 0"),
    ],
)
def test_arguments_outside_the_lemma_are_refused_by_name(call, named):
    with pytest.raises(InputError, match=named):
        call()
