"""The report of a sweep that was really run."""

from __future__ import annotations

import io
import shutil

import pytest
from rich.console import Console

from jaxsens.core.sweep import load_sweep
from jaxsens.core.sweeps.config import parse_sweep_config
from jaxsens.core.sweeps.sweep import run_sweep
from tests.core.sweeps.tiny import TINY
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
def test_a_sweep_without_a_finished_point_is_refused_and_nothing_written(sweep_copy):
    shutil.rmtree(sweep_copy / "points")
    before = files_below(sweep_copy)
    refused("directory", load_sweep, sweep_copy)
    assert files_below(sweep_copy) == before
