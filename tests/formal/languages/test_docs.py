"""What docs/languages.md, docs/theorem6.md and the docstrings show is so."""

from __future__ import annotations

import doctest
import importlib
import re
from pathlib import Path

import pytest

import jaxsens
from jaxsens.languages import NAMES

ROOT = Path(__file__).resolve().parents[3]
TEXT = (ROOT / "docs" / "languages.md").read_text(encoding="utf-8")
MODULES = [
    f"jaxsens.languages.{file.stem}" for file in sorted((ROOT / "jaxsens" / "languages").glob("[!_]*.py"))
]


@pytest.mark.parametrize("name", ["jaxsens.languages", *MODULES])
def test_examples_in_docstrings_hold(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0


@pytest.mark.parametrize(("page", "results"), [("languages", 10), ("theorem6", 3)])
def test_examples_in_the_docs_run_and_give_what_is_shown(page, results):
    names: dict[str, object] = {}
    shown = 0
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    for block in re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL):
        for line in block.splitlines():
            code, _, result = line.partition("  # ")
            exec(code, names)
            if re.match(r"[\[(\d]", result):
                shown += 1
                assert repr(eval(code, names)) == result
    assert shown == results


def test_the_docs_list_every_language_with_its_options_and_their_defaults():
    rows = re.findall(r"^\| `([\w-]+)` \|[^|]*\|([^|]*)\|", TEXT, flags=re.MULTILINE)
    assert [name for name, _ in rows] == list(NAMES)
    for name, options in rows:
        listed = {option: float(value) for option, value in re.findall(r"`(\w+)` \w \(([\d.]+)\)", options)}
        given = {"formula": "Q_a", "alphabet": "ab"} if name == "formula" else {}
        settings = jaxsens.language(name, **given).settings
        settings = {key: value for key, value in settings.items() if key not in ("name", *given)}
        if name == "2dyck":
            assert settings.pop("kinds") == 2
        assert listed == settings
