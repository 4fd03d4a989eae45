"""How figures look, and panels of lines: the records that describe a line plot, and how they are drawn.

A plot is a list of `Panel`s; a further line, such as a theoretical bound, is one more `Line` or `Guide` in it.
"""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib import ticker
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.path import Path as Outline
from matplotlib.transforms import ScaledTranslation, blended_transform_factory

from jaxsens.core.report.data import Spread

# Okabe and Ito's palette, safe for colour-blind readers, with a dark brown for its yellow (too light on white).
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000", "#E69F00", "#56B4E9", "#661100")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", "*")
DASHES = ((6, 2), (1.5, 1.5), (7, 2, 1.5, 2), (3, 1.5), (7, 2, 1, 2, 1, 2), (10, 3), (4, 2, 1, 2), (1, 3))
LINESTYLES = ("-", *((0, dashes) for dashes in DASHES))
GREY = "#767676"

ZERO_LABEL = "exactly 0"

DECADES = 15
"""Powers of ten that a logarithmic axis spans; what is smaller is drawn in its strip, with zeros."""

SMALL: dict[str, Any] = {"columns": 3, "width": 4.3, "share_legend": True}
"""The layout of many panels whose lines are the same."""


@dataclass(frozen=True)
class Shape:
    """How wide a figure is.

    Attributes:
        columns: the largest number of panels side by side; None for what suits the figure.
        width: of the figure in inches; None for what suits the figure.
        size: of its text in points.
    """

    columns: int | None = None
    width: float | None = None
    size: float = 10.0


PAGE, NARROW = Shape(), Shape(columns=1)
"""Of a page, and of a page on a narrow screen."""

SHAPES = {"page": PAGE, "one": Shape(1, 3.25, 7.5), "two": Shape(None, 6.75, 7.5)}
"""Of the page, and of one column and of two columns of a paper."""

_UP = [(0, 0.3), (0, 1), (-0.2, 0.7), (0, 1), (0.2, 0.7)]
ARROWS = {
    "lower bound": Outline(_UP, [Outline.MOVETO, *[Outline.LINETO] * 4]),
    **dict.fromkeys(
        ("upper bound", "at most"),
        Outline([(x, -y) for x, y in _UP], [Outline.MOVETO, *[Outline.LINETO] * 4]),
    ),
}
"""Arrows that leave room for the marker they start from."""

_SETTINGS: dict[Any, Any] = {
    "svg.hashsalt": "jaxsens",  # otherwise the ids inside an SVG are random
    "pdf.fonttype": 42,  # publishers refuse Type 3
    "axes.formatter.min_exponent": 4,  # labels between 0.0001 and 10000 are plain numbers
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlelocation": "left",
    "axes.titlesize": "large",
    "axes.titleweight": "bold",
    "axes.unicode_minus": True,
    "legend.frameon": False,
}

_METADATA: dict[str, dict[str, Any]] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {}}


class LineStyle(NamedTuple):
    """How one line is drawn. Colour, marker and dashes, as `linestyle`, each distinguish lines on their own."""

    colour: str
    marker: str
    linestyle: Any


@dataclass(frozen=True)
class Line:
    """One line with its spread over seeds, by position on the horizontal axis.

    A NaN breaks the line, and an exact 0 is drawn as such. Markers at the positions in `hollow` are not filled. From
    those in `bounds` an arrow points up, for a "lower bound", or down, for an "upper bound" and for "at most": a value
    that is not resolved, which no line joins to others. The error bars in `intervals` are drawn with caps; an infinite
    end goes to the edge of the axes.
    """

    label: str
    style: LineStyle
    values: Mapping[int, Spread] | Mapping[float, Spread]
    hollow: frozenset[float] = frozenset()
    intervals: Mapping[float, tuple[float, float]] = field(default_factory=dict)
    bounds: Mapping[float, str] = field(default_factory=dict)

    @property
    def blurred(self) -> frozenset[float]:
        """The positions at which the value is not resolved."""
        return frozenset(n for n, kind in self.bounds.items() if kind == "at most")


@dataclass(frozen=True)
class Guide:
    """A thin grey line to compare with, named at its right end."""

    label: str
    x: Sequence[float]
    y: Sequence[float]


