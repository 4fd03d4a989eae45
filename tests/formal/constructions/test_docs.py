"""What the pages about constructions show is so: examples, tables of conditions, the measured table, commands.

These are docs/constructions.md (the guide), docs/constructions-proofs.md and docs/measured/constructions.md.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import jax
import numpy as np
import pytest

from jaxsens.cli import main
from jaxsens.core.base.errors import InputError
from jaxsens.core.models.transformer.module import Transformer
from jaxsens.formal.constructions.catalogue import LENGTH_INDEPENDENT, REFERENCES
from jaxsens.formal.constructions.compiler import compile_formula
from jaxsens.formal.constructions.conditions import CONDITIONS
from jaxsens.formal.constructions.dyck import dyck
from jaxsens.formal.tables.constructions_table import TABLES, Exactness, TablePlan, TableRow, cells, markdown
from jaxsens.logic import LIBRARY

DOCS = Path(__file__).resolve().parents[3] / "docs"
GUIDE, PROOFS, RECORD = (
    (DOCS / f"{page}.md").read_text(encoding="utf-8")
    for page in ("constructions", "constructions-proofs", "measured/constructions")
)
PLAN = TablePlan()


def flowing(text: str) -> str:
    return " ".join(text.split())


def table_after(text: str, heading: str) -> list[list[str]]:
    after = text[text.index(heading) :]
    lines = re.search(r"(?:^\|.*\n)+", after, flags=re.MULTILINE)
    assert lines is not None
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[0].splitlines()]
    return [[cell.strip(" |") for cell in row] for row in rows if set(row[0]) != {"-"}]


@pytest.mark.parametrize(
    ("heading", "autoregressive"), [("## Conditions", False), ("| condition, auto", True)]
)
def test_the_tables_of_conditions_say_what_exists(heading, autoregressive):
    formulas = {
        "past": "Y Q_1 S Q_0",
        "left": "#L[Q_1] >= 2",
        "predicate": "odd(#L[Q_1])",
        "future": "X Q_1",
        "both": "#L[Q_1] = #R[Q_0]",
    }
    wanted = {
        "every formula": formulas.keys(),
        "formulas without `#L` and `#R`": {"past", "future"},
        "all of these": {"past", "left", "predicate"},
        "those without `#L`": {"past"},
        "those without predicates of counts": {"past", "left"},
    }
    listed = set()
    for row in table_after(GUIDE, heading)[1:]:
        for condition in re.findall(r"`([a-z-]+)`", row[0]):
            listed.add(condition)
            made = set()
            for kind, text in formulas.items():
                try:
                    compile_formula(text, "01", condition, autoregressive=autoregressive)  # pyright: ignore[reportArgumentType]
                except InputError:
                    continue
                made.add(kind)
            assert made == wanted[row[-1].split(";")[0]], (condition, autoregressive)
    assert listed == CONDITIONS.keys()


MEASURED = {
    "largest change", "its exponent", "exponent of the mean", "exact to, float32", "exact to, float64",
}  # fmt: skip


def test_the_measured_tables_are_of_the_networks_there_are_now():
    """Everything but the measurements themselves, row by row; these take minutes."""
    promises, rows = {}, []
    for case, condition, read in PLAN.rows:
        if (case.name, condition) not in promises:
            promises[case.name, condition] = case.build(condition, "float64").promise
        promise = promises[case.name, condition]
        exact = {dtype: Exactness(0, 1, n) for dtype, n in promise.exact_length if condition.promises}
        ones = (1.0,) * len(PLAN.lengths)
        rows.append(TableRow(case.name, promise, read, case.at, PLAN.lengths, ones, ones, exact))
    for name, headings in TABLES.items():
        heading, *written = table_after(RECORD, f"## {name}\n")
        assert tuple(heading) == headings
        kept = [k for k, each in enumerate(headings) if each not in MEASURED]
        predicted = [k for k, each in enumerate(headings) if each.startswith("exact to")]
        read = [k for k, each in enumerate(headings) if each == "largest change"]

        def shown(row, kept=kept, predicted=predicted, read=read):
            """Of a measured cell what is known without measuring: what was read, and what was predicted."""
            known = [row[k] for k in kept] + [row[k].split("(")[-1] for k in predicted]
            return (*known, *(row[k].partition(", ")[2] for k in read))

        told = [cells(row) for row in rows if row.promise.exact or name != "Exactness"]
        now = dict.fromkeys(shown([row[each] for each in headings]) for row in told)
        assert [shown(row) for row in written] == [*now]


def test_the_measured_tables_show_what_is_claimed():
    """Constructions have the largest change 1 at every n, and are exact as far as is predicted, or was tried."""
    for name, condition, change, exponent, _ in table_after(RECORD, "## Sensitivity\n")[1:]:
        if condition == "bounded-softmax":
            if "before rounding" in change:
                assert float(exponent) < -0.9
            else:  # DYCK's has not begun to fall as 1/n yet, see there
                assert float(exponent) < (-0.5 if name == "dyck" else -0.9)
        else:
            assert (change, exponent) == ("1", "0.00")
    for _, condition, *exact in table_after(RECORD, "## Exactness\n")[1:]:
        assert condition != "bounded-softmax"
        for cell in exact:
            longest, predicted = (float(re.findall(r"[\d.e]+", cell)[k]) for k in (0, -1))
            assert longest >= min(predicted, PLAN.cap), cell


def test_what_was_measured_is_what_the_command_measures():
    assert markdown([], PLAN).splitlines()[0] in flowing(RECORD)


def test_commands_run(capsys):
    (block,) = re.findall(r"```sh\n(.*?)```", GUIDE, flags=re.DOTALL)
    lines = [*block.splitlines(), *re.findall(r"`(jaxsens [a-z].*?)`", flowing(RECORD))]
    commands = [shlex.split(line, comments=True) for line in lines]
    assert len(commands) == 4
    for _, *arguments in commands:
        if "--measure" not in arguments:
            assert main([argument if argument != "64" else "8" for argument in arguments]) == 0
            assert capsys.readouterr().out


def largest_parameter(model: Transformer) -> float:
    return max(float(np.abs(leaf).max()) for leaf in jax.tree.leaves(model.parameters))


def test_numbers_in_the_text():
    models = [compile_formula(entry.formula, entry.alphabet) for entry in LIBRARY.values()]
    assert min(model.promise.exact_to("float64") for model in models) > 10**7
    assert "none is larger than 14 for the formulas of the library (80 for `dyck`)" in flowing(PROOFS)
    assert max(largest_parameter(model) for model in models) <= 14
    assert largest_parameter(dyck()) == 80
    assert "`dyck` to 46,649 (autoregressive 3174)" in flowing(GUIDE)
    assert dyck().promise.exact_to("float64") == 46_649
    assert dyck(autoregressive=True).promise.exact_to("float64") == 3174
    for name in (*REFERENCES, LENGTH_INDEPENDENT, "dyck"):
        assert f"`{name}`" in GUIDE
