"""How the parser refuses a text: the column, the line with a caret below it, what was expected and what was found."""

from __future__ import annotations

import re

from jaxsens.errors import InputError


class FormulaSyntaxError(InputError):
    """A text that is no formula. `line` and `column` count from 1; `expected` says what could have stood there."""

    def __init__(self, text: str, offset: int, expected: str, found: str) -> None:
        self.line, self.column, marked = pointed_at(text, offset)
        self.expected, self.found = expected, found
        super().__init__(
            f"formula, line {self.line}, column {self.column}: expected {expected}, found {found}\n{marked}"
        )


def pointed_at(text: str, *offsets: int) -> tuple[int, int, str]:
    """Line and column (from 1) of the first offset, and its line of text with a caret below each offset on it."""
    first = offsets[0]
    start = text.rfind("\n", 0, first) + 1
    end = text.find("\n", first)
    line = text[start:] if end < 0 else text[start:end]
    carets = list(re.sub(r"[^\t]", " ", line) + " ")
    for offset in offsets:
        if start <= offset <= start + len(line):
            carets[offset - start] = "^"
    return text.count("\n", 0, first) + 1, first - start + 1, f"    {line}\n    {''.join(carets).rstrip()}"
