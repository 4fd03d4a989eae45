"""`jaxsens status` says what is done, under way and failed, from the directory alone; claims survive skewed clocks."""

from __future__ import annotations

import json
import os
import time
from contextlib import ExitStack

import pytest

from jaxsens.base.errors import InputError
from jaxsens.base.files import own_mark
from jaxsens.cli import main
from jaxsens.cli import sweep as command
from jaxsens.experiments.jobs import claims
from jaxsens.experiments.sweep import points as sweep_points
from jaxsens.experiments.sweep.points import select
from jaxsens.experiments.sweep.status import sweep_status
from jaxsens.experiments.sweep.sweep import PointsJob, run_sweep
from tests.disks import dead_mark
from tests.experiments.tiny import fake_flip_sensitivity, quiet, tiny_sweep


@pytest.fixture
def sweep(monkeypatch):
    monkeypatch.setattr(sweep_points, "flip_sensitivity", fake_flip_sensitivity)
    return tiny_sweep()


def run(sweep, folder, **selection):
    return run_sweep(sweep, folder, select(sweep.points, **selection), quiet())


def test_claims_of_the_dead_and_on_records_that_are_there_are_cleared_and_no_others(tmp_path):
    names = ("of the dead", "of the living", "there", "old")
    records = {name: tmp_path / "points" / f"{name}.json" for name in names}
    records["there"].parent.mkdir()
    for name, record in records.items():
        mark = dead_mark() if name == "of the dead" else own_mark()
        claims.claim_of(record).write_text(f"{mark}\nhost\n")
    records["there"].write_text("{}")
    os.utime(claims.claim_of(records["old"]), (0, 0))
    claims.clear_claims(tmp_path)
    left = {name for name, record in records.items() if claims.claim_of(record).exists()}
    assert left == {"of the living"}
    assert claims.is_claimed(records["of the living"])


def test_a_sweep_that_was_stopped_finished_or_never_begun(sweep, tmp_path):
    with pytest.raises(InputError, match="no sweep was run here"):
        sweep_status(tmp_path)
    run(sweep, tmp_path, only=["n=4"])
    found = sweep_status(tmp_path)
    assert (found.state, found.points, found.of_points, found.report) == ("stopped", 4, 8, False)
    assert found.seconds_left is None
    run(sweep, tmp_path)
    found = sweep_status(tmp_path)
    assert (found.state, found.points, found.working, found.failed) == ("finished", 8, (), ())
    assert found.compute_seconds_left == 0.0
    assert "jaxsens report" in found.lines()[-1]


def test_a_sweep_is_watched_as_long_as_somebody_is_at_work(sweep, tmp_path, monkeypatch, capsys):
    run(sweep, tmp_path, only=["n=4"])
    with ExitStack() as at_work:
        at_work.enter_context(claims.claim(sweep.points[-1].path(tmp_path)))
        waited = []

        def wait(seconds):
            waited.append(seconds)
            at_work.close()

        monkeypatch.setattr(command, "_pause", wait)
        assert main(["status", "--watch", str(tmp_path)]) == 0
    states = [line.split(":")[0] for line in capsys.readouterr().out.splitlines() if "points" in line]
    assert (states, waited) == (["running", "stopped"], [command.WATCH_SECONDS])


def test_what_is_under_way_and_the_time_left(sweep, tmp_path):
    run(sweep, tmp_path, only=["n=4", "variant=softmax"])
    run(sweep, tmp_path, only=["n=6", "variant=softmax"])
    point = sweep.points[-1]
    with claims.claim(point.path(tmp_path)):
        found = sweep_status(tmp_path)
        (working,) = found.working
        assert (found.state, working.item) == ("running", str(point))
        assert working.host == os.uname().nodename
        assert 0 <= working.heard_seconds_ago < 60
        assert found.seconds_left == found.compute_seconds_left is not None
        assert any("under way" in line for line in found.lines())
    assert sweep_status(tmp_path).state == "stopped"


