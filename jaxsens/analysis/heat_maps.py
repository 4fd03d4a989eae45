"""Heat maps of sensitivity over relative position and input length."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from jaxsens.analysis.axis_marks import log_marks, power_label
from jaxsens.analysis.figures import ReportFigure, change_label
from jaxsens.analysis.findings import enumeration
from jaxsens.analysis.profiles import Profile
from jaxsens.analysis.style import add_heading, figure_settings

COLOUR_MAP = "viridis_r"
"""Lighter is less, also in black and white and to a colour-blind reader."""

DECADES = 6
"""The colour scale spans at most this many powers of ten below the largest value."""

MARGIN = 10.0
"""The colour scale reaches this factor below the lowest median of a row. A few cells far below that, as where nothing
but rounding is left, would else take most of the colours."""


def profile_figure(profiles: Sequence[Profile], variants: Sequence[str], *, norm: str = "l2") -> ReportFigure:
    """A heat map a variant, in the order of `variants`: a row a length, one common logarithmic colour scale.

    profiles: at least one. norm: that was measured, "l1", "l2" or "linf".
    """
    shown = [variant for variant in variants if any(profile.variant == variant for profile in profiles)]
    columns = min(3, len(shown))
    rows = math.ceil(len(shown) / columns)
    colours, clipped = _colour_scale(profiles)
    with figure_settings():
        figure = Figure(figsize=(4.2 * columns + 0.9, 2.9 * rows + 0.5), layout="constrained")
        grid = figure.subplots(rows, columns, squeeze=False)
        for axes, variant in zip(grid.flat, shown, strict=False):
            own = [profile for profile in profiles if profile.variant == variant]
            _draw_heat_map(axes, variant, own, colours)
        for axes in grid.flat[len(shown) :]:
            axes.set_visible(False)
        if colours is not None:
            scale = ScalarMappable(colours, COLOUR_MAP)
            bar = figure.colorbar(scale, ax=grid, pad=0.02, aspect=30, extend="min" if clipped else "neither")
            marks = log_marks(*scale.get_clim())
            bar.set_ticks(marks, labels=[power_label(mark) for mark in marks])
            bar.set_label("mean " + change_label(norm, lines=2))
        figure.legend(
            handles=[
                Patch(facecolor="white", edgecolor="#8c8c8c", linewidth=0, hatch="////", label="exactly 0"),
                Patch(facecolor="white", edgecolor="#c0c0c0", label="no flip measured there"),
            ],
            loc="outside lower center",
            ncols=2,
        )
        add_heading(figure, "Where in the input does a flip change the output?")
        figure.draw_without_rendering()
    return ReportFigure(
        name="profiles",
        caption=(
            "Each row is one input length, from the first position at the left to the last at the right; the darker, "
            "the more a flip at that place changes the output (mean over inputs, seeds and the flips in a cell). "
            "All panels share one colour scale. An even row says that every position matters alike; rows that fade "
            "upwards say that a flip matters less in longer inputs."
        ),
        description="Sensitivity by position and input length for " + enumeration(shown) + ".",
        figure=figure,
    )


def _colour_scale(profiles: Sequence[Profile]) -> tuple[LogNorm | None, bool]:
    """A scale up to the largest mean, and whether it leaves positive means below it. None without a positive mean."""
    means = np.concatenate([profile.means for profile in profiles])
    positive = means[means > 0]
    if positive.size == 0:
        return None, False
    low, high = float(positive.min()), float(positive.max())
    medians = [
        np.median(own) for own in (profile.means[profile.means > 0] for profile in profiles) if own.size
    ]
    floor = max(high * 10.0**-DECADES, float(min(medians)) / MARGIN)
    if low < floor:
        return LogNorm(floor, high), True
    return LogNorm(low, high) if low < high else LogNorm(low / 2, high * 2), False


def _draw_heat_map(axes: Axes, variant: str, profiles: Sequence[Profile], colours: LogNorm | None) -> None:
    """Draws one row a length."""
    axes.set_title(variant, fontsize=12, fontweight="bold")
    for row, profile in enumerate(profiles):
        edges = np.linspace(0, 1, profile.means.size + 1)
        heights = np.array([row, row + 1])
        values = profile.means[None, :]
        if colours is not None:
            positive = np.ma.masked_where(~(values > 0), values)
            axes.pcolormesh(edges, heights, positive, norm=colours, cmap=COLOUR_MAP, rasterized=True)
        zero_ranges = [(edges[k], edges[k + 1] - edges[k]) for k in np.flatnonzero(profile.means == 0)]
        axes.broken_barh(
            zero_ranges, (row, 1), facecolor="white", edgecolor="#8c8c8c", linewidth=0, hatch="////"
        )
    axes.set_yticks(np.arange(len(profiles)) + 0.5, [str(profile.n) for profile in profiles])
    axes.set_xticks([0, 0.25, 0.5, 0.75, 1], ["first", "¼", "½", "¾", "last"])
    axes.tick_params(length=0, axis="y")
    axes.set_ylabel("input length n")
    axes.set_xlabel("position of the flipped symbol")
