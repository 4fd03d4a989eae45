"""A saved result comes back as it was, or not at all: never other numbers, and never an error that says nothing."""

from __future__ import annotations

import json
from contextlib import nullcontext

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from jaxsens import InputError, load_result
from jaxsens.core.base.sealed import digest
from jaxsens.core.results.result import load_with_metadata
from tests.made_results import made
from tests.refusals import refusal, refused

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


@pytest.mark.parametrize("keep", [0, 3, 100, -1])
def test_a_cut_file_is_damaged(result, tmp_path, keep):
    result.save(tmp_path / "r.parquet")
    (tmp_path / "cut.parquet").write_bytes((tmp_path / "r.parquet").read_bytes()[:keep])
    refused("path", load_result, tmp_path / "cut.parquet")


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


def test_what_is_no_result_is_refused(tmp_path):
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
