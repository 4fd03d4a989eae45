"""What people read in a terminal, in Markdown and in a notebook: lines as they are, tables, and facts on a result."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


_CONTROLS = {k: f"\\x{k:02x}" for k in (*range(9), *range(11, 32), *range(127, 160))}
_CONTROLS |= {0xFFFE: "\\ufffe", 0xFFFF: "\\uffff"}  # which are no characters, and XML refuses too


def printable(text: str) -> str:
    """Returns the text with its control characters as \\x1b, but for tabs and line feeds: names and texts of strangers
    do nothing to a terminal."""
    return text.translate(_CONTROLS)


def print_text(console: Console, text: str) -> None:
    """Prints plain text: without markup or wrapping, whatever the terminal's width, and `printable`."""
    console.print(printable(text), markup=False, highlight=False, soft_wrap=True)


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Returns a table in Markdown, a line each for the header, the rule below it and the rows, without a line's end."""
    lines = [header, ["---"] * len(header), *rows]
    texts = ([str(cell).replace("|", r"\|") for cell in line] for line in lines)
    return "\n".join(f"| {' | '.join(line)} |" for line in texts)


def html_facts(heading: str, rows: Mapping[str, object], note: str = "") -> str:
    """Returns what a notebook shows of a result, as HTML: a heading, names and values, and a note on how to read it.

    Every text is escaped. Numbers have four digits; colours are those of the notebook.
    """
    cells = "".join(
        f'<tr><th style="text-align:left;font-weight:normal">{escape(name)}</th>'
        f'<td style="text-align:left">{escape(f"{value:.4g}" if isinstance(value, float) else str(value))}</td></tr>'
        for name, value in rows.items()
    )
    paragraph = f"<p>{escape(note)}</p>" if note else ""
    return f"<div><p><strong>{escape(heading)}</strong></p><table><tbody>{cells}</tbody></table>{paragraph}</div>"


def duration(seconds: float) -> str:
    """Returns a rough duration in the unit that suits it: 32.4 µs, 0.032 s, 40 s, 12 min, 2.5 h."""
    if 0 < seconds < 0.0009995:
        return f"{1e6 * seconds:.3g} µs"
    if seconds < 9.95:
        return f"{seconds:.2g} s"
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 100 * 60 else f"{seconds / 3600:.1f} h"


def in_words(count: float) -> str:
    """Returns a number of bytes with a unit, such as 1.5 GiB."""
    for unit in ("bytes", "KiB", "MiB", "GiB", "TiB"):
        if count < 999.5:  # three digits, without an exponent
            return f"{count:.3g} {unit}"
        count /= 1024
    return f"{count:.3g} PiB"
