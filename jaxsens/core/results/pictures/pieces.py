"""Tokens as readable text: what stands in the text for each of them."""

from __future__ import annotations

from collections.abc import Sequence

Piece = tuple[str, str]
"""What stands before a token, mostly blanks, and its own text."""

PART = "◦"
"""What is shown of a token without a character of its own, as all but the last of a character's several tokens are."""

_CONTEXT = 3
"""Tokens on either side of one in its context."""


def spaced(names: Sequence[str]) -> list[str]:
    """Returns names with blanks between them, unless some say themselves where words begin, as " the" does."""
    own_spaces = any(name[:1].isspace() for name in names)
    return [name if own_spaces or not k else f" {name}" for k, name in enumerate(names)]


def text_pieces(parts: Sequence[str]) -> list[Piece]:
    """Returns the pieces of a text from its parts, which hold white space where it stands."""
    found = ((part, part.lstrip()) for part in parts)
    return [
        (part[: len(part) - len(text)] if text else "", alone(text or part) if part else PART)
        for part, text in found
    ]


def alone(name: str) -> str:
    """Returns a token by itself, so that it can be pointed at: what cannot be seen as signs; a line break also breaks
    the line. ##man, which continues a word, is another token than man."""
    if any(one.isprintable() and one != " " for one in name):
        return name.lstrip(" ")
    signs = {"\n": "↵\n", "\t": "⇥"}
    return "".join(signs.get(one, "␣" if one.isspace() else PART) for one in name) or "∅"


def in_context(pieces: Sequence[Piece], position: int) -> tuple[str, str, str]:
    """Returns a token with a few tokens before and after it, as text; … where there are more."""
    first, last = max(0, position - _CONTEXT), position + _CONTEXT + 1
    before = "".join(space + text for space, text in pieces[first:position]) + pieces[position][0]
    after = "".join(space + text for space, text in pieces[position + 1 : last])
    more = "…" if last < len(pieces) else ""
    return ("…" if first else "") + before.lstrip(), pieces[position][1], after + more
