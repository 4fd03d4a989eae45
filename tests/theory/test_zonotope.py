"""Norms of sums whose terms go either way: against all signs, and against coordinates bounded one by one."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxsens.theory.certified import intervals
from jaxsens.theory.certified.intervals import (
    Ball,
    Bent,
    OutputRange,
    bent_norm,
    by_symbol,
    hull,
    norm_bound,
    zonotope_norm,
)
from tests.lanes import examples


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
