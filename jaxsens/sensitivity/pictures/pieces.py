"""Tokens as readable text, by what their strings say of spaces."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

_NO_SPACE_BEFORE = frozenset(".,;:!?)]}%”")
_AFTER_APOSTROPHE = frozenset(("t", "s", "m", "d", "ll", "re", "ve"))
"""Where BERT's tokenizer leaves a word at its apostrophe."""

_CONTEXT = 3
"""Tokens on either side of one in its context."""


def text_pieces(names: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yields each token's text, and what stands before it: "", " " or a line break.

    Where tokens say themselves where words begin (" the", as of GPT-2 and Llama), nothing is added. Pieces with ## in
    front (BERT) continue a word. Everything else is set apart by spaces, except punctuation and apostrophes in words.
    """
    own_spaces = any(name[:1].isspace() for name in names)
    in_words = any(len(name) > 1 and not _is_number(name) for name in names)
    for k, name in enumerate(names):
        if own_spaces:
            text = name.lstrip(" ") or name
            space = " " * (len(name) - len(text)) if k else ""
        elif name.startswith("##") and len(name) > 2:
            text, space = name[2:], ""
        else:
            ending = k > 1 and names[k - 1] in "'’" and name in _AFTER_APOSTROPHE
            apostrophe = name in "'’" and k + 1 < len(names) and names[k + 1] in _AFTER_APOSTROPHE
            joined = k == 0 or (in_words and (name in _NO_SPACE_BEFORE or ending or apostrophe))
            text, space = name, "" if joined else " "
        yield space, _visible(text)


def _is_number(name: str) -> bool:
    return name.lstrip("-").isdigit()


def _visible(text: str) -> str:
    """Returns a text that can be pointed at: white space as signs; a line break also breaks the line."""
    if text.strip():
        return text
    return "".join({"\n": "↵\n", "\t": "⇥"}.get(one, "␣") for one in text) if text else "∅"


def alone(name: str) -> str:
    """Returns a token by itself: ##man, which continues a word, is another than man."""
    return _visible(name.lstrip(" ") or name)


def in_context(names: Sequence[str], position: int) -> tuple[str, str, str]:
    """Returns a token with a few tokens before and after it, as text; … where there are more."""
    first, last = max(0, position - _CONTEXT), position + _CONTEXT + 1
    pieces = list(text_pieces(names))
    before = "".join(space + text for space, text in pieces[first:position]) + pieces[position][0]
    after = "".join(space + text for space, text in pieces[position + 1 : last])
    more = "…" if last < len(names) else ""
    return ("…" if first else "") + before.lstrip(), pieces[position][1], after + more
