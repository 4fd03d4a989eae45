"""Formulas of past and future temporal logic: symbols, Boolean connectives, Y, X, S and U.

The syntax is that of Yang, Strobl, Chiang and Angluin, "Simulating Hard Attention Using Soft Attention", sections 4.1
(previous, next) and 4.2 (since, until). `S` and `U` are *non-strict*: they also look at the position itself, as
attention masks do. (A strict S would already define Y.) Counting (section 4.4) is in `jaxsens.formal.logic.counting`.

Formulas are immutable values. Two formulas are equal if they have the same structure. They can be dictionary keys, and
a part that is used many times is stored once:

>>> from jaxsens.formal.logic import Symbol, Since
>>> print(Since(~Symbol("c"), Symbol("a")) & Symbol("b"))
!Q_c S Q_a & Q_b

A formula's text, which `parse` reads back as an equal formula, has parentheses only where the grammar needs them, and
around a comparison below `!`, `Y`, `X`, `S` and `U`.

The grammar, of whose operators both the parser and the printer use one table (`a?` is optional, `a*` occurs any
number of times; white space only separates words):

    formula    ::= formula "<->" formula           both or neither                      loosest
                 | formula "->" formula            implies, from the right
                 | formula "|" formula             or
                 | formula "&" formula             and
                 | formula "S" formula             since, from the right
                 | formula "U" formula             until, from the right, as tight as S
                 | "!" formula | "Y" formula | "X" formula                              tightest
                 | comparison | predicate | symbol | "true" | "false" | "(" formula ")"
    comparison ::= sum relation sum
    relation   ::= "<" | "<=" | "=" | "!=" | ">=" | ">"
    sum        ::= "-"? term (("+" | "-") term)*
    term       ::= integer | (integer "*")? count
    count      ::= "#L" "[" formula "]" | "#R" "[" formula "]"
    predicate  ::= name | name "(" argument ("," argument)* ")"
    argument   ::= integer | count                 a count only as the last one
    symbol     ::= "Q_" letters, digits, underscores  |  a quoted string, for any other symbol: "("

`~` is another spelling of `!`, and `==` of `=`. `->` and `<->` are abbreviations: `f -> g` is read as `!f | g`, and
`f <-> g` as `f & g | !f & !g`. Inside a quoted symbol, `\\"` stands for a quotation mark and `\\\\` for a backslash.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal, dataclass_transform

from jaxsens.core.base import errors
from jaxsens.core.base.errors import InputError
from jaxsens.core.base.strict import typed_arguments


@dataclass(frozen=True)
class Notation:
    """How an operator is written: its sign, how tightly it binds (larger is tighter), and on which side it groups."""

    sign: str
    precedence: int
    fixity: Literal["prefix", "left", "right", "atom"]


EQUIVALENT = Notation("<->", 1, "left")
IMPLIES = Notation("->", 2, "right")
OR = Notation("|", 3, "left")
AND = Notation("&", 4, "left")
# The parser reads a comparison as an atom. The printer treats it as looser than S, U and the prefix operators, so that
# it writes !(#L[Q_1] >= 2): the parentheses are not needed, but the formula is easily misread without them.
COMPARISON = Notation("", 5, "atom")
SINCE = Notation("S", 6, "right")
UNTIL = Notation("U", 6, "right")
NOT = Notation("!", 7, "prefix")
YESTERDAY = Notation("Y", 7, "prefix")
NEXT = Notation("X", 7, "prefix")
ATOM = Notation("", 8, "atom")

INFIX = {notation.sign: notation for notation in (EQUIVALENT, IMPLIES, OR, AND, SINCE, UNTIL)}
RELATIONS = ("<", "<=", "=", "!=", ">=", ">")
RESERVED = frozenset({"Y", "X", "S", "U", "true", "false"})


LONGEST = 1_000_000
"""Longest text of a formula, in characters. Shared parts are written out each time, so texts can grow exponentially."""

_PLAIN_SYMBOL = re.compile(r"[A-Za-z0-9_]+")


@dataclass_transform(eq_default=False, frozen_default=True)
class Formula:
    """A formula, true or false at each position of a word. Combine formulas with `&`, `|` and `~`.

    Every subclass is made a frozen dataclass. Its fields that are annotated with `Formula` are its children. Nothing
    here recurses over subformulas, so depth has no limit.

    >>> print(Since(TRUE, Symbol("a") & ~Symbol("b")))
    true S (Q_a & !Q_b)
    """

    notation: ClassVar[Notation] = ATOM
    _hash: int

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True, eq=False, repr=False)(cls)
        cls.__init__ = typed_arguments(cls.__init__)
        own = fields(cls)  # pyright: ignore[reportArgumentType]
        # Annotations may be texts.
        kinds = "Formula", "logic.Formula", "jaxsens.formal.logic.Formula", Formula
        cls._operands = tuple(each.name for each in own if each.type in kinds)
        cls._settings = tuple(each.name for each in own if each.type not in kinds)

    @property
    def children(self) -> tuple[Formula, ...]:
        """The formulas that this one is built from, in the order in which they are written: its fields' by default."""
        return tuple(getattr(self, name) for name in self._operands)

    @property
    def label(self) -> Hashable:
        """What distinguishes this formula from others of its class with the same children: the other fields."""
        return tuple(getattr(self, name) for name in self._settings)

    def atom_text(self, children: Sequence[str]) -> str:
        """The text of a formula whose notation is an atom, given the texts of its children."""
        raise NotImplementedError(f"{type(self).__name__} is written with an operator sign")

    def __post_init__(self) -> None:
        # Otherwise each dictionary look-up would compute the hash of a deep formula again, from its leaves.
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
        self.__dict__.update(state)
        Formula.__post_init__(self)  # hashes of strings differ from process to process

    def __str__(self) -> str:
        text = shortened(self, LONGEST + 3)
        if len(text) > LONGEST:
            raise InputError.note(
                "formula",
                f"its text has more than {LONGEST} characters, because shared parts are written out each "
                "time: print parts of it, from jaxsens.formal.logic.subformulas(formula)",
            )
        return text

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


