"""The commands about every input: a sweep with a [bounds] table, and `jaxsens restrictions`."""

from __future__ import annotations

import errno
import os
import shutil
import signal

import pytest

from jaxsens.cli import constructed, main
from jaxsens.core.sweeps import points as sweep_points
from jaxsens.core.sweeps.jobs import job
from jaxsens.theory.tables import restrictions as restrictions_table
from jaxsens.theory.tables.record import BoundRecord
from jaxsens.theory.tables.sweep import Bounds
from tests.core.sweeps.tiny import TINY, draw_nothing, fake_flip_sensitivity

CONFIG = TINY.replace("[4, 6]", "[4, 5, 6]") + "\n[bounds]\nrestarts = 1\n"


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """The folder of a sweep whose bounds are computed and drawn; a stand-in measures its points."""
    folder = tmp_path_factory.mktemp("swept")
    (folder / "tiny.toml").write_text(CONFIG)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sweep_points, "flip_sensitivity", fake_flip_sensitivity)
        assert main(["sweep", str(folder / "tiny.toml"), "--out", str(folder / "out")]) == 0
    return folder


@pytest.mark.long
def test_a_sweep_ends_with_the_bounds_in_its_report(swept):
    page = (swept / "out" / "report.html").read_text("utf-8")
    assert "Bounds over all inputs" in page
    assert "Inputs that matter" in page
    assert {file.stem for file in (swept / "out" / "figures").glob("*.svg")} >= {
        "bounds",
        "inputs-that-matter",
    }
    lines = (swept / "out" / "bounds.csv").read_text("utf-8").splitlines()
    assert len(lines) == 1 + 2 * 3 * 2


@pytest.mark.long
def test_run_again_it_computes_nothing_and_report_writes_the_same(swept, monkeypatch, capsys):
    draw_nothing(monkeypatch)
    files = [*(swept / "out" / "bounds").rglob("*.json"), swept / "out" / "bounds.csv"]
    before = {file: (file.stat().st_mtime_ns, file.read_bytes()) for file in files}
    assert main(["sweep", str(swept / "tiny.toml"), "--out", str(swept / "out")]) == 0
    assert all(file.stat().st_mtime_ns == before[file][0] for file in files if file.suffix == ".json")
    assert main(["report", str(swept / "out")]) == 0
    assert {file: file.read_bytes() for file in files} == {file: text for file, (_, text) in before.items()}


