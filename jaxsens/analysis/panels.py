"""Panels of lines: the records a line plot is described with, and how they are drawn.

A plot is a list of `Panel`s; a further line, such as a theoretical bound, is one more `Line` or `Guide` in it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator
from matplotlib.transforms import ScaledTranslation

from jaxsens.analysis.axis_marks import log_marks, minor_log_marks, power_label, thinned
from jaxsens.analysis.points_table import Spread
from jaxsens.analysis.style import GREY, LineStyle, add_heading, figure_settings

ZERO_LABEL = "exactly 0"


@dataclass(frozen=True)
class Line:
    """One line with its spread: `values[k]` at `x[k]`. NaN breaks the line; an exact 0 is drawn as such. The marks at
    the lengths in `hollow` are not filled."""

    label: str
    style: LineStyle
    x: tuple[float, ...]
    values: tuple[Spread, ...]
    hollow: frozenset[float] = frozenset()


@dataclass(frozen=True)
class Guide:
    """A thin grey line to compare with, named at its right end."""

    label: str
    x: tuple[float, ...]
    y: tuple[float, ...]


@dataclass(frozen=True)
class Panel:
    """One set of axes over the input length, which is on a logarithmic axis.

    title: what is plotted. findings: what is seen, one line each, below the title.
    ticks: the lengths to mark on the horizontal axis.
    log: whether the vertical axis is logarithmic too.
    """

    title: str
    y_label: str
    lines: tuple[Line, ...]
    ticks: tuple[int, ...]
    guides: tuple[Guide, ...] = ()
    findings: tuple[str, ...] = ()
    x_label: str = "input length n (symbols)"
    legend_title: str = ""
    log: bool = True


@dataclass(frozen=True)
class _Scale:
    """A logarithmic extent: of the positive values, with a strip for exact zeros below it where there are any."""

    low: float
    high: float
    has_values: bool
    has_zeros: bool

    @property
    def strip(self) -> float:
        """The strip's height as a factor: a tenth of the axis."""
        return (self.high / self.low) ** (1 / 9)

    @property
    def zero(self) -> float:
        """Where an exact 0 is drawn."""
        return self.low / math.sqrt(self.strip)

    @property
    def bottom(self) -> float:
        return self.low / self.strip if self.has_zeros else self.low


def draw_panels(
    panels: Sequence[Panel],
    *,
    heading: str = "",
    columns: int = 2,
    width: float = 5.6,
    height: float = 3.6,
    share_legend: bool = False,
    share_y: bool = True,
) -> Figure:
    """Draws the panels in a grid below a heading.

    width: of one panel in inches, its labels included. height: of its axes; titles and legend come on top of that.
    share_legend: draws the first panel's legend below the grid, for panels whose lines are the same.
    share_y: panels that are all linear share their vertical extent.
    """
    columns = min(columns, len(panels))
    rows = math.ceil(len(panels) / columns)
    share_y = share_y and not any(panel.log for panel in panels)
    with figure_settings():
        legend_lines = 1 + max(len(panel.lines) for panel in panels)
        findings_lines = max(len(panel.findings) for panel in panels)
        above_and_below = 0.75 + 0.2 * findings_lines + (0 if share_legend else 0.23 * legend_lines)
        total = rows * (height + above_and_below) + (0.5 if heading else 0) + (0.4 if share_legend else 0)
        figure = Figure(figsize=(width * columns, total), layout="constrained")
        grid = figure.subplots(rows, columns, squeeze=False, sharey=share_y)
        for k, (axes, panel) in enumerate(zip(grid.flat, panels, strict=False)):
            row = panels[k - k % columns : k - k % columns + columns]
            _draw_panel(axes, panel, heading_lines=max(len(other.findings) for other in row))
            if share_y and k % columns:
                axes.set_ylabel("")
            if not share_legend:
                _add_legend(axes, panel, figure)
        for axes, panel in zip(grid.flat, panels, strict=False):
            _name_guides(axes, panel.guides)
        for axes in grid.flat[len(panels) :]:
            axes.set_visible(False)
        if heading:
            add_heading(figure, heading)
        if share_legend:
            handles = [_legend_handle(line) for line in panels[0].lines]
            title = panels[0].legend_title or None
            figure.legend(
                handles=handles,
                title=title,
                loc="outside lower center",
                ncols=min(2 * columns - 1, len(handles)),
                handlelength=4.5,
            )
        figure.draw_without_rendering()
    return figure


def _draw_panel(axes: Axes, panel: Panel, heading_lines: int) -> None:
    scale = _log_scale(panel) if panel.log else None
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(FixedLocator(thinned(panel.ticks)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda n, _: f"{n:g}"))
    axes.set_xlabel(panel.x_label)
    axes.set_ylabel(panel.y_label)
    # Titles of one row line up: a panel with fewer findings has blank lines below them.
    findings = "\n".join(panel.findings + ("",) * (heading_lines - len(panel.findings)))
    axes.set_title(findings, fontsize=9.5, color="#333333", loc="left", linespacing=1.35)
    axes.annotate(
        panel.title,
        xy=(0, 1),
        xytext=(0, 9 + 14 * heading_lines),
        xycoords="axes fraction",
        textcoords="offset points",
        fontsize=12,
        fontweight="bold",
    )
    for guide in panel.guides:
        axes.plot(guide.x, guide.y, color="#a6a6a6", linewidth=0.9, zorder=1)
    # Points of one length stand side by side, else their spreads would hide one another.
    step = min(0.011, 0.5 / (len(panel.lines) * max(1, len(panel.ticks) - 1))) if panel.lines else 0
    for k, line in enumerate(panel.lines):
        shift = step * (k - (len(panel.lines) - 1) / 2)
        _draw_line(axes, line, scale, shift, extent=panel.ticks)
    if scale is not None:
        _set_log_axis(axes, scale)
    else:
        # No common factor above the axis: it would lie on the title.
        axes.yaxis.set_major_formatter(
            FuncFormatter(lambda value, _: f"{value:.6g}".replace("-", "\N{MINUS SIGN}"))
        )


