"""One vocabulary: Python, TOML and the command line take the same values of every field, and refuse the same wrong ones
with the same words."""

from __future__ import annotations

import dataclasses
import re
import tomllib
from typing import Any

import pytest

from jaxsens import InputError, Placement
from jaxsens.cli.shared import of_words, value_of
from jaxsens.core.base.errors import Problem, Problems
from jaxsens.core.base.registry import read
from jaxsens.core.base.strict import read_fields
from jaxsens.core.engines.options import AskedEngine
from jaxsens.core.flips.flips import Flips
from jaxsens.core.measures import Comparison, Function, Measure
from jaxsens.core.sweeps.config import Settings
from jaxsens.core.sweeps.inputs import PlacementTable
from jaxsens.core.sweeps.points import Measurement

COUNT, OPTIONAL = ("3", "0"), ("3", "0.5")
OUTPUTS, LIST = ("[1,0]", "some"), ("[2,0]", "[0.5]")
VALUES: dict[str, tuple[str, str]] = {
    "symbols": ("[4,2]", "[-1]"),
    "k": COUNT,
    "times": COUNT,
    "symbol": ("3", "-1"),
    "flips": ("[[3,1],[0,2]]", "[3]"),
    "positions": ('["readout",0,0.5,"0:4"]', "[-1]"),
    "sample": OPTIONAL,
    "seed": ("5", "-1"),
    "groups": ("[[3,4],[0]]", "[[3],[3]]"),
    "outputs": OUTPUTS,
    "threshold": ("0.5", "high"),
    "token": (" cat", ""),
    "name": (" cat", "7"),
    "sketch": OPTIONAL,
    "verify": COUNT,
    "batch_size": OPTIONAL,
    "memory_budget": ("1000", "[1]"),
    "calls": OPTIONAL,
    "against": ("3", ""),
    "against_name": ("b", "[1]"),
}
"""For every field a right value and a wrong one, as they are written on a command line."""

NEEDED = {"pairs": {"flips": "[[0,1]]"}, "log-probability": {"token": "7"}, "seed": {"sample": "9"}}
"""Further fields that a kind, or a field, does not go without."""

FIELDS = [
    (base, kind, field.name)
    for base in (Flips, Measure, AskedEngine)
    for kind, made in base.kinds.items()
    if made not in (Function, Comparison)
    for field in dataclasses.fields(made)
]


@pytest.mark.needs("first_order")
def test_every_field_has_a_right_and_a_wrong_value():
    used = {name for _, _, name in FIELDS} | {field.name for field in dataclasses.fields(PlacementTable)}
    assert used == set(VALUES)


def given(kind: str, name: str, text: str, fields: Any) -> dict[str, str]:
    further = {**NEEDED.get(kind, {}), **(NEEDED.get(name, {}) if "sample" in fields else {})}
    return {**further, name: text}


def in_python(made: Any, fields: dict[str, str]) -> Any:
    """The object, or the errors, of a call."""
    try:
        return made(**{name: value_of(text, name) for name, text in fields.items()})
    except InputError as error:
        return [*error.problems]


def in_toml(question: str, kind: str, fields: dict[str, str]) -> Any:
    """The object, or the errors, of a `[measure]` table."""
    written = ", ".join(f"{name} = {value_of(text, name)!r}" for name, text in fields.items()).replace(
        "'", '"'
    )
    table = tomllib.loads(f'{question} = {{ kind = "{kind}", {written} }}')
    problems = Problems("config")
    found = read_fields(Measurement, table, "measure", problems)
    return inside(problems, "measure", question) or found[question]


def in_words(base: Any, words: list[str], option: str) -> Any:
    """The object, or the errors, of the words behind an option."""
    problems = Problems("measure")
    made = of_words(base, words, problems, option)
    return inside(problems, option) or made


def inside(problems: Problems, *above: str) -> list[Problem]:
    """The problems, as those of the object that is at a place."""
    assert all(one.path[: len(above)] == above for one in problems)
    return [Problem(one.path[len(above) :], one.value, one.remedy) for one in problems]


@pytest.mark.parametrize(("base", "kind", "name"), FIELDS)
def test_a_field_is_one_thing_in_python_in_a_file_and_on_the_command_line(base, kind, name):
    made = base.kinds[kind]
    known = {field.name for field in dataclasses.fields(made)}
    for text, sound in zip(VALUES[name], (True, False), strict=True):
        fields = given(kind, name, text, known)
        spoken = [kind, *(f"{key}={value}" for key, value in fields.items())]
        python = in_python(made, fields)
        assert isinstance(python, made) == sound, python
        assert in_toml(base.argument, kind, fields) == python
        assert in_words(base, spoken, f"--{base.argument}") == python
        if sound:
            assert read(base, python.table(), Problems(""), file=True) == python
        else:
            assert len(python) == 1
            assert python[0].path[0] == name


@pytest.mark.parametrize("name", ["batch_size", "memory_budget"])
def test_a_field_of_the_placement_is_one_thing_too(name):
    for text, sound in zip(VALUES[name], (True, False), strict=True):
        python = in_python(Placement, {name: text})
        problems = Problems("config")
        table = {"lengths": [4], "placement": {name: value_of(text)}}
        found = read_fields(Settings, table, "", problems)
        file: Any = inside(problems, "placement") or found["placement"]
        words = in_words(PlacementTable, [f"{name}={text}"], "--placement")
        assert words == file
        assert (file.placement() if sound else file) == python


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("8", 8),
        ("0.5", 0.5),
        ("median", "median"),
        ("1,2", [1, 2]),
        ("1,", [1]),
        ("0,readout,0:4", [0, "readout", "0:4"]),
        ("[[1,2],[3]]", [[1, 2], [3]]),
        ("{3=[1]}", {"3": [1]}),
        ("07:32:00", "07:32:00"),
        (" cat", " cat"),
        ('"7"', "7"),
        ("", ""),
        ("1\nother = 2", "1\nother = 2"),
        ("token= cat", " cat"),
        ("token=7", 7),
        ("token= 7", " 7"),
        ("against= true", " true"),
        ("token= inf", " inf"),
        ("token=-1", "-1"),
        ("token=,", ","),
        ("token='1984'", "1984"),
        ('against="1984"', "1984"),
        ('token="', '"'),
        ("token='\"a\"'", '"a"'),
        ("formula=odd(#L[Q_1]) & mod(0, 2)", "odd(#L[Q_1]) & mod(0, 2)"),
        ("formula=true", "true"),
        ("alphabet=10", "10"),
        ("alphabet=b,a", ["b", "a"]),
    ],
)
def test_what_a_word_of_the_command_line_means(text, value):
    field, _, own = text.partition("=") if re.match("[a-z]+=", text) else ("", "", text)
    found = value_of(own, field)
    assert (found, type(found)) == (value, type(value))


def test_words_that_are_no_fields_are_named():
    (problem,) = in_words(Flips, ["neighbours", "8"], "--flips")
    assert (problem.path, problem.value) == ((), "8")
    assert in_words(Flips, ["neighbours", "k=8", "k=9"], "--flips") == [Problem(("k",), 9, "once")]
    assert in_words(Flips, ["2", "sample=3"], "--flips") == in_words(
        Flips, ["substitute", "symbols=2", "sample=3"], ""
    )
