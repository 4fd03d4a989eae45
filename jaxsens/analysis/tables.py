"""The exponents as summary.csv and as a table on a terminal."""

from __future__ import annotations

import csv
import io
import math
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from jaxsens.analysis.findings import growth
from jaxsens.analysis.fits import ExponentFit
from jaxsens.files import write_text

if TYPE_CHECKING:
    from rich.table import Table

SUMMARY_COLUMNS = ("variant", "statistic", "exponent", "ci_low", "ci_high", "points", "seeds")


def write_summary(path: str | os.PathLike[str], fits: Sequence[ExponentFit]) -> None:
    """Writes summary.csv atomically: one row a fit, floats to the last digit, `nan` where there is no value."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(SUMMARY_COLUMNS)
    for fit in fits:
        writer.writerow([getattr(fit, column) for column in SUMMARY_COLUMNS])
    write_text(path, text.getvalue())


def summary_table(fits: Sequence[ExponentFit]) -> Table:
    """The fits as a table for a terminal: exponent, interval and what they say, one row a variant and statistic."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    level = f"{100 * fits[0].confidence:g} % interval" if fits else "interval"
    seeds = sorted({fit.seeds for fit in fits})
    of = f", {seeds[0]} seeds" if len(seeds) == 1 else f", {seeds[0]} to {seeds[-1]} seeds" if seeds else ""
    # Light enough to fit the sentences of the last column into a terminal of 80 columns.
    table = Table(title=f"Exponent e of statistic ~ n^e{of}", box=box.SIMPLE_HEAD, padding=(0, 1))
    for heading in ("variant", "statistic"):
        table.add_column(heading, no_wrap=True)
    for heading in ("exponent", level):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("as n grows, it")
    previous = None
    for fit in fits:
        if previous is not None and previous != fit.variant:
            table.add_section()
        table.add_row(
            Text(fit.variant if fit.variant != previous else ""),
            Text(fit.statistic),
            _plain(fit.exponent),
            Text("-" if math.isnan(fit.ci_low) else f"[{_plain(fit.ci_low)}, {_plain(fit.ci_high)}]"),
            growth(fit).value + (f" ({fit.note})" if fit.note else ""),
        )
        previous = fit.variant
    return table


def _plain(value: float) -> str:
    return "-" if math.isnan(value) else f"{round(value, 2) + 0.0:.2f}"
