"""What a report's page is made of: figures from the table of points, the fits and the profiles; tables as rows of text;
sections; and the page, one self-contained HTML file.
"""

from __future__ import annotations

import base64
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pandas
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from jaxsens.core.base.errors import rule_for
from jaxsens.core.base.files import write_bytes, write_text
from jaxsens.core.base.stopping import check
from jaxsens.core.base.text import duration
from jaxsens.core.measures import Measure
from jaxsens.core.report.data import Profiles, Spread, SweepData, spreads, text
from jaxsens.core.report.fits import (
    LEVEL,
    SUMMARY_COLUMNS,
    ExponentFit,
    Growth,
    enumeration,
    signed,
    statistic_name,
    summary_sentence,
)
from jaxsens.core.report.panels import (
    NARROW,
    PAGE,
    SHAPES,
    SMALL,
    Guide,
    Line,
    LineStyle,
    Panel,
    Shape,
    draw_panels,
    figure_bytes,
    grid,
    log_marks,
    variant_styles,
)
from jaxsens.core.results.picture import page_template
from jaxsens.core.sweeps.job import write_table
from jaxsens.core.sweeps.points import OF_DECISIONS, PER_POSITION, STATUS_COLUMN
from jaxsens.core.sweeps.sweep import PlannedVariant, row_of

COLOUR_MAP = "viridis_r"
"""Lighter means less, in black and white and for colour-blind readers too."""

DECADES = 6
"""The colour scale spans at most this many powers of ten below the largest value."""


@dataclass(frozen=True)
class ReportFigure:
    """A figure with what a report needs to show it.

    Attributes:
        name: of its files, without an ending.
        heading: what it asks; may be empty.
        caption: how to read it.
        description: what it shows, for readers who cannot see it.
        draw: makes the drawing in a shape.
        panels: the number of panels that stand below one another where there is little room.
        turns_dark: whether the page may invert its lightness in dark mode; not if its colours mean lightness.
    """

    name: str
    heading: str
    caption: str
    description: str
    draw: Callable[[Shape], Figure]
    panels: int = 1
    turns_dark: bool = True

    @cached_property
    def figure(self) -> Figure:
        """The drawing of the page, made at the first use and cached."""
        return self.draw(PAGE)

    @property
    def narrow(self) -> Figure | None:
        """The drawing for narrow screens; None if the one of the page does."""
        return self.draw(NARROW) if self.panels > 1 else None


def panel_figure(
    name: str, caption: Iterable[str], description: str, panels: Sequence[Panel], heading: str, **layout: Any
) -> ReportFigure:
    """A figure of panels. caption: its sentences; empty ones are left out. layout: as `draw_panels` takes it."""
    draw = partial(draw_panels, panels, **layout)
    return ReportFigure(name, heading, " ".join(filter(None, caption)), description, draw, len(panels))


def sensitivity_figure(
    points: pandas.DataFrame, fits: Sequence[ExponentFit], *, statistics: Sequence[str], norm: str = "l2"
) -> ReportFigure:
    """Statistics against input length, log-log: a panel per statistic, a line per variant, exponents in the legend.

    Args:
        points: a table with the columns of points.csv.
        fits: of every variant and every statistic in `statistics`.
        statistics: which ones.
        norm: of the change of the output: "l1", "l2" or "linf".
    """
    panels = []
    for statistic in statistics:
        of_statistic = [fit for fit in fits if fit.statistic == statistic]
        labels = {fit.variant: f"{fit.variant}:  {fitted_power(fit)}" for fit in of_statistic}
        panels.append(sensitivity_panel(points, labels, statistic=statistic, norm=norm))
    caption = text("sensitivity", level=LEVEL, spread=text("spread"), strip=text("strip"))
    description = " ".join(summary_sentence(fits, statistic) for statistic in statistics)
    one_of_decisions = any(statistic in OF_DECISIONS for statistic in statistics)
    asks = (
        "often does a flip change the decision" if one_of_decisions else "much does a flip change the output"
    )
    return panel_figure("sensitivity", [caption, *about_inexact(panels)], description, panels, f"How {asks}?")


def about_inexact(panels: Iterable[Panel]) -> list[str]:
    """What hollow markers, error bars and arrows mean, where there are any."""
    lines = [line for panel in panels for line in panel.lines]
    kinds = {kind for line in lines for kind in line.bounds.values()}
    needed = {
        "hollow-markers": any(line.hollow - line.blurred for line in lines),
        "intervals": any(line.intervals for line in lines),
        "arrows": bool(kinds - {"at most"}),
        "at-most": "at most" in kinds,
    }
    return [text(name, level=LEVEL) for name, has in needed.items() if has]


