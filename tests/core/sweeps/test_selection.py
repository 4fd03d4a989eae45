"""Shards are disjoint and complete, and conditions take what they name."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxsens.core.sweeps.points import select
from tests.core.sweeps.tiny import tiny_sweep
from tests.refusals import refused

POINTS = tiny_sweep("lengths = [4, 6]", "lengths = [4, 6, 9]").points


def names(points):
    return [str(point) for point in points]


def test_cheap_points_come_first_and_every_variant_of_one_seed_before_the_next():
    assert names(select(POINTS))[:5] == [
        "softmax n=4 seed=0",
        "leftmost-hard n=4 seed=0",
        "softmax n=4 seed=1",
        "leftmost-hard n=4 seed=1",
        "softmax n=6 seed=0",
    ]


@given(st.integers(1, 20))
def test_shards_are_disjoint_complete_and_even(count):
    shards = [select(POINTS, shard=f"{k}/{count}") for k in range(count)]
    together = sorted(names(point for shard in shards for point in shard))
    assert together == sorted(names(POINTS))
    sizes = [len(shard) for shard in shards]
    assert max(sizes) - min(sizes) <= 1


def test_conditions_are_met_all_at_once_and_take_several_values():
    chosen = select(POINTS, only=["n=4,9", "variant=softmax", "seed=1"])
    assert names(chosen) == ["softmax n=4 seed=1", "softmax n=9 seed=1"]


def test_a_shard_of_a_choice_is_a_part_of_the_choice():
    chosen = names(select(POINTS, only=["seed=0"]))
    assert names(select(POINTS, only=["seed=0"], shard="1/2")) == chosen[1::2]


def test_everything_that_cannot_be_selected_is_said_at_once():
    said = refused("--only --shard", select, POINTS, only=["n=5", "depth=2", "variant"], shard="4/4")
    assert "4 errors" in said
    assert "n is one of 4, 6, 9" in said


@pytest.mark.parametrize("shard", ["1", "a/b", "1/0", "0/0", "-1/2", "2/2", "1/2/3"])
def test_a_shard_must_be_a_part_of_a_whole(shard):
    refused("--shard", select, POINTS, shard=shard)
