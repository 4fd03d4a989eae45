"""docs/bounds.md names the function of each formula: it exists, and its docstring or module has the formula's words."""

from __future__ import annotations

import ast
import re
from pathlib import Path

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
