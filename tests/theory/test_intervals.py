"""Intervals, norms, averages, Lipschitz constants: never too small, and not much too large."""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxsens import Transformer
from jaxsens.core.base.programs import numerics
from jaxsens.core.models.parts.choices import ACTIVATIONS
from jaxsens.theory.certified import averages, intervals
from jaxsens.theory.certified.averages import Counts, Weights, average_range, average_sup, total_range
from jaxsens.theory.certified.intervals import (
    Ball,
    Bent,
    OutputRange,
    ball,
    bent_norm,
    by_symbol,
    hull,
    norm_bound,
    zonotope_norm,
)
from jaxsens.theory.lemma5 import lemma5
from jaxsens.theory.rules import ACTIVATION_LIPSCHITZ, largest_embedding
from tests import reference
from tests.lanes import examples
from tests.refusals import refusal
from tests.small_models import POSITIONS_TRIED, random_parameters, small


def inside(x: np.ndarray, b: Ball) -> bool:
    return bool(((b.lo <= x) & (x <= b.hi)).all())


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_constants_of_the_activations_hold_on_a_grid(name):
    h = np.linspace(-30, 30, 600_001)
    facts = intervals.ACTIVATIONS[name]
    f, d = facts.function(h), facts.derivative(h)
    least, most = facts.slopes
    assert facts.least <= f.min()
    assert (np.diff(f[h > facts.turn]) >= 0).all()
    assert least <= d.min()
    assert d.max() <= most
    if name != "relu":
        assert abs(np.diff(d) / np.diff(h)).max() <= facts.curvature
        np.testing.assert_allclose(np.diff(f) / np.diff(h), (d[1:] + d[:-1]) / 2, atol=1e-6)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_are_those_of_the_models(name):
    h = np.linspace(-5, 5, 101)
    with numerics("float64"):
        of_model = np.asarray(ACTIVATIONS[name](jnp.asarray(h)))
    np.testing.assert_allclose(intervals.ACTIVATIONS[name].function(h), of_model, atol=1e-14)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_ranges_slopes_and_lines_hold_within_random_intervals(name):
    rng = np.random.default_rng(0)
    ends = np.sort(rng.normal(size=(400, 2)) * rng.choice([0.1, 1, 10], size=(400, 1)), axis=1)
    h = ball(ends[:, 0], ends[:, 1])
    t = ends[:, :1] + np.linspace(0, 1, 300) * (ends[:, 1:] - ends[:, :1])
    f = intervals.ACTIVATIONS[name].function(t)
    assert inside(f.T, intervals.activated(name, h))
    quotients = np.diff(f, axis=1) / np.diff(t, axis=1)
    d = intervals.slopes(name, h)
    assert ((d.lo - 1e-9 <= quotients.T) & (d.hi + 1e-9 >= quotients.T)).all()
    s, c = intervals.relaxed(name, h)
    assert inside((f - s[:, None] * t).T, c)


def test_maps_and_normalisation_hold_at_random_points():
    rng = np.random.default_rng(1)
    mid, rad = rng.normal(size=(50, 6)), 0.3 * rng.random((50, 6))
    points = mid + rad * rng.uniform(-1, 1, size=(200, 50, 6))
    x, matrix = Ball(mid, rad), rng.normal(size=(6, 4))
    assert inside(points @ matrix, intervals.times(x, matrix))
    scale, bias = rng.normal(size=6), rng.normal(size=6)
    centred = points - points.mean(-1, keepdims=True)
    root = np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-3)
    assert inside(centred / root * scale + bias, intervals.layer_normed(x, 1e-3, scale, bias))
    assert inside(1 / root, intervals.inverse_deviation(x, 1e-3))
    assert inside(points * points, intervals.product(x, x))


def test_spectral_and_vector_norms_are_bounds():
    rng = np.random.default_rng(2)
    matrix, vectors = rng.normal(size=(5, 7)), rng.normal(size=(1000, 5))
    ratios = np.linalg.norm(vectors @ matrix, axis=1) / np.linalg.norm(vectors, axis=1)
    assert ratios.max() <= intervals.spectral(matrix)
    assert intervals.norm_bound(np.array([3.0, 4.0]), "l2") >= 5
    assert intervals.norm_bound(np.array([3.0, 4.0]), "l1") >= 7
    assert intervals.norm_bound(np.array([3.0, 4.0]), "linf") == 4
    assert intervals.norm_bound(np.array([3e-200, 4e-200]), "l2") >= 5e-200