def _name_guides(axes: Axes, guides: Sequence[Guide]) -> None:
    """Writes each guide's label behind its right end, moved up where it would overlap the one below.

    Only when everything else is drawn: until then the axes' limits may change.
    """
    axes.autoscale_view()
    apart = 0.055  # of the height of the axes
    data_to_axes = axes.transData + axes.transAxes.inverted()
    ends = [(*data_to_axes.transform((guide.x[-1], guide.y[-1])), guide.label) for guide in guides]
    lowest = -math.inf
    for x, y, label in sorted(ends, key=lambda end: end[1]):
        lowest = max(y, lowest + apart)
        axes.annotate(
            label,
            xy=(x, lowest),
            xycoords="axes fraction",
            xytext=(9, 0),
            textcoords="offset points",
            color=GREY,
            fontsize=9,
            verticalalignment="center",
            annotation_clip=False,
        )


def _draw_line(axes: Axes, line: Line, scale: _Scale | None, shift: float, extent: Sequence[int]) -> None:
    def placed(name: str) -> np.ndarray:
        values = np.array([getattr(value, name) for value in line.values], dtype=np.float64)
        return values if scale is None else np.where(values == 0, scale.zero, values)

    x = np.array(line.x) * (max(extent) / min(extent)) ** shift
    style, median = line.style, placed("median")
    axes.vlines(x, placed("low"), placed("high"), color=style.colour, linewidth=1.1, alpha=0.65, zorder=2)
    (curve,) = axes.plot(x, median, color=style.colour, linewidth=1.6, zorder=3)
    if style.dashes:
        curve.set_dashes(style.dashes)
    filled = {"markerfacecolor": style.colour, "markeredgecolor": "white", "markeredgewidth": 0.6}
    hollow = {"markerfacecolor": "white", "markeredgecolor": style.colour, "markeredgewidth": 1.3}
    is_hollow = np.isin(np.array(line.x), list(line.hollow))
    for chosen, look in ((~is_hollow, filled), (is_hollow, hollow)):
        if chosen.any():
            marks = {
                "color": style.colour,
                "marker": style.marker,
                "markersize": 5.5,
                "linestyle": "none",
                **look,
            }
            axes.plot(x[chosen], median[chosen], zorder=4, **marks)


def _add_legend(axes: Axes, panel: Panel, figure: Figure) -> None:
    below = ScaledTranslation(
        0, -40 / 72, figure.dpi_scale_trans
    )  # clear of the label of the axis, at any height
    legend = axes.legend(
        handles=[_legend_handle(line) for line in panel.lines],
        title=panel.legend_title or None,
        loc="upper left",
        bbox_to_anchor=(0, 0),
        bbox_transform=axes.transAxes + below,
        borderaxespad=0,
        handlelength=4.5,
        fontsize=9.5,
        title_fontsize=9.5,
        alignment="left",
    )
    legend.get_title().set_color("#333333")


def _legend_handle(line: Line) -> Line2D:
    handle = Line2D(
        [], [], color=line.style.colour, marker=line.style.marker, linewidth=1.6, label=line.label
    )
    handle.set_markersize(5.5)
    if line.style.dashes:
        handle.set_dashes(line.style.dashes)
    return handle


def _log_scale(panel: Panel) -> _Scale:
    """The extent that holds every positive value and guide of the panel."""
    shown = [number for line in panel.lines for v in line.values for number in (v.low, v.median, v.high)]
    positive = [number for number in shown if number > 0]
    positive += [y for guide in panel.guides for y in guide.y if y > 0]
    low, high = (min(positive) / 1.25, max(positive) * 1.25) if positive else (0.1, 1.0)
    return _Scale(low, high, has_values=bool(positive), has_zeros=0 in shown)


def _set_log_axis(axes: Axes, scale: _Scale) -> None:
    axes.set_yscale("log")
    axes.set_ylim(scale.bottom, scale.high)
    marks = log_marks(scale.low, scale.high) if scale.has_values else []
    labels = {mark: power_label(mark) for mark in marks}
    if scale.has_zeros:
        labels[scale.zero] = ZERO_LABEL
        axes.axhspan(scale.bottom, scale.low, color="#efefef", linewidth=0, zorder=0)
        axes.axhline(scale.low, color=GREY, linewidth=0.7, linestyle=(0, (2, 2)), zorder=0)
    axes.yaxis.set_major_locator(FixedLocator(list(labels)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: labels.get(value, "")))
    minor = minor_log_marks(scale.low, scale.high) if scale.has_values else []
    axes.yaxis.set_minor_locator(FixedLocator(minor))
    axes.yaxis.set_minor_formatter(FuncFormatter(lambda value, _: ""))
