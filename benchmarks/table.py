"""The table, for a terminal and for a Markdown file."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.table import Table

from benchmarks.rows import Row


def _number(value: float | None, digits: int = 3) -> str:
    if value is None:
        return ""
    if value == 0 or 1e-3 <= abs(value) < 1e5:
        return f"{value:.{digits}g}" if abs(value) < 10**digits else f"{value:.0f}"
    return f"{value:.{digits - 1}e}"


def _spread(row: Row) -> str:
    if row.fastest is None or row.slowest is None:
        return ""
    return f"{_number(row.fastest, 2)}-{_number(row.slowest, 2)}"


def _seconds(row: Row) -> str:
    return f"≈ {_number(row.seconds)}" if row.extrapolated else _number(row.seconds)


HEADINGS: dict[str, Callable[[Row], str]] = {
    "L": lambda row: str(row.layers),
    "n": lambda row: str(row.n),
    "method": lambda row: row.method,
    "seconds": _seconds,
    "spread": _spread,
    "flips/s": lambda row: _number(row.flips_per_second),
    "peak MiB": lambda row: _number(row.peak_mib),
    "error": lambda row: _number(row.error, 2),
    "growth": lambda row: _number(row.growth),
    "× vmap": lambda row: _number(row.times_faster_than_vmap),
    "× rival": lambda row: _number(row.times_faster_than_rival),
    "Gop": lambda row: _number(None if row.operations is None else row.operations / 1e9),
    "GB": lambda row: _number(None if row.bytes is None else row.bytes / 1e9),
    "limit s": lambda row: _number(row.limit_seconds),
    "÷ limit": lambda row: _number(row.distance),
    "compile s": lambda row: _number(row.compile_seconds, 2),
    "note": lambda row: row.note,
}
"""Heading and text of every column."""


WIDE = 190
"""Characters that all columns take; a narrower terminal gets `NARROW` ones."""

NARROW = (
    "L",
    "n",
    "method",
    "seconds",
    "peak MiB",
    "error",
    "growth",
    "× vmap",
    "× rival",
    "÷ limit",
    "note",
)


def rich_table(rows: Sequence[Row], width: int) -> Table:
    """For a terminal of `width` characters; a line after each input."""
    table = Table(title="All flips of one input")
    shown = [heading for heading in HEADINGS if width >= WIDE or heading in NARROW]
    for heading in shown:
        table.add_column(
            heading, justify="left" if heading in ("method", "note") else "right", overflow="fold"
        )
    for k, row in enumerate(rows):
        last = k + 1 == len(rows) or (rows[k + 1].layers, rows[k + 1].n) != (row.layers, row.n)
        table.add_row(*(HEADINGS[heading](row) for heading in shown), end_section=last)
    return table


def markdown(rows: Sequence[Row]) -> str:
    """The same as a Markdown table."""
    aligned = [":--" if heading in ("method", "note") else "--:" for heading in HEADINGS]
    lines = [[*HEADINGS], aligned, *([text(row) for text in HEADINGS.values()] for row in rows)]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)