@dataclass(frozen=True)
class Panel:
    """One set of axes over the input length, which is on a logarithmic axis.

    Attributes:
        title: what is plotted.
        y_label, x_label: of the axes.
        lines, guides: what is drawn.
        ticks: the lengths to mark on the horizontal axis.
        log: whether the vertical axis is logarithmic too.
        tick_names: what to write at a tick instead of its number.
    """

    title: str
    y_label: str
    lines: Sequence[Line]
    ticks: Sequence[float]
    guides: Sequence[Guide] = ()
    x_label: str = "input length n (symbols)"
    log: bool = True
    tick_names: Mapping[float, str] = field(default_factory=dict)


def line_style(k: int) -> LineStyle:
    """The style of the k-th line of a figure."""
    return LineStyle(COLOURS[k % len(COLOURS)], MARKERS[k % len(MARKERS)], LINESTYLES[k % len(LINESTYLES)])


def variant_styles(variants: Iterable[str]) -> dict[str, LineStyle]:
    """One style per variant, by its place in `variants`: pass the same order for every figure of a report."""
    return {variant: line_style(k) for k, variant in enumerate(dict.fromkeys(variants))}


@contextmanager
def figure_settings(size: float = 10.0) -> Iterator[None]:
    """Within the block, Matplotlib's defaults with this package's settings, whatever the user's settings are.

    size: of texts in points; markers go with it.
    """
    look: dict[Any, Any] = {"font.size": size, "legend.fontsize": 0.95 * size}
    look |= {"lines.markersize": 0.55 * size, "lines.linewidth": 0.16 * size}
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_SETTINGS | look)
        yield


@contextmanager
def grid(
    heading: str,
    count: int,
    columns: int,
    size: tuple[float, float],
    margin: tuple[float, float] = (0.0, 0.0),
    shape: Shape = PAGE,
    texts: float = 0.0,
    **shared: Any,
) -> Iterator[tuple[Figure, list[Axes]]]:
    """Yields a new figure and its axes, row by row, to draw on; then adds the heading and lays all out.

    Args:
        heading: empty for none.
        count: of the axes.
        columns: the largest number of axes in a row.
        size: width and height of one set of axes in inches, labels included.
        margin: what the figure has besides.
        shape: how wide the figure is. In a given width, axes are lower too, down to two thirds.
        texts: the height of the texts above and below one set of axes, beyond `size`.
        shared: as `Figure.subplots` takes it.
    """
    columns = min(columns, count, shape.columns or count)
    rows = math.ceil(count / columns)
    width = size[0] * columns + margin[0]
    lower = 1.0 if shape.width is None else max(0.65, shape.width / width)
    height = rows * size[1] * lower + (rows * texts + margin[1]) * shape.size / PAGE.size
    with figure_settings(shape.size):
        layout = ConstrainedLayoutEngine()
        figure = Figure(figsize=(shape.width or width, height), layout=layout)
        places = figure.subplots(rows, columns, squeeze=False, **shared).flat
        for axes in places[count:]:
            axes.set_visible(False)
        yield figure, list(places[:count])
        if heading:
            add_heading(figure, heading)
        for axes in figure.axes:  # else marks are chosen by the size that is set where the figure is written
            axes.tick_params(labelsize=shape.size)
        layout.execute(figure)
        figure.set_layout_engine(None)  # else each file would be drawn twice, to lay it out again


def add_heading(figure: Figure, text: str) -> None:
    """Adds a heading at the upper left, wrapped to the width of the figure."""
    characters_per_inch = 7.3  # of bold text at 14 points
    lines = textwrap.wrap(text, int(characters_per_inch * figure.get_figwidth()))
    figure.suptitle("\n".join(lines), x=0.01, horizontalalignment="left", fontsize=14, fontweight="bold")


def figure_bytes(figure: Figure, format: str, *, outlines: bool = False, dpi: int = 150) -> bytes:
    """The figure as a file. The same figure gives the same bytes: there is no date and no random id.

    Args:
        figure: what is drawn.
        format: "svg", "png" or "pdf".
        outlines: whether an SVG has outlines in place of text, for readers that lack the font.
        dpi: of a PNG.
    """
    content = io.BytesIO()
    with figure_settings():
        matplotlib.rcParams["svg.fonttype"] = "path" if outlines else "none"
        figure.savefig(content, format=format, dpi=dpi, metadata=_METADATA[format])
    return content.getvalue()


