"""The measured table of constructions: its rows are what they say, in print and as Markdown."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from jaxsens import InputError, compile_formula, construction
from jaxsens.cli import main
from jaxsens.formal.constructions import table as constructions_table
from jaxsens.formal.constructions.catalogue import EVERY_CONDITION, catalogue, names
from jaxsens.formal.constructions.conditions import Condition, ConditionName
from jaxsens.formal.constructions.table import (
    CASES,
    TABLES,
    Exactness,
    TablePlan,
    TableRow,
    balanced,
    cells,
    constructions_job,
    cycle,
    exact_at,
    exactness,
    exponent_text,
    markdown,
    measure_row,
    nested,
    plan_of,
)
from tests.formal.logic.brute_force import balanced as balanced_definition
from tests.refusals import refused

BY_NAME = {case.name: case for case in CASES}
TEMPERATURE, CONTROL = Condition("temperature"), Condition("bounded-softmax")
TINY = TablePlan(lengths=(8, 10, 12), cap=12)


def flipped_truth(case, n: int) -> list[bool]:
    """Whether each flip of the case's word changes the truth value where the network is read."""
    word, read = case.tokens(n), -1 if case.at == "last" else 0
    flips = [
        np.where(np.arange(n) == i, symbol, word)
        for i in range(n)
        for symbol in range(len(case.alphabet))
        if i != read % n and symbol != word[i]
    ]
    truth = case.truth(np.array([word, *flips]))[:, read]
    return (truth[1:] != truth[0]).tolist()


@pytest.mark.quick(10)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("n", [8, 10, 32, 70])
def test_the_words_are_sensitive_at_every_length(case, n):
    assert len(case.tokens(n)) == n
    assert any(flipped_truth(case, n))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_case_can_be_built_in_its_conditions(case):
    for condition in case.conditions:
        promise = case.build(condition, "float32").promise
        assert (promise.condition, promise.autoregressive) == (condition.name, condition.autoregressive)
        assert promise.exact == condition.promises


def test_every_row_of_the_papers_table_and_every_route_is_measured():
    made = [case.build(condition, "float64").promise for case in CASES for condition in case.conditions]
    rows = {promise.table_row for promise in made}
    assert {"LTL[Y]", "LTL[X]", "LTL[S]", "LTL[U]", "LTL[Y,S]", "counting"} <= rows
    routes = {"temperature", "unbounded", "temperature-bounded", "bounded-softmax"}
    assert {promise.condition for promise in made} == routes
    decoders = {promise.condition for promise in made if promise.autoregressive}
    assert decoders == {"temperature", "unbounded", "temperature-bounded"}


@pytest.mark.long
def test_a_row_is_the_boolean_sensitivity_of_the_language():
    case = BY_NAME["until"]  # read at the first position
    row = measure_row(case, TEMPERATURE, "output", TINY)
    assert row.maxima == (1, 1, 1)
    assert row.means == tuple(np.mean(flipped_truth(case, n)) for n in TINY.lengths)
    assert row.exactness.keys() == {"float32", "float64"}
    for dtype, found in row.exactness.items():
        assert (found.longest, found.inexact) == (12, None)
        assert found.predicted == case.build(TEMPERATURE, "float64").promise.exact_to(dtype)


@pytest.mark.long
def test_the_controls_rows_fall_and_promise_nothing():
    rows = [read for case, condition, read in TINY.rows if (case.name, condition) == ("since", CONTROL)]
    assert rows == ["before-rounding", "everything"]
    before = measure_row(BY_NAME["since"], CONTROL, "before-rounding", TINY)
    everything = measure_row(BY_NAME["since"], CONTROL, "everything", TINY)
    assert before.exactness == {}
    assert 0 < before.maxima[-1] < before.maxima[0] < 1
    assert everything.maxima[0] >= before.maxima[0]


def test_exactness_closes_in_on_the_first_length_that_fails(monkeypatch):
    tried = []

    def exact_below_140(case, model, n):
        tried.append(n)
        return n < 140

    monkeypatch.setattr(constructions_table, "exact_at", exact_below_140)
    found = exactness(BY_NAME["since"], TEMPERATURE, "float32", (20, 100, 200, 300))
    assert (found.longest, found.inexact) == (139, 145)
    assert tried[:3] == [20, 100, 200]
    assert 300 not in tried
    monkeypatch.setattr(constructions_table, "exact_at", lambda case, model, n: False)
    assert exactness(BY_NAME["since"], TEMPERATURE, "float32", (20,)).longest == 0


