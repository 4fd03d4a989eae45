"""Packages bring sources of models and tables to sweeps by entry points; what no package has is refused by name."""

from __future__ import annotations

import sys
from importlib.util import find_spec

import numpy as np
import pandas as pd
import pytest

from jaxsens import InputError, load_sweep
from jaxsens.cli import main
from jaxsens.core.base import registry
from jaxsens.core.sweeps.config import parse_sweep_config
from jaxsens.core.sweeps.sources import naming
from jaxsens.core.sweeps.sweep import run_sweep
from tests.core.sweeps.tiny import TINY, draw_nothing, problems_of, quiet, tiny_sweep
from tests.refusals import refusal, refused

MODULE = """
import jax.numpy as jnp

from jaxsens.core.sweeps.sources import ModelSource, SourceKind
from jaxsens.core.sweeps.inputs import GivenWords, Symbols


class Counter(ModelSource):
    def texts(self, table, folder, lengths, problems):
        return GivenWords({n: jnp.asarray([[ord(one) % 3 for one in table.texts[:n]]]) for n in lengths}, None)


def _read(table, problems, folder):
    numbers = {"ones": 1, "twos": 2, "grown": 3}
    if table["counter"] not in numbers:
        problems.add("counter", table["counter"], "ones or twos")
        return None
    number = numbers[table["counter"]] * table.get("times", 1)

    def build(n, seed):
        return lambda tokens: jnp.stack([number * jnp.sum(tokens == 1) / tokens.size, jnp.float32(0)])

    expanded = {"type": "Counter", "number": number}
    weights = "grown" if number == 3 else "constructed"
    return Counter(weights, None, expanded, build, alphabet=Symbols(3, None), outputs=2)


def _stages(table, problems):
    return [(f"times {k}", {"times": k}) for k in table.pop("each_of", ())]


COUNTER = SourceKind(_read, ("counter", "times"), stages=_stages)
NONE = _read
"""

SWEEP = """
lengths = [4, 8]
seeds = 2
[model]
counter = "ones"
[measure]
flips = {kind = "substitute", symbols = 3}
[[variant]]
name = "one"
[[variant]]
name = "two"
model = {counter = "twos"}
"""


@pytest.fixture
def brought(tmp_path, installed):
    """A distribution on the path whose entry point brings the key `counter`."""
    site = tmp_path / "site"
    lines = "counter = brought_counter:COUNTER\nnone = brought_counter:NONE"
    installed(site, "theirs", lines, "model_sources")
    (site / "brought_counter.py").write_text(MODULE)
    yield
    sys.modules.pop("brought_counter", None)


@pytest.mark.long
@pytest.mark.usefixtures("brought")
def test_a_sweep_measures_what_another_package_brings(tmp_path):
    sweep = parse_sweep_config(SWEEP)
    assert not run_sweep(sweep, tmp_path / "out", sweep.points, quiet()).failures
    rows = load_sweep(tmp_path / "out").points
    for name, number in (("one", 1), ("two", 2)):
        largest, n = (np.asarray(rows[column][rows["variant"] == name]) for column in ("max", "n"))
        assert largest == pytest.approx(number / n)
    (first, *_) = sweep.points
    assert first.source.symbols.alphabet_size == 3
    assert first.expanded["model"] == {"type": "Counter", "number": 1}
    assert [one.outputs for one in sweep.plan.variants] == ["every coordinate"] * 2


@pytest.mark.usefixtures("brought")
def test_its_stages_are_variants_and_its_texts_are_inputs():
    text = SWEEP.replace('"ones"', '"ones"\neach_of = [2, 4]').replace('model = {counter = "twos"}', "")
    sweep = parse_sweep_config(f'{text}\n[inputs]\ntexts = "abcdefgh"')
    names = ["one times 2", "one times 4", "two times 2", "two times 4"]
    assert [one.name for one in sweep.variants] == names
    assert [one.source.expanded["number"] for one in sweep.variants] == [2, 4, 2, 4]
    assert sweep.points[0].tokens().tolist() == [[1, 2, 0, 1]]


@pytest.mark.usefixtures("brought")
@pytest.mark.parametrize(
    ("old", "new", "names"),
    [
        ('"ones"', '"none"', ["model.counter"]),
        ('"ones"', '"grown"', [""]),  # an origin of weights that a sweep has no rule for
        ('counter = "ones"', "none = 1", [""]),  # no SourceKind
        ('"ones"', '"ones"\nformula = "Q_1"', ["model"]),
        ('[measure]\nflips = {kind = "substitute", symbols = 3}', "", ["measure.flips"]),
        ('counter = "ones"', 'countre = "ones"', ["model.countre", "model.alphabet_size"]),
    ],
)
def test_what_is_wrong_with_its_table_is_said_with_the_key(old, new, names):
    with refusal(*names):
        parse_sweep_config(SWEEP.replace(old, new))


