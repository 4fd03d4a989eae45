"""The commands about every input: a sweep with a [bounds] table, and `jaxsens restrictions`."""

from __future__ import annotations

import pytest

from jaxsens.cli import main
from tests.experiments.tiny import TINY

CONFIG = TINY.replace("[4, 6]", "[4, 5, 6]") + "\n[bounds]\nrestarts = 1\n"


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    folder = tmp_path_factory.mktemp("swept")
    (folder / "tiny.toml").write_text(CONFIG)
    assert main(["sweep", str(folder / "tiny.toml"), "--out", str(folder / "out")]) == 0
    return folder


def test_a_sweep_ends_with_the_bounds_in_its_report(swept):
    page = (swept / "out" / "report.html").read_text("utf-8")
    assert "Bounds over all inputs" in page
    assert "Inputs that matter" in page
    assert {file.stem for file in (swept / "out" / "figures").glob("*.png")} >= {
        "bounds",
        "inputs-that-matter",
    }
    lines = (swept / "out" / "bounds.csv").read_text("utf-8").splitlines()
    assert len(lines) == 1 + 2 * 3 * 2


def test_run_again_it_computes_nothing_and_report_writes_the_same(swept, capsys):
    files = [*(swept / "out" / "bounds").rglob("*.json"), swept / "out" / "bounds.csv"]
    before = {file: (file.stat().st_mtime_ns, file.read_bytes()) for file in files}
    assert main(["sweep", str(swept / "tiny.toml"), "--out", str(swept / "out")]) == 0
    assert all(file.stat().st_mtime_ns == before[file][0] for file in files if file.suffix == ".json")
    assert main(["report", str(swept / "out")]) == 0
    assert {file: file.read_bytes() for file in files} == {file: text for file, (_, text) in before.items()}


def test_the_table_of_restrictions_is_written(tmp_path, capsys):
    arguments = ["restrictions", "--models", "1", "--longest", "64"]
    assert main([*arguments, "--out", str(tmp_path / "table.md")]) == 0
    head, _, *rows = (tmp_path / "table.md").read_text("utf-8").splitlines()
    assert head.startswith("| model | depth | n = 64 |")
    assert [row.split("|")[2].strip() for row in rows] == ["1", "2"]
    assert all("| 1/1 | 0 | 2/2 |" in row for row in rows)


def test_wrong_arguments_are_refused_together(capsys):
    assert main(["restrictions", "--models", "0", "--longest", "6", "--free-fraction", "2"]) == 2
    said = capsys.readouterr().err
    assert all(name in said for name in ("--models", "--longest", "--free-fraction"))
