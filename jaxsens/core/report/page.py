"""What a report's page is made of: tables as rows of text, and sections; and the page, one self-contained HTML file."""

from __future__ import annotations

import base64
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from matplotlib.figure import Figure

from jaxsens.core.base.files import write_bytes, write_text
from jaxsens.core.base.stopping import check
from jaxsens.core.base.text import duration
from jaxsens.core.report.data import SweepData, text
from jaxsens.core.report.figures import ReportFigure
from jaxsens.core.report.fits import LEVEL, SUMMARY_COLUMNS, ExponentFit, signed
from jaxsens.core.report.panels import SHAPES, figure_bytes
from jaxsens.core.results.picture import page_template
from jaxsens.core.sweeps.job import write_table
from jaxsens.core.sweeps.sweep import PlannedVariant, row_of

T = TypeVar("T")

LOCAL_COLUMNS = ("low", "high", "slope", "ci_low", "ci_high", "seeds")
"""The columns of local_slopes.csv, after variant and statistic: between the lengths `low` and `high`."""

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


def table_of(
    caption: str, items: Iterable[T], columns: Mapping[str, Callable[[T], str]], **options: Any
) -> ReportTable:
    """A table of a row for each item, by what its columns are called and say of an item. See `ReportTable`."""
    rows = [tuple(cell(item) for cell in columns.values()) for item in items]
    return ReportTable(caption, tuple(columns), rows, **options)


@dataclass(frozen=True)
class Section:
    """A part of the report under one heading. Whatever is empty is left out."""

    heading: str
    paragraphs: Sequence[str] = ()
    bullets: Sequence[str] = ()
    figures: Sequence[ReportFigure] = ()
    tables: Sequence[ReportTable] = ()
    code: str = ""


@dataclass(frozen=True)
class Report:
    """The content of a page.

    Attributes:
        title: of the page.
        claim: what the experiment is to show; may be empty.
        introduction: its paragraphs.
        warning: what is incomplete; empty if nothing is missing.
        sections: in order.
    """

    title: str
    claim: str
    introduction: Sequence[str]
    warning: str
    sections: Sequence[Section]

    @property
    def figures(self) -> tuple[ReportFigure, ...]:
        """All figures, in order."""
        return tuple(figure for section in self.sections for figure in section.figures)


def write_page(report: Report, folder: Path, format: str = "svg", width: str = "page") -> Path:
    """Writes figures/NAME.FORMAT and report.html into a folder, each atomically; returns the page's path. The page
    needs no other file, no network and no script.

    Args:
        report: what the page says.
        folder: where.
        format: of the files in figures/.
        width: of the files in figures/, as a key of `SHAPES`.
    """
    sources, narrow = {}, {}
    for figure in report.figures:
        check()
        drawing = figure.figure if width == "page" else figure.draw(SHAPES[width])
        write_bytes(folder / "figures" / f"{figure.name}.{format}", figure_bytes(drawing, format))
        sources[figure.name] = _source(figure.figure)
        if (stacked := figure.narrow) is not None:
            narrow[figure.name] = _source(stacked)
    page, template = folder / "report.html", page_template("jaxsens.core.report", "report.html")
    write_text(page, template.render(report=report, sources=sources, narrow=narrow, format=format))
    return page


def _source(figure: Figure) -> str:
    """A drawing as the source of an image: on the page, each is an image of its own, so that ids cannot clash."""
    drawing = base64.b64encode(figure_bytes(figure, "svg", outlines=True))
    return f"data:image/svg+xml;base64,{drawing.decode('ascii')}"


def write_fits(folder: Path, fits: Sequence[ExponentFit]) -> None:
    """Writes summary.csv, a row per fit, and local_slopes.csv, a row per fit and pair of successive lengths, each
    atomically: floats with every digit, `nan` where there is no value."""
    rows = [row_of(fit, SUMMARY_COLUMNS) for fit in fits]
    write_table(folder / "summary.csv", SUMMARY_COLUMNS, rows, missing="nan")
    name = ("variant", "statistic")
    local = [row_of(fit, name) | row_of(one, LOCAL_COLUMNS) for fit in fits for one in fit.local]
    write_table(folder / "local_slopes.csv", (*name, *LOCAL_COLUMNS), local, missing="nan")


def exponent_table(fits: Sequence[ExponentFit]) -> ReportTable:
    """A row per fit: its exponent and interval, also in words."""
    columns: dict[str, Callable[[ExponentFit], str]] = {
        "variant": lambda fit: fit.variant,
        "statistic": lambda fit: fit.statistic,
        "as n grows, it": lambda fit: fit.growth.value,
        "note": lambda fit: fit.note,
        "exponent": lambda fit: DASH if math.isnan(fit.exponent) else signed(fit.exponent, 3),
        f"{LEVEL} interval": lambda fit: fit.interval(3) or DASH,
        "points": lambda fit: str(fit.points),
        "seeds": lambda fit: str(fit.seeds),
    }
    return table_of(text("table-of-exponents", level=LEVEL), fits, columns, numeric=4)


def variant_table(data: SweepData) -> ReportTable:
    """What each variant is, whether it satisfies Lemma 5's conditions, and what is measured of it."""
    columns: dict[str, Callable[[PlannedVariant], str]] = {
        "variant": lambda variant: variant.name,
        "what it is": lambda variant: variant.description,
        "weights": lambda variant: variant.weights,
        "temperature": lambda variant: variant.temperature or DASH,
        "position embeddings": lambda variant: {None: DASH, True: "bounded", False: "unbounded"}[
            variant.bounded
        ],
        "measured in the output": lambda variant: variant.outputs or DASH,
    }
    return table_of("", data.variants, columns)


def run_table(data: SweepData) -> ReportTable:
    """What was run and on what. Values that differ between points are listed with the number of points of each."""
    points = data.metadata
    seconds = sum(point.seconds for point in points)
    flips, population = (sum(getattr(point, name) for point in points) for name in ("flips", "population"))
    names = sorted({name for point in points for name in point.versions})
    rows = [
        ("points", f"{len(points)} of {len(data.plan.points)} planned"),
        ("flips", f"random samples: {flips:,} of {population:,}" if flips < population else f"all {flips:,}"),
        ("computing time", f"{duration(seconds)}, summed over points"),
        ("device", _tally(": ".join(dict.fromkeys(point.device.split(": "))) for point in points)),
        ("number format", _tally(point.dtype for point in points)),
        ("matrix-product precision", _tally(point.precision for point in points)),
        ("engine", _tally((f"{point.engine['name']} ({point.engine['reason']})" for point in points), "\n")),
        *((name, _tally(point.versions.get(name, "not recorded") for point in points)) for name in names),
    ]
    return ReportTable("", (), rows)


def _tally(values: Iterable[str], between: str = "; ") -> str:
    counts = Counter(values)
    if len(counts) == 1:
        return next(iter(counts))
    return between.join(f"{value} (\N{MULTIPLICATION SIGN}{count})" for value, count in counts.most_common())
