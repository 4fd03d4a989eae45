"""What is flipped: positions, symbols, neighbours, groups, masks and deletions, beside plain loops."""

from __future__ import annotations

import dataclasses
import math
from fractions import Fraction
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jaxsens
from jaxsens import Delete, Mask, Neighbours, Pairs, Placement, Repeat, Substitute, Transformer, load_result
from jaxsens.core.flips.fields import positions_at
from jaxsens.core.flips.flip_table import Candidates, nearest_symbols
from jaxsens.core.models.adapters import as_model
from tests import reference
from tests.core.flip_sensitivity.test_resuming import interrupted
from tests.lanes import examples
from tests.refusals import refused
from tests.small_models import small

flip_sensitivity: Any = jaxsens.flip_sensitivity

CONFIG = small(alphabet_size=5, layers=1, readout="last")
MODEL = Transformer(CONFIG, seed=1)
WORD = np.array([0, 4, 2, 1, 3, 0, 5])
TWO = np.stack([WORD, [1, 1, 0, 2, 4, 3, 5]])


def measure(flips=None, **options):
    return flip_sensitivity(MODEL, WORD, flips, **options)


def listed(result):
    columns = [np.ravel(getattr(result, name)).tolist() for name in ("inputs", "positions", "symbols")]
    return list(zip(*columns, strict=True))


def plain(word, model=MODEL):
    parameters = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), model.parameters)
    return reference.output(model.config, parameters, [int(token) for token in word])


def distance(one, other):
    return np.linalg.norm(plain(other) - plain(one))


# Lists


def brute_force(tokens, lists, rows):
    found = []
    for b, word in enumerate(tokens):
        for p, token in enumerate(word):
            if rows[b, p] >= 0:
                found += [(b, p, s) for s in sorted({*lists[rows[b, p]]}) if s != token]
    return found


@st.composite
def list_problems(draw):
    batch, n, kinds = draw(st.integers(1, 3)), draw(st.integers(1, 5)), draw(st.integers(1, 4))
    tokens = np.array(draw(st.lists(st.integers(0, 6), min_size=batch * n, max_size=batch * n)))
    lists = [draw(st.lists(st.integers(0, 6), max_size=4)) for _ in range(kinds)]
    rows = np.array(draw(st.lists(st.integers(-1, kinds - 1), min_size=batch * n, max_size=batch * n)))
    return tokens.reshape(batch, n), lists, rows.reshape(batch, n)


@given(list_problems(), st.integers(1, 20))
def test_the_flips_of_lists_are_those_of_plain_loops(problem, count):
    tokens, lists, rows = problem
    candidates = Candidates.of(tokens, lists, rows)
    flips = candidates.table()
    everything = brute_force(*problem)
    assert listed(flips) == everything
    assert flips.populations.tolist() == [sum(b == k for b, _, _ in everything) for k in range(len(tokens))]
    drawn = candidates.table(count)
    assert len(drawn) == min(count, len(everything)) == len(set(listed(drawn)))
    assert set(listed(drawn)) <= set(everything)


def test_samples_are_uniform_over_flips():
    tokens = np.zeros((1, 5), int)
    counts = np.zeros(10)
    for seed in range(2000):
        flips = Candidates.of(tokens, [np.arange(3)], tokens).table(2, seed)
        counts[(flips.positions * 2 + flips.symbols - 1)[:, 0]] += 1
    # Each of 10 flips is in a sample of 2 with probability 1/5: 400 expected, standard deviation 18.
    assert np.all(np.abs(counts - 400) < 90)


def test_huge_alphabets_are_sampled_without_listing_all_flips():
    tokens = np.zeros((1, 100_000), int)
    rows = np.where(np.arange(100_000) < 99_999, 0, -1)[None]
    flips = Candidates.of(tokens, [np.arange(50_000)], rows).table(10)
    assert len(flips) == 10
    assert flips.population == 99_999 * 49_999


# Symbols


