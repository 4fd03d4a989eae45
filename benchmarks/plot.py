"""Seconds against n, log-log, one panel a depth."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure

from benchmarks.options import METHODS
from benchmarks.rows import Row
from jaxsens.core.report.panels import GREY, add_heading, figure_settings, variant_styles

LIMITED = "difference"
"""The method whose physical limit is drawn."""


def seconds_figure(rows: Sequence[Row], machine: str) -> Figure:
    """One line a method; hollow markers where the time is extrapolated from a sample of the flips."""
    timed = [row for row in rows if row.seconds is not None]
    depths = sorted({row.layers for row in timed})
    with figure_settings():
        figure = Figure(figsize=(max(5.5, 3.8 * len(depths)), 4.8), layout="constrained")
        axes = figure.subplots(1, max(1, len(depths)), sharey=True, squeeze=False)[0]
        for axis, layers in zip(axes, depths, strict=False):
            _panel(axis, [row for row in timed if row.layers == layers], layers)
        axes[0].set_ylabel("seconds for all flips of one input")
        found: dict[str, Any] = {}
        for axis in axes:
            handles, labels = axis.get_legend_handles_labels()
            found.update(zip(labels, handles, strict=True))
        figure.legend(
            [*found.values()],
            [*found],
            loc="outside lower center",
            ncols=min(2, max(1, len(depths))),  # three of these texts are wider than three panels
            fontsize=9,
        )
        add_heading(figure, "Time for all flips")
        axes[-1].annotate(
            machine,
            (1, 1.06),
            xycoords="axes fraction",
            ha="right",
            fontsize=8,
            color=GREY,
            annotation_clip=False,
        )
    return figure


def _panel(axis: Any, rows: Sequence[Row], layers: int) -> None:
    styles = variant_styles([*METHODS])
    for method in METHODS:
        line = sorted((row for row in rows if row.method == method), key=lambda row: row.n)
        if not line:
            continue
        style = styles[method]
        lengths, seconds = [row.n for row in line], [row.seconds for row in line]
        axis.plot(lengths, seconds, color=style.colour, linestyle=style.linestyle, linewidth=1.5)
        for row in line:
            face = "white" if row.extrapolated else style.colour
            axis.plot(
                row.n, row.seconds, style.marker, color=style.colour, markerfacecolor=face, markersize=6
            )
        drawn = {"color": style.colour, "marker": style.marker, "linestyle": style.linestyle}
        axis.plot([], [], label=METHODS[method], **drawn)
        if method == LIMITED:
            limits = [row.limit_seconds for row in line]
            axis.plot(lengths, limits, ":", color=GREY, label=f"physical limit of {LIMITED}")
    if any(row.extrapolated for row in rows):
        axis.plot(
            [], [], "o", color=GREY, markerfacecolor="white", label="extrapolated from a sample of the flips"
        )
    lengths = sorted({row.n for row in rows})
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    axis.set_xticks(lengths, [str(n) for n in lengths])
    axis.minorticks_off()
    axis.set_xlabel("n")
    axis.set_title(f"L = {layers}")
    axis.grid(alpha=0.3)
