"""`jaxsens status` says what is done, damaged and failed, from the directory alone."""

from __future__ import annotations

import json

import pytest

from jaxsens.cli import main
from jaxsens.core.sweeps import points as sweep_points
from jaxsens.core.sweeps.points import select
from jaxsens.core.sweeps.status import sweep_status
from jaxsens.core.sweeps.sweep import PointsJob, run_sweep
from tests.core.sweeps.tiny import fake_flip_sensitivity, quiet, tiny_sweep
from tests.refusals import refused


@pytest.fixture
def sweep(monkeypatch):
    monkeypatch.setattr(sweep_points, "flip_sensitivity", fake_flip_sensitivity)
    return tiny_sweep()


def run(sweep, folder, **selection):
    return run_sweep(sweep, folder, select(sweep.points, **selection), quiet())


def test_a_sweep_that_was_stopped_finished_or_never_begun(sweep, tmp_path):
    refused("directory", sweep_status, tmp_path)
    run(sweep, tmp_path, only=["n=4"])
    found = sweep_status(tmp_path)
    assert (found.state, found.points, found.of_points, found.report) == ("unfinished", 4, 8, False)
    run(sweep, tmp_path)
    found = sweep_status(tmp_path)
    assert (found.state, found.points, found.failed) == ("finished", 8, ())
    assert found.compute_seconds_left == 0.0
    assert "jaxsens report" in found.lines()[-1]


def test_the_time_left(sweep, tmp_path):
    run(sweep, tmp_path, only=["n=4", "variant=softmax"])
    run(sweep, tmp_path, only=["n=6", "variant=softmax"])
    found = sweep_status(tmp_path)
    assert found.compute_seconds_left is not None
    assert any("of one process left" in line for line in found.lines())


def test_what_failed_is_said_until_it_is_computed(sweep, tmp_path, monkeypatch, capsys):
    def fails(model, tokens, **options):
        raise RuntimeError("no luck")

    monkeypatch.setattr(sweep_points, "flip_sensitivity", fails)
    run(sweep, tmp_path, only=["n=6", "seed=1"])
    assert main(["status", str(tmp_path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["state"], found["points"]) == ("unfinished", 0)
    assert found["failed"][0] == {"item": "softmax n=6 seed=1", "message": "RuntimeError: no luck"}
    assert main(["status", str(tmp_path)]) == 0
    assert "failed: leftmost-hard n=6 seed=1: RuntimeError: no luck" in capsys.readouterr().out
    run(sweep, tmp_path)
    assert sweep_status(tmp_path).state == "failed"
    monkeypatch.setattr(sweep_points, "flip_sensitivity", fake_flip_sensitivity)
    run(sweep, tmp_path)
    assert sweep_status(tmp_path).failed == ()
    assert not list(tmp_path.rglob("*.failed"))


def test_looking_writes_nothing_outside_the_directory(sweep, tmp_path):
    out, outside = tmp_path / "out", tmp_path / "outside"
    run(sweep, out)
    (out / "points").rename(outside)
    (out / "points").symlink_to(outside)
    (outside / "variant=softmax" / "n=4").chmod(0o755)
    before = (outside / "variant=softmax" / "n=4").stat().st_mtime_ns
    assert sweep_status(out).points == 8
    assert (outside / "variant=softmax" / "n=4").stat().st_mtime_ns == before


def test_the_last_looks_of_a_run_make_the_file_system_look_again(sweep, tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(
        "jaxsens.core.sweeps.jobs.job.see_what_others_wrote", lambda folders: seen.extend(folders)
    )
    run(sweep, tmp_path, only=["n=4"])
    assert {folder.name for folder in seen} == {"n=6"}
    assert PointsJob(sweep, tmp_path).state(sweep.points[0]) == "done"
