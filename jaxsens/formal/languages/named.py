"""Languages by name: `language("parity", end_probability=0.1)`."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from jaxsens.core.base.errors import InputError, Problems
from jaxsens.core.base.strict import typed_arguments
from jaxsens.formal.languages.base import Language
from jaxsens.formal.languages.dyck import Dyck
from jaxsens.formal.languages.formula import FormulaLanguage
from jaxsens.formal.languages.simple import EqualBlocks, FlipFlop, Majority, OneStar, Parity, SetComplement
from jaxsens.formal.logic.formulas import Formula

# Each name's class, and the options that the name itself fixes.
_NAMED: dict[str, tuple[type[Language], dict[str, Any]]] = {
    "parity": (Parity, {}),
    "2dyck": (Dyck, {"kinds": 2}),
    "dyck": (Dyck, {}),
    "one-star": (OneStar, {}),
    "equal-blocks": (EqualBlocks, {}),
    "flip-flop": (FlipFlop, {}),
    "majority": (Majority, {}),
    "set-complement": (SetComplement, {}),
    "formula": (FormulaLanguage, {}),
}

# What users call a field, where that is not its name: `alphabet` is a property of every language.
_OPTIONS: dict[tuple[type[Language], str], str] = {(FormulaLanguage, "symbols"): "alphabet"}

NAMES = tuple(_NAMED)
"""The names that `language` knows."""


@typed_arguments
def language(name: str | Formula, alphabet: Sequence[str] | None = None, **options: Any) -> Language:
    """The language called `name`, or the words over an alphabet that satisfy a formula.

    >>> language("2dyck", open_probability=0.4).alphabet
    ('(', '[', ')', ']')
    >>> from jaxsens import logic
    >>> language(logic.parse("!(true S (Q_b & Y Q_b))"), "ab").number_of_members(10)
    144

    Args:
        name: One of `NAMES`, or a formula of `jaxsens.formal.logic`. In a config file, write
            {name = "formula", formula = "#L[Q_1] > #L[Q_0]", alphabet = "01"}.
        alphabet: The symbols of a formula's words: a text of one-letter symbols, or several texts.
        options: The fields of the language's class.

    Raises:
        InputError: If there is no such language, if it has no such option, or if an option's value cannot be used.
    """
    if isinstance(name, Formula):
        name, options = FormulaLanguage.name, {"formula": name, **options}
    if name not in _NAMED:
        raise InputError.of(
            "name",
            name,
            f"give one of {', '.join(NAMES)}; or a formula and its alphabet, such as "
            'jaxsens.formal.logic.parse("#L[Q_1] > #L[Q_0]"), "01"',
            subject="language",
        )
    made, fixed = _NAMED[name]
    if alphabet is not None:
        options["alphabet"] = alphabet
    problems = Problems(f"language {name!r}")
    fields = [field for field in dataclasses.fields(made) if field.name not in fixed]  # pyright: ignore[reportArgumentType]
    known = {_OPTIONS.get((made, field.name), field.name): field for field in fields}
    for option, value in options.items():
        if option not in known:
            remedy = f"no option of this language, which has: {', '.join(known) or 'none'}"
            problems.add(option, value, remedy)
    for option, field in known.items():
        if field.default is dataclasses.MISSING and option not in options:
            problems.note(option, "is missing")
    problems.raise_if_any()
    return made(**fixed, **{known[option].name: value for option, value in options.items()})
