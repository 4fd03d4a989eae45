"""The notation of formulas: the one table of operators that both the parser and the printer use.

Grammar (`a?` is optional, `a*` occurs any number of times; white space only separates words):

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

from dataclasses import dataclass
from typing import Literal


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
