"""What docs/logic.md and the docstrings show is so."""

from __future__ import annotations

import doctest
import importlib
import re
from pathlib import Path

import pytest

from jaxsens import logic
from jaxsens.formal.logic import grammar
from jaxsens.formal.logic.numerical import BUILT_IN

ROOT = Path(__file__).resolve().parents[3]
TEXT = (ROOT / "docs" / "logic.md").read_text(encoding="utf-8")
MODULES = [f"jaxsens.logic.{file.stem}" for file in sorted((ROOT / "jaxsens" / "logic").glob("[!_]*.py"))]


@pytest.mark.parametrize("name", ["jaxsens.logic", *MODULES])
def test_examples_in_docstrings_hold(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_examples_in_the_docs_run_and_give_what_is_shown():
    names: dict[str, object] = {}
    shown = 0
    for block in re.findall(r"```python\n(.*?)```", TEXT, flags=re.DOTALL):
        for line in block.splitlines():
            code, _, result = line.partition("  # ")
            exec(code, names)
            if re.match(r"array|parse|True|False", result.strip()):
                shown += 1
                assert repr(eval(code, names)).replace(" ", "") in result.replace(" ", "")
    assert shown == 4


def test_the_docs_and_the_docstring_give_the_same_grammar():
    def rules(text):
        block = text[text.index("    formula    ::=") : text.index("    comparison ::=")]
        tail = text[text.index("    comparison ::=") :].split("\n\n")[0]
        signs = sorted(set(re.findall(r'"(.*?)"', block)))
        return signs, re.sub(r"[, ]*for any other symbol.*", "", tail).split()

    assert rules(TEXT) == rules(grammar.__doc__)


def test_the_refusal_in_the_docs_is_the_one_given():
    with pytest.raises(logic.FormulaSyntaxError) as refusal:
        logic.parse("#L[Q_a > 0")
    assert "\n".join("    " + line for line in str(refusal.value).split("\n")) in TEXT


def test_every_named_formula_and_predicate_is_in_the_docs():
    library = TEXT[TEXT.index("## The library") :]
    assert {name for name in logic.LIBRARY if f"`{name}`" not in library} == set()
    assert {family.name for family in BUILT_IN if f"`{family.name}" not in TEXT} == set()
