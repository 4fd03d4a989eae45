"""The table of constructions as Markdown."""

from __future__ import annotations

import pytest

from jaxsens.cli import main
from jaxsens.formal.constructions.compiler import compile_formula
from jaxsens.formal.constructions.conditions import ConditionName
from jaxsens.formal.tables import constructions_table
from jaxsens.formal.tables.constructions_table import (
    TABLES,
    Exactness,
    TablePlan,
    TableRow,
    cells,
    constructions_job,
    exponent_text,
    markdown,
    plan_of,
)

LENGTHS = (10, 20, 40)


def row(condition: ConditionName = "temperature", text="odd(#L[Q_1])", **changes) -> TableRow:
    promise = compile_formula(
        text, "01", condition, autoregressive=changes.pop("autoregressive", False)
    ).promise
    exact = {"float32": Exactness(700, 719, 614), "float64": Exactness(4000, None, 14249255)}
    given = {
        "name": "parity",
        "read": "output",
        "at": "last",
        "lengths": LENGTHS,
        "maxima": (1.0, 1.0, 1.0),
        "means": tuple(1 / n for n in LENGTHS),
        "exactness": exact,
    }
    return TableRow(promise=promise, **{**given, **changes})


def test_a_row_says_what_the_network_is_and_what_was_measured():
    assert list(cells(row("temperature-bounded")).values()) == [
        "counting",
        "parity",
        "temperature-bounded",
        "Theorem 20(a) with bounded embeddings",
        "1/n^3",
        "(-1)^i, i/n^2, (i/n)^2, [i odd]",
        "6, 7, 16",
        "1",
        "0.00",
        "-1.00",
        "700, not 719 (614)",
        "4000 and more (1.4e7)",
    ]


def test_the_controls_row_says_what_was_read_and_promises_nothing():
    found = cells(row("bounded-softmax", read="before-rounding", maxima=(4e-3, 1e-3, 2.5e-4), exactness={}))
    assert found["by"] == "control of Theorem 20"
    assert (found["largest change"], found["its exponent"]) == ("0.00025, before rounding", "-2.00")
    assert found["exact to, float32"] == found["exact to, float64"] == "not promised"


def test_decoders_and_first_positions_are_named():
    found = cells(row("unbounded", "Y Q_1", autoregressive=True, at="first"))
    assert found["construction"] == "parity, read at the first position"
    assert found["condition"] == "unbounded, autoregressive"
    assert found["embeddings"].endswith("(unbounded)")


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ((1, 1, 1), "0.00"),
        ((4, 2, 1), "-1.00"),
        ((1, 2, 4), "1.00"),
        ((1, 0.9999, 0.9999), "0.00"),
        ((0, 0, 0), "none: exactly 0"),
        ((1, 0, 0), "none: 0 at some n"),
    ],
)
def test_exponents(values, text):
    assert exponent_text(LENGTHS, values) == text


def tables(text: str) -> dict[str, list[str]]:
    """The lines of each table by its heading, without the head of the table."""
    parts = [part.splitlines() for part in text.split("\n## ")[1:]]
    return {name: [line for line in lines if line.startswith("|")][2:] for name, *lines in parts}


def test_the_tables_are_markdown_with_one_line_a_row():
    text = markdown([row(), row("unbounded")], TablePlan(lengths=LENGTHS, cap=300))
    setting = text.splitlines()[0]
    assert "n = 10, 20, 40" in setting
    assert "n = 100, 300" in setting
    found = tables(text)
    assert {name: len(lines) for name, lines in found.items()} == dict.fromkeys(TABLES, 2)
    for name, lines in found.items():
        assert {line.count("|") for line in lines} == {len(TABLES[name]) + 1}


def test_measuring_reports_every_row_and_writes_the_table(monkeypatch, tmp_path, capsys):
    def measured(case, condition, read, plan):
        formula = "Q_0 S Q_1"
        return row(condition.name, formula, autoregressive=condition.autoregressive, read=read)

    monkeypatch.setattr(constructions_table, "measure_row", measured)
    path = tmp_path / "t.md"
    assert main(["constructions", "since", "--measure", "--cap", "50", "--out", str(path)]) == 0
    text = path.read_text()
    assert "n = 50" in text
    found = tables(text)
    assert all("| parity |" in line for lines in found.values() for line in lines)
    # The control is measured in two ways, is one network, and promises nothing.
    assert {name: len(lines) for name, lines in found.items()} == {
        "Sensitivity": 6, "Exactness": 4, "Networks": 5,
    }  # fmt: skip
    assert "6/6  since, unbounded, autoregressive: 1 at n = 40" in capsys.readouterr().err
    assert main(["constructions", "since", "--measure"]) == 0
    assert tables(capsys.readouterr().out) == tables(
        markdown([measured(*each, plan_of()) for each in plan_of("since").rows], plan_of())
    )


@pytest.mark.slow
def test_a_row_is_kept_as_it_was_measured_and_read_back(tmp_path):
    plan = plan_of("since", 50)
    job = constructions_job(plan, tmp_path)
    assert len({str(item) for item in job.items}) == len(plan.rows)
    control = next(item for item in job.items if item.value[2] == "everything")
    for item in (job.items[0], control):
        computed = job.compute(item, reporter=None)  # pyright: ignore[reportArgumentType] - not used
        assert constructions_job(plan, tmp_path).read(item) == computed
    with pytest.raises(FileNotFoundError):
        constructions_job(plan_of("since", 60), tmp_path).read(job.items[0])