def measured_line(
    points: pandas.DataFrame, variant: str, statistic: str, label: str, style: LineStyle
) -> Line:
    """A statistic of a variant against input length, with what is not exact marked. The intervals are those of the mean
    of points estimated to first order, from the lowest to the highest end over seeds."""
    column, values = STATUS_COLUMN.format(statistic), spreads(points, variant, statistic)
    if column not in points.columns:
        return Line(label, style, values)
    rows, intervals = points[points["variant"] == variant], dict[float, tuple[float, float]]()
    status = {float(n): str(kind) for n, kind in zip(rows["n"], rows[column], strict=True) if kind != "exact"}
    if statistic == "mean" and "mean_low" in points.columns:
        ends = rows.query("mean_low.notna()").groupby("n").agg({"mean_low": "min", "mean_high": "max"})
        intervals = {float(n): (float(low), float(high)) for n, low, high in ends.itertuples()}
    bounds = {n: kind for n, kind in status.items() if kind != "estimated"}
    return Line(label, style, values, frozenset(status), intervals, bounds)


def sensitivity_panel(
    points: pandas.DataFrame, labels: Mapping[str, str], *, statistic: str, norm: str = "l2"
) -> Panel:
    """One statistic against input length: a line for each variant that has a label, in the style that the variant has
    among all variants of `points`."""
    styles = variant_styles(points["variant"])
    lines = [
        measured_line(points, variant, statistic, label, styles[variant]) for variant, label in labels.items()
    ]
    lengths = sorted({int(n) for n in points["n"]})
    title, each = statistic_name(statistic), " per position" if statistic == PER_POSITION else ""
    which = title.removesuffix("change over all flips")
    return Panel(
        title=title[:1].upper() + title[1:],
        y_label=change_label(norm, which) if statistic not in OF_DECISIONS else f"number of flips{each}",
        lines=lines,
        guides=powers(lines, (lengths[0], lengths[-1]), slopes_of(statistic)),
        ticks=lengths,
    )


def local_slope_figure(
    fits: Sequence[ExponentFit], *, statistics: Sequence[str], lengths: Sequence[int]
) -> ReportFigure:
    """Slopes between successive lengths, with their intervals: a panel per variant, a line per statistic."""
    ends, slopes = (lengths[0], lengths[-1]), {(fit.variant, fit.statistic): fit.local for fit in fits}
    guides = (Guide("constant", ends, (0, 0)), Guide("1/n", ends, (-1, -1)))
    panels, variants = [], [*dict.fromkeys(fit.variant for fit in fits)]
    for variant in variants:
        lines = []
        for statistic, style in variant_styles(statistics).items():
            values = {
                math.sqrt(one.low * one.high): Spread(one.slope, one.ci_low, one.ci_high, one.seeds)
                for one in slopes[variant, statistic]
            }
            lines.append(Line(statistic_name(statistic), style, values))
        panels.append(Panel(variant, "local exponent of n", lines, lengths, guides, log=False))
    return panel_figure(
        "local-slopes",
        [text("local-slopes", level=LEVEL)],
        f"Slopes between successive lengths for {enumeration(variants)}.",
        panels,
        "Does one power of n describe the whole range? Slopes from each length to the next",
        **SMALL,
        height=2.3,
    )


def profile_figure(profiles: Profiles, variants: Sequence[str], *, norm: str = "l2") -> ReportFigure:
    """A heat map per variant, in the order of `variants`: a row per length, on one common logarithmic colour scale.

    Args:
        profiles: at least one.
        variants: those without a profile are left out.
        norm: of the change of the output: "l1", "l2" or "linf".
    """
    drawn = [variant for variant in variants if any(variant == name for name, _ in profiles)]
    return ReportFigure(
        name="profiles",
        heading="Where in the input does a flip change the output?",
        caption=text("profiles"),
        description=f"Sensitivity by position and input length for {enumeration(drawn)}.",
        draw=partial(_draw_profiles, profiles, drawn, norm),
        panels=len(drawn),
        turns_dark=False,
    )