def test_what_failed_is_said_until_it_is_computed(sweep, tmp_path, monkeypatch, capsys):
    def fails(model, tokens, **options):
        raise RuntimeError("no luck")

    monkeypatch.setattr(sweep_points, "flip_sensitivity", fails)
    run(sweep, tmp_path, only=["n=6", "seed=1"])
    assert main(["status", str(tmp_path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["state"], found["points"]) == ("failed", 0)
    assert found["failed"][0] == {"item": "softmax n=6 seed=1", "message": "RuntimeError: no luck"}
    assert main(["status", str(tmp_path)]) == 0
    assert "failed: leftmost-hard n=6 seed=1: RuntimeError: no luck" in capsys.readouterr().out
    monkeypatch.setattr(sweep_points, "flip_sensitivity", fake_flip_sensitivity)
    run(sweep, tmp_path)
    assert sweep_status(tmp_path).failed == ()
    assert not list(tmp_path.rglob("*.failed"))


def test_damaged_records_are_found_named_and_not_counted_as_done(sweep, tmp_path, capsys):
    run(sweep, tmp_path)
    damaged = sweep.points[2].path(tmp_path)
    content = bytearray(damaged.read_bytes())
    content[len(content) // 2] ^= 1
    damaged.write_bytes(content)
    found = sweep_status(tmp_path)
    assert (found.state, found.points, found.checked) == ("stopped", 7, 8)
    assert [one.item for one in found.damaged] == [str(sweep.points[2])]
    assert main(["status", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "stopped: 7 of 8 points" in said
    assert f"damaged: {sweep.points[2]}: " in said
    assert "not checked" not in said
    run(sweep, tmp_path)
    assert (sweep_status(tmp_path).state, sweep_status(tmp_path).damaged) == ("finished", ())


def test_a_quick_look_says_what_it_did_not_check(sweep, tmp_path, capsys):
    run(sweep, tmp_path)
    sweep.points[2].path(tmp_path).write_bytes(b"damaged")
    assert main(["status", "--quick", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "finished: 8 of 8 points" in said
    assert "not checked: the seals of 8 records" in said
    assert main(["status", "--quick", "--json", str(tmp_path)]) == 0
    assert json.loads(capsys.readouterr().out)["checked"] == 0


def test_a_damaged_bound_is_found(tmp_path):
    sweep = tiny_sweep(after="[bounds]\nworst = false\nrestrict = false\n")
    plan = sweep.plan
    plan.write(tmp_path / "sweep.json")
    path = tmp_path / plan.bounds[0].file
    path.parent.mkdir(parents=True)
    path.write_text("{}")
    found = sweep_status(tmp_path)
    assert [one.item for one in found.damaged] == ["bounds of softmax n=4 seed=0"]
    assert (found.bounds, found.of_bounds, found.state) == (0, 8, "stopped")


def test_looking_writes_nothing_outside_the_directory(sweep, tmp_path):
    out, outside = tmp_path / "out", tmp_path / "outside"
    run(sweep, out)
    (out / "points").rename(outside)
    (out / "points").symlink_to(outside)
    (outside / "variant=softmax" / "n=4").chmod(0o755)
    before = (outside / "variant=softmax" / "n=4").stat().st_mtime_ns
    assert sweep_status(out).points == 8
    assert (outside / "variant=softmax" / "n=4").stat().st_mtime_ns == before


@pytest.mark.parametrize("hours", [-30, 30])
def test_a_host_whose_clock_is_wrong_takes_no_claim_for_stale(sweep, tmp_path, monkeypatch, hours):
    path = sweep.points[0].path(tmp_path)
    with claims.claim(path):
        right = time.time
        monkeypatch.setattr(time, "time", lambda: right() + hours * 3600)
        assert claims.is_claimed(path)


def test_a_claim_is_kept_alive_and_goes_with_its_process(tmp_path, monkeypatch):
    monkeypatch.setattr(claims, "_TOUCH_EVERY", 0.02)
    path = tmp_path / "point.parquet"
    with claims.claim(path):
        os.utime(claims.claim_of(path), (0, 0))
        assert claims.seconds_since(claims.claim_of(path)) > claims.STALE_SECONDS or claims.is_claimed(path)
        time.sleep(0.3)
        assert claims.is_claimed(path)
        claims.claim_of(path).write_text(dead_mark())
        assert not claims.is_claimed(path)


def test_the_last_looks_of_a_run_make_the_file_system_look_again(sweep, tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(
        "jaxsens.experiments.jobs.job.see_what_others_wrote", lambda folders: seen.extend(folders)
    )
    run(sweep, tmp_path, only=["n=4"])
    assert {folder.name for folder in seen} == {"n=6"}
    assert PointsJob(sweep, tmp_path).state(sweep.points[0]) == "done"