def test_a_network_that_is_wrong_at_any_position_of_any_word_is_not_exact():
    case = BY_NAME["majority"]
    assert exact_at(case, compile_formula("#L[Q_1] - #L[Q_0] - 1 >= 0", "01"), 9)
    almost = compile_formula("#L[Q_1] - #L[Q_0] - 1 >= 0 & !(#L[Q_1] = 9)", "01")
    assert not exact_at(case, almost, 9)
    other = dataclasses.replace(case, truth=BY_NAME["parity"].truth)
    assert not exact_at(other, case.build(TEMPERATURE, "float64"), 9)


def test_balanced_is_dyck():
    words = np.random.default_rng(0).integers(0, 2, size=(200, 9))
    expected = [[balanced_definition()(["()"[s] for s in word], i + 1) for i in range(9)] for word in words]
    assert balanced(1, words).tolist() == expected
    right, wrong = [[0, 1, 3, 2, 0, 2]], [[0, 1, 2, 3, 0, 2]]
    assert balanced(2, np.array(right)).tolist() == [[False, False, False, True, False, True]]
    assert not balanced(2, np.array(wrong)).any()
    assert (cycle("ab", 5), nested("([", ")]", 8)) == ("ababa", "([([])])")


def test_plans_refuse_every_problem_at_once():
    assert "majority" in refused("name cap", plan_of, "first", cap=4)
    assert [case.name for case in plan_of("since").cases] == ["since"]
    assert plan_of(cap=500).tried == (100, 500)
    assert plan_of().cases == CASES


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


def test_rows_of_controls_decoders_and_first_positions_say_what_they_are():
    found = cells(row("bounded-softmax", read="before-rounding", maxima=(4e-3, 1e-3, 2.5e-4), exactness={}))
    assert found["by"] == "control of Theorem 20"
    assert (found["largest change"], found["its exponent"]) == ("0.00025, before rounding", "-2.00")
    assert found["exact to, float32"] == found["exact to, float64"] == "not promised"
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


ENTRIES = {entry.name: entry for entry in catalogue()}


@pytest.fixture(autouse=True)
def _terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")


def printed(capsys, *arguments: str) -> str:
    assert main(["constructions", *arguments]) == 0
    out = capsys.readouterr().out
    assert max(len(line) for line in out.splitlines()) <= 80
    return out


@pytest.mark.parametrize("name", ["parity", "majority", "3-gram-ahead", "dyck"])
def test_a_condition_is_listed_where_the_construction_can_be_made(name):
    def can_be_made(condition: Condition) -> bool:
        try:
            construction(name, condition.name, autoregressive=condition.autoregressive)
        except InputError:
            return False
        return True

    assert [each for each in EVERY_CONDITION if can_be_made(each)] == list(ENTRIES[name].conditions)


def test_the_list_has_every_construction_with_its_conditions(capsys):
    lines = printed(capsys).splitlines()
    assert [line for line in lines if line.rstrip() in names()] == list(names())
    after = lines[lines.index("majority") + 2].strip()
    assert after == "temperature*, unbounded, temperature-bounded*, bounded-softmax, average-hard*"


def test_one_construction_prints_its_promise_in_every_condition_and_why_not_in_the_others(capsys):
    text = printed(capsys, "parity")
    assert "odd(#L[Q_1])" in text
    for condition in ENTRIES["parity"].conditions:
        promise = construction("parity", condition.name, autoregressive=condition.autoregressive).promise  # pyright: ignore[reportAttributeAccessIssue]
        label = condition.name + (", autoregressive" if condition.autoregressive else "")
        block = text[text.index(f"condition    {label} ") :].split("\n\n")[0]
        assert f"{promise.layers} layers, {promise.heads} heads" in block
        assert promise.temperature in block
    assert "not unbounded, autoregressive:" in text
    assert "Theorem 21" in text
    assert text.count("uniform attention") == 2


def test_chiang_and_cholaks_print_their_options(capsys):
    text = printed(capsys, "chiang-cholak-parity")
    assert all(option in text for option in ("layer_norm=False", "log_length=False", "sharpness=1.0"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["pairity"], "one of parity, "),
        (["--out", "x.md"], "require --measure"),
        (["parity", "--cap", "50"], "require --measure"),
        (["first", "--measure", "--cap", "2"], "2 errors"),
    ],
)
def test_refusals(arguments, message, capsys):
    assert main(["constructions", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