def _draw_profiles(profiles: Profiles, drawn: Sequence[str], norm: str, shape: Shape) -> Figure:
    positive = np.concatenate([means[means > 0] for means in profiles.values()])
    colours, clipped = None, False
    if positive.size:  # up to the largest mean, and down to the smallest within `DECADES`
        low, high = float(positive.min()), float(positive.max())
        clipped = low < high * 10.0**-DECADES
        ends = (max(low, high * 10.0**-DECADES), high) if low < high else (low / 2, high * 2)
        colours = LogNorm(*ends)
    grey, white = "#8c8c8c", "white"
    exactly_zero: dict[str, Any] = {"facecolor": white, "edgecolor": grey, "linewidth": 0, "hatch": "////"}
    with grid("", len(drawn), 3, (4.2, 2.9), (0.9, 0.3), shape) as (figure, places):
        for axes, variant in zip(places, drawn, strict=True):
            axes.set_title(variant)
            rows = {n: means for (name, n), means in profiles.items() if name == variant}
            for row, means in enumerate(rows.values()):
                edges = np.linspace(0, 1, means.size + 1)
                if colours is not None:
                    shown = np.ma.masked_where(~(means > 0), means)[None]
                    look: dict[str, Any] = {"norm": colours, "cmap": COLOUR_MAP, "rasterized": True}
                    axes.pcolormesh(edges, np.array([row, row + 1]), shown, **look)
                zeros = [(edges[k], edges[k + 1] - edges[k]) for k in np.flatnonzero(means == 0)]
                axes.broken_barh(zeros, (row, 1), zorder=2, **exactly_zero)  # above meshes: one image of all
            axes.set_yticks(np.arange(len(rows)) + 0.5, [*map(str, rows)])
            axes.set_xticks([0, 0.25, 0.5, 0.75, 1], ["first", "¼", "½", "¾", "last"])
            axes.tick_params(length=0, axis="y")
            axes.set_ylabel("input length n")
            axes.set_xlabel("position of the flipped symbol")
        if colours is not None:
            scale = ScalarMappable(colours, COLOUR_MAP)
            bar = figure.colorbar(
                scale, ax=figure.axes, pad=0.02, aspect=30, extend="min" if clipped else "neither"
            )
            marks = log_marks(*scale.get_clim())
            bar.set_ticks([*marks], labels=[*marks.values()])
            bar.ax.yaxis.set_minor_formatter("")  # its labels would lie beside those of the marks
            bar.set_label(change_label(norm, "mean "))
        figure.legend(
            handles=[
                Patch(label="exactly 0", **exactly_zero),
                Patch(facecolor="white", edgecolor="#c0c0c0", label="not measured, or not resolved"),
            ],
            loc="outside lower center",
            ncols=2,
        )
    return figure


def fitted_power(fit: ExponentFit) -> str:
    """The fitted power of n with its interval, or why there is none, short enough for a legend."""
    if fit.points == 0:
        reasons = {Growth.ZERO: "exactly 0", Growth.LOWER: "lower bounds", Growth.UPPER: "upper bounds"}
        return f"no power of n  ({reasons.get(fit.growth, 'too few values')})"
    if fit.growth is Growth.UNCLEAR:
        return "no clear trend"
    return f"$n^{{{signed(fit.exponent).replace(chr(0x2212), '-')}}}$  {fit.interval()}".rstrip()


def change_label(norm: str, which: str = "") -> str:
    """The measured quantity, for an axis, on two lines. which: as "mean "; a share of flips is none."""
    kind = rule_for("the report", "measure", norm, Measure.kinds)
    return ("" if kind.indicator else which) + kind.label.format("\n")


def slopes_of(statistic: str) -> dict[str, float]:
    """The slopes of a panel's guides with their names: the laws that a statistic is compared with."""
    if statistic == PER_POSITION:
        return {"constant": 0, "1/√n": -0.5, "1/n": -1}
    if statistic in OF_DECISIONS:
        return {"constant": 0, "√n": 0.5, "n": 1}
    return {"constant": 0, "1/n": -1}


def powers(
    lines: Iterable[Line], ends: tuple[float, float], exponents: Mapping[str, float]
) -> tuple[Guide, ...]:
    """Powers of x between two places, from one point at the left end; the highest ends above the largest value there.
    None where nothing is above 0, or with a single place."""
    spreads_between = (value for line in lines for place, value in line.values.items() if place >= ends[0])
    highest = max((value.high for value in spreads_between if value.high > 0), default=0.0)
    if highest == 0 or ends[0] == ends[1]:
        return ()
    growth = ends[1] / ends[0]
    start = 1.3 * highest / growth ** max(0, *exponents.values(), 0)
    return tuple(Guide(name, ends, (start, start * growth**each)) for name, each in exponents.items())


# Tables, sections, and the page

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
        ("device", _tally(point.device for point in points)),
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