class Symbol(Formula):
    """Q_a, `Symbol("a")`: the position holds the symbol `name`."""

    name: str

    def __post_init__(self) -> None:
        if not self.name:
            raise InputError.of("name", self.name, 'at least one character, such as "1"', subject="Symbol")
        super().__post_init__()

    def atom_text(self, children: Sequence[str]) -> str:
        """Q_name, or the name in quotes if it has characters other than letters, digits and underscores."""
        if _PLAIN_SYMBOL.fullmatch(self.name):
            return "Q_" + self.name
        escaped = self.name.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{escaped}"'


class Constant(Formula):
    """True at every position, or at none. `TRUE` is `Constant(True)`, and `FALSE` is `Constant(False)`."""

    value: bool

    @property
    def label(self) -> Hashable:
        return bool(self.value)

    def atom_text(self, children: Sequence[str]) -> str:
        return "true" if self.value else "false"


TRUE = Constant(True)
FALSE = Constant(False)


class Unary(Formula):
    """An operator in front of one formula."""

    operand: Formula


class Binary(Formula):
    """An operator between two formulas."""

    left: Formula
    right: Formula


class Not(Unary):
    """!Q_a, `~Symbol("a")`: the operand is false at this position."""

    notation = NOT


class And(Binary):
    """Q_a & Y Q_b, `Symbol("a") & Yesterday(Symbol("b"))`: both formulas are true at this position."""

    notation = AND


class Or(Binary):
    """Q_a | Q_b, `Symbol("a") | Symbol("b")`: at least one of the two formulas is true at this position."""

    notation = OR


class Yesterday(Unary):
    """Y Q_a, `Yesterday(Symbol("a"))`: there is a position before this one, where the operand is true (section 4.1)."""

    notation = YESTERDAY


class Next(Unary):
    """X Q_a, `Next(Symbol("a"))`: there is a position after this one, where the operand is true (section 4.1)."""

    notation = NEXT


class Since(Binary):
    """left S right: right is true at some j <= i, and left at every k with j < k <= i (section 4.2, non-strict).

    `Since(TRUE, Symbol("a"))`: an a stands here or before.
    """

    notation = SINCE


class Until(Binary):
    """left U right: right is true at some j >= i, and left at every k with i <= k < j (section 4.2, non-strict).

    `Until(TRUE, Symbol("a"))`: an a stands here or later.
    """

    notation = UNTIL


@typed_arguments
def subformulas(formula: Formula) -> tuple[Formula, ...]:
    """Every distinct subformula, children before parents, the formula itself last. Equal subformulas appear once.

    The formula inside a counting term is a subformula too. The term itself is a number and is not: see `counts`.
    Takes time proportional to the number of distinct objects, however often they are shared.

    >>> [str(part) for part in subformulas(Symbol("a") & ~Symbol("b"))]
    ['Q_a', 'Q_b', '!Q_b', 'Q_a & !Q_b']
    """
    number: dict[int, int] = {}  # from an object's id to the number of its structure
    numbers: dict[Hashable, int] = {}  # from a structure to its number
    found: list[Formula] = []
    stack = [(formula, False)]
    while stack:
        node, children_done = stack.pop()
        if id(node) in number:
            continue
        if not children_done:
            stack.append((node, True))
            stack.extend((child, False) for child in reversed(node.children))
            continue
        key = (type(node), node.label, tuple(number[id(child)] for child in node.children))
        if key not in numbers:
            numbers[key] = len(found)
            found.append(node)
        number[id(node)] = numbers[key]
    return tuple(found)


def same(left: Formula, right: Formula) -> bool:
    """Whether two formulas have the same structure. Compares each pair of objects once."""
    compared: set[tuple[int, int]] = set()
    stack = [(left, right)]
    while stack:
        a, b = stack.pop()
        if a is b or (id(a), id(b)) in compared:
            continue
        compared.add((id(a), id(b)))
        if type(a) is not type(b) or a.label != b.label or len(a.children) != len(b.children):
            return False
        stack.extend(zip(a.children, b.children, strict=True))
    return True


def shortened(formula: Formula, longest: int = 80) -> str:
    """The formula's text if it has at most `longest` characters, and otherwise its beginning, ended by "..."."""
    texts: dict[Formula, str] = {}
    for node in subformulas(formula):
        # No part is written out further than the result can show.
        texts[node] = _joined(node, [texts[child] for child in node.children])[: longest + 1]
    return errors.shortened(texts[formula], longest)


def _joined(node: Formula, parts: list[str]) -> str:
    notation = node.notation
    if notation.fixity == "atom":
        return node.atom_text(parts)
    loosest = [notation.precedence] * len(parts)
    if notation.fixity != "prefix":
        loosest[notation.fixity == "left"] += 1
    wrapped = [
        f"({part})" if child.notation.precedence < least else part
        for part, child, least in zip(parts, node.children, loosest, strict=True)
    ]
    if notation.fixity == "prefix":
        return notation.sign + (" " if notation.sign.isalpha() else "") + wrapped[0]
    return f" {notation.sign} ".join(wrapped)
