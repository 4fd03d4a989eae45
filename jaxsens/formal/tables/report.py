"""The constructions in words: the catalogue for a terminal, and the measured tables as Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import fields

import numpy as np
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from jaxsens.core.base.errors import InputError
from jaxsens.core.base.text import markdown_table
from jaxsens.core.models.parts.positions import COMPONENTS
from jaxsens.core.report.fits import least_squares
from jaxsens.formal.constructions.catalogue import EVERY_CONDITION, REFERENCES, Entry, catalogue
from jaxsens.formal.constructions.chiang_cholak import ReferenceVariant
from jaxsens.formal.constructions.compiled import Promise
from jaxsens.formal.constructions.conditions import CONDITIONS, Condition
from jaxsens.formal.logic import LIBRARY
from jaxsens.formal.tables.constructions_table import Exactness, TablePlan, TableRow

TABLES = {
    "Sensitivity": ("construction", "condition", "largest change", "its exponent", "exponent of the mean"),
    "Exactness": ("construction", "condition", "exact to, float32", "exact to, float64"),
    "Networks": (
        "logic",
        "construction",
        "condition",
        "by",
        "temperature",
        "embeddings",
        "layers, heads, width",
    ),
}
"""The measured tables, each with its columns."""

_READ = {"output": "", "before-rounding": ", before rounding", "everything": ", all coordinates"}


def overview() -> RenderableType:
    """Every construction: its name, what it computes, and the conditions in which it exists."""
    parts: list[RenderableType] = []
    for entry in catalogue():
        parts += [Text(entry.name, "bold"), _indented(entry.description)]
        if entry.name not in REFERENCES:
            parts.append(_indented(conditions_text(entry.conditions), "dim"))
    return Group(*parts, Text(), Text("* also autoregressive: future-masked, and nothing depends on n"))


def conditions_text(conditions: Sequence[Condition]) -> str:
    """The conditions by name, with a star if the autoregressive one exists too."""
    if len(conditions) == len(EVERY_CONDITION):
        return "every condition*"
    starred = {each.name for each in conditions if each.autoregressive}
    plain = {each.name for each in conditions if not each.autoregressive}
    if plain == CONDITIONS.keys() and not starred:
        return "every condition"
    return ", ".join(name + ("*" if name in starred else "") for name in CONDITIONS if name in plain)


def details(name: str) -> RenderableType:
    """One construction: what it is, and its promise in each condition, or the reasons why there is none.

    Raises:
        InputError: for a name that is not in the catalogue.
    """
    entries = {entry.name: entry for entry in catalogue()}
    if name not in entries:
        raise InputError.of("name", name, f"one of {', '.join(entries)}", subject="constructions")
    entry = entries[name]
    parts: list[RenderableType] = [Text(name, "bold"), _indented(entry.description)]
    if entry.note:
        parts.append(_indented(f"Note: {entry.note}"))
    if name in LIBRARY:
        known = LIBRARY[name]
        parts.append(_indented(f"{known.formula}   over {' '.join(known.alphabet)}"))
    if name in REFERENCES:
        options = {each.name: each.default for each in fields(ReferenceVariant) if each.name != "language"}
        parts.append(_indented("Options: " + ", ".join(f"{key}={value}" for key, value in options.items())))
        return Group(*parts)
    return Group(*parts, *_promises(entry))


def _promises(entry: Entry) -> Iterator[RenderableType]:
    refused: dict[str, list[str]] = {}
    for condition in EVERY_CONDITION:
        reasons = entry.refused(condition)
        for reason in reasons:
            label = condition.name + (", autoregressive" if condition.autoregressive else "")
            refused.setdefault(reason, []).append(label)
        if not reasons:
            yield from (Text(), _promise(entry.build(condition).promise))
    for reason, labels in refused.items():
        yield from (Text(f"\nnot {'; '.join(labels)}:"), _indented(reason))


def _promise(promise: Promise) -> RenderableType:
    """A promise as it prints, without its first line, which is the formula. Long lines continue below their text."""
    table = Table.grid(padding=(0, 2))
    for line in str(promise).splitlines()[1:]:
        key, value = re.split(" {2,}", line.strip(), maxsplit=1)
        table.add_row(Text(key), Text(value))
    return Padding(table, (0, 0, 0, 2))


def _indented(text: str, style: str = "") -> Padding:
    return Padding(Text(text, style), (0, 0, 0, 2))


def markdown(rows: Sequence[TableRow], plan: TablePlan) -> str:
    """The measured tables, below a paragraph that says what was measured.

    Conditions that promise nothing are left out of the table of exactness. A network that was measured in several ways
    has one line in the tables that say the same of all of them.
    """
    lines = [
        f"Flip sensitivity in float64 over all flips of one word, n = {', '.join(map(str, plan.lengths))}; the largest "
        "change is that at the last n. Exactness: every position of words of one symbol, of all in turn, of blocks, "
        f"random and sensitive, n = {', '.join(map(str, plan.tried))}; in brackets what is predicted."
    ]
    for name, headings in TABLES.items():
        told = [cells(row) for row in rows if row.promise.exact or name != "Exactness"]
        distinct = dict.fromkeys(tuple(row[heading] for heading in headings) for row in told)
        lines += ["", f"## {name}", "", markdown_table(headings, distinct)]
    return "\n".join(lines) + "\n"


def cells(row: TableRow) -> dict[str, str]:
    """What one row says, by the headings of `TABLES`."""
    promise = row.promise
    embeddings = [COMPONENTS[name].formula if name in COMPONENTS else name for name in promise.components]
    return {
        "logic": promise.table_row,
        "construction": row.name if row.at == "last" else f"{row.name}, read at the {row.at} position",
        "condition": promise.condition + (", autoregressive" if promise.autoregressive else ""),
        "by": re.split("[:,]", promise.theorem.removeprefix("the "))[0],
        "temperature": promise.temperature,
        "embeddings": ", ".join(embeddings) + ("" if promise.bounded else " (unbounded)"),
        "layers, heads, width": f"{promise.layers}, {promise.heads}, {promise.width}",
        "largest change": f"{row.maxima[-1]:.3g}{_READ[row.read]}",
        "its exponent": exponent_text(row.lengths, row.maxima),
        "exponent of the mean": exponent_text(row.lengths, row.means),
        **{f"exact to, {dtype}": _exact(row.exactness.get(dtype)) for dtype in ("float32", "float64")},
    }


def exponent_text(lengths: Sequence[int], values: Sequence[float]) -> str:
    """The least-squares slope of log(value) on log(n) with two decimals, or why there is none."""
    if max(values) == 0:
        return "none: exactly 0"
    if min(values) <= 0:
        return "none: 0 at some n"
    return f"{round(least_squares(np.log(lengths), np.log(values)), 2) + 0.0:.2f}"


def _exact(found: Exactness | None) -> str:
    """What was measured, and in brackets what is predicted."""
    if found is None:
        return "not promised"
    predicted = f"{found.predicted}" if found.predicted < 10**6 else f"{found.predicted:.1e}"
    measured = (
        f"{found.longest} and more" if found.inexact is None else f"{found.longest}, not {found.inexact}"
    )
    return f"{measured} ({re.sub('e[+]0?', 'e', predicted)})"
