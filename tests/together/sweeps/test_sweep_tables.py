"""Tables of a sweep that another package brings: config, columns, records, status and report; and what is refused."""

from __future__ import annotations

import pandas as pd
import pytest

from jaxsens.cli import main
from jaxsens.core.base import registry
from jaxsens.core.base.errors import InputError
from jaxsens.core.sweeps import points as sweep_points
from tests.core.base.test_registry import installed
from tests.core.sweeps.tiny import TINY, draw_nothing, fake_flip_sensitivity, problems_of, tiny_sweep

BROUGHT = """
from dataclasses import dataclass
from typing import ClassVar

from jaxsens.core.engines.engine import Cost
from jaxsens.core.base.strict import STRICT
from jaxsens.core.sweeps.jobs.job import Record
from jaxsens.core.report.page import ReportTable, Section
from jaxsens.core.sweeps.tables import PointTable, RecordTable


@dataclass(frozen=True)
class Ends(PointTable):
    __pydantic_config__ = STRICT
    columns = ("variant", "n", "seed", "ends")
    last: int = 1

    def check(self, sources, keys, problems):
        if self.last > min(keys.get("lengths", [self.last])):
            problems.add("ends.last", self.last, "at most the shortest length")

    def applies(self, source):
        return True

    def of_point(self, model, result):
        return int(result.tokens[:, -self.last :].sum())

    def table_rows(self, point, values):
        yield {"variant": point.variant, "n": point.n, "seed": point.seed, "ends": values}

    def cost(self, model, n):
        return Cost(0.0, 0.0, 0, 1.0, compiling=0.0)

    def sections(self, data, results):
        rows = [(row["variant"], str(row["ends"])) for row in results]
        return [Section("Where inputs end", tables=[ReportTable("", ("variant", "ends"), rows)])]


@dataclass(frozen=True)
class Twice(Record):
    kind: ClassVar[str] = "twice the length of a point"
    key: str
    variant: str
    twice: int

    def summary(self):
        return f"twice {self.twice}"


@dataclass(frozen=True)
class Doubled(RecordTable):
    __pydantic_config__ = STRICT
    columns = ("variant", "twice")
    record = Twice
    task = "lengths, twice"

    def check(self, sources, keys, problems):
        pass

    def expanded(self, point):
        return {"variant": point.variant, "n": point.n}

    def answer(self, item, reporter, shared, placement):
        return Twice(item.key, item.point.variant, 2 * item.point.n)

    def sections(self, data, results):
        return [Section(f"Twice: {sum(one.twice for one in results)}")]
"""
LINES = "doubled = brought_tables:Doubled\nends = brought_tables:Ends"


@pytest.fixture(autouse=True)
def _anew():
    yield
    registry.entries.cache_clear()


@pytest.fixture
def brought(tmp_path, monkeypatch):
    """A distribution with two tables; a stand-in measures points, and nothing is drawn."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "brought_tables.py").write_text(BROUGHT)
    installed(tmp_path / "site", "theirs", LINES, monkeypatch, "sweep_tables")
    monkeypatch.setattr(sweep_points, "flip_sensitivity", fake_flip_sensitivity)
    draw_nothing(monkeypatch)


def run(folder, tables):
    (folder / "tiny.toml").write_text(TINY + tables)
    assert main(["sweep", str(folder / "tiny.toml"), "--out", str(folder / "out")]) == 0


def test_a_column_of_another_package_is_in_its_table_and_in_the_report(brought, tmp_path):
    run(tmp_path, "[ends]\nlast = 2\n")
    table = pd.read_csv(tmp_path / "out" / "ends.csv")
    sweep = tiny_sweep(after="[ends]\nlast = 2\n")
    assert table.columns.tolist() == ["variant", "n", "seed", "ends"]
    assert table["ends"].tolist() == [int(point.tokens()[:, -2:].sum()) for point in sweep.points]
    page = (tmp_path / "out" / "report.html").read_text("utf-8")
    assert page.index("Where inputs end") < page.index("What was run")
    assert [point.key for point in sweep.points] == [point.key for point in tiny_sweep().points]


def test_points_without_the_column_are_measured_again(brought, tmp_path, capsys):
    run(tmp_path, "")
    assert not (tmp_path / "out" / "ends.csv").exists()
    run(tmp_path, "[ends]\n")
    assert "were done before" not in capsys.readouterr().err
    run(tmp_path, "[ends]\n")
    assert "8 of 8 were done before" in capsys.readouterr().err
    assert len(pd.read_csv(tmp_path / "out" / "ends.csv")) == 8


def test_records_of_another_package_are_listed_counted_and_reported(brought, tmp_path, capsys):
    run(tmp_path, "[doubled]\n")
    out = tmp_path / "out"
    assert "points are measured; computing lengths, twice" in capsys.readouterr().err
    assert pd.read_csv(out / "doubled.csv")["twice"].tolist() == [8, 8, 12, 12] * 2
    assert "Twice: 80" in (out / "report.html").read_text("utf-8")
    next((out / "doubled").rglob("*n=4/seed=1-*.json")).write_text("{}")
    assert main(["status", str(out)]) == 0
    assert capsys.readouterr().out.startswith("finished: 8 of 8 points and 8 of 8 doubled are done: tiny")
    assert main(["sweep", str(tmp_path / "tiny.toml"), "--out", str(out), "--list"]) == 0
    *listed, last = capsys.readouterr().out.splitlines()
    assert last == "8 of 8 points and 7 of 8 doubled are done"
    (damaged,) = [line for line in listed if line.startswith("damaged")]
    assert "1: doubled of softmax n=4 seed=1" in damaged
    run(tmp_path, "[doubled]\n")
    assert "damaged, computed again: doubled of " in capsys.readouterr().err


def test_keys_of_the_table_are_checked_and_what_it_cannot_do_is_said(brought):
    assert problems_of(TINY + '[ends]\nlast = "two"\nlats = 1\n')[1] == (
        'ends.lats: unknown key; did you mean "last"?'
    )
    assert problems_of(TINY + "[ends]\nlast = 5\n") == ["ends.last = 5: at most the shortest length"]


def test_a_table_that_no_package_has_is_refused_by_its_name_also_where_it_was_measured(
    brought, tmp_path, monkeypatch, capsys
):
    run(tmp_path, "[ends]\n")
    monkeypatch.undo()
    registry.entries.cache_clear()
    (problem,) = problems_of(TINY + "[ends]\n")
    assert problem.startswith("ends: unknown key; ")
    capsys.readouterr()
    assert main(["report", str(tmp_path / "out")]) == 2
    assert "[ends]: no installed package has this table of a sweep" in capsys.readouterr().err


def test_a_table_with_the_name_of_another_part_of_a_sweep_is_refused(tmp_path, monkeypatch):
    for name in ("lengths", "device", "points", "distances", "two-words"):
        lines = f"{name} = brought_tables:Ends"
        installed(tmp_path / name, "theirs", lines, monkeypatch, "sweep_tables")
        with pytest.raises(InputError, match=f"brought_tables:Ends: .* cannot be called '{name}'"):
            tiny_sweep()
        monkeypatch.undo()


def test_what_is_no_table_is_refused(tmp_path, monkeypatch):
    installed(tmp_path, "theirs", "ends = collections:OrderedDict", monkeypatch, "sweep_tables")
    (problem,) = problems_of(TINY + "[ends]\n")
    assert "collections:OrderedDict is neither a PointTable nor a RecordTable" in problem