@pytest.mark.usefixtures("installed")
def test_a_key_whose_package_is_not_installed_is_unknown_and_others_are_named(monkeypatch):
    everything = naming()
    assert everything == ("formula", "construction", "checkpoint", "python", "pretrained")
    found = {"jaxsens.formal": lambda name: None}
    monkeypatch.setattr(registry, "find_spec", lambda name: found.get(name, find_spec)(name))
    registry.entries.cache_clear()
    text = SWEEP.replace("counter", "construction")
    refused("model.alphabet_size model.construction", parse_sweep_config, text)
    text = SWEEP.replace('counter = "ones"', "alphabet_size = 3").replace('counter = "twos"', "width = 8")
    assert {one.source.weights for one in parse_sweep_config(text).variants} == {"random"}


BROUGHT = """
from dataclasses import dataclass
from typing import ClassVar

from jaxsens.core.engines.engine import Cost
from jaxsens.core.base.strict import STRICT
from jaxsens.core.sweeps.job import Record
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


@pytest.fixture
def tables_brought(tmp_path, monkeypatch, installed, faked):
    """A distribution with two tables; a stand-in measures points, and nothing is drawn."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "brought_tables.py").write_text(BROUGHT)
    installed(tmp_path / "site", "theirs", LINES, "sweep_tables")
    draw_nothing(monkeypatch)


def run(folder, tables):
    (folder / "tiny.toml").write_text(TINY + tables)
    assert main(["sweep", str(folder / "tiny.toml"), "--out", str(folder / "out")]) == 0


def test_a_column_of_another_package_is_in_its_table_and_in_the_report(tables_brought, tmp_path):
    run(tmp_path, "[ends]\nlast = 2\n")
    table = pd.read_csv(tmp_path / "out" / "ends.csv")
    sweep = tiny_sweep(after="[ends]\nlast = 2\n")
    assert table.columns.tolist() == ["variant", "n", "seed", "ends"]
    assert table["ends"].tolist() == [int(point.tokens()[:, -2:].sum()) for point in sweep.points]
    page = (tmp_path / "out" / "report.html").read_text("utf-8")
    assert page.index("Where inputs end") < page.index("What was run")
    assert [point.key for point in sweep.points] == [point.key for point in tiny_sweep().points]


def test_points_without_the_column_are_measured_again(tables_brought, tmp_path, capsys):
    run(tmp_path, "")
    assert not (tmp_path / "out" / "ends.csv").exists()
    run(tmp_path, "[ends]\n")
    assert "were done before" not in capsys.readouterr().err
    run(tmp_path, "[ends]\n")
    assert "8 of 8 were done before" in capsys.readouterr().err
    assert len(pd.read_csv(tmp_path / "out" / "ends.csv")) == 8


def test_records_of_another_package_are_listed_counted_and_reported(tables_brought, tmp_path, capsys):
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


def test_keys_of_the_table_are_checked_and_what_it_cannot_do_is_said(tables_brought):
    assert problems_of(TINY + '[ends]\nlast = "two"\nlats = 1\n')[1] == (
        'ends.lats: unknown key; did you mean "last"?'
    )
    assert problems_of(TINY + "[ends]\nlast = 5\n") == ["ends.last = 5: at most the shortest length"]


def test_a_table_that_no_package_has_is_refused_by_its_name_also_where_it_was_measured(
    tables_brought, tmp_path, monkeypatch, capsys
):
    run(tmp_path, "[ends]\n")
    monkeypatch.undo()
    registry.entries.cache_clear()
    (problem,) = problems_of(TINY + "[ends]\n")
    assert problem.startswith("ends: unknown key; ")
    capsys.readouterr()
    assert main(["report", str(tmp_path / "out")]) == 2
    assert "[ends]: no installed package has this table of a sweep" in capsys.readouterr().err


def test_a_table_with_the_name_of_another_part_of_a_sweep_is_refused(tmp_path, monkeypatch, installed):
    for name in ("lengths", "device", "points", "distances", "two-words"):
        lines = f"{name} = brought_tables:Ends"
        installed(tmp_path / name, "theirs", lines, "sweep_tables")
        with pytest.raises(InputError, match=f"brought_tables:Ends: .* cannot be called '{name}'"):
            tiny_sweep()
        monkeypatch.undo()
