"""The text of a formula, which `parse` reads back as an equal formula, with few parentheses.

Parentheses stand only where the grammar needs them, and round a comparison below `!`, `Y`, `X`, `S` and `U`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Protocol

from jaxsens.errors import InputError
from jaxsens.logic.grammar import Notation
from jaxsens.logic.order import Node, children_first


class Printable(Node, Protocol):
    """A formula that knows how it is written once its parts are."""

    notation: ClassVar[Notation]

    def atom_text(self, children: Sequence[str]) -> str:
        """For notations of fixity "atom": the whole text, given those of the children."""
        ...


LONGEST = 1_000_000


def write(formula: Printable) -> str:
    """The text of a formula. Shared subformulas are written out as often as they are used.

    Raises `InputError` if that comes to more than `LONGEST` characters.
    """
    text = _write(formula, LONGEST)
    if len(text) > LONGEST:
        raise InputError(
            f"formula: its text has more than {LONGEST} characters, because shared parts are written out each time: "
            "print parts of it, from jaxsens.logic.subformulas(formula)"
        )
    return text


def shortened(formula: Printable, longest: int = 80) -> str:
    """The text if it has at most `longest` characters, and otherwise its beginning, with "..." for the rest."""
    text = _write(formula, longest)
    return text if len(text) <= longest else text[: longest - 3] + "..."


def _write(formula: Printable, longest: int) -> str:
    """The text, or its first longest + 1 characters; no part is ever written out further than that."""
    texts: dict[Printable, str] = {}
    for node in children_first(formula):
        texts[node] = _joined(node, [texts[child] for child in node.children])[: longest + 1]
    return texts[formula]


def _joined(node: Printable, parts: list[str]) -> str:
    """The text of one formula, given those of its children."""
    notation = node.notation
    if notation.fixity == "atom":
        return node.atom_text(parts)
    loosest = [notation.precedence] * len(parts)
    if notation.fixity == "left":
        loosest[1] += 1
    elif notation.fixity == "right":
        loosest[0] += 1
    wrapped = [
        f"({part})" if child.notation.precedence < least else part
        for part, child, least in zip(parts, node.children, loosest, strict=True)
    ]
    if notation.fixity == "prefix":
        return notation.sign + (" " if notation.sign.isalpha() else "") + wrapped[0]
    return f" {notation.sign} ".join(wrapped)