def longest(t, generators):
    """The largest length over all signs."""
    signs = np.array(list(itertools.product((-1, 1), repeat=len(t))))
    return np.linalg.norm((signs * t) @ generators, axis=1).max()


@settings(max_examples=examples(60), deadline=None)
@given(
    seed=st.integers(0, 2**31),
    units=st.integers(1, 9),
    outputs=st.integers(1, 6),
    scale=st.sampled_from((1e-120, 1e-3, 1.0, 1e120)),
    lengths=st.sampled_from((1e-130, 1.0, 1e120)),
)
def test_no_choice_of_signs_is_longer(seed, units, outputs, scale, lengths):
    rng = np.random.default_rng(seed)
    generators = rng.normal(size=(units, outputs)) * rng.choice(
        [0, 1e-3, 1], size=(units, 1), p=[0.1, 0.2, 0.7]
    )
    t = rng.exponential(size=(3, units)) * rng.choice([0, 1e-6, 1], size=(3, units)) * scale
    found = zonotope_norm(t, generators * lengths)
    actual = [longest(one / scale, generators) * scale * lengths for one in t]
    assert all(length <= bound or length < 1e-200 for length, bound in zip(actual, found, strict=True))


def test_the_bound_is_near_the_longest_choice_and_far_below_the_coordinates():
    rng = np.random.default_rng(0)
    generators, t = rng.normal(size=(14, 8)), rng.exponential(size=14)
    found, actual = zonotope_norm(t, generators), longest(t, generators)
    assert actual <= found <= 1.1 * actual
    assert found < 0.75 * norm_bound(t @ abs(generators), "l2")


@pytest.mark.parametrize("norm", ["l1", "l2", "linf"])
def test_a_bend_and_what_is_known_by_entries_add_up(norm):
    rng = np.random.default_rng(2)
    size, bend, onto = rng.exponential(size=3), rng.exponential(size=5), rng.normal(size=(5, 3))
    found = bent_norm(size, bend, Ball(onto, 0.01 * abs(onto)), norm)
    signs = np.array(list(itertools.product((-1, 1), repeat=8)))
    vectors = signs[:, :3] * size + (signs[:, 3:] * bend) @ onto
    order = {"l1": 1, "l2": 2, "linf": np.inf}[norm]
    assert np.linalg.norm(vectors, ord=order, axis=1).max() <= found
    assert found <= norm_bound((size + 1.01 * bend @ abs(onto)) * (1 + 1e-9), norm)


@pytest.mark.parametrize("factor", [1e-200, 1e160, 1e200, 1e300])
def test_generators_whose_squares_overflow_or_vanish_are_not_left_out(factor):
    generators, t = np.array([[1.0, 0.5], [0.0, 1.0]]) * factor, np.ones(2)
    assert zonotope_norm(t, generators) >= 1.8 * factor
    mixed = np.array([[factor, 0.0], [0.0, 1.0]])
    assert zonotope_norm(t, mixed) >= np.hypot(factor, 1.0)
    assert bent_norm(np.zeros(2), t, Ball(mixed, np.zeros((2, 2))), "l2") >= np.hypot(factor, 1.0)


def test_with_many_outputs_what_coordinates_are_bounded_by_stands(monkeypatch):
    onto = Ball(np.random.default_rng(0).normal(size=(6, 4)), np.zeros((6, 4)))
    size, bend = np.ones(4), np.ones(6)
    near = bent_norm(size, bend, onto, "l2")
    monkeypatch.setattr(intervals, "MOST_OUTPUTS", 3)
    found = bent_norm(size, bend, onto, "l2")
    assert near < found == pytest.approx(norm_bound(size + bend @ abs(onto.mid), "l2"))


