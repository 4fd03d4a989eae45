"""Batches are a function of the seed and the step; their lengths and targets are those that the config asks for."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from jaxsens.languages import Parity, language
from jaxsens.training.steps import batches, one_hot_draws, with_boundary
from tests.training.tiny import tiny


def same(a, b) -> bool:
    pairs = zip(dataclasses.astuple(a), dataclasses.astuple(b), strict=True)
    return all(np.array_equal(x, y) for x, y in pairs)


def test_a_batch_depends_on_the_seed_and_the_step_and_on_nothing_else():
    config = tiny(data={"batch": 64})
    longer = tiny(data={"batch": 64}, optimiser={"steps": 100}, evaluation={"every": 0}, model={"width": 9})
    assert same(batches(config, 6), batches(config, 6))
    assert same(batches(config, 6), batches(longer, 6))
    assert not same(batches(config, 6), batches(config, 8))
    assert not same(batches(config, 6), batches(tiny(seed=1, data={"batch": 64}), 6))
    tokens = batches(tiny(data={"batch": 64, "lengths": [8, 8]}), 0).tokens
    assert tokens.shape == (2, 64, 9)
    assert not np.array_equal(tokens[0], tokens[1])


@pytest.mark.parametrize("name", ["parity", "2dyck"])
def test_prediction_reads_the_boundary_first_and_is_given_the_law_after_every_prefix(name):
    config = tiny(language={"name": name})
    made = batches(config, 0)
    assert (made.tokens[..., 0] == config.boundary).all()
    words = made.tokens[..., 1:]
    assert made.length == words.shape[-1]
    laws = config.language.next_probabilities(words)
    np.testing.assert_allclose(made.targets, laws, rtol=1e-6)
    entropies = -np.sum(laws * np.log(np.where(laws > 0, laws, 1)), axis=-1)
    assert made.optimum == pytest.approx(entropies.mean(), rel=1e-6)


def test_sampled_targets_are_possible_outcomes_drawn_from_the_law():
    config = tiny(data={"batch": 2000, "targets": "sampled", "lengths": [3, 3]})
    made = batches(config, 0)
    assert set(np.unique(made.targets)) == {0, 1}
    assert (made.targets.sum(axis=-1) == 1).all()
    laws = config.language.next_probabilities(made.tokens[..., 1:])
    assert (laws[made.targets == 1] > 0).all()
    even = np.broadcast_to((np.cumsum(made.tokens == 1, axis=-1) % 2 == 0), laws.shape[:-1])
    for state in (even, ~even):
        expected = laws[state][0]
        np.testing.assert_allclose(made.targets[state].mean(axis=0), expected, atol=0.03)
    drawn = -np.log(laws[made.targets == 1]).mean()
    assert made.optimum == pytest.approx(drawn, rel=1e-6)


def test_a_draw_never_takes_an_outcome_of_probability_zero():
    class Ends(np.random.Generator):
        """The least and the largest number that a generator may draw."""

        def random(self, size):  # pyright: ignore[reportIncompatibleMethodOverride]
            return np.broadcast_to([[0.0], [1 - 2.0**-53]], size)

    laws = np.array([[0.0, 0.5, 0.5, 0.0], [0.0, 0.5, 0.5, 0.0]])
    drawn = one_hot_draws(laws, Ends(np.random.PCG64(0)))
    assert drawn.tolist() == [[0, 1, 0, 0], [0, 0, 1, 0]]


def test_recognition_reads_the_boundary_last_and_is_given_the_label():
    config = tiny(task="recognition", data={"batch": 20})
    made = batches(config, 0)
    assert (made.tokens[..., -1] == config.boundary).all()
    members = config.language.member(made.tokens[..., :-1])
    assert np.array_equal(made.targets[..., 1] == 1, members)
    assert np.array_equal(made.targets.sum(axis=-1), np.ones(members.shape))
    assert members.mean() == 0.5
    assert made.optimum == 0


def test_lengths_are_drawn_from_all_that_the_curriculum_allows():
    stages = [{"step": 0, "longest": 3}, {"step": 100, "longest": 6}]
    config = tiny(data={"lengths": [1, 6], "distinct": 6, "curriculum": stages}, optimiser={"steps": 200})
    assert {batches(config, step).length for step in range(0, 100, 2)} == {1, 2, 3}
    assert {batches(config, step).length for step in range(100, 200, 2)} == {1, 2, 3, 4, 5, 6}


def test_the_boundary_symbol_is_the_number_after_the_alphabet():
    words = np.array([[0, 1], [1, 1]], np.int8)
    assert with_boundary(words, Parity(0.1), "prediction").tolist() == [[2, 0, 1], [2, 1, 1]]
    assert with_boundary(words, Parity(0.1), "recognition").tolist() == [[0, 1, 2], [1, 1, 2]]
    assert with_boundary(words, language("2dyck"), "recognition").dtype == np.int32