def draw_panels(
    panels: Sequence[Panel],
    shape: Shape = PAGE,
    *,
    columns: int = 2,
    width: float = 5.6,
    height: float = 3.6,
    share_legend: bool = False,
    share_y: bool = True,
) -> Figure:
    """Draws the panels in a grid.

    Args:
        panels: at least one.
        shape: how wide the figure is.
        columns: the largest number of panels in a row.
        width: of one panel in inches, its labels included.
        height: of its axes in inches; titles and legend need more.
        share_legend: draw the first panel's legend below the grid, for panels whose lines are the same.
        share_y: whether panels share their vertical extent if all of them are linear.
    """
    share_y = share_y and not any(panel.log for panel in panels)
    columns = min(columns, len(panels), shape.columns or len(panels))
    room = int(120 * (shape.width or width * columns) / columns / shape.size) - 7  # characters in a legend
    fill = textwrap.TextWrapper(room, break_on_hyphens=False).fill
    panels = [
        replace(one, lines=[replace(line, label=fill(line.label)) for line in one.lines]) for one in panels
    ]
    legend_lines = max(sum(1 + line.label.count("\n") for line in panel.lines) for panel in panels)
    texts = 0.75 + (0 if share_legend else 0.23 * legend_lines)
    handles = [legend_handle(line.label, line.style) for line in panels[0].lines] if share_legend else []
    beside = 2 * columns - 1
    margin = (0.0, 0.25 + 0.2 * math.ceil(len(handles) / beside) if share_legend else 0.0)
    layout = (margin, shape, texts)
    with grid("", len(panels), columns, (width, height), *layout, sharey=share_y) as (figure, places):
        for k, (axes, panel) in enumerate(zip(places, panels, strict=True)):
            draw_panel(axes, panel, panel.title)
            if (share_y or share_legend) and k % columns:
                axes.set_ylabel("")
            if not share_legend:
                panel_legend(axes, panel, None if shape.width is None else k % columns / columns)
        if share_legend:
            legend_below(figure, handles, beside)
    return figure


def draw_panel(axes: Axes, panel: Panel, title: str) -> None:
    """Draws everything but the legend. title: empty for none."""
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(ticker.FixedLocator(list(panel.ticks), nbins=8))
    axes.xaxis.set_minor_locator(ticker.NullLocator())
    axes.xaxis.set_major_formatter(ticker.FuncFormatter(lambda n, _: panel.tick_names.get(n, f"{n:g}")))
    axes.set_xlabel(panel.x_label)
    axes.set_ylabel(panel.y_label)
    axes.set_title(title)
    if panel.log:
        _set_log_axis(axes, panel)
    for guide in panel.guides:
        axes.plot(guide.x, guide.y, color="#a6a6a6", linewidth=0.9, zorder=1)
        end, look = (guide.x[-1], guide.y[-1]), {"color": GREY, "annotation_clip": False}
        axes.annotate(guide.label, end, (9, 0), textcoords="offset points", va="center", size="small", **look)
    # The markers of one length stand side by side: otherwise their spreads would hide one another.
    step = min(0.011, 0.5 / (len(panel.lines) * max(1, len(panel.ticks) - 1))) if panel.lines else 0
    for k, line in enumerate(panel.lines):
        shift = step * (k - (len(panel.lines) - 1) / 2)
        _draw_line(axes, line, (max(panel.ticks) / min(panel.ticks)) ** shift)


def _set_log_axis(axes: Axes, panel: Panel) -> None:
    """A logarithmic axis, and a grey strip below for exact zeros and for values out of sight, if there are any."""
    values = [
        number for line in panel.lines for v in line.values.values() for number in (v.low, v.median, v.high)
    ]
    bars = [end for line in panel.lines for interval in line.intervals.values() for end in interval]
    guides = [y for guide in panel.guides for y in guide.y]
    positive = [number for number in (*values, *bars, *guides) if 0 < number < math.inf] or [0.125, 0.8]
    in_sight = [number for number in positive if number >= max(positive) * 10.0**-DECADES]
    low, high, hidden = min(in_sight) / 1.25, max(positive) * 1.25, len(in_sight) < len(positive)
    strip, clear = hidden or 0 in values, low
    if strip:
        # Linear below `low`, where nothing but zeros is: the strip from -low to low takes a tenth of the axis.
        axes.set_yscale("symlog", linthresh=low, linscale=math.log10(high / low) / 20)
        axes.axhspan(-low, low, color="#efefef", linewidth=0, zorder=0)
        clear = low * (high / low) ** 0.05  # of the label of 0
    else:
        axes.set_yscale("log")
    axes.set_ylim(-low if strip else low, high)
    zero = f"below {low:.2g}" if hidden else ZERO_LABEL
    labels = ({0.0: zero} if strip else {}) | log_marks(low, high, clear)
    axes.set_yticks([*labels], [*labels.values()])
    axes.yaxis.set_minor_locator(ticker.NullLocator())


