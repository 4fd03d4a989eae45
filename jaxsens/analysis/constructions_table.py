"""The measured table of constructions as Markdown."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from jaxsens.analysis.fits import least_squares
from jaxsens.experiments.constructions_table import Exactness, TablePlan, TableRow, measure_table, plan_of
from jaxsens.experiments.progress import reporting
from jaxsens.models.positions import COMPONENTS

if TYPE_CHECKING:
    from rich.console import Console

HEADINGS = (
    "logic",
    "construction",
    "condition",
    "by",
    "temperature",
    "embeddings",
    "layers, heads, width",
    "largest change",
    "its exponent",
    "exponent of the mean",
    "exact to, float32",
    "exact to, float64",
)


def measured(name: str | None, cap: int | None, console: Console) -> str:
    """Measures the table, or the rows of one name, with progress on the console, and returns it as Markdown.

    Raises:
        InputError: see `plan_of`.
    """
    plan, rows, began = plan_of(name, cap), [], time.monotonic()
    with reporting(console, len(plan.rows), 0) as reporter:
        for row in measure_table(plan):
            rows.append(row)
            left = (time.monotonic() - began) * (len(plan.rows) / len(rows) - 1)
            reporter.finished(str(row), left)
    return markdown(rows, plan)


def markdown(rows: Sequence[TableRow], plan: TablePlan) -> str:
    """The table, and a line above it that says what was measured."""
    lengths = f"n = {', '.join(map(str, plan.lengths))}"
    tried = f"n = {', '.join(map(str, plan.tried))}"
    lines = [
        f"Flip sensitivity in float64 over all flips of one word, {lengths}; the largest change is that at the last n. "
        f"Exactness: every position of words of one symbol, of all in turn, of blocks, random and sensitive, {tried}; "
        "in brackets what is predicted.",
        "",
        _line(HEADINGS),
        _line(["---"] * len(HEADINGS)),
        *(_line(cells(row)) for row in rows),
    ]
    return "\n".join(lines) + "\n"


def cells(row: TableRow) -> list[str]:
    """The cells of one row."""
    promise = row.promise
    read = {"output": "", "before-rounding": ", before rounding", "everything": ", all coordinates"}[row.read]
    return [
        promise.table_row,
        row.name if row.at == "last" else f"{row.name}, read at the {row.at} position",
        promise.condition + (", autoregressive" if promise.autoregressive else ""),
        _short(promise.theorem),
        promise.temperature,
        ", ".join(COMPONENTS[name].formula if name in COMPONENTS else name for name in promise.components)
        + ("" if promise.bounded else " (unbounded)"),
        f"{promise.layers}, {promise.heads}, {promise.width}",
        f"{row.maxima[-1]:.3g}{read}",
        exponent_text(row.lengths, row.maxima),
        exponent_text(row.lengths, row.means),
        *(_exact(row.exactness.get(dtype)) for dtype in ("float32", "float64")),
    ]


def exponent(lengths: Sequence[int], values: Sequence[float]) -> float:
    """The least-squares slope of log(value) on log(n); NaN where a value is 0."""
    if min(values) <= 0:
        return math.nan
    import numpy as np

    return least_squares(np.log(lengths), np.log(values))[0]


def exponent_text(lengths: Sequence[int], values: Sequence[float]) -> str:
    """The exponent with two decimals, or that everything is 0, or that something is."""
    if max(values) == 0:
        return "none: exactly 0"
    found = exponent(lengths, values)
    return "none: 0 at some n" if math.isnan(found) else f"{round(found, 2) + 0.0:.2f}"


def _exact(found: Exactness | None) -> str:
    """What was measured, and in brackets what is predicted."""
    if found is None:
        return "not promised"
    predicted = (
        f"{found.predicted}"
        if found.predicted < 10**6
        else f"{found.predicted:.1e}".replace("e+0", "e").replace("e+", "e")
    )
    measured = (
        f"{found.longest} and more" if found.inexact is None else f"{found.longest}, not {found.inexact}"
    )
    return f"{measured} ({predicted})"


def _short(theorem: str) -> str:
    """A theorem's name without what is said of it."""
    return re.split("[:,]", theorem.removeprefix("the "))[0]


def _line(parts: Sequence[str]) -> str:
    return f"| {' | '.join(part.replace('|', chr(92) + '|') for part in parts)} |"
