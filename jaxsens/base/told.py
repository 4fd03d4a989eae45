"""What people read in a terminal and in Markdown: lines as they are, and tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


def say(console: Console, text: str) -> None:
    """Prints plain text as it is: without markup or wrapping, whatever the terminal's width."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Returns a table in Markdown, a line each for the header, the rule below it and the rows, without a line's end."""
    lines = [header, ["---"] * len(header), *rows]
    texts = ([str(cell).replace("|", r"\|") for cell in line] for line in lines)
    return "\n".join(f"| {' | '.join(line)} |" for line in texts)
