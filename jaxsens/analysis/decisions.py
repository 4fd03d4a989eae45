"""The sensitivity of decisions in a sweep: how it is distributed over inputs, and over the models of the seeds.

A model's decisions are a function f of its inputs. s(f, x) is the number of flips of x that change the decision, and
as(f) its mean over the inputs measured (Bhattamishra et al. 2023; Kover et al. 2026).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib import ticker
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from jaxsens.analysis.data import DecisionData
from jaxsens.analysis.figures import ReportFigure
from jaxsens.analysis.fits import LEVEL, enumeration, t_interval
from jaxsens.analysis.page import DASH, ReportTable, Section
from jaxsens.analysis.panels import LineStyle, add_heading, evenly, figure_settings, variant_styles

if TYPE_CHECKING:
    import pandas

MOST_LENGTHS = 4
"""The largest number of lengths in a figure."""

BINS = 20
"""The number of bars of a histogram over models, from 0 to the largest value."""


@dataclass(frozen=True)
class Decisions:
    """The decisions of a sweep, and its variants in the order of the config."""

    data: DecisionData
    variants: Sequence[str]

    @property
    def models(self) -> pandas.DataFrame:
        """`DecisionData.models`."""
        return self.data.models

    @property
    def lengths(self) -> tuple[int, ...]:
        """The lengths that are drawn: the longest, and others evenly between it and the shortest."""
        return evenly(sorted({int(n) for n in self.models["n"]}), MOST_LENGTHS)


def decision_sections(decisions: Decisions) -> list[Section]:
    """The sections of a report: over inputs, if some point measured all flips, and over models."""
    found = []
    if decisions.data.profiles:
        found.append(Section("At how many flips an input is sensitive", figures=[input_figure(decisions)]))
    found.append(
        Section("The models of the seeds", figures=[model_figure(decisions)], tables=[model_table(decisions)])
    )
    return found


def input_figure(decisions: Decisions) -> ReportFigure:
    """The distribution of s(f, x) over inputs: a panel per variant, a line per length. With a profile at least."""
    shown = [name for name in decisions.variants if any(name == key for key, _ in decisions.data.profiles)]
    return ReportFigure(
        name="sensitivity-distribution",
        caption=(
            "The share of inputs with a given number of flips that change the decision, the mean over seeds: the "
            "sensitivity profile of the decision, if all inputs were measured. The vertical axis is logarithmic; a "
            "number that no input has is not drawn. All of parity is at the right end, s = number of positions; a "
            "constant decision is at 0."
        ),
        description=f"How many flips change the decision, over inputs, for {enumeration(shown)}.",
        draw=partial(_draw_inputs, decisions, shown),
    )


def model_figure(decisions: Decisions) -> ReportFigure:
    """Histograms of the average sensitivity per position over seeds: a panel per length, a line per variant."""
    return ReportFigure(
        name="sensitivity-models",
        caption=(
            "Each seed is a model. The histograms show how many of them have which average sensitivity, divided by "
            "the number of positions: 0 for a constant decision, and for two symbols 1 for parity."
        ),
        description=f"The average sensitivity of the models of {enumeration(decisions.variants)}.",
        draw=partial(_draw_models, decisions),
    )


def model_table(decisions: Decisions) -> ReportTable:
    """A row per variant and length: the average sensitivity over models, and the extremes over inputs."""
    rows = []
    for variant in decisions.variants:
        own = decisions.models.query("variant == @variant")
        for n in sorted({int(n) for n in own["n"]}):
            models: Any = own.query("n == @n")
            constant = float((models["average"] == 0).mean())
            rows.append(
                (
                    variant,
                    str(n),
                    str(len(models)),
                    _with_interval(models["average"]),
                    _with_interval(models["per_position"]),
                    f"{100 * constant:.3g} %",
                    _whole(models["smallest"].max()),
                    _whole(models["largest"].max()),
                )
            )
    return ReportTable(
        caption=(
            f"Average sensitivity: the mean over models, with Student's {LEVEL} interval; the share of models whose "
            "decision is the same at every input and flip; the largest, over models, of the smallest number of "
            "sensitive flips of an input; and the largest number of all."
        ),
        header=(
            *("variant", "n", "models", "average sensitivity", "per position"),
            *("constant", "largest minimum", "maximum"),
        ),
        rows=rows,
        numeric=7,
    )


def _whole(value: float) -> str:
    return DASH if math.isnan(value) else f"{value:g}"


def _with_interval(values: Any) -> str:
    """The mean of independent values with its interval, to three digits."""
    low, high = t_interval(values.tolist())
    text = f"{values.mean():.3g}"
    return text if math.isnan(low) else f"{text} [{low:.3g}, {high:.3g}]"


def _draw_inputs(decisions: Decisions, shown: Sequence[str]) -> Figure:
    styles = variant_styles([f"n = {n}" for n in decisions.lengths])
    columns = min(3, len(shown))
    rows = math.ceil(len(shown) / columns)
    with figure_settings():
        figure = Figure(figsize=(4.3 * columns, 3.0 * rows + 0.9), layout="constrained")
        grid = figure.subplots(rows, columns, squeeze=False, sharey=True)
        for k, (axes, variant) in enumerate(zip(grid.flat, shown, strict=False)):
            axes.set_title(variant, fontsize=12, fontweight="bold")
            for (label, style), n in zip(styles.items(), decisions.lengths, strict=True):
                if (shares := decisions.data.profiles.get((variant, n))) is not None:
                    counts = np.flatnonzero(shares)
                    axes.plot(counts, shares[counts], label=label, **_look(style))
            axes.set_yscale("log")
            axes.set_xlabel("flips that change the decision, s(f, x)")
            axes.xaxis.set_major_locator(ticker.MaxNLocator(integer=True))
            if k % columns == 0:
                axes.set_ylabel("share of inputs")
        for axes in grid.flat[len(shown) :]:
            axes.set_visible(False)
        _legend(figure, styles)
        add_heading(figure, "How many flips of an input change the decision?")
        figure.draw_without_rendering()
    return figure


def _draw_models(decisions: Decisions) -> Figure:
    styles = variant_styles(decisions.variants)
    known: Any = decisions.models["per_position"].dropna()
    largest = float(known.max()) if (known > 0).any() else 1.0
    edges = np.linspace(0, largest, BINS + 1)
    columns = 2 if len(decisions.lengths) == 4 else len(decisions.lengths)
    rows = math.ceil(len(decisions.lengths) / columns)
    with figure_settings():
        figure = Figure(figsize=(4.6 * columns, 2.9 * rows + 0.9), layout="constrained")
        grid = figure.subplots(rows, columns, squeeze=False)
        for axes, n in zip(grid.flat, decisions.lengths, strict=False):
            axes.set_title(f"n = {n}", fontsize=12, fontweight="bold")
            for variant, style in styles.items():
                models: Any = decisions.models
                chosen = (models["variant"] == variant) & (models["n"] == n)
                counts, _ = np.histogram(models["per_position"][chosen].dropna(), edges)
                axes.stairs(counts, edges, color=style.colour, linewidth=1.8, linestyle=_dashes(style))
            axes.set_xlabel("average sensitivity per position")
            axes.set_ylabel("number of models")
        for axes in grid.flat[len(decisions.lengths) :]:
            axes.set_visible(False)
        _legend(figure, styles, markers=False)
        add_heading(figure, "How sensitive are the decisions of these models?")
        figure.draw_without_rendering()
    return figure


def _look(style: LineStyle) -> dict[str, Any]:
    return {
        "color": style.colour,
        "marker": style.marker,
        "markersize": 4.5,
        "linewidth": 1.4,
        "linestyle": _dashes(style),
    }


def _dashes(style: LineStyle) -> Any:
    return (0, style.dashes) if style.dashes else "-"


def _legend(figure: Figure, styles: Mapping[str, LineStyle], markers: bool = True) -> None:
    handles = []
    for label, style in styles.items():
        look = _look(style)
        handles.append(Line2D([], [], label=label, **{**look, "marker": look["marker"] if markers else ""}))
    figure.legend(handles=handles, loc="outside lower center", ncols=min(4, len(handles)), handlelength=4.0)
