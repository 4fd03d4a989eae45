"""What docs/languages.md, docs/logic.md, docs/constructions.md and docs/theorem6.md show is so."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import jaxsens.formal
from jaxsens import logic
from jaxsens.formal.logic import formulas
from jaxsens.formal.logic.counting import BUILT_IN
from jaxsens.languages import NAMES

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