@pytest.mark.quick(4)
@pytest.mark.parametrize(
    ("flips", "pairs"),
    [
        ([1, 3], [(p, s) for p in range(6) for s in (1, 3)]),
        ({4: range(3), 0: [2, 0, 2]}, [(0, 2), (4, 0), (4, 1), (4, 2)]),
        ({6: [1]}, [(6, 1)]),
        (Pairs([(5, 2), (0, 3), (0, 1), (5, 2)]), [(0, 1), (0, 3), (5, 2)]),
        (Pairs(np.array([[6, 1]])), [(6, 1)]),
        (Mask(4), [(p, 4) for p in range(6)]),
        (Mask(5, positions=[1]), [(1, 5)]),
    ],
)
def test_the_flips_asked_for_are_measured_and_no_others(flips, pairs):
    result = measure(flips)
    assert listed(result) == [(0, p, s) for p, s in pairs if WORD[p] != s]
    truth = [distance(WORD, np.where(np.arange(7) == p, s, WORD)) for _, p, s in listed(result)]
    np.testing.assert_allclose(result.norms, truth, rtol=1e-9)
    assert result.alphabet == tuple(sorted({s for _, s in pairs}))
    assert result.population == len(result)
    table = result.profile()
    assert table.shape == (7, len(result.alphabet))
    for k, (_, p, s) in enumerate(listed(result)):
        assert table[p, result.alphabet.index(s)] == result.norms[k]
    assert np.isfinite(table).sum() == len(result)


# Neighbours


def cosines(table):
    sizes = np.linalg.norm(table, axis=1)
    units = table / np.where(sizes > 0, sizes, 1)[:, None]
    return units @ units.T


def nearest(table, token, k, allowed):
    others = [s for s in allowed if s != token]
    return sorted(others, key=lambda s: (-cosines(table)[token, s], s))[:k]


@given(st.integers(0, 10**6), st.integers(3, 40), st.integers(1, 6))
@settings(max_examples=examples(40))
def test_the_nearest_symbols_are_those_of_plain_loops(seed, size, width):
    rng = np.random.default_rng(seed)
    table = rng.integers(-2, 3, (size, width)).astype(float)  # ties, equal rows, and rows of zeros
    allowed = np.sort(rng.choice(size, rng.integers(2, size + 1), replace=False))
    k, true = int(rng.integers(1, len(allowed))), cosines(table)
    for token, found in enumerate(nearest_symbols(table, np.arange(size), k, allowed)):
        assert len(set(found.tolist())) == k
        assert token not in found
        own, rest = true[token, found], np.setdiff1d(allowed, [token, *found])
        assert np.all(np.diff(own) <= 2e-6)
        assert not rest.size or true[token, rest].max() <= own.min() + 2e-6


def test_of_symbols_equally_near_the_smaller_come_first():
    table = np.array([[1, 0], [2, 0], [0, 1], [3, 0], [0, 0], [-1, 0], [0.5, 0]])
    found = nearest_symbols(table, np.array([3, 2, 4]), 4, np.arange(7))
    assert found.tolist() == [[0, 1, 6, 2], [0, 1, 3, 4], [0, 1, 2, 3]]


def test_neighbours_differ_by_the_symbol_that_stands_there():
    result = flip_sensitivity(MODEL, TWO, flips=Neighbours(2))
    table = np.asarray(MODEL.parameters.embedding)
    expected = [
        (b, p, s)
        for b, word in enumerate(TWO)
        for p in range(6)
        for s in sorted(nearest(table, word[p], 2, range(5)))
    ]
    assert listed(result) == expected
    assert 5 not in result.alphabet


# Reserved and special symbols, masks


SUBJECT = dataclasses.replace(as_model(MODEL), reserved=(0, 2), special=(2,), mask=2)
"""Of the symbols 0 to 4 it reserves 0, which is unused, and 2, which is special and the mask; 5 is the end symbol."""


@pytest.mark.quick(5)
@pytest.mark.parametrize(
    ("flips", "positions", "symbols"),
    [
        (None, [0, 1, 3, 4, 5], {1, 3, 4}),
        (4, [0, 3, 4, 5], {1, 3}),
        (Substitute(positions=[2, 6]), [2, 6], {1, 3, 4}),
        (Substitute(positions=[2, 6], sample=99), [2, 6], {1, 3, 4}),
        ([0, 2], [0, 1, 3, 4, 5], {0, 2}),
        ({2: [0, 1]}, [2], {0, 1}),
        (Pairs([(2, 0), (0, 2)]), [0, 2], {0, 2}),
        (Neighbours(2), [0, 1, 3, 4, 5], {1, 3, 4}),
        ("mask", [0, 1, 3, 4, 5], {2}),
        ("delete", [0, 1, 3, 4, 5], {-1}),
        (Substitute(sample=99), [0, 1, 3, 4, 5], {1, 3, 4}),
        (Substitute(groups=[(1, 2)]), [1], {1, 3, 4}),
    ],
)
def test_reserved_symbols_are_inserted_and_special_ones_flipped_only_by_name(flips, positions, symbols):
    result = flip_sensitivity(SUBJECT, WORD, flips)
    assert sorted({*result.positions.tolist()}) == positions
    assert {*result.symbols.tolist()} == symbols


