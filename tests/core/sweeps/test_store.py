"""A point's file gives back what was written, or says that it is damaged: never other numbers."""

from __future__ import annotations

import json

import numpy as np
import pyarrow.parquet as pq
import pytest

from jaxsens import load_result
from jaxsens.core.base.sealed import DamagedFile
from jaxsens.core.sweeps.points import read_point, write_point
from tests.core.sweeps.tiny import fake_flip_sensitivity, tiny_sweep

STATISTICS = ("mean", "max")


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sweep")
    point = tiny_sweep(after="[inputs]\ncount = 2\n").points[2]
    result = fake_flip_sensitivity(point.model(), point.tokens())
    metadata = write_point(folder, point, result, STATISTICS, 1.5)
    return folder, point, result, metadata


def test_a_point_comes_back_as_it_was_written(stored):
    folder, point, result, metadata = stored
    read, again = read_point(point.path(folder), point.key, STATISTICS)
    assert read == metadata
    assert (read.variant, read.n, read.seed, read.inputs, read.flips) == ("softmax", 6, 0, 2, 10)
    assert read.statistics == {"mean": result.mean, "max": result.max}
    assert read.point == point.expanded
    assert read.engine == {"name": result.engine.name, "reason": result.engine.reason}
    assert (read.device, read.precision, read.seconds) == ("none", "highest", 1.5)
    for name in ("norms", "inputs", "positions", "symbols", "tokens"):
        assert np.array_equal(getattr(again, name), getattr(result, name))
    assert again.norms.dtype == result.norms.dtype


def test_the_file_is_a_result_that_the_public_reader_takes_and_a_table_with_the_metadata_as_json(stored):
    folder, point, result, _ = stored
    assert load_result(point.path(folder)).mean == result.mean
    table = pq.ParquetFile(point.path(folder)).read()
    assert table.column_names == ["input", "position", "symbol", "value", "resolution"]
    assert json.loads(table.schema.metadata[b"jaxsens"])["key"] == point.key


def test_a_statistic_that_was_not_asked_for_is_computed_from_the_flips(stored):
    folder, point, result, _ = stored
    read, _ = read_point(point.path(folder), point.key, ("median", "q90"))
    assert read.statistics["median"] == result.quantile(0.5)
    assert read.statistics["q90"] == result.quantile(0.9)


def test_the_file_of_another_point_is_not_taken_for_this_one(stored):
    folder, point, _, _ = stored
    with pytest.raises(DamagedFile):
        read_point(point.path(folder), "0" * 64, ())


def test_another_parquet_file_is_not_taken_for_a_point(stored, tmp_path):
    _, point, result, _ = stored
    result.save(tmp_path / "plain.parquet")
    with pytest.raises(DamagedFile):
        read_point(tmp_path / "plain.parquet", point.key, ())
