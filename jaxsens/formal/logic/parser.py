"""Reads the text of a formula: precedence climbing over the grammar of `jaxsens.formal.logic.formulas`."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Literal, cast

from jaxsens.core.base.errors import NO_VALUE, InputError, Problem
from jaxsens.core.base.strict import typed_arguments
from jaxsens.formal.logic import counting, formulas
from jaxsens.formal.logic.formulas import INFIX, RELATIONS, Formula, Symbol

DEEPEST = 100
"""Deepest nesting of parentheses and brackets that is read. Beyond it, Python's own stack would end first."""

Kind = Literal["symbol", "integer", "name", "sign", "end"]

_TOKEN = re.compile(
    r"""\s*(?:
      (?P<symbol> Q_[A-Za-z0-9_]+ | "(?:[^"\\]|\\.)*" )
    | (?P<integer> [0-9]+ )
    | (?P<name> [A-Za-z_][A-Za-z0-9_]* )
    | (?P<sign> \#L | \#R | <-> | -> | <= | >= | != | == | [<>=!~&|()\[\],+*\-] )
    | (?P<end> \Z )
    )""",
    re.VERBOSE | re.DOTALL,
)
_SPELLINGS = {"~": "!", "==": "="}
_PREFIXES = (formulas.Not, formulas.Yesterday, formulas.Next)
_BUILD_PREFIX: dict[str, Callable[[Formula], Formula]] = {kind.notation.sign: kind for kind in _PREFIXES}
_BUILD_INFIX: dict[str, Callable[[Formula, Formula], Formula]] = {
    **{kind.notation.sign: kind for kind in (formulas.And, formulas.Or, formulas.Since, formulas.Until)},
    "->": lambda left, right: ~left | right,
    "<->": lambda left, right: left & right | ~left & ~right,
}
_COUNTS = {kind.sign: kind for kind in (counting.CountLeft, counting.CountRight)}
_OPERATORS = " ".join(INFIX)


class FormulaSyntaxError(InputError):
    """A text that is not a formula.

    >>> try:
    ...     parse("Q_a &")
    ... except FormulaSyntaxError as error:
    ...     print(error.column, error.found)
    6 the end

    Attributes:
        line, column: Where, counted from 1.
        expected: What could have stood there.
        found: What stands there.
    """

    def __init__(self, text: str, offset: int, expected: str, found: str) -> None:
        self.line, self.column, marked = _pointed_at(text, offset)
        self.expected, self.found = expected, found
        where = f"line {self.line}, column {self.column}"
        remedy = f"{where}: expected {expected}, found {found}\n{marked}"
        super().__init__(Problem(("formula",), NO_VALUE, remedy))


@dataclass(frozen=True)
class Token:
    """A word of the text: its kind, its spelling, and where it begins in the text (from 0)."""

    kind: Kind
    text: str
    offset: int

    @property
    def symbol(self) -> str:
        """The symbol's name, for a token of kind "symbol"."""
        if self.text.startswith("Q_"):
            return self.text[2:]
        return re.sub(r"\\(.)", r"\1", self.text[1:-1], flags=re.DOTALL)

    def __str__(self) -> str:
        return "the end" if self.kind == "end" else f"'{self.text}'"


@typed_arguments
def parse(
    text: str, alphabet: Sequence[str] | None = None, predicates: Collection[counting.PredicateFamily] = ()
) -> Formula:
    """The formula that `text` denotes, in the grammar of `jaxsens.formal.logic.formulas` (docs/logic.md shows
    examples).

    >>> parse("#L[Q_1] - #L[Q_0] - 1 >= 0 & !Y Q_1")
    parse('#L[Q_1] > #L[Q_0] & !Y Q_1')

    Args:
        text: The formula's text.
        alphabet: The symbols that may occur; None allows any.
        predicates: Numerical predicates in addition to the built-in ones. One with a built-in name replaces it.

    Raises:
        FormulaSyntaxError: With the column, and what was expected there.
        InputError: For a well-formed text, naming every symbol that is not in the alphabet.
    """
    reader = _Reader(text, {family.name: family for family in (*counting.BUILT_IN, *predicates)})
    formula = reader.formula()
    if reader.token.kind != "end":
        raise reader.error(f"an operator ({_OPERATORS}) or the end")
    unknown = [token for token in reader.symbols if alphabet is not None and token.symbol not in alphabet]
    if alphabet is not None and unknown:
        names = ", ".join(repr(name) for name in dict.fromkeys(token.symbol for token in unknown))
        _, _, marked = _pointed_at(text, *(token.offset for token in unknown))
        raise InputError.note(
            "formula",
            f"symbols that the alphabet {', '.join(map(repr, alphabet))} lacks: {names}: "
            f"use symbols of the alphabet, or add these to it\n{marked}",
        )
    return formula


def _pointed_at(text: str, *offsets: int) -> tuple[int, int, str]:
    """Line and column (from 1) of the first offset, and its line of text with a caret below each offset on it."""
    first = offsets[0]
    start = text.rfind("\n", 0, first) + 1
    line = text[start:].split("\n", 1)[0]
    carets = list(re.sub(r"[^\t]", " ", line) + " ")
    for offset in offsets:
        if start <= offset <= start + len(line):
            carets[offset - start] = "^"
    return text.count("\n", 0, first) + 1, first - start + 1, f"    {line}\n    {''.join(carets).rstrip()}"


