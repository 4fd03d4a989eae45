"""Unary numerical predicates theta = (theta_n), theta_n: {0, ..., n} -> {0, 1} (section 4.4), on positions.

A *family* such as mod has a name and integer parameters. A *predicate* is a family with its arguments, such as
mod(3, 1). Give `parse` your own families to use them like the built-in ones:

>>> from jaxsens.formal.logic import PredicateFamily, parse
>>> late = PredicateFamily("late", (), lambda value, length: 2 * value > length, needs_length=True)
>>> print(parse("Q_1 & late", predicates=[late]))
Q_1 & late
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isqrt
from typing import Any, final

from jaxsens.core.base.errors import InputError, collecting
from jaxsens.core.base.inputs import is_count
from jaxsens.formal.logic.formulas import Formula
from jaxsens.formal.logic.grammar import RESERVED

LARGEST_INTEGER = 2**31 - 1
"""Largest argument, coefficient or constant. Its product with a length still fits in 64 bits."""

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")


@final
@dataclass(frozen=True)
class PredicateFamily:
    """A numerical predicate without its arguments.

    Attributes:
        name: Its name in a formula's text.
        parameters: The names of its arguments.
        function: `function(value, length, *arguments)` says whether theta_length(value) holds, for
            0 <= value <= length. The value is a position (from 1) or a count (from 0).
        needs_length: Must be True if the function uses the length. Such a predicate on a position depends on the
            future, so a future-masked model, which knows only i, cannot have it as an embedding.
        problem: `problem(*arguments)` returns what is wrong with the arguments, or None.

    Raises:
        InputError: Listing every field that cannot be used.
    """

    name: str
    parameters: tuple[str, ...]
    function: Callable[..., bool]
    needs_length: bool = False
    problem: Callable[..., str | None] | None = None

    def __post_init__(self) -> None:
        name, parameters = self.name, self.parameters
        with collecting("PredicateFamily") as problems:
            text = isinstance(name, str)
            if not text or not _NAME.fullmatch(name) or name in RESERVED or name.startswith("Q_"):
                remedy = f"start with a letter but not with Q_; avoid {', '.join(sorted(RESERVED))}"
                problems.add("name", name, f"use letters, digits and underscores; {remedy}")
            if not isinstance(parameters, tuple) or not all(isinstance(each, str) for each in parameters):
                problems.add("parameters", parameters, 'a tuple of argument names, such as ("modulus",)')
            if not callable(self.function):
                problems.add("function", self.function, "a function of (value, length, *arguments)")
            if not isinstance(self.needs_length, bool):
                problems.add("needs_length", self.needs_length, "True or False")
            if self.problem is not None and not callable(self.problem):
                problems.add("problem", self.problem, "a function of the arguments, or None")

    def __call__(self, *arguments: int) -> Predicate:
        """The predicate with these arguments."""
        return Predicate(self, arguments)

    def __reduce__(self) -> Any:
        """A built-in family is pickled by its name: its function has none."""
        return (_built_in, (self.name,)) if self in BUILT_IN else super().__reduce__()


@final
@dataclass(frozen=True)
class Predicate:
    """A family with its arguments: one theta. Arguments are whole numbers of at least 0, as in a formula's text.

    Raises:
        InputError: If the number of arguments is wrong, or the family does not accept their values.
    """

    family: PredicateFamily
    arguments: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        family = self.family
        with collecting("Predicate") as problems:
            if not isinstance(family, PredicateFamily):
                problems.add("family", family, "a PredicateFamily")
            if not isinstance(self.arguments, tuple):
                problems.add("arguments", self.arguments, "a tuple")
        subject = f"{family.name}: arguments = {self.arguments}"
        if len(self.arguments) != len(family.parameters):
            raise InputError(f"{subject}: wanted are {', '.join(family.parameters) or 'none'}")
        if not all(is_count(each) and each <= LARGEST_INTEGER for each in self.arguments):
            raise InputError(f"{subject}: give whole numbers from 0 to {LARGEST_INTEGER}")
        object.__setattr__(self, "arguments", tuple(int(each) for each in self.arguments))
        if family.problem is not None and (text := family.problem(*self.arguments)) is not None:
            raise InputError(f"{subject}: {text}")

    @property
    def needs_length(self) -> bool:
        """Whether the predicate also depends on the word's length."""
        return self.family.needs_length

    def holds(self, value: int, length: int) -> bool:
        """theta_length(value)."""
        return bool(self.family.function(value, length, *self.arguments))

    def table(self, length: int) -> list[bool]:
        """theta_length(0), ..., theta_length(length): `length` + 1 truth values."""
        return [self.holds(value, length) for value in range(length + 1)]

    def __str__(self) -> str:
        return self.written()

    def written(self, *more: str) -> str:
        """The predicate's text, with `more` arguments after its own."""
        arguments = [*map(str, self.arguments), *more]
        return f"{self.family.name}({', '.join(arguments)})" if arguments else self.family.name


class PositionPredicate(Formula):
    """theta(i): the predicate holds of this position, counted from 1."""

    predicate: Predicate

    def __post_init__(self) -> None:
        if not isinstance(self.predicate, Predicate):
            raise InputError(
                f"PositionPredicate: {self.predicate!r} is not a predicate: give one, such as ODD()"
            )
        super().__post_init__()

    def atom_text(self, children: Sequence[str]) -> str:
        return str(self.predicate)


def _modulo_problem(modulus: int, remainder: int) -> str | None:
    return None if 0 <= remainder < modulus else "the remainder must be one of 0, ..., modulus - 1"


def _prime(value: int, length: int) -> bool:
    return value >= 2 and all(value % factor for factor in range(2, isqrt(value) + 1))


ODD = PredicateFamily("odd", (), lambda value, length: value % 2 == 1)
EVEN = PredicateFamily("even", (), lambda value, length: value % 2 == 0)
MODULO = PredicateFamily(
    "mod",
    ("modulus", "remainder"),
    lambda value, length, modulus, remainder: value % modulus == remainder,
    problem=_modulo_problem,
)
EXACTLY = PredicateFamily("exactly", ("value",), lambda value, length, wanted: value == wanted)
FIRST = PredicateFamily("first", (), lambda value, length: value == 1)
LAST = PredicateFamily("last", (), lambda value, length: value == length, needs_length=True)
MIDDLE = PredicateFamily("middle", (), lambda value, length: value == (length + 1) // 2, needs_length=True)
SQUARE = PredicateFamily("square", (), lambda value, length: isqrt(value) ** 2 == value)
PRIME = PredicateFamily("prime", (), _prime)

BUILT_IN = (ODD, EVEN, MODULO, EXACTLY, FIRST, LAST, MIDDLE, SQUARE, PRIME)


def _built_in(name: str) -> PredicateFamily:
    return next(family for family in BUILT_IN if family.name == name)
