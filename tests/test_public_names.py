"""The public names: listed once, in the stub, for type checkers and for the module that loads them on first use."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import jaxsens

if TYPE_CHECKING:
    from typing import assert_type

    from jaxsens.formal.constructions.soften import SoftenedTransformer
    from jaxsens.languages import Language

    def types_that_pyright_sees_in_the_stub(model: jaxsens.Transformer) -> None:
        assert_type(jaxsens.language("parity"), Language)
        assert_type(jaxsens.formal.soften(model, 3, 0.1), SoftenedTransformer)
        assert_type(jaxsens.__version__, str)


ROOT = Path(__file__).resolve().parents[1]
STUB = ast.parse((ROOT / "jaxsens" / "__init__.pyi").read_text(encoding="utf-8"))
LISTED = [
    (node.module, alias.name, alias.asname)
    for node in STUB.body
    if isinstance(node, ast.ImportFrom)
    for alias in node.names
]


def test_the_stub_lists_every_public_name_once():
    assert sorted(name for _, name, _ in LISTED) == sorted(jaxsens.__all__)
    assert {"flip_sensitivity", "theory", "TransformerConfig"} <= set(jaxsens.__all__)
    assert set(jaxsens.__all__) | {"__version__"} == set(dir(jaxsens))


def test_each_name_comes_from_the_module_that_the_stub_names():
    for module, name, alias in LISTED:
        assert alias == name  # what type checkers take for a re-export
        if module is None:
            expected = importlib.import_module(f"jaxsens.{name}")
        else:
            expected = getattr(importlib.import_module(f"jaxsens.{module}"), name)
            assert expected.__module__ == f"jaxsens.{module}"
        assert getattr(jaxsens, name) is expected, name


def test_an_unknown_attribute_is_refused_as_python_does_it():
    with pytest.raises(AttributeError, match=r"^module 'jaxsens' has no attribute 'flipsensitivity'$"):
        _ = jaxsens.flipsensitivity  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(ImportError, match="cannot import name 'flipsensitivity' from 'jaxsens'"):
        from jaxsens import flipsensitivity  # noqa: F401 # pyright: ignore[reportAttributeAccessIssue]
