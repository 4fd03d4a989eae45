"""A saved result comes back as it was, or not at all: never other numbers, and never an error that says nothing.

Intervals of means hold, in samples of every population, and say where they have no end.
"""

from __future__ import annotations

import itertools
import json
import math
from contextlib import nullcontext
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from jaxsens import InputError, load_result
from jaxsens.core.base.sealed import digest
from jaxsens.core.results.result import load_with_metadata
from jaxsens.core.results.statistics import MeasuredSample, count_limits, least_mean, mean_ends
from tests.made_results import made
from tests.refusals import refusal, refused
from tools.mean_coverage import LEAST, NOMINAL, POPULATIONS, row_of, sampled

ARRAYS = ("values", "resolution", "inputs", "positions", "symbols", "tokens")


@pytest.fixture(scope="module")
def result():
    n = 5
    values = np.random.default_rng(0).exponential(size=2 * (n - 1)).astype(np.float32)
    tokens, versions = np.zeros((2, n), np.int32), {"jax": "0"}
    where = {"inputs": np.repeat([0, 1], n - 1), "positions": np.tile(np.arange(n - 1), 2), "tokens": tokens}
    return made(values, **where, outputs=(0, 2), readout=4, dtype="float32", versions=versions)


def same(one, other):
    return one.description() == other.description() and all(
        np.array_equal(getattr(one, name), getattr(other, name))
        and getattr(one, name).dtype == getattr(other, name).dtype
        for name in ARRAYS
    )


def test_a_saved_result_comes_back_whole(result, tmp_path):
    result.save(tmp_path / "r.parquet", note={"seed": 3, "rates": (0.5, float("inf"))})
    loaded, metadata = load_with_metadata(tmp_path / "r.parquet")
    assert metadata == {"note": {"seed": 3, "rates": [0.5, float("inf")]}}
    assert same(loaded, result)


def test_a_flipped_bit_is_noticed_or_without_effect(result, tmp_path):
    result.save(tmp_path / "r.parquet", note="n")
    whole = (tmp_path / "r.parquet").read_bytes()
    bits = range(0, 8 * len(whole), 61)  # 61 is odd: every place in a byte has its turn
    refused = 0
    for bit in bits:
        data = bytearray(whole)
        data[bit // 8] ^= 1 << bit % 8
        (tmp_path / "flipped.parquet").write_bytes(data)
        try:
            loaded, metadata = load_with_metadata(tmp_path / "flipped.parquet")
        except InputError:
            refused += 1
        else:
            assert same(loaded, result), bit
            assert metadata == {"note": "n"}, bit
    assert refused > 0.4 * len(bits)


def stored_as(path, result, change):
    """Writes the result's file anew, as another program might: `change` gets its metadata, checksum included."""
    result.save(path)
    table = pq.read_table(path)
    metadata = change(json.loads(table.schema.metadata[b"jaxsens"]))
    text = metadata if isinstance(metadata, str) else json.dumps(metadata)
    pq.write_table(table.replace_schema_metadata({b"jaxsens": text}), path)
    return path


def without(metadata, name):
    return {key: value for key, value in metadata.items() if key != name}


@pytest.mark.parametrize(
    "change",
    [
        lambda metadata: without(metadata, "checksum"),
        lambda metadata: {**metadata, "further": 1},
        lambda metadata: {**metadata, "result": {**metadata["result"], "population": 9}},
        lambda metadata: "[" * 100_000 + "]" * 100_000,
        lambda metadata: "[]",
        lambda metadata: "{",
    ],
)
def test_metadata_that_are_not_those_of_the_checksum_are_refused(result, tmp_path, change):
    refused("path", load_result, stored_as(tmp_path / "r.parquet", result, change))


def test_numbers_that_are_not_those_of_the_checksum_are_refused(result, tmp_path):
    result.save(path := tmp_path / "r.parquet")
    table = pq.read_table(path)
    place = table.column_names.index("value")
    for values, error in (
        (2 * table["value"].to_numpy(), refusal("path")),
        (table["value"].to_numpy(), nullcontext()),
    ):
        pq.write_table(table.set_column(place, table.field(place), [values]), path)
        with error:
            load_result(path)


def test_what_is_no_result_or_was_cut_is_refused(result, tmp_path):
    result.save(tmp_path / "r.parquet")
    for keep in (0, 3, 100, -1):
        (tmp_path / "cut.parquet").write_bytes((tmp_path / "r.parquet").read_bytes()[:keep])
        refused("path", load_result, tmp_path / "cut.parquet")
    (tmp_path / "text").write_text("hello")
    for path in (tmp_path / "none.parquet", tmp_path / "text", tmp_path, None, 3, b"r.parquet"):
        refused("path", load_result, path)
    assert "damaged" not in refused("path", load_result, tmp_path)  # a folder
    pq.write_table(pa.table({"norm": [1.0]}), tmp_path / "other.parquet")
    refused("", load_result, tmp_path / "other.parquet")


def deep():
    value = []
    for _ in range(100_000):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("names", "metadata"),
    [("checksum result", {"result": 1, "checksum": 2}), ("", {"when": object()}), ("", {"deep": deep()})],
    ids=["reserved", "no JSON", "deep"],
)
def test_metadata_that_cannot_be_kept_are_refused(result, tmp_path, names, metadata):
    refused(names, result.save, tmp_path / "r.parquet", **metadata)
    assert not list(tmp_path.iterdir())