def test_what_overflowed_has_no_bound_and_what_is_nothing_has_none_to_add():
    onto = np.ones((2, 2))
    assert zonotope_norm(np.array([[np.inf, 1.0], [np.nan, 1.0], [0.0, 0.0]]), onto).tolist() == [
        np.inf,
        np.inf,
        0,
    ]
    assert np.isinf(zonotope_norm(np.ones(2), np.full((2, 2), np.nan)))
    assert zonotope_norm(np.zeros((3, 0)), np.zeros((0, 2))).tolist() == [0, 0, 0]


def test_a_hull_of_classes_holds_every_class():
    rng = np.random.default_rng(3)
    onto, common = Ball(rng.normal(size=(12, 6)), np.zeros((12, 6))), rng.exponential(size=(1, 12))

    corners = []

    def one():
        straight = Ball(rng.normal(size=(1, 6)), 0.1 * rng.exponential(size=(1, 6)))
        bend = common * rng.uniform(0.9, 1, size=(1, 12))
        box = Ball(straight.mid, straight.rad + bend @ abs(onto.mid))
        reach = straight.rad[0] + bend[0] @ onto.mid
        corners.extend((straight.mid[0] - reach, straight.mid[0] + reach))
        return by_symbol([OutputRange(box, Bent(straight, bend, onto))] * 2)

    classes = [one() for _ in range(3)]
    whole = hull(classes)
    assert whole.width("l2") >= max(one.width("l2") for one in classes)
    apart = max(np.linalg.norm(a - b) for a, b in itertools.combinations(corners, 2))
    assert apart <= whole.width("l2") < hull([OutputRange(x.box) for x in classes]).width("l2")


def test_derivatives_of_activations_stay_below_their_constants_and_come_near():
    x = np.linspace(-12, 12, 2_000_001)
    for name, constant in ACTIVATION_LIPSCHITZ.items():
        y = {
            "relu": np.maximum(x, 0),
            "tanh": np.tanh(x),
            "gelu": 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
            "silu": x * (1 + np.tanh(x / 2)) / 2,
        }[name]
        slope = np.abs(np.diff(y) / np.diff(x)).max()
        assert slope - 1e-9 <= constant <= slope * 1.0001
        assert np.all(np.abs(y) <= np.abs(x))


def test_the_largest_embedding_is_that_of_the_reference():
    for positions in POSITIONS_TRIED.values():
        config = small(positions=positions)
        parameters = random_parameters(config)
        rows = [
            np.linalg.norm(row)
            for symbol in range(config.vocabulary_size)
            for row in reference.embedded(config, parameters, [symbol] * 6, np.float64)
        ]
        assert max(rows) <= largest_embedding(config, parameters, 6) <= max(rows) * (1 + 1e-8)


@pytest.mark.quick(3)
@pytest.mark.parametrize("logits", [None, 3])
@pytest.mark.parametrize("norm", ["l2", "l1", "linf"])
def test_of_chosen_outputs_the_bound_is_that_of_the_model_which_has_no_others(norm, logits):
    config = small(layers=1, logits=logits)
    parameters = random_parameters(config)
    model = Transformer(config, parameters=parameters)
    n: Any = np.int64(6)
    whole, some = (lemma5(model, n, measure={"kind": norm, "outputs": chosen}) for chosen in ("all", [2, 0]))
    assert (whole.outputs, some.outputs) == (None, (0, 2))
    assert type(some.n) is int
    head = np.eye(config.width) if logits is None else np.asarray(parameters.head)
    cut = dataclasses.replace(parameters, head=head[:, [0, 2]], head_bias=np.zeros(2))
    alone = lemma5(Transformer(config.replace(logits=2), parameters=cut), 6, measure=norm)
    np.testing.assert_allclose(some.log_bound, alone.log_bound, rtol=1e-8)
    assert some.log_bound <= whole.log_bound
    # In l2 and linf two outputs may change by as much as all.
    assert some.log_bound < whole.log_bound or norm != "l1"


def test_outputs_that_the_model_does_not_have_are_refused():
    for outputs in ([6], [], 0, "some", [[0], 1]):
        with refusal("measure.outputs"):
            lemma5(Transformer(small()), 4, measure={"kind": "l2", "outputs": outputs})


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
