"""Points: their keys, files, statistics, what they are at most, and which of them a shard or a condition takes."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jaxsens
from jaxsens import load_result
from jaxsens.core.base.sealed import DamagedFile
from jaxsens.core.report.fits import fit_exponents
from jaxsens.core.sweeps.config import load_sweep_config
from jaxsens.core.sweeps.points import compute, is_statistic, read_point, select, write_point
from jaxsens.core.sweeps.sweep import PointsJob, point_row, run_sweep
from tests.core.sweeps.tiny import TINY, fake_flip_sensitivity, quiet, tiny_sweep
from tests.made_results import made
from tests.refusals import refused


def key(sweep, variant="softmax", n=4, seed=0):
    (point,) = [p for p in sweep.points if (p.variant, p.n, p.seed) == (variant, n, seed)]
    return point.key


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("width = 4", "width = 8"),
        ("feed_forward = 0", "feed_forward = 4"),
        ("feed_forward = 0", 'feed_forward = 0\ndtype = "float64"'),
        ("feed_forward = 0", 'feed_forward = 0\npositions = "none"'),
        ("feed_forward = 0", 'feed_forward = 0\npositions = {type = "Sinusoidal", base = 50.0}'),
        ("feed_forward = 0", "feed_forward = 0\n[inputs]\ncount = 2"),
        ("feed_forward = 0", 'feed_forward = 0\n[measure]\nmeasure = "l1"'),
        ("feed_forward = 0", 'feed_forward = 0\n[measure]\nengine = "vmap"'),
        ("feed_forward = 0", 'feed_forward = 0\n[measure]\nflips = {kind = "substitute", sample = 2}'),
        ("feed_forward = 0", 'feed_forward = 0\n[measure]\nmeasure = {kind = "l2", outputs = "all"}'),
        ("feed_forward = 0", 'feed_forward = 0\n[measure]\nmeasure = {kind = "l2", outputs = [0, 2]}'),
        ("feed_forward = 0", 'feed_forward = 0\n[inputs]\nkind = "balanced"'),
        ("feed_forward = 0", "feed_forward = 0\ncentred_scores = true"),
        ("feed_forward = 0", 'feed_forward = 0\ninitialisation = {type = "Uniform", bound = 10}'),
    ],
)
def test_what_determines_the_numbers_changes_the_key(before, after):
    assert key(tiny_sweep(before, after)) != key(tiny_sweep())


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('title = "tiny"', 'title = "another"\nclaim = "a claim"'),
        ("lengths = [4, 6]", "lengths = [3, 4, 8]"),
        ("seeds = 2", "seeds = [5, 0]"),
        ('["softmax", "leftmost-hard"]', '["unbounded", "softmax"]'),
        ('statistics = ["mean", "max", "q90"]', 'statistics = ["min"]'),
        ("width = 4", 'width = 4\nweighting = "sparsemax"'),  # the variant names its own
        ("feed_forward = 0", 'feed_forward = 0\npositions = "sinusoidal"'),  # the default, written out
        ("feed_forward = 0", 'feed_forward = 0\npositions = [{type = "Sinusoidal"}]'),
        ("feed_forward = 0", "feed_forward = 0\n[placement]\nbatch_size = 3\nmemory_budget = 1000000"),
        ("feed_forward = 0", 'feed_forward = 0\n[measure]\nmeasure = {kind = "l2"}\nflips = "substitute"'),
        ("feed_forward = 0", 'feed_forward = 0\n[inputs]\nkind = "uniform"'),
        ("feed_forward = 0", "feed_forward = 0\ncentred_scores = false"),
    ],
)
def test_what_does_not_determine_the_numbers_leaves_the_key(before, after):
    assert key(tiny_sweep(before, after)) == key(tiny_sweep())


def test_keys_are_those_under_which_points_are_stored_and_leave_out_the_order_of_outputs():
    # A changed key would measure every point of every directory again: see FORMAT in points.py.
    assert key(tiny_sweep()) == "2c3a10375282d1bc3013a4947f0b728b6c67d50f362e624b50de925c7827465a"
    assert len({point.key for point in tiny_sweep().points}) == 8
    swapped, sorted_ = (
        tiny_sweep(after=f'[measure]\nmeasure = {{kind = "l2", outputs = {given}}}\n')
        for given in ("[2, 0]", "[0, 2]")
    )
    assert key(swapped) == key(sorted_)
    assert sorted_.measure.measure.outputs == (0, 2)


def test_the_key_is_of_the_words_and_not_of_the_file(tmp_path):
    def keys(name, text, folder="."):
        path = tmp_path / folder
        path.mkdir(exist_ok=True)
        (path / name).write_text(text)
        (path / "c.toml").write_text(TINY + f'[inputs]\nfile = "{name}"\n')
        sweep = load_sweep_config(path / "c.toml")
        return key(sweep, n=4), key(sweep, n=6)

    original = keys("a.txt", "0 1 0\n0 1 0 1 0\n")
    assert keys("b.txt", "\n 0 1  0\n0 1 0 1 0\n1 1 1 1\n", "elsewhere") == original
    changed = keys("a.txt", "0 1 1\n0 1 0 1 0\n")
    assert changed[0] != original[0]
    assert changed[1] == original[1]


def test_the_path_is_one_that_hive_readers_understand(tmp_path):
    point = tiny_sweep().points[0]
    path = point.path(tmp_path)
    assert path.relative_to(tmp_path).parts[:3] == ("points", "variant=softmax", "n=4")
    assert path.name == f"seed=0-{point.key[:12]}.parquet"


def test_a_point_counts_the_seeds_of_the_config_whatever_is_chosen_of_it_and_what_the_process_did_before(
    tmp_path,
):
    for seeds, words in ((7, "for one call"), (8, "for 8 calls or more")):
        sweep = tiny_sweep("seeds = 2", f"seeds = {seeds}")
        chosen = select(sweep.points, ["variant=softmax", "n=4"], shard="0/7")[:1]
        for _ in range(2):  # which a call in Python would count
            jaxsens.flip_sensitivity(chosen[0].model(), chosen[0].tokens(), measure=chosen[0].measure.measure)
        folder = tmp_path / str(seeds)
        assert run_sweep(sweep, folder, chosen, quiet()).finished == 1
        point = PointsJob(sweep, folder).read(chosen[0])
        assert words in point.engine["reason"]


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
    assert table.column_names == ["input", "position", "symbol", "value", "resolution", "seed"]
    assert set(table["seed"].to_pylist()) == {point.seed}
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


POINTS = tiny_sweep("lengths = [4, 6]", "lengths = [4, 6, 9]").points


def names(points):
    return [str(point) for point in points]


def test_points_are_chosen_by_all_conditions_at_once_cheap_ones_and_low_seeds_first():
    assert names(select(POINTS))[:5] == [
        "softmax n=4 seed=0",
        "leftmost-hard n=4 seed=0",
        "softmax n=4 seed=1",
        "leftmost-hard n=4 seed=1",
        "softmax n=6 seed=0",
    ]
    chosen = select(POINTS, only=["n=4,9", "variant=softmax", "seed=1"])
    assert names(chosen) == ["softmax n=4 seed=1", "softmax n=9 seed=1"]
    chosen = names(select(POINTS, only=["seed=0"]))
    assert names(select(POINTS, only=["seed=0"], shard="1/2")) == chosen[1::2]


@given(st.integers(1, 20))
def test_shards_are_disjoint_complete_and_even(count):
    shards = [select(POINTS, shard=f"{k}/{count}") for k in range(count)]
    together = sorted(names(point for shard in shards for point in shard))
    assert together == sorted(names(POINTS))
    sizes = [len(shard) for shard in shards]
    assert max(sizes) - min(sizes) <= 1


def test_everything_that_cannot_be_selected_is_said_at_once():
    for shard in ("1", "a/b", "1/0", "0/0", "-1/2", "2/2", "1/2/3"):  # no parts of a whole
        refused("--shard", select, POINTS, shard=shard)
    said = refused("--only --shard", select, POINTS, only=["n=5", "depth=2", "variant"], shard="4/4")
    assert "n is one of 4, 6, 9" in said
    assert said.startswith("4 errors")  # `jaxsens plan` and `theorem6` choose too
    said = refused("--only", select, POINTS, only=["n=4", "n=6"])
    assert (
        "= 'n=4 n=6': no point meets all of these; there are variant=softmax,leftmost-hard n=4,6,9 seed=0,1"
        in said
    )


def test_each_statistic_is_what_its_name_says():
    norms = np.array([4.0, 1.0, 3.0, 2.0, 10.0], np.float32)
    expected = {
        "mean": 4.0,
        "max": 10.0,
        "min": 1.0,
        "median": 3.0,
        "q0": 1.0,
        "q25": 2.0,
        "q90": 7.6,
        "q99.9": 9.976,
    }
    assert all(map(is_statistic, expected))
    assert {name: compute(name, norms) for name in expected} == pytest.approx(expected, abs=1e-12)


def test_the_mean_of_many_float32_is_summed_in_float64():
    assert compute("mean", np.full(3_000_001, 0.1, np.float32)) == pytest.approx(np.float32(0.1), rel=1e-12)


@pytest.mark.parametrize("name", ["q101", "q-1", "q", "q5e1", "Mean", "average", "sum", "__class__", ""])
def test_other_names_are_no_statistics(name):
    assert not is_statistic(name)
    with pytest.raises(ValueError, match="statistic"):
        compute(name, np.ones(3))


KEPT = ("mean", "max")
POINT = tiny_sweep().points[0]
FLOOR = made([1e-8, 3e-8, 0.0], resolution=1e-7)


def test_a_point_keeps_what_its_statistics_are_at_most(tmp_path):
    write_point(tmp_path, POINT, FLOOR, ("mean",), 1.0)
    read, result = read_point(POINT.path(tmp_path), POINT.key, KEPT)
    assert read.unresolved == result.unresolved == 3
    assert read.at_most == {"mean": FLOOR.at_most("mean"), "max": FLOOR.at_most("max")}
    assert (read.status("mean"), read.status("max")) == ("at most", "at most")
    row = point_row(read)
    assert (row["max"], row["max_is"], row["unresolved"]) == (FLOOR.at_most("max"), "at most", 3)
    assert read.summary() == "mean at most 1.13e-07, max at most 1.3e-07"


def test_a_sample_that_is_not_resolved_is_at_most_and_no_lower_bound():
    drawn = dataclasses.replace(FLOOR.flips, populations=np.array([100]))
    point = write_point(None, POINT, dataclasses.replace(FLOOR, flips=drawn), KEPT, 1.0)
    assert point.status("max") == "at most"
    ends = dict.fromkeys(("min", "q0", "q0.0", "q00"), "upper bound") | {
        "q100": "lower bound",
        "q1": "estimated",
    }
    assert {name: point.status(name) for name in ends} == ends


def test_a_plateau_of_rounding_is_not_fitted():
    rows = []
    for n in (8, 16, 32, 64, 128, 256):
        true = np.full(4, float(n) ** -4)
        # Engines that subtract outputs see their rounding in place of smaller changes.
        seen = made(np.maximum(true, 3e-7), resolution=1e-6)
        rows.append(point_row(write_point(None, POINT, seen, KEPT, 1.0)) | {"variant": "a", "n": n})
    mean, _ = fit_exponents(pd.DataFrame(rows))
    assert mean.unresolved == 5  # 16^-4 is 1.5e-5, which 1e-6 blurs by over 1 %
    assert np.isnan(mean.exponent)
    assert mean.without == (16, 32, 64, 128, 256)
