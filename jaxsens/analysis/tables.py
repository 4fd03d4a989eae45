"""The tables of a report as rows of text, and the exponents as summary.csv and as a table for a terminal."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from jaxsens.analysis.data import PointKey, SweepData, weights
from jaxsens.analysis.fits import ExponentFit, signed
from jaxsens.files import write_text

if TYPE_CHECKING:
    from rich.table import Table

SUMMARY_COLUMNS = ("variant", "statistic", "exponent", "ci_low", "ci_high", "points", "seeds")

DASH = "\N{EM DASH}"
"""What a table shows where there is no value."""


@dataclass(frozen=True)
class ReportTable:
    """A table of a report.

    Attributes:
        caption: may be empty.
        header: empty for a table of names and values.
        rows: each with as many cells as the header.
        numeric: the number of columns, counted from the last, that hold numbers and are aligned to the right.
        collapsed: whether the caption is a heading to click on.
    """

    caption: str
    header: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    numeric: int = 0
    collapsed: bool = False


def write_summary(path: str | os.PathLike[str], fits: Iterable[ExponentFit]) -> None:
    """Writes summary.csv atomically: a row per fit, floats with every digit, `nan` where there is no value."""
    import pandas as pd

    rows = [[getattr(fit, column) for column in SUMMARY_COLUMNS] for fit in fits]
    table = pd.DataFrame(rows, columns=[*SUMMARY_COLUMNS])
    write_text(path, table.to_csv(index=False, na_rep="nan", lineterminator="\n"))


def summary_table(fits: Sequence[ExponentFit]) -> Table:
    """The fits as a table for a terminal, one row per variant and statistic: exponent, interval and what they mean."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    def plain(value: float) -> str:
        return "-" if math.isnan(value) else f"{round(value, 2) + 0.0:.2f}"

    level = f"{100 * fits[0].confidence:g} % interval" if fits else "interval"
    seeds = sorted({fit.seeds for fit in fits})
    of = f", {seeds[0]} seeds" if len(seeds) == 1 else f", {seeds[0]} to {seeds[-1]} seeds" if seeds else ""
    # Light enough for the sentences of the last column to fit a terminal of 80 columns.
    table = Table(title=f"Exponent e of statistic ~ n^e{of}", box=box.SIMPLE_HEAD, padding=(0, 1))
    for heading in ("variant", "statistic"):
        table.add_column(heading, no_wrap=True)
    for heading in ("exponent", level):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("as n grows, it")
    previous = None
    for fit in fits:
        if previous not in (None, fit.variant):
            table.add_section()
        table.add_row(
            Text(fit.variant if fit.variant != previous else ""),
            Text(fit.statistic),
            plain(fit.exponent),
            Text("-" if math.isnan(fit.ci_low) else f"[{plain(fit.ci_low)}, {plain(fit.ci_high)}]"),
            fit.growth.value + (f" ({fit.note})" if fit.note else ""),
        )
        previous = fit.variant
    return table


def exponent_table(fits: Sequence[ExponentFit], bounded: Mapping[str, bool]) -> ReportTable:
    """A row per fit: its exponent and interval, also in words. bounded: whether a variant's embeddings are bounded."""
    level = f"{100 * fits[0].confidence:g} %" if fits else "95 %"
    rows = [
        (
            fit.variant,
            boundedness(bounded[fit.variant]),
            fit.statistic,
            fit.growth.value,
            fit.note,
            DASH if math.isnan(fit.exponent) else signed(fit.exponent, 3),
            fit.interval(3) or DASH,
            str(fit.points),
            str(fit.seeds),
        )
        for fit in fits
    ]
    return ReportTable(
        caption=(
            "Exponent e of statistic ~ n^e: the mean over seeds of the log-log slope, with Student's "
            f"{level} interval over seeds. The file summary.csv has every digit."
        ),
        header=(
            *("variant", "embeddings", "statistic", "as n grows, it", "note"),
            *("exponent", f"{level} interval", "points", "seeds"),
        ),
        rows=rows,
        numeric=4,
    )


def variant_table(data: SweepData) -> ReportTable:
    """What each variant is, whether it satisfies Lemma 5's condition on position embeddings, and what is measured."""
    rows = [
        (
            variant.name,
            variant.description,
            weights(variant),
            boundedness(variant.bounded),
            variant.outputs or DASH,
        )
        for variant in data.variants
    ]
    header = ("variant", "what it is", "weights", "position embeddings", "measured in the output")
    return ReportTable("", header, rows)


def points_table(data: SweepData) -> ReportTable:
    """Every point with its statistics to four digits."""
    columns = [*data.points.columns]
    rows = [
        tuple(f"{value:.4g}" if isinstance(value, float) else str(value) for value in row)
        for row in data.points.itertuples(index=False)
    ]
    caption = f"All {len(rows)} points (points.csv has every digit)"
    return ReportTable(caption, tuple(columns), rows, numeric=len(columns) - 1, collapsed=True)


def run_table(data: SweepData) -> ReportTable:
    """What was run and on what. Values that differ between points are listed with the number of points of each."""
    points = data.metadata
    seconds = sum(point.seconds for point in points)
    names = sorted({name for point in points for name in point.versions})
    rows = [
        ("points", f"{len(points)} of {len(data.plan.points)} planned"),
        ("missing", missing_text(data.missing) or "none"),
        (
            "flips",
            flips_text(sum(point.flips for point in points), sum(point.population for point in points)),
        ),
        ("computing time", f"{duration(seconds)}, summed over points"),
        ("device", _tally(point.device for point in points)),
        ("number format", _tally(point.dtype for point in points)),
        ("matrix-product precision", _tally(point.precision for point in points)),
        ("engine", _tally(f"{point.engine['name']} ({point.engine['reason']})" for point in points)),
        *((name, _tally(point.versions.get(name, "not recorded") for point in points)) for name in names),
    ]
    return ReportTable("", (), rows)


def missing_text(missing: Sequence[PointKey]) -> str:
    """The missing points by variant and length: "softmax n = 64 (seeds 1, 2)". Lists at most ten of these."""
    groups: dict[tuple[str, int], list[int]] = {}
    for variant, n, seed in missing:
        groups.setdefault((variant, n), []).append(seed)
    listed = [
        f"{variant} n = {n} (seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, sorted(seeds)))})"
        for (variant, n), seeds in groups.items()
    ]
    if len(listed) > 10:
        listed[9:] = [f"and {len(listed) - 9} more lengths of variants"]
    return "; ".join(listed)


def duration(seconds: float) -> str:
    """A time for a reader: "3.2 s", "4 min 05 s" or "2 h 10 min"."""
    if round(seconds, 1) < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def flips_text(measured: int, population: int) -> str:
    """How many flips were measured, and of how many if these are random samples."""
    return (
        f"all {measured:,}" if measured == population else f"random samples: {measured:,} of {population:,}"
    )


def boundedness(bounded: bool) -> str:
    """Whether position embeddings stay bounded as n grows, as a word."""
    return "bounded" if bounded else "unbounded"


def _tally(values: Iterable[str]) -> str:
    counts = Counter(values)
    if len(counts) == 1:
        return next(iter(counts))
    return "; ".join(f"{value} (\N{MULTIPLICATION SIGN}{count})" for value, count in counts.most_common())