def log_marks(low: float, high: float, least: float = 0.0) -> dict[float, str]:
    """The values from `least` on to mark on a logarithmic axis, with their labels."""
    powers = ticker.LogLocator(subs=(1.0,) if high > 100 * low else (1.0, 2.0, 5.0), numticks=8)
    locator = powers if high > 5 * low else ticker.MaxNLocator(5, steps=[1, 2, 5, 10])
    label = ticker.LogFormatterSciNotation(minor_thresholds=(math.inf, math.inf))  # labels every mark
    marks = [float(mark) for mark in locator.tick_values(low, high) if max(low, least) <= mark <= high]
    with figure_settings():
        return {mark: label(mark) for mark in marks}


def _draw_line(axes: Axes, line: Line, factor: float) -> None:
    """factor: by which the line is moved to the right."""
    style, lengths = line.style, np.array([*line.values], dtype=np.float64)
    median, low, high, _ = np.array([*line.values.values()], dtype=np.float64).reshape(-1, 4).T
    x = lengths * factor
    axes.vlines(x, low, high, color=style.colour, linewidth=1.1, alpha=0.65, zorder=2)
    if line.intervals:  # cut at the edges of the axes: an end may be infinite, or 0 on a logarithmic axis
        edges = axes.get_ylim() if axes.get_yscale() != "linear" else (-math.inf, math.inf)
        at, ends = np.array([*line.intervals]) * factor, np.array([*line.intervals.values()], np.float64).T
        cut = np.clip(ends, *edges)
        axes.vlines(at, *cut, color=style.colour, linewidth=0.9, zorder=2)
        caps = np.where(cut == ends, cut, np.nan)
        axes.plot(at, caps.T, "_", color=style.colour, markersize=7, zorder=2)
    joined = np.where(np.isin(lengths, list(line.blurred)), np.nan, median)
    axes.plot(x, joined, color=style.colour, linestyle=style.linestyle, zorder=3)
    filled = {"markerfacecolor": style.colour, "markeredgecolor": "white", "markeredgewidth": 0.6}
    hollow = {"markerfacecolor": "white", "markeredgecolor": style.colour, "markeredgewidth": 1.3}
    is_hollow = np.isin(lengths, list(line.hollow))
    common: dict[str, Any] = {"color": style.colour, "marker": style.marker, "linestyle": "none"}
    for chosen, look in ((~is_hollow, filled), (is_hollow, hollow)):
        if chosen.any():
            axes.plot(x[chosen], median[chosen], zorder=4, **common, **look)
    for kind, arrow in ARROWS.items():
        chosen = np.array([line.bounds.get(n) == kind for n in lengths.tolist()], bool)
        if chosen.any():
            size = 5.5 * matplotlib.rcParams["lines.markersize"]
            own = {**common, "marker": arrow, "markerfacecolor": "none", "markersize": size}
            axes.plot(x[chosen], median[chosen], zorder=4, markeredgewidth=1.1, **own)


def panel_legend(axes: Axes, panel: Panel, left: float | None = None, **look: Any) -> None:
    """Adds the legend of a panel below its axes, from their left edge on, or from `left`, a share of the width of the
    figure: there a wide legend leaves the axes their width. look: as `Axes.legend` takes it."""
    lines_below = -4 * matplotlib.rcParams["font.size"] / 72  # clear of the axis label, at any height
    below = ScaledTranslation(0, lines_below, axes.figure.dpi_scale_trans)
    across = axes.transAxes if left is None else axes.figure.transFigure
    axes.legend(
        handles=[legend_handle(line.label, line.style) for line in panel.lines],
        bbox_transform=blended_transform_factory(across, axes.transAxes) + below,
        borderaxespad=0,
        **{"loc": "upper left", "bbox_to_anchor": (left or 0, 0), "handlelength": 4.5} | look,
    )


def legend_below(figure: Figure, handles: Sequence[Line2D], columns: int) -> None:
    """Adds one legend of all panels of a figure, below them, in at most so many columns, and no more than fit."""
    for number in range(min(columns, len(handles)), 0, -1):
        legend = figure.legend(handles=handles, loc="outside lower center", ncols=number, handlelength=4.5)
        if number == 1 or legend.get_window_extent().width <= figure.bbox.width:
            break
        legend.remove()


def legend_handle(label: str, style: LineStyle, **changes: Any) -> Line2D:
    """A line of a legend. changes: of its look, as `Line2D` takes it."""
    look = {"marker": style.marker, "linestyle": style.linestyle}
    return Line2D([], [], label=label, color=style.colour, **(look | changes))
