"""Formulas of past and future temporal logic: symbols, Boolean connectives, Y, X, S, U.

The syntax of Yang, Strobl, Chiang and Angluin, "Simulating Hard Attention Using Soft Attention", sections 4.1
(previous, next) and 4.2 (since, until). `S` and `U` are *non-strict*: they look at the position itself as well, because
the attention masks do; the strict S would already define Y. Counting (section 4.4) is in `jaxsens.logic.counting`.

Formulas are immutable values: equal when they have the same structure, usable as dictionary keys, and cheap to share:

>>> from jaxsens.logic import Symbol, Since
>>> print(Since(~Symbol("c"), Symbol("a")) & Symbol("b"))
!Q_c S Q_a & Q_b
"""

from __future__ import annotations

import re
from abc import ABC
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, final

from jaxsens.errors import InputError
from jaxsens.logic import grammar
from jaxsens.logic.order import same
from jaxsens.logic.printer import shortened, write

_PLAIN_SYMBOL = re.compile(r"[A-Za-z0-9_]+")


class Formula(ABC):
    """A formula: true or false at each position of a word. Combine with `&`, `|` and `~`."""

    notation: ClassVar[grammar.Notation] = grammar.ATOM
    _hash: int

    @property
    def children(self) -> tuple[Formula, ...]:
        """The formulas that this one is built from, in the order of writing."""
        return ()

    @property
    def label(self) -> Hashable:
        """What distinguishes this formula from others of the same class with the same children."""
        return ()

    def atom_text(self, children: Sequence[str]) -> str:
        """The text of a formula that is written as one piece, given the texts of its children."""
        raise NotImplementedError(f"{type(self).__name__} is written with an operator sign")

    def __post_init__(self) -> None:
        for child in self.children:
            if not isinstance(child, Formula):
                raise TypeError(
                    f"{type(self).__name__}: {child!r} is not a formula: "
                    'give one, such as Symbol("1") or parse("Q_1")'
                )
        self._remember_hash()

    def _remember_hash(self) -> None:
        # Kept, because the hash of a deep formula would otherwise be computed anew from its leaves at each look-up.
        object.__setattr__(self, "_hash", hash((type(self).__name__, self.label, self.children)))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Formula):
            return NotImplemented
        return self is other or (self._hash == other._hash and same(self, other))

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_hash"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            object.__setattr__(self, name, value)
        self._remember_hash()  # hashes of strings differ from process to process

    def __str__(self) -> str:
        return write(self)

    def __repr__(self) -> str:
        text = shortened(self, 1000)
        return f"<formula {text}>" if text.endswith("...") else f"parse({text!r})"

    def __bool__(self) -> bool:
        raise TypeError("a formula is not a truth value: combine formulas with & | ~, not with and, or, not")

    def __invert__(self) -> Not:
        return Not(self)

    def __and__(self, other: Formula) -> And:
        return And(self, other)

    def __or__(self, other: Formula) -> Or:
        return Or(self, other)


@final
@dataclass(frozen=True, eq=False, repr=False)
class Symbol(Formula):
    """Q_a: the position holds the symbol `name`."""

    name: str

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise InputError(f'Symbol: name = {self.name!r}: give the symbol as a string, such as "1"')
        super().__post_init__()

    @property
    def label(self) -> Hashable:
        """The name."""
        return self.name

    def atom_text(self, children: Sequence[str]) -> str:
        """Q_name, or the name in quotes if it has other signs."""
        if _PLAIN_SYMBOL.fullmatch(self.name):
            return "Q_" + self.name
        escaped = self.name.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{escaped}"'


@final
@dataclass(frozen=True, eq=False, repr=False)
class Constant(Formula):
    """True at every position, or at none. `TRUE` and `FALSE` are the two of them."""

    value: bool

    @property
    def label(self) -> Hashable:
        """The value."""
        return bool(self.value)

    def atom_text(self, children: Sequence[str]) -> str:
        """The word true or false."""
        return "true" if self.value else "false"


TRUE = Constant(True)
FALSE = Constant(False)


@dataclass(frozen=True, eq=False, repr=False)
class Unary(Formula):
    """An operator in front of one formula."""

    operand: Formula

    @property
    def children(self) -> tuple[Formula, ...]:
        """The operand."""
        return (self.operand,)


@dataclass(frozen=True, eq=False, repr=False)
class Binary(Formula):
    """An operator between two formulas."""

    left: Formula
    right: Formula

    @property
    def children(self) -> tuple[Formula, ...]:
        """Left, right."""
        return (self.left, self.right)


@final
@dataclass(frozen=True, eq=False, repr=False)
class Not(Unary):
    """The operand is false here."""

    notation = grammar.NOT


@final
@dataclass(frozen=True, eq=False, repr=False)
class And(Binary):
    """Both are true here."""

    notation = grammar.AND


@final
@dataclass(frozen=True, eq=False, repr=False)
class Or(Binary):
    """At least one of the two is true here."""

    notation = grammar.OR


@final
@dataclass(frozen=True, eq=False, repr=False)
class Yesterday(Unary):
    """Y: there is a position before this one, and the operand is true there (section 4.1)."""

    notation = grammar.YESTERDAY


@final
@dataclass(frozen=True, eq=False, repr=False)
class Next(Unary):
    """X: there is a position after this one, and the operand is true there (section 4.1)."""

    notation = grammar.NEXT


@final
@dataclass(frozen=True, eq=False, repr=False)
class Since(Binary):
    """left S right: right is true at some j <= i, and left at every k with j < k <= i (section 4.2, non-strict)."""

    notation = grammar.SINCE


@final
@dataclass(frozen=True, eq=False, repr=False)
class Until(Binary):
    """left U right: right is true at some j >= i, and left at every k with i <= k < j (section 4.2, non-strict)."""

    notation = grammar.UNTIL