@pytest.mark.long
def test_a_shard_counts_points_and_bounds_apart_and_a_full_disk_is_said(swept, monkeypatch, tmp_path, capsys):
    def answered(table, bound, reporter, shared, placement):
        point = bound.point
        return BoundRecord(bound.key, point.variant, point.n, point.seed, worst=1 / point.n)

    monkeypatch.setattr(sweep_points, "flip_sensitivity", fake_flip_sensitivity)
    monkeypatch.setattr(Bounds, "answer", answered)
    again = ["sweep", str(swept / "tiny.toml"), "--out", str(tmp_path)]
    assert main([*again, "--shard", "0/2"]) == 0
    log = capsys.readouterr().err
    assert f"6 of 12 points and 6 of 12 bounds are done; `jaxsens report {tmp_path}` plots them" in log

    def full(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(BoundRecord, "write", full)
    assert main(again) == 1
    log = capsys.readouterr().err.replace("\n", " ")
    why = f"stopped: No space left on device: nothing more can be kept in {tmp_path}; make room there."
    assert f"{why} 12 of 12 points and 6 of 12 bounds are done. To resume: jaxsens {' '.join(again)}" in log
    assert not (tmp_path / "report.html").exists()
    monkeypatch.undo()


def test_a_table_that_cannot_be_written_is_refused_before_it_is_computed(tmp_path, monkeypatch, capsys):
    (tmp_path / "afile").write_text("")

    def never(*arguments, **options):
        raise AssertionError("computed")

    monkeypatch.setattr(restrictions_table, "measure_restriction", never)
    for path in ("afile/x.md", "afile/y/x.md", "."):
        assert main(["restrictions", "--models", "0", "--out", str(tmp_path / path)]) == 2
        said = capsys.readouterr().err
        assert "--models = 0" in said
        assert f"--out = '{tmp_path / path}': " in said
    assert main(["constructions", "--measure", "--out", str(tmp_path / "afile" / "x.md")]) == 2
    assert f"{tmp_path / 'afile'} is not a directory" in capsys.readouterr().err


@pytest.fixture
def measured_at_once(monkeypatch):
    """A stand-in for the measurement of a row."""
    row = restrictions_table.RestrictionRow("0", 1, 64, 1.0, accepted=True, largest_change=0.0)
    monkeypatch.setattr(restrictions_table, "measure_restriction", lambda *arguments: row)


def test_what_was_computed_is_printed_where_it_cannot_be_written(
    measured_at_once, tmp_path, monkeypatch, capsys
):
    def full(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(restrictions_table, "table", lambda rows: "| the table |")
    monkeypatch.setattr(constructed, "write_text", full)
    assert main(["restrictions", "--quiet", "--out", str(tmp_path / "x.md")]) == 1
    out, err = capsys.readouterr()
    assert out == "| the table |\n"
    assert (
        err
        == f"jaxsens: --out = '{tmp_path / 'x.md'}': not written: No space left on device; make room there\n"
    )


def test_the_table_of_restrictions_is_written(tmp_path, capsys):
    arguments = ["restrictions", "--models", "1", "--longest", "64"]
    assert main([*arguments, "--out", str(tmp_path / "table.md")]) == 0
    head, _, *rows = (tmp_path / "table.md").read_text("utf-8").splitlines()
    assert head.startswith("| model | depth | n = 64 |")
    assert [row.split("|")[2].strip() for row in rows] == ["1", "2"]
    assert all("| 1/1 | 0 | 2/2 |" in row for row in rows)
    assert [path.name for path in tmp_path.iterdir()] == ["table.md"]  # which holds the rows now


def test_a_stopped_table_goes_on_with_the_rows_that_it_has(tmp_path, monkeypatch, capsys):
    arguments = ["restrictions", "--models", "1", "--longest", "128", "--out", str(tmp_path / "table.md")]
    measured = []

    def row(place, free_fraction):
        measured.append(place)
        if len(measured) == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        _, depth, n = place
        refusal = "too long" if depth == 2 else ""  # its numbers are NaN
        share = {} if refusal else {"accepted": True, "largest_change": 0.0, "free_fraction": 0.5, "c": 1}
        return restrictions_table.RestrictionRow("0", depth, n, 1.0, refusal=refusal, **share)

    monkeypatch.setattr(restrictions_table, "measure_restriction", row)
    assert main(arguments) == 143
    assert f"3 of 4 rows are kept in {tmp_path / 'table.md.rows'}" in capsys.readouterr().err
    assert not (tmp_path / "table.md").exists()
    damaged = sorted((tmp_path / "table.md.rows").iterdir())[0]
    damaged.write_text(damaged.read_text().replace("0.5", "0.7").replace("too long", "too late"))
    main(arguments)
    assert len(measured) == 5, "the damaged row and the missing one are computed, and no other"
    assert "damaged, computed again" in capsys.readouterr().err
    resumed = (tmp_path / "table.md").read_text()
    (tmp_path / "table.md").unlink()
    shutil.rmtree(tmp_path / "table.md.rows", ignore_errors=True)
    main(arguments)
    assert (tmp_path / "table.md").read_text() == resumed


def test_a_file_in_place_of_the_folder_of_rows_is_refused_before_anything_is_computed(tmp_path, capsys):
    rows = tmp_path / "t.md.rows"
    rows.write_text("mine")
    for command in (["restrictions", "--models", "0"], ["constructions", "--measure", "--cap", "9"]):
        assert main([*command, "--out", str(tmp_path / "t.md")]) == 2
        assert f"{rows}, where rows would be kept, is a file" in capsys.readouterr().err
    assert rows.read_text() == "mine"


def test_a_table_that_is_there_is_not_replaced_by_a_part_of_it(
    measured_at_once, tmp_path, monkeypatch, capsys
):
    def full(*arguments, **options):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(job, "write_sealed", full)
    (tmp_path / "t.md").write_text("the whole table")
    assert main(["restrictions", "--models", "1", "--out", str(tmp_path / "t.md")]) == 1
    assert (tmp_path / "t.md").read_text() == "the whole table"
    assert "No space left on device" in capsys.readouterr().err