def test_a_checksum_does_not_make_a_result_of_another_table(result, tmp_path):
    def change(metadata):
        metadata = {"checksum": "", "result": {"tokens": [[0]]}}
        arrays = (result.inputs, result.positions, result.symbols, result.values, result.resolution)
        return {**metadata, "checksum": digest(without(metadata, "checksum"), arrays)}

    refused("path", load_result, stored_as(tmp_path / "r.parquet", result, change))


CONTRADICTED = (
    "decisions, 3 of 64, 15 drawn",
    "decisions, 1 % of 2000, 64 drawn",
    "equal but for 3 of 64, 15 drawn",
    "KL, 64 of 2000",
    "estimates 30 times too small for 2 %",
    "estimates all 0",
    "heavy tails, 64 of 1000",
)
"""Populations whose mean Student's t misses in 27 % of samples or more."""


@pytest.mark.parametrize("name", CONTRADICTED)
def test_intervals_hold_where_students_does_not(name):
    assert row_of(name, 80).covered >= LEAST


@pytest.mark.slow
@pytest.mark.parametrize("name", POPULATIONS)
def test_intervals_hold_in_1000_samples_of_every_population(name):
    assert row_of(name).covered >= LEAST


def tail_of(number: int, size: int, drawn: int, counts: range) -> Fraction:
    """The probability that a sample has one of these counts of `number` flips, exactly."""
    ways = sum(math.comb(number, k) * math.comb(size - number, drawn - k) for k in counts)
    return Fraction(ways, math.comb(size, drawn))


@pytest.mark.parametrize(("size", "drawn", "tail"), [(12, 5, 0.05), (20, 7, 0.025), (9, 8, 0.1), (6, 6, 0.2)])
def test_the_numbers_of_flips_kept_are_those_that_explain_the_sample_often_enough(size, drawn, tail):
    for found in range(drawn + 1):
        possible = range(found, size - (drawn - found) + 1)
        least = min(n for n in possible if tail_of(n, size, drawn, range(found, drawn + 1)) > tail)
        most = max(n for n in possible if tail_of(n, size, drawn, range(found + 1)) > tail)
        assert count_limits(found, drawn, size, tail) == (least, most)


def test_decisions_that_never_change_have_an_interval_and_what_is_not_finite_none():
    ends = made(np.zeros(15), populations=[64], measure="decision").mean_interval()
    assert ends == (0, 12 / 64)
    assert made(np.ones(15), populations=[64], measure="decision").mean_interval() == (52 / 64, 1)
    assert np.isnan(made(np.array([1.0, np.nan]), populations=[9]).mean_interval()).all()


@pytest.mark.parametrize("values", [(0, 0, 0, 0, 0, 0, 5), (1, 1, 1, 1, 1, 1, 9), (0, 1, 2, 3, 4, 5, 6)])
@pytest.mark.parametrize("m", [3, 5, 6])
def test_the_lower_limit_exceeds_the_mean_in_no_more_samples_than_it_says(values, m):
    samples = list(itertools.combinations(map(float, values), m))
    wrong = [least_mean(np.array(one), 7, 0.2) > sum(values) / 7 for one in samples]
    assert np.mean(wrong) <= 0.2


def test_largest_estimates_and_the_others_count_by_their_numbers():
    # The rest is known as a sample of 50 of 900 ones tells; the 100 largest, of 7 each, as they are.
    measured = MeasuredSample(np.full(100, 7.0), np.ones(50), 1000, 1000)
    low, high = mean_ends(measured, 0.95, 10.0)
    assert low == pytest.approx((700 + 900 * least_mean(np.ones(50), 900, 0.025)) / 1000)
    assert high == pytest.approx(10 - (300 + 900 * least_mean(np.full(50, 9.0), 900, 0.025)) / 1000)
    assert mean_ends(measured, 0.95, math.inf)[1] == math.inf


def test_an_upper_end_needs_a_value_that_no_flip_exceeds():
    x = np.random.default_rng(0).uniform(0, 1, 300)
    norms, cosines = (
        sampled(x, 200, np.random.default_rng(1), measure=name).result for name in ("l2", "cosine")
    )
    assert norms.mean_interval().high == math.inf
    low, high = norms.mean_interval(largest=1)
    assert low <= x.mean() <= high < 0.6
    assert high < cosines.mean_interval().high == norms.mean_interval(largest=2).high < 0.7
    assert cosines.mean_interval(largest=1) == (low, high)
    assert low < norms.mean_interval().low < norms.mean


@pytest.mark.parametrize("wrong", [-1, math.nan, "1", True, [2], 0.5])
def test_what_is_no_bound_is_refused(wrong):
    refused("largest", made(np.ones(3), populations=[9]).mean_interval, largest=wrong)


@pytest.mark.parametrize("values", [np.zeros(15), np.ones(15), np.full(15, 1e-30), np.eye(15)[3]])
@pytest.mark.parametrize("measure", ["l2", "kl", "cosine", "decision"])
@pytest.mark.parametrize("confidence", [0.0, 0.5, NOMINAL, 1.0])
def test_no_interval_begins_below_zero_or_leaves_its_mean_out_or_is_a_point(values, measure, confidence):
    if measure != "decision" or set(values) <= {0, 1}:
        result = made(values, populations=[64], measure=measure)
        low, high = result.mean_interval(confidence)
        assert 0 <= low <= result.mean <= high
        assert low < high or confidence == 0