def test_only_special_symbols_are_nothing_to_flip():
    refused("tokens", flip_sensitivity, SUBJECT, [2, 2, 5])


# Deletions


@pytest.mark.quick(3)
@pytest.mark.parametrize("readout", ["last", "mean", 0])
@pytest.mark.parametrize("positions", [None, [1, 5]])
def test_a_deletion_compares_with_the_shorter_word(readout, positions):
    model = Transformer(CONFIG.replace(readout=readout), seed=1)
    result = flip_sensitivity(model, WORD, flips=Delete(positions=positions))
    assert (result.engine.name, result.alphabet, {*result.symbols.tolist()}) == ("vmap", (-1,), {-1})
    everywhere = {"last": range(6), "mean": range(6), 0: range(1, 6)}[readout]
    assert result.positions.tolist() == (positions or list(everywhere))
    y = plain(WORD, model)
    truth = [np.linalg.norm(plain(np.delete(WORD, p), model) - y) for p in result.positions]
    np.testing.assert_allclose(result.norms, truth, rtol=1e-9)
    assert result.profile().shape == (7, 1)


def test_deletions_of_several_inputs_and_of_models_of_others(tmp_path):
    def mean(tokens):
        return jnp.stack([jnp.mean(tokens * 1.0), jnp.sum(tokens) * 1.0])

    words = np.array([[3, 1, 2], [5, 5, 1]])
    result = flip_sensitivity(mean, words, flips=Delete(), measure="linf", readout=None)
    truth = [max(abs(w.sum() - w[p]) / 2 - w.mean(), w[p], key=abs) for w in words for p in range(3)]
    np.testing.assert_allclose(result.norms, np.abs(truth), rtol=1e-6)
    result.save(tmp_path / "r.parquet")
    assert load_result(tmp_path / "r.parquet").description() == result.description()
    assert listed(result.of_input(1)) == [(0, 0, -1), (0, 1, -1), (0, 2, -1)]
    table = np.asarray(np.random.default_rng(0).normal(size=(6, 3)), np.float32)
    rows = flip_sensitivity(
        lambda t: jnp.asarray(table)[t], WORD, flips=Delete(positions=[5, 6]), readout="last"
    )
    np.testing.assert_allclose(rows.norms, [0, float(np.linalg.norm(table[0] - table[5]))], rtol=1e-5)


# Groups


def group_flips(word, groups, candidates):
    """The flips of groups in plain loops: input, sorted group, and what is inserted there."""
    found = []
    for b, tokens in enumerate(word):
        for group in sorted(tuple(sorted(group)) for group in groups):
            lists = [candidates[p] if isinstance(candidates, dict) else candidates for p in group]
            joint = {tuple(one[j] for one in lists) for j in range(len(lists[0]))}
            joint.discard(tuple(int(tokens[p]) for p in group))
            found += [(b, group, new) for new in sorted(joint)]
    return found


PIECES = {1: [0, 0, 2], 4: [1, 2, 3], 0: [3, 4]}
GROUPS = [(4, 1), (0,)]


@pytest.mark.quick(2)
@pytest.mark.parametrize("symbols", [PIECES, [2, 3], 5])
def test_a_group_is_flipped_together(symbols):
    result = flip_sensitivity(MODEL, TWO, flips=Substitute(symbols, groups=GROUPS))
    candidates = list(range(5)) if symbols == 5 else symbols
    expected = group_flips(TWO, GROUPS, candidates)
    table = result.to_pandas()
    assert list(zip(table["input"], table["positions"], table["symbols"], strict=True)) == expected
    truth = []
    for b, group, new in expected:
        word = TWO[b].copy()
        word[list(group)] = new
        truth.append(distance(TWO[b], word))
    np.testing.assert_allclose(result.norms, truth, rtol=1e-9)
    assert (result.engine.name, result.asked.flips.groups) == ("vmap", ((0,), (1, 4)))
    assert "replace the symbols of a group" in result.engine.reason
    assert "to_pandas()" in refused("", result.profile)


def test_neighbours_of_a_group_are_those_of_each_of_its_symbols():
    result = flip_sensitivity(MODEL, WORD, flips=Neighbours(2, groups=[(1, 2)]))
    table = np.asarray(MODEL.parameters.embedding)
    pairs = zip(*(nearest(table, WORD[p], 2, range(5)) for p in (1, 2)), strict=True)
    assert result.to_pandas()["symbols"].tolist() == sorted(pairs)


