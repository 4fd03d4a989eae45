"""A point's key changes with everything that determines its numbers, and with nothing else."""

from __future__ import annotations

import pytest

import jaxsens
from jaxsens.core.sweeps.config import load_sweep_config
from jaxsens.core.sweeps.points import select
from jaxsens.core.sweeps.sweep import PointsJob, run_sweep
from tests.core.sweeps.tiny import TINY, quiet, tiny_sweep


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


def test_keys_are_those_under_which_points_are_stored_already():
    # A changed key would measure every point of every directory again: see FORMAT in points.py.
    assert key(tiny_sweep()) == "2c3a10375282d1bc3013a4947f0b728b6c67d50f362e624b50de925c7827465a"


def test_the_order_of_output_coordinates_is_not_in_the_key():
    swapped, sorted_ = (
        tiny_sweep(after=f'[measure]\nmeasure = {{kind = "l2", outputs = {given}}}\n')
        for given in ("[2, 0]", "[0, 2]")
    )
    assert key(swapped) == key(sorted_)
    assert sorted_.measure.measure.outputs == (0, 2)


def test_points_differ_in_their_keys():
    keys = [point.key for point in tiny_sweep().points]
    assert len(set(keys)) == len(keys) == 8


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
