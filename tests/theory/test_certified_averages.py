"""The support of attention's average, against all words."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from jaxsens.theory.certified import averages
from jaxsens.theory.certified.averages import Counts, Weights, average_range, average_sup, total_range
from jaxsens.theory.certified.intervals import Ball


def row(seed: int, n: int = 7, kinds: int = 2, width: float = 0.0):
    """One row of weights with a forced and an invisible key, as intervals of this relative width, and payloads."""
    rng = np.random.default_rng(seed)
    e = np.exp(2 * rng.normal(size=(1, kinds, n)))
    e[0, 1:, 3] = np.nan
    e[0, :, -1] = 0.0
    return e * (1 + width), e / (1 + width), rng.normal(size=(4, 1, kinds, n))


def weights(hi: np.ndarray, lo: np.ndarray, counts: Counts | None = None) -> Weights:
    return Weights(hi, lo, np.zeros(len(hi)), counts)


def words(e: np.ndarray, counts: Counts | None):
    kinds, n = e.shape[1:]
    for word in itertools.product(range(kinds), repeat=n):
        picked = e[0, list(word), range(n)]
        if np.isnan(picked).any():
            continue
        if counts is None or counts.least <= word.count(0) <= counts.most:
            yield list(word), picked


def largest(e: np.ndarray, payload: np.ndarray, counts: Counts | None = None) -> np.ndarray:
    n = e.shape[2]
    found = [
        (payload[:, 0, word, range(n)] * picked).sum(-1) / picked.sum() for word, picked in words(e, counts)
    ]
    return np.max(found, axis=0)


@pytest.mark.quick(4)
@pytest.mark.parametrize("kinds", [2, 3])
@pytest.mark.parametrize("seed", range(4))
def test_the_support_is_the_largest_average_over_all_words(seed, kinds):
    hi, lo, payload = row(seed, 6, kinds)
    actual, bound = largest(hi, payload), average_sup(weights(hi, lo), payload)[:, 0]
    assert (actual <= bound).all()
    np.testing.assert_allclose(actual, bound, rtol=2e-3, atol=1e-3)


@pytest.mark.parametrize("seed", range(4))
def test_weights_in_intervals_are_chosen_at_their_ends(seed):
    hi, lo, payload = row(seed, 5, 2, width=0.5)
    n = hi.shape[2]
    found = []
    for ends in itertools.product((0, 1), repeat=n):
        e = np.where(np.array(ends)[None, None] == 1, hi, lo)
        found.append(largest(e, payload))
    actual, bound = np.max(found, axis=0), average_sup(weights(hi, lo), payload)[:, 0]
    assert (actual <= bound).all()
    np.testing.assert_allclose(actual, bound, rtol=2e-3, atol=1e-3)


@pytest.mark.quick(6)
@pytest.mark.parametrize("limits", [(0, 2), (2, 3), (5, 7), (4, 4)])
@pytest.mark.parametrize("seed", range(4))
def test_counts_bound_the_words_that_have_them(seed, limits):
    hi, lo, payload = row(seed)
    counts = Counts(limits[0], limits[1], hi.shape[2])
    actual, bound = largest(hi, payload, counts), average_sup(weights(hi, lo, counts), payload)[:, 0]
    assert (actual <= bound).all()
    assert (bound <= average_sup(weights(hi, lo), payload)[:, 0] + 2e-3).all()
    sums = [picked.sum() for _, picked in words(hi, counts)]
    lower, upper = total_range(weights(hi, lo, counts))
    assert lower[0] <= min(sums)
    assert max(sums) <= upper[0]


def test_counts_tighten():
    hi, lo, payload = row(0)
    counts = Counts(6, 7, hi.shape[2])
    assert (
        average_sup(weights(hi, lo, counts), payload) < average_sup(weights(hi, lo), payload) - 0.01
    ).any()


def test_a_row_that_sees_nothing_averages_to_0():
    _, _, payload = row(0)
    nothing = np.zeros((1, 2, 7))
    assert (average_sup(weights(nothing, nothing), payload) == 0).all()
    assert total_range(weights(nothing, nothing))[1][0] == 0


def test_weights_that_underflow_bound_by_the_largest_payload():
    payload = np.array([[[[1.0, 5.0], [0.0, 2.0]]]])
    hi = np.full((1, 2, 2), 1e-290)
    lo = np.zeros((1, 2, 2))
    hi[0, 0, 0] = lo[0, 0, 0] = 1.0
    # The word without the key that outweighs all others can weigh the rest in any way.
    assert average_sup(weights(hi, lo), payload)[0, 0] == 5.0


@pytest.mark.quick(4)
@pytest.mark.parametrize("on_host", [2**17, 0])
@pytest.mark.parametrize("limits", [None, (0, 2), (2, 3), (5, 7)])
@pytest.mark.parametrize("seed", range(4))
def test_the_heads_averages_over_one_word_add_up_to_less_than_their_suprema(
    seed, limits, on_host, monkeypatch
):
    monkeypatch.setattr(averages, "ON_HOST", on_host)
    counts = None if limits is None else Counts(limits[0], limits[1], 7)
    parts = [row(seed + 10 * h, width=0.1) for h in range(3)]
    e = Weights.of_heads([weights(hi, lo, counts) for hi, lo, _ in parts])
    payload = np.stack([v[:, 0] for _, _, v in parts])  # heads, p, kinds, n
    each, total = average_range(e, Ball(np.transpose(payload, (0, 3, 2, 1)), np.zeros((3, 7, 2, 4))))
    actual = []
    for word, _ in words(parts[0][0], counts):
        index = word, range(7)
        w = [np.sqrt(hi * lo)[0][index] for hi, lo, _ in parts]
        of_word = payload[:, :, word, range(7)]
        actual.append(sum((of_word[h] * w[h]).sum(-1) / w[h].sum() for h in range(3)))
    assert (np.max(actual, axis=0) <= total.hi[0]).all()
    assert (np.min(actual, axis=0) >= total.lo[0]).all()
    assert (total.rad[0] <= each.rad[:, 0].sum(axis=0) * (1 + 1e-9)).all()
    assert (total.rad[0] < 0.95 * each.rad[:, 0].sum(axis=0)).any()