def _tokens(text: str) -> list[Token]:
    """The words of `text`, the last of kind "end". Raises `FormulaSyntaxError` where no word begins."""
    found: list[Token] = []
    offset = 0
    while not found or found[-1].kind != "end":
        match = _TOKEN.match(text, offset)
        if match is None:
            offset += len(text[offset:]) - len(text[offset:].lstrip())
            if text[offset] == '"':
                raise FormulaSyntaxError(text, offset, "a closing '\"' after this one", "the end")
            remedy = "a word of the grammar (a symbol other than letters, digits and _ is written in quotes)"
            raise FormulaSyntaxError(text, offset, remedy, f"'{text[offset]}'")
        kind = cast("Kind", match.lastgroup)  # the groups of the pattern are the kinds
        spelt = match.group(kind)
        token = Token(kind, _SPELLINGS.get(spelt, spelt), match.start(kind))
        if token.kind == "symbol" and not token.symbol:
            raise FormulaSyntaxError(text, token.offset, "a symbol of at least one character", "an empty one")
        found.append(token)
        offset = match.end()
    return found


class _Reader:
    """Reads the words once, from left to right. `token` is the next unused word."""

    def __init__(self, text: str, families: dict[str, counting.PredicateFamily]) -> None:
        self.text = text
        self.families = families
        self.tokens = _tokens(text)
        self.index = 0
        self.depth = 0
        self.symbols: list[Token] = []

    @property
    def token(self) -> Token:
        return self.tokens[self.index]

    def error(self, expected: str, at: Token | None = None) -> FormulaSyntaxError:
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
            raise self.error(expected)

    def formula(self, loosest: int = 0) -> Formula:
        """A formula whose outermost infix operator binds at least as tightly as `loosest`."""
        self.depth += 1
        if self.depth > DEEPEST:
            raise self.error(f"at most {DEEPEST} formulas inside one another (build deeper ones in Python)")
        left = self.prefixed()
        while (notation := INFIX.get(self.token.text)) and notation.precedence >= loosest:
            self.advance()
            right = self.formula(notation.precedence + (notation.fixity == "left"))
            left = _BUILD_INFIX[notation.sign](left, right)
        self.depth -= 1
        return left

    def prefixed(self) -> Formula:
        signs = []
        while self.token.text in _BUILD_PREFIX:
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
            return formulas.TRUE if self.advance().text == "true" else formulas.FALSE
        if token.kind == "name" and token.text not in INFIX:
            return self.predicate()
        if self.take("("):
            inside = self.formula()
            self.need(")", f"')' or an operator ({_OPERATORS})")
            return inside
        raise self.error(
            "a formula (a symbol such as Q_1, a comparison such as #L[Q_1] >= 1, a predicate such as odd, "
            "true, false, '(', or one of ! Y X)"
        )

    def comparison(self) -> Formula:
        left = self.sum()
        if self.token.text not in RELATIONS:
            raise self.error(f"+, - or a comparison ({' '.join(RELATIONS)})")
        relation = self.advance()
        try:
            return counting.compare(left - self.sum(), relation.text)
        except FormulaSyntaxError:
            raise
        except InputError as error:
            raise self.error(f"smaller coefficients ({error})", relation) from None

    def sum(self) -> counting.LinearSum:
        total = -self.term() if self.take("-") else self.term()
        while self.token.text in ("+", "-"):
            total = total + self.term() if self.advance().text == "+" else total - self.term()
        return total

    def term(self) -> counting.LinearSum:
        if self.token.kind != "integer":
            return self.count("an integer or a count (#L[...] or #R[...])").as_sum()
        number = self.integer("an integer")
        if self.take("*"):
            return number * self.count("a count (#L[...] or #R[...])")
        return counting.LinearSum((), number)

    def integer(self, expected: str) -> int:
        token = self.token
        if token.kind != "integer":
            raise self.error(expected)
        if len(token.text) > 10 or int(token.text) > counting.LARGEST_INTEGER:
            raise self.error(f"an integer up to {counting.LARGEST_INTEGER}")
        return int(self.advance().text)

    def count(self, expected: str) -> counting.CountLeft | counting.CountRight:
        if self.token.text not in _COUNTS:
            raise self.error(expected)
        kind = _COUNTS[self.advance().text]
        self.need("[", "'[' and the formula to count")
        inside = self.formula()
        self.need("]", f"']' or an operator ({_OPERATORS})")
        return kind(inside)

    def predicate(self) -> Formula:
        name = self.advance()
        if name.text not in self.families:
            known = ", ".join(sorted(self.families))
            hint = "; operators stand apart from what follows, as in Y Q_1" if name.text[0] in "YXSUQ" else ""
            raise self.error(f"one of the numerical predicates {known}{hint}", name)
        family = self.families[name.text]
        arguments: list[int] = []
        count = None
        if self.take("("):
            for parameter in family.parameters:
                if arguments:
                    self.need(",", f"',' and the {parameter} of {name.text}")
                arguments.append(self.integer(f"the integer {parameter} of {name.text}"))
            if not arguments or self.take(","):
                count = self.count(f"a count (#L[...] or #R[...]), of which {name.text} is to hold,")
            self.need(")", "')'")
        try:
            theta = counting.Predicate(family, tuple(arguments))
        except InputError as error:
            raise self.error(f"other arguments ({error})", name) from None
        return counting.PositionPredicate(theta) if count is None else counting.CountPredicate(theta, count)
