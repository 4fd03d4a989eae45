"""docs/bounds.md and docs/bounding.md: formulas have functions, and examples give what is shown."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import jaxsens
from jaxsens.theory import certified_bound
from jaxsens.theory.certified.bound import HOW_ONE

ROOT = Path(__file__).resolve().parents[2]
FORMULA = re.compile(r"\\tag\{([^}]*)\}")


def functions() -> dict[str, str | None]:
    """Every function and method of jaxsens.theory.certified, with its docstring."""
    found = {}
    for file in (ROOT / "jaxsens" / "theory" / "certified").glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.FunctionDef):
                found[node.name] = ast.get_docstring(node)
    return found


def test_every_formula_names_functions_that_there_are():
    text = (ROOT / "docs" / "bounds.md").read_text("utf-8")
    named = {name for names in FORMULA.findall(text) for name in names.split(", ")}
    known = functions()
    assert len(named) >= 15
    assert named <= known.keys()
    assert all(known[name] for name in named)


TEXT = (Path(__file__).resolve().parents[2] / "docs" / "bounding.md").read_text(encoding="utf-8")


def test_the_examples_run_and_give_what_is_shown():
    names: dict[str, object] = {}
    shown = 0
    for block in re.findall(r"```python\n(.*?)```", TEXT, flags=re.DOTALL):
        lines = block.splitlines()
        for statement in ast.parse(block).body:
            code = ast.unparse(statement)
            _, _, remark = lines[(statement.end_lineno or 0) - 1].partition("  # ")
            if remark:
                assert str(eval(code, names)) == remark.split(":")[0], code
                shown += 1
            else:
                exec(code, names)
    assert shown == 5


@pytest.mark.parametrize(
    ("options", "exact"),
    [
        ({}, True),
        ({"scores": "additive"}, True),
        ({"logits": 2}, True),
        ({"feed_forward": 0}, True),
        ({"readout": "mean"}, False),
        ({"layer_norm": "pre"}, False),
    ],
)
def test_a_bound_of_one_layer_is_as_near_as_it_says(options, exact):
    told = re.search(
        r"within a factor of (\d) to (\d) of the worst input found for one layer whose `bound.how`", TEXT
    )
    assert told
    assert HOW_ONE in " ".join(TEXT.split())
    config = {"width": 16, "heads": 2, "layers": 1, "feed_forward": 32} | options
    model = jaxsens.Transformer(jaxsens.TransformerConfig(2, **config), seed=0)
    bound = certified_bound(model, 8)
    ratio = bound.value / jaxsens.theory.worst_input(model, 8).value
    assert (bound.how == HOW_ONE) == exact
    assert (int(told[1]) <= ratio <= int(told[2])) == exact
