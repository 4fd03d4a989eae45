"""The table's rows: what was measured, and what follows from comparing them."""

from __future__ import annotations

import csv
import dataclasses
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.options import METHODS, RIVALS

MIB = 2**20


@dataclass(frozen=True)
class Row:
    """One method on one input. What was not measured is None; `note` says why.

    Attributes:
        flips: all flips of the input; the times are for all of them.
        measured_flips: how many were run; fewer than `flips` where the time is extrapolated.
        seconds: the median of `repeats` runs; `fastest` and `slowest` are its spread.
        compile_seconds: by how much the first run, which compiles and warms up, was longer; not in `seconds`.
        peak_mib: peak memory beyond the model and the libraries, in MiB.
        error: the largest |norm - exact| / exact over `checked_flips` flips, exact in float64.
        growth: the factor of `seconds` per doubling of n since the next shorter length.
        times_faster_than_vmap, times_faster_than_rival: vmap's or the best rival's seconds over this row's.
        operations, bytes: of the algorithm, see `costs`.
        limit_seconds: the physical limit; `distance` is seconds over it.
    """

    method: str
    layers: int
    n: int
    flips: int
    measured_flips: int | None = None
    seconds: float | None = None
    fastest: float | None = None
    slowest: float | None = None
    repeats: int = 0
    flips_per_second: float | None = None
    compile_seconds: float | None = None
    peak_mib: float | None = None
    error: float | None = None
    checked_flips: int | None = None
    growth: float | None = None
    times_faster_than_vmap: float | None = None
    times_faster_than_rival: float | None = None
    operations: float | None = None
    bytes: float | None = None
    limit_seconds: float | None = None
    distance: float | None = None
    note: str = ""

    @property
    def extrapolated(self) -> bool:
        """Whether only a sample of the flips was run."""
        return self.measured_flips is not None and self.measured_flips < self.flips


def compared(rows: Sequence[Row]) -> list[Row]:
    """The rows with growth and ratios filled in, ordered by L, n and method."""
    order = list(METHODS)
    ordered = sorted(rows, key=lambda row: (row.layers, row.n, order.index(row.method)))
    return [_compared(row, ordered) for row in ordered]


def _compared(row: Row, rows: Sequence[Row]) -> Row:
    if row.seconds is None:
        return row
    timed = {
        (other.method, other.n): other.seconds
        for other in rows
        if other.layers == row.layers and other.seconds is not None
    }
    here = {method: seconds for (method, n), seconds in timed.items() if n == row.n}
    rivals = [here[name] for name in RIVALS if name in here]
    shorter = [n for method, n in timed if method == row.method and n < row.n]
    growth = None
    if shorter:
        before = max(shorter)
        growth = (row.seconds / timed[row.method, before]) ** (1 / math.log2(row.n / before))
    return dataclasses.replace(
        row,
        growth=growth,
        times_faster_than_vmap=here["vmap"] / row.seconds if "vmap" in here else None,
        times_faster_than_rival=min(rivals) / row.seconds if rivals else None,
    )


COLUMNS = tuple(field.name for field in dataclasses.fields(Row))


def csv_text(rows: Sequence[Row]) -> str:
    """The rows as a CSV file; empty cells where nothing was measured."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows([["" if value is None else value for value in dataclasses.astuple(row)] for row in rows])
    return text.getvalue()
