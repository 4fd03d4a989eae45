from __future__ import annotations

import numpy as np

import jaxsens
from jaxsens.core.flips.flip_table import Candidates, Lists


def flips_of(tokens, symbols, positions, keep, **sample):
    which = np.where(np.isin(np.arange(tokens.shape[1]), positions) & keep, 0, -1)
    return Candidates.of(tokens, Lists.of([symbols]), which).table(**sample)


def test_samples_are_uniform_over_flips():
    tokens, keep = np.zeros((1, 5), int), np.ones((1, 5), bool)
    counts = np.zeros(10)
    for seed in range(2000):
        flips = flips_of(tokens, np.arange(3), np.arange(5), keep, sample=2, seed=seed)
        counts[(flips.positions * 2 + flips.symbols - 1)[:, 0]] += 1
    # Each of 10 flips is in a sample of 2 with probability 1/5: 400 expected, standard deviation 18.
    assert np.all(np.abs(counts - 400) < 90)


def test_huge_alphabets_are_sampled_without_listing_all_flips():
    tokens = np.zeros((1, 100_000), int)
    keep = np.ones(tokens.shape, bool)
    flips = flips_of(tokens, np.arange(50_000), np.arange(99_999), keep, sample=10)
    assert len(flips) == 10
    assert flips.population == 99_999 * 49_999


def test_positions_are_taken_in_any_sequence():
    assert jaxsens.Substitute(positions=range(2, 4)).positions == (2, 3)
    whole = jaxsens.Substitute(positions=np.array([3, 1], np.uint8))
    assert whole.positions == (3, 1)
    assert hash(whole) == hash(jaxsens.Substitute(positions=[3, 1]))
