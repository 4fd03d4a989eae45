"""Languages by name: `language("parity", end_probability=0.1)`."""

from __future__ import annotations

import dataclasses
from typing import Any

from jaxsens.errors import InputError, Problems
from jaxsens.languages.base import Language
from jaxsens.languages.dyck import Dyck
from jaxsens.languages.flip_flop import FlipFlop
from jaxsens.languages.majority import Majority
from jaxsens.languages.simple import EqualBlocks, OneStar, Parity

# Each name's class, and the options that the name itself fixes.
_NAMED: dict[str, tuple[type[Language], dict[str, Any]]] = {
    "parity": (Parity, {}),
    "2dyck": (Dyck, {"kinds": 2}),
    "dyck": (Dyck, {}),
    "one-star": (OneStar, {}),
    "equal-blocks": (EqualBlocks, {}),
    "flip-flop": (FlipFlop, {}),
    "majority": (Majority, {}),
}

NAMES = tuple(_NAMED)
"""The names that `language` knows."""


def language(name: str, **options: Any) -> Language:
    """The language called `name`. Its options are the fields of its class.

    >>> language("2dyck", open_probability=0.4).alphabet
    ('(', '[', ')', ']')

    Raises:
        InputError: If there is no such language, if it has no such option, or if an option's value cannot be used.
    """
    if name not in _NAMED:
        raise InputError(f"language: name = {name!r}: give one of {', '.join(NAMES)}")
    made, fixed = _NAMED[name]
    known = [field.name for field in dataclasses.fields(made) if field.name not in fixed]  # pyright: ignore[reportArgumentType]
    problems = Problems(f"language {name!r}")
    for option, value in options.items():
        if option not in known:
            problems.add(
                option, value, f"no option of this language, which has: {', '.join(known) or 'none'}"
            )
    problems.raise_if_any()
    return made(**fixed, **options)
