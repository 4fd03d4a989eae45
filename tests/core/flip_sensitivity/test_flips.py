from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import jaxsens
from jaxsens.core.flips.flip_table import Candidates, Lists
from tests.lanes import examples


def flips_of(tokens, symbols, positions, keep, **sample):
    which = np.where(np.isin(np.arange(tokens.shape[1]), positions) & keep, 0, -1)
    return Candidates.of(tokens, Lists.of([symbols]), which).table(**sample)


def brute_force(tokens, symbols, positions, keep):
    return [
        (b, p, s)
        for b in range(len(tokens))
        for p in sorted(positions)
        for s in sorted(symbols)
        if keep[b, p] and tokens[b, p] != s
    ]


def listed(flips):
    return [tuple(map(int, row)) for row in np.column_stack([flips.inputs, flips.positions, flips.symbols])]


@st.composite
def problems(draw):
    batch, n, size = draw(st.integers(1, 3)), draw(st.integers(1, 6)), draw(st.integers(1, 5))
    cells = st.lists(st.integers(0, 6), min_size=batch * n, max_size=batch * n)
    tokens = np.array(draw(cells)).reshape(batch, n)
    symbols = np.array(sorted(draw(st.sets(st.integers(0, 6), min_size=size, max_size=size))))
    positions = np.array(sorted(draw(st.sets(st.integers(0, n - 1), min_size=1))))
    keep = np.array(draw(st.lists(st.booleans(), min_size=batch * n, max_size=batch * n))).reshape(batch, n)
    return tokens, symbols, positions, keep


@given(problems())
def test_every_flip_is_listed_once_in_order_and_none_puts_back_the_same_symbol(problem):
    assert listed(flips_of(*problem)) == brute_force(*problem)


@given(problems(), st.integers(1, 40), st.integers(0, 5))
@settings(max_examples=examples(50))
def test_a_sample_is_a_subset_of_the_flips_without_repeats(problem, count, seed):
    everything = brute_force(*problem)
    flips = flips_of(*problem, sample=count, seed=seed)
    drawn = listed(flips)
    assert len(drawn) == min(count, len(everything)) == len(set(drawn))
    assert set(drawn) <= set(everything)
    assert flips.population == len(everything)
    assert flips.populations.tolist() == [
        sum(b == k for b, _, _ in everything) for k in range(len(problem[0]))
    ]


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
