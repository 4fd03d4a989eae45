"""The report of a sweep that was really run."""

from __future__ import annotations

import io
import shutil

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

from jaxsens.core.sweep import load_sweep
from jaxsens.core.sweeps.config import parse_sweep_config
from jaxsens.core.sweeps.sweep import read_points, run_sweep
from tests.core.sweeps.tiny import TINY, draw_nothing
from tests.refusals import refused

CONFIG = TINY.replace("[4, 6]", "[4, 6, 9]").replace("leftmost-hard", "unbounded").replace(', "q90"', "")
FIGURES = [f"{name}.svg" for name in ("distance", "local-slopes", "profiles", "sensitivity")]


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """A finished sweep directory; tests must not change it."""
    directory = tmp_path_factory.mktemp("swept")
    sweep = parse_sweep_config(CONFIG)
    assert not run_sweep(sweep, directory, sweep.points, Console(file=io.StringIO())).failures
    return directory


@pytest.fixture(scope="module")
def reported(swept, tmp_path_factory):
    """A copy of it with its report; tests must not change it."""
    directory = shutil.copytree(swept, tmp_path_factory.mktemp("reported") / "sweep")
    assert load_sweep(directory).report(directory) == directory / "report.html"
    return directory


@pytest.fixture
def sweep_copy(swept, tmp_path):
    return shutil.copytree(swept, tmp_path / "copy")


def files_below(directory):
    return {file.relative_to(directory).as_posix() for file in directory.rglob("*") if file.is_file()}


@pytest.mark.slow
def test_the_report_adds_its_files_and_nothing_else(swept, reported):
    added = files_below(reported) - files_below(swept)
    assert added == {
        *(f"figures/{name}" for name in FIGURES),
        "report.html",
        "summary.csv",
        "local_slopes.csv",
        "distances.csv",
        "distance_exponents.csv",
    }


@pytest.mark.long
def test_a_report_written_again_has_the_same_bytes(reported, tmp_path):
    again = shutil.copytree(reported, tmp_path / "again")
    (again / "report.html").write_text("old")
    load_sweep(again).report(again)
    assert files_below(again) == files_below(reported)
    assert [
        name for name in files_below(again) if (again / name).read_bytes() != (reported / name).read_bytes()
    ] == []


@pytest.mark.long
def test_points_profiles_and_plan_are_those_that_the_sweep_wrote(swept):
    data = load_sweep(swept)
    table = pd.read_csv(swept / "points.csv")
    pd.testing.assert_frame_equal(data.points, table)
    assert (data.plan.title, data.plan.measurement.measure.kind) == ("tiny", "l2")
    assert {variant.name: variant.bounded for variant in data.variants} == {
        "softmax": True,
        "unbounded": False,
    }
    assert data.missing == ()
    keys = [[(p.variant, p.n, p.seed) for p in points] for points in (data.plan.points, data.metadata)]
    assert keys[0] == keys[1]
    assert len(keys[0]) == 12
    flips = pd.concat(
        flips.to_pandas()
        for metadata, flips in read_points(swept, data.plan)
        if (metadata.variant, metadata.n) == ("unbounded", 6)
    )
    profile = data.flips.profiles["unbounded", 6]
    expected = [flips["norm"][flips["position"] == i].mean() for i in range(5)]
    np.testing.assert_allclose(profile[:5], expected)
    assert np.isnan(profile[5])  # the position that is read out


@pytest.mark.long
def test_an_unfinished_sweep_is_reported_with_what_is_missing(sweep_copy, monkeypatch):
    draw_nothing(monkeypatch)
    shutil.rmtree(sweep_copy / "points" / "variant=unbounded" / "n=9")
    page = load_sweep(sweep_copy).report(sweep_copy)
    text = page.read_text(encoding="utf-8")
    assert "2 of 12 planned points are missing: unbounded n = 9 seed = 0, unbounded n = 9 seed = 1" in text


@pytest.mark.long
def test_a_sweep_without_a_finished_point_is_refused_and_nothing_written(sweep_copy):
    shutil.rmtree(sweep_copy / "points")
    before = files_below(sweep_copy)
    refused("directory", load_sweep, sweep_copy)
    assert files_below(sweep_copy) == before
