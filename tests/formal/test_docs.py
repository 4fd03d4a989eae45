"""What docs/languages.md, docs/logic.md, docs/constructions.md and docs/theorem6.md show is so.

Also docs/constructions-proofs.md and docs/measured/constructions.md.
"""

from __future__ import annotations

import ast
import re
import shlex
from pathlib import Path

import jax
import numpy as np
import pytest

import jaxsens.formal
from jaxsens import InputError, Transformer, compile_formula, logic
from jaxsens.cli import main
from jaxsens.formal.constructions.catalogue import LENGTH_INDEPENDENT, REFERENCES
from jaxsens.formal.constructions.conditions import CONDITIONS
from jaxsens.formal.constructions.programs import dyck
from jaxsens.formal.constructions.table import TablePlan, markdown
from jaxsens.formal.logic import formulas
from jaxsens.formal.logic.counting import BUILT_IN
from jaxsens.languages import NAMES
from jaxsens.logic import LIBRARY

DOCS = Path(__file__).resolve().parents[2] / "docs"
LANGUAGES, LOGIC = ((DOCS / f"{name}.md").read_text(encoding="utf-8") for name in ("languages", "logic"))


@pytest.mark.parametrize(
    ("page", "results"),
    [
        ("languages", 10),
        ("theorem6", 3),
        ("logic", 4),
        pytest.param("constructions", 17, marks=pytest.mark.long),
    ],
)
def test_examples_in_the_docs_run_and_give_what_is_shown(page, results):
    names: dict[str, object] = {}
    shown = 0
    text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
    for line in "".join(re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)).splitlines():
        code, _, remark = line.partition("  # ")
        try:
            expected = repr(ast.literal_eval(remark))
        except (SyntaxError, ValueError):
            expected = remark if re.match(r"array|parse", remark) else None
        if expected is None:
            exec(code, names)
        else:
            assert repr(eval(code, names)).replace(" ", "") in expected.replace(" ", ""), line
            shown += 1
    assert shown == results


def test_the_docs_list_every_language_with_its_options_and_their_defaults():
    rows = re.findall(r"^\| `([\w-]+)` \|[^|]*\|([^|]*)\|", LANGUAGES, flags=re.MULTILINE)
    assert [name for name, _ in rows] == list(NAMES)
    for name, options in rows:
        listed = {option: float(value) for option, value in re.findall(r"`(\w+)` \w \(([\d.]+)\)", options)}
        given = {"formula": "Q_a", "alphabet": "ab"} if name == "formula" else {}
        settings = jaxsens.language(name, **given).settings
        settings = {key: value for key, value in settings.items() if key not in ("name", *given)}
        if name == "2dyck":
            assert settings.pop("kinds") == 2
        assert listed == settings


def test_the_docs_and_the_docstring_give_the_same_grammar():
    def rules(text):
        block = text[text.index("    formula    ::=") : text.index("    comparison ::=")]
        tail = text[text.index("    comparison ::=") :].split("\n\n")[0]
        signs = sorted(set(re.findall(r'"(.*?)"', block)))
        return signs, re.sub(r"[, ]*for any other symbol.*", "", tail).split()

    assert rules(LOGIC) == rules(formulas.__doc__)


def test_the_refusal_in_the_docs_is_the_one_given():
    with pytest.raises(logic.FormulaSyntaxError) as refusal:
        logic.parse("#L[Q_a > 0")
    assert "\n".join("    " + line for line in str(refusal.value).split("\n")) in LOGIC


def test_every_named_formula_and_predicate_is_in_the_docs():
    library = LOGIC[LOGIC.index("## The library") :]
    assert {name for name in logic.LIBRARY if f"`{name}`" not in library} == set()
    assert {family.name for family in BUILT_IN if f"`{family.name}" not in LOGIC} == set()


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


def test_the_record_is_of_the_networks_there_are_now():
    """Every control has its row, and every network that is predicted to fail below the lengths tried is named."""
    controls = dict.fromkeys(case.name for case, condition, _ in PLAN.rows if not condition.promises)
    assert [name for name, *_ in table_after(RECORD, "## Sensitivity\n")[1:]] == [*controls]
    early = {
        n
        for case, condition, _ in PLAN.rows
        if condition.promises
        for _, n in case.build(condition, "float64").promise.exact_length
        if n < PLAN.cap
    }
    exactness = RECORD[RECORD.index("## Exactness\n") :]
    assert early == {int(n) for n in re.findall(r"(?:predicts |\()(\d+)", exactness)}


def test_the_measured_table_of_controls_shows_what_is_claimed():
    """Every exponent is near -1 or below."""
    for name, _, rounded, _, _, whole, _ in table_after(RECORD, "## Sensitivity\n")[1:]:
        assert float(rounded) < -0.9
        # DYCK's has not begun to fall as 1/n yet, see there
        assert float(whole) < (-0.5 if name == "dyck" else -0.9)


def test_what_was_measured_is_what_the_command_measures():
    assert markdown([], PLAN).split("; in brackets")[0] in flowing(RECORD)


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
