"""Configs report every error at once, in Python and from tables, each by its path."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Annotated, Literal

import numpy as np
import pytest
from pydantic import ValidationInfo, field_validator

from jaxsens.core.base import inputs
from jaxsens.core.base.errors import Problems, collecting
from jaxsens.core.base.strict import (
    STRICT,
    Positive,
    checked_by,
    config,
    field_errors,
    read_fields,
    read_table,
    typed,
)
from tests.refusals import refused


@config
class Base:
    """A config with a check of one field, of two, and of the whole."""

    size: Annotated[int, checked_by(inputs.count, least=2)]
    width: Positive = 64
    heads: Positive = 4
    dtype: Literal["float32", "float64"] = "float32"

    @field_validator("heads")
    @classmethod
    def _check_heads(cls, heads: int, info: ValidationInfo) -> int:
        with field_errors() as problems:
            if info.data.get("width", heads) % heads:
                problems.add("heads", heads, f"a divisor of width = {info.data['width']}")
        return heads

    def __post_init__(self) -> None:
        with collecting("Base") as problems:
            if self.size == self.width:
                problems.add("size", self.size, "another number than width")


@config
class Derived(Base):
    """A config with one field more."""

    depth: Positive = 1


@dataclass(frozen=True)
class Outer:
    """A config file's tables."""

    __pydantic_config__ = STRICT
    lengths: tuple[int, ...]
    inner: Derived | None = None
    title: str = ""
    rows: tuple[int, ...] = field(default_factory=tuple)


def test_a_config_is_a_frozen_value_with_pythons_own_numbers():
    made = Derived(np.int64(3), np.uint8(8), depth=np.int8(2))  # pyright: ignore[reportArgumentType]
    assert repr(made) == "Derived(size=3, width=8, heads=4, dtype='float32', depth=2)"
    assert (made, hash(made)) == (Derived(3, 8, depth=2), hash(Derived(3, 8, depth=2)))
    assert dataclasses.replace(made, width=4) == Derived(3, 4, depth=2)
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.width = 4  # pyright: ignore[reportAttributeAccessIssue]


def test_every_error_is_reported_at_once():
    message = refused("size heads dtype depth widht", Derived, 1, heads=5, dtype="half", depth=True, widht=3)
    assert message.startswith("Derived: 5 errors\n")
    for line in (
        "size = 1: a whole number of at least 2",
        "heads = 5: a divisor of width = 64",
        "dtype = 'half': should be 'float32' or 'float64'",
        "depth = True: a whole number of at least 1",
        'widht: unknown key; did you mean "width"?',
    ):
        assert f"  - {line}" in message
    assert refused("size", Derived) == "Derived: size: required, but not given"
    assert refused("size", Derived, 4, 4) == "Derived: size = 4: another number than width"
    with pytest.raises(TypeError, match="Derived has 5 fields, but 6 were given"):
        Derived(2, 4, 4, "float32", 1, 1)  # pyright: ignore[reportCallIssue]


def test_a_check_of_two_fields_waits_for_both():
    assert refused("width", Base, 2, 0, 5) == "Base: width = 0: a whole number of at least 1"


def test_fields_that_are_sound_are_read_although_others_are_not():
    problems = Problems("file")
    table = {"lengths": [1, 2], "inner": {"size": 1, "width": 0, "zz": 3}, "titel": 3}
    assert read_fields(Outer, table, "", problems) == {"lengths": (1, 2), "title": "", "rows": ()}
    assert sorted([*map(str, problems)]) == [
        "inner.size = 1: a whole number of at least 2",
        "inner.width = 0: a whole number of at least 1",
        "inner.zz: unknown key; known: size, width, heads, dtype, depth",
        'titel: unknown key; did you mean "title"?',
    ]


def test_a_table_is_read_whole_or_not_at_all():
    problems = Problems("file")
    assert read_table(Derived, {"size": 3, "width": 8}, "model", problems) == Derived(3, 8)
    assert not problems
    assert read_table(Derived, {"size": 4, "width": 4}, "model", problems) is None
    assert read_table(Outer, {"lengths": [1.5]}, "", problems) is None
    assert read_table(Outer, {"lengths": [1], "inner": {"size": 4, "width": 4}}, "", problems) is None
    assert read_table(Outer, 3, "outer", problems) is None
    assert [*map(str, problems)][:3] == [
        "model.size = 4: another number than width",
        "lengths[0] = 1.5: should be a valid integer",
        "inner.size = 4: another number than width",
    ]
    assert [*map(str, problems)][3].startswith("outer = 3: ")


@dataclass(frozen=True)
class Leaf:
    """A typed value."""

    size: int = 1


@dataclass(frozen=True)
class Twig:
    """A typed value that holds another."""

    leaf: Leaf = Leaf()
    name: str = ""


KNOWN = {"Leaf": Leaf, "Twig": Twig}


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ({"type": "Leaf", "size": 3}, Leaf(3)),
        ({"type": "Twig", "leaf": {"type": "Leaf", "size": 2}, "name": "a"}, Twig(Leaf(2), "a")),
        ({"type": "Twig", "leaf": "large"}, Twig(Leaf(9))),
        ({"type": "Leav"}, "part.type = 'Leav': a table needs a known type; did you mean \"Leaf\"?"),
        ({}, "part.type = None: a table needs a known type: one of Leaf, Twig"),
        ({"type": "Leaf", "size": 3.0}, "part.size = 3.0: should be a valid integer"),
        ({"type": "Leaf", "sise": 3}, 'part.sise: unknown key; did you mean "size"?'),
        ({"type": "Twig", "leaf": {"type": "Leaf", "size": "3"}}, "part.leaf.size = '3': should be"),
        ({"type": "Twig", "leaf": 3}, 'part.leaf = 3: should be a table {type = "Leaf", ...}'),
    ],
)
def test_a_table_with_a_type_is_the_value_that_it_describes(table, expected):
    problems = Problems("file")
    made = typed("part", table, KNOWN, problems, {"leaf": {"large": Leaf(9)}})
    if isinstance(expected, str):
        assert made is None
        assert len([*map(str, problems)]) == 1
        assert str(problems[0]).startswith(expected)
    else:
        assert made == expected
        assert not problems
