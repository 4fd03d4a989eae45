"""Cuts the text of a formula into the words of `jaxsens.logic.grammar`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, cast

from jaxsens.logic.syntax_error import FormulaSyntaxError

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


@dataclass(frozen=True)
class Token:
    """One word: what kind, how it is spelt, where it begins in the text (from 0)."""

    kind: Kind
    text: str
    offset: int

    @property
    def symbol(self) -> str:
        """Of a token of kind "symbol": the symbol's name."""
        if self.text.startswith("Q_"):
            return self.text[2:]
        return re.sub(r"\\(.)", r"\1", self.text[1:-1], flags=re.DOTALL)

    def __str__(self) -> str:
        return "the end" if self.kind == "end" else f"'{self.text}'"


def tokens(text: str) -> list[Token]:
    """The words of `text`, ended by one of kind "end"; raises `FormulaSyntaxError` where no word begins."""
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