# Unusable arguments


@pytest.mark.parametrize(
    ("flips", "names"),
    [
        (Pairs([(7, 0)]), "flips.position"),
        (Pairs([(1, 6)]), "flips.symbol"),
        (Pairs([(0, 1), (1, 4)]), "flips"),
        (6, "flips"),
        ([1, 6], "flips.symbols"),
        ({}, "flips.symbols"),
        ({7: [1]}, "flips.position"),
        ({"a": [1]}, "flips.symbols.position"),
        ({1: 2}, "flips.symbols[1]"),
        ({1: [9]}, "flips[1]"),
        (Substitute(groups=[(1, 9)]), "flips.groups.position"),
        (Substitute(positions=[7]), "flips.positions"),
        (Mask(9), "flips.mask"),
        ("mask", "flips"),
        ("neighbours", "flips"),
        ({0: [0]}, "tokens"),
    ],
)
def test_unusable_flips_are_one_error_each(flips, names):
    assert "errors" not in refused(names, measure, flips)


# Memory, large tables, and completion


def test_a_profile_of_too_many_cells_names_the_table(monkeypatch):
    wide = lambda tokens: jnp.sum(tokens) * jnp.ones(2)  # noqa: E731
    result = flip_sensitivity(wide, np.zeros(400, int), flips=Substitute(30_000, sample=2))
    assert "a table of 12000000 cells, of which 2 are measured" in refused("", result.profile)


@pytest.mark.quick(3)
@pytest.mark.parametrize(
    "flips",
    [
        {0: [1, 2, 4], 4: [0, 1]},
        Pairs([(0, 2), (2, 1), (5, 1)]),
        Neighbours(2),
        Neighbours(4, sample=9, seed=2),
        Delete(),
        Repeat(2),
        Substitute(PIECES, groups=GROUPS),
        Substitute(groups=GROUPS, sample=9),
    ],
)
def test_the_flips_that_remain_of_an_interrupted_measurement_complete_it(tmp_path, flips):
    given = {"engine": "vmap", "placement": Placement(batch_size=1)}
    interrupted(1, MODEL, TWO, flips=flips, **given).save(tmp_path / "partial.parquet")
    partial = load_result(tmp_path / "partial.parquet")
    whole = flip_sensitivity(MODEL, TWO, flips, **given)
    rest = flip_sensitivity(MODEL, TWO, partial.remaining, **given)
    assert 0 < len(partial) < len(whole) == len(partial) + len(rest)
    for completed in (partial.joined(rest), rest.joined(partial)):
        assert completed.description() == whole.description()
        assert completed.to_pandas().equals(whole.to_pandas())


@pytest.mark.parametrize(
    ("entries", "n", "read", "expected"),
    [
        ([0, 3], 5, None, (0, 3)),
        ([3, 0, 3], 5, None, (0, 3)),
        ([0.5, 0.29], 100, None, (29, 50)),  # 0.29 * 100 is 28.999... in binary
        (["readout"], 7, 6, (6,)),
        (["readout", "powers"], 7, 2, (0, 1, 2, 3, 4, 6)),
        (["powers"], 9, 8, (0, 4, 6, 7)),
        ([":"], 4, None, (0, 1, 2, 3)),
        (["1:3", "-2:"], 6, None, (1, 2, 4, 5)),
        (["0:16"], 4, None, (0, 1, 2, 3)),
        (["0.25:0.75"], 8, None, (2, 3, 4, 5)),
        ([".5:1.0"], 5, None, (2, 3, 4)),
        (["::3"], 7, None, (0, 3, 6)),
    ],
)
def test_what_entries_stand_for(entries, n, read, expected):
    assert positions_at(entries, n, read) == expected


@given(n=st.integers(1, 300), hundredths=st.integers(0, 99), row=st.integers(0, 299))
def test_fractions_and_powers_by_their_definitions(n, hundredths, row):
    assert positions_at([hundredths / 100], n, None) == (math.floor(Fraction(hundredths, 100) * n),)
    row %= n
    apart = [i for i in range(n) if bin(abs(i - row)).count("1") == 1]
    if apart:
        assert positions_at(["powers"], n, row) == tuple(apart)


@pytest.mark.parametrize(("entries", "read"), [([0, 4], 3), (["readout"], None), (["9:12"], 3)])
def test_what_no_input_has_is_refused_at_its_length(entries, read):
    refused("positions", positions_at, entries, 4, read)
