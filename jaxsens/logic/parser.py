"""Reads the text of a formula. The grammar stands in `jaxsens.logic.grammar`; this is precedence climbing over it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from jaxsens.errors import InputError
from jaxsens.logic.counting import CountLeft, CountPredicate, CountRight, LinearSum, compare
from jaxsens.logic.formulas import (
    FALSE,
    TRUE,
    And,
    Formula,
    Next,
    Not,
    Or,
    Since,
    Symbol,
    Until,
    Yesterday,
)
from jaxsens.logic.grammar import INFIX, PREFIX, RELATIONS
from jaxsens.logic.lexer import Token, tokens
from jaxsens.logic.numerical import BUILT_IN, LARGEST_INTEGER, PositionPredicate, Predicate, PredicateFamily
from jaxsens.logic.syntax_error import FormulaSyntaxError, pointed_at

DEEPEST = 100  # parentheses and brackets inside one another: beyond it, Python's own stack would end first

_BUILD_PREFIX: dict[str, Callable[[Formula], Formula]] = {"!": Not, "Y": Yesterday, "X": Next}
_BUILD_INFIX: dict[str, Callable[[Formula, Formula], Formula]] = {
    "&": And,
    "|": Or,
    "S": Since,
    "U": Until,
    "->": lambda left, right: ~left | right,
    "<->": lambda left, right: left & right | ~left & ~right,
}
_COUNTS = {"#L": CountLeft, "#R": CountRight}


def parse(
    text: str, alphabet: Sequence[str] | None = None, predicates: Iterable[PredicateFamily] = ()
) -> Formula:
    """The formula that `text` denotes, in the grammar of `jaxsens.logic.grammar` (docs/logic.md shows examples).

    `alphabet`: the symbols that may occur; None for any. `predicates`: numerical predicates besides the built-in ones,
    which they may replace by name. Raises `FormulaSyntaxError` with the column and what was expected there, and, for a
    well-formed text, `InputError` with all the symbols that the alphabet lacks.

    >>> parse("#L[Q_1] - #L[Q_0] - 1 >= 0 & !Y Q_1")
    parse('#L[Q_1] > #L[Q_0] & !Y Q_1')
    """
    if not isinstance(text, str):
        raise TypeError(f"parse: text = {text!r}: give the formula as a string")
    families = {family.name: family for family in (*BUILT_IN, *predicates)}
    reader = _Reader(text, families)
    formula = reader.formula()
    if reader.token.kind != "end":
        raise reader.fault(f"an operator ({_listed(INFIX)}) or the end")
    if alphabet is not None:
        _refuse_unknown(text, reader.symbols, alphabet)
    return formula


def _refuse_unknown(text: str, used: Sequence[Token], alphabet: Sequence[str]) -> None:
    unknown = [token for token in used if token.symbol not in alphabet]
    if not unknown:
        return
    names = ", ".join(repr(name) for name in dict.fromkeys(token.symbol for token in unknown))
    _, _, marked = pointed_at(text, *(token.offset for token in unknown))
    raise InputError(
        f"formula: symbols that the alphabet {', '.join(map(repr, alphabet))} lacks: {names}: "
        f"use symbols of the alphabet, or add these to it\n{marked}"
    )


def _listed(words: Iterable[str]) -> str:
    return " ".join(words)


class _Reader:
    """Goes through the words once. `token` is the next one that is not yet used."""

    def __init__(self, text: str, families: dict[str, PredicateFamily]) -> None:
        self.text = text
        self.families = families
        self.tokens = tokens(text)
        self.index = 0
        self.depth = 0
        self.symbols: list[Token] = []

    @property
    def token(self) -> Token:
        return self.tokens[self.index]

    def fault(self, expected: str, at: Token | None = None) -> FormulaSyntaxError:
        at = at or self.token
        return FormulaSyntaxError(self.text, at.offset, expected, str(at))

    def advance(self) -> Token:
        token = self.token
        self.index += 1
        return token

    def take(self, text: str) -> bool:
        """Uses the next word if it is `text`."""
        if self.token.text != text:
            return False
        self.index += 1
        return True

    def need(self, text: str, expected: str) -> None:
        if not self.take(text):
            raise self.fault(expected)

    def formula(self, loosest: int = 0) -> Formula:
        """A formula whose outermost infix operator binds at least as tightly as `loosest`."""
        self.depth += 1
        if self.depth > DEEPEST:
            raise self.fault(f"at most {DEEPEST} formulas inside one another (build deeper ones in Python)")
        left = self.prefixed()
        while (notation := INFIX.get(self.token.text)) and notation.precedence >= loosest:
            self.advance()
            right = self.formula(notation.precedence + (notation.fixity == "left"))
            left = _BUILD_INFIX[notation.sign](left, right)
        self.depth -= 1
        return left

    def prefixed(self) -> Formula:
        signs = []
        while self.token.text in PREFIX:
            signs.append(self.advance().text)
        result = self.atom()
        for sign in reversed(signs):
            result = _BUILD_PREFIX[sign](result)
        return result

    def atom(self) -> Formula:
        token = self.token
        if token.kind == "symbol":
            self.symbols.append(self.advance())
            return Symbol(token.symbol)
        if token.kind == "integer" or token.text in ("-", *_COUNTS):
            return self.comparison()
        if token.text in ("true", "false"):
            return TRUE if self.advance().text == "true" else FALSE
        if token.kind == "name" and token.text not in INFIX:
            return self.predicate()
        if self.take("("):
            inside = self.formula()
            self.need(")", f"')' or an operator ({_listed(INFIX)})")
            return inside
        raise self.fault(
            "a formula (a symbol such as Q_1, a comparison such as #L[Q_1] >= 1, a predicate such as odd, "
            "true, false, '(', or one of ! Y X)"
        )

    def comparison(self) -> Formula:
        left = self.sum()
        if self.token.text not in RELATIONS:
            raise self.fault(f"+, - or a comparison ({_listed(RELATIONS)})")
        relation = self.advance()
        try:
            return compare(left - self.sum(), relation.text)
        except FormulaSyntaxError:
            raise
        except InputError as fault:
            raise self.fault(f"smaller coefficients ({fault})", relation) from None

    def sum(self) -> LinearSum:
        total = -self.term() if self.take("-") else self.term()
        while self.token.text in ("+", "-"):
            total = total + self.term() if self.advance().text == "+" else total - self.term()
        return total

    def term(self) -> LinearSum:
        if self.token.kind != "integer":
            return self.count("an integer or a count (#L[...] or #R[...])").as_sum()
        number = self.integer("an integer")
        return (
            number * self.count("a count (#L[...] or #R[...])") if self.take("*") else LinearSum((), number)
        )

    def integer(self, expected: str) -> int:
        token = self.token
        if token.kind != "integer":
            raise self.fault(expected)
        if len(token.text) > 10 or int(token.text) > LARGEST_INTEGER:
            raise self.fault(f"an integer up to {LARGEST_INTEGER}")
        return int(self.advance().text)

    def count(self, expected: str) -> CountLeft | CountRight:
        if self.token.text not in _COUNTS:
            raise self.fault(expected)
        kind = _COUNTS[self.advance().text]
        self.need("[", "'[' and the formula to count")
        inside = self.formula()
        self.need("]", f"']' or an operator ({_listed(INFIX)})")
        return kind(inside)

    def predicate(self) -> Formula:
        name = self.advance()
        if name.text not in self.families:
            known = ", ".join(sorted(self.families))
            hint = "; operators stand apart from what follows, as in Y Q_1" if name.text[0] in "YXSUQ" else ""
            raise self.fault(f"one of the numerical predicates {known}{hint}", name)
        family = self.families[name.text]
        arguments: list[int] = []
        count = None
        if self.take("("):
            while count is None:
                if len(arguments) < len(family.parameters):
                    arguments.append(
                        self.integer(f"the integer {family.parameters[len(arguments)]} of {name.text}")
                    )
                else:
                    count = self.count(f"a count (#L[...] or #R[...]), of which {name.text} is to hold,")
                if len(arguments) < len(family.parameters):
                    self.need(",", f"',' and the {family.parameters[len(arguments)]} of {name.text}")
                elif count is not None or not self.take(","):
                    break
            self.need(")", "')'")
        try:
            theta = Predicate(family, tuple(arguments))
        except InputError as fault:
            raise self.fault(f"other arguments ({fault})", name) from None
        return PositionPredicate(theta) if count is None else CountPredicate(theta, count)
