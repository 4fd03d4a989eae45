"""The sensitivity of decisions in a sweep: how it is distributed over inputs, and over the models of the seeds.

A model's decisions are a function f of its inputs. s(f, x) is the number of flips of x that change the decision, and
as(f) its mean over the inputs measured (Bhattamishra et al. 2023; Kover et al. 2026).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib import ticker
from matplotlib.figure import Figure

from jaxsens.core.report.data import FlipTables
from jaxsens.core.report.figures import ReportFigure
from jaxsens.core.report.fits import LEVEL, enumeration, t_interval
from jaxsens.core.report.page import DASH, ReportTable, Section, table_of
from jaxsens.core.report.panels import Shape, grid, legend_below, legend_handle, line_style, variant_styles
from jaxsens.core.report.texts import text

if TYPE_CHECKING:
    import pandas

BINS = 20
"""The number of bars of a histogram over models, from 0 to the largest value."""


def decision_sections(flips: FlipTables) -> list[Section]:
    """The sections of a report: over inputs, where all flips were measured, and over models; none without decisions."""
    models, shares = flips.models, flips.shares
    if models.empty:
        return []
    sections = []
    if shares:
        sections.append(Section("At how many flips an input is sensitive", figures=[input_figure(shares)]))
    figures, tables = [model_figure(models)], [model_table(models)]
    sections.append(Section("The models of the seeds", figures=figures, tables=tables))
    return sections


def input_figure(shares: Mapping[tuple[str, int], np.ndarray]) -> ReportFigure:
    """The distribution of s(f, x) over inputs: a panel per variant, a line per length. shares: at least one."""
    variants = [*dict.fromkeys(variant for variant, _ in shares)]
    return ReportFigure(
        name="sensitivity-distribution",
        heading="How many flips of an input change the decision?",
        caption=text("distribution"),
        description=f"How many flips change the decision, over inputs, for {enumeration(variants)}.",
        draw=partial(_draw_inputs, shares, variants),
        panels=len(variants),
    )


def model_figure(models: pandas.DataFrame) -> ReportFigure:
    """Histograms of the average sensitivity per position over seeds: a panel per length, a line per variant."""
    return ReportFigure(
        name="sensitivity-models",
        heading="How sensitive are the decisions of these models?",
        caption=text("models-of-seeds"),
        description=f"The average sensitivity of the models of {enumeration(models['variant'].unique())}.",
        draw=partial(_draw_models, models),
        panels=len({*models["n"]}),
    )


def model_table(models: pandas.DataFrame) -> ReportTable:
    """A row per variant and length: the average sensitivity over models, and the extremes over inputs."""
    groups: Any = models.groupby(["variant", "n"], sort=False)
    columns: dict[str, Callable[[Any], str]] = {
        "variant": lambda one: one[0][0],
        "n": lambda one: str(one[0][1]),
        "models": lambda one: str(len(one[1])),
        "average sensitivity": lambda one: _with_interval(one[1]["average"]),
        "per position": lambda one: _with_interval(one[1]["per_position"]),
        "constant": lambda one: f"{100 * float((one[1]['average'] == 0).mean()):.3g} %",
        "largest minimum": lambda one: _integer(one[1]["smallest"].max()),
        "maximum": lambda one: _integer(one[1]["largest"].max()),
    }
    return table_of(text("table-of-decisions", level=LEVEL), groups, columns, numeric=7)


def _integer(value: float) -> str:
    return DASH if math.isnan(value) else f"{value:g}"


def _with_interval(values: Any) -> str:
    """The mean of independent values with its interval, to three digits."""
    low, high = t_interval(values.tolist())
    text = f"{values.mean():.3g}"
    return text if math.isnan(low) else f"{text} [{low:.3g}, {high:.3g}]"


def _draw_inputs(
    shares: Mapping[tuple[str, int], np.ndarray], variants: Sequence[str], shape: Shape
) -> Figure:
    styles = {n: line_style(k) for k, n in enumerate(sorted({n for _, n in shares}))}
    margin = (0.0, 0.2 + 0.2 * math.ceil(len(styles) / 4))
    with grid("", len(variants), 3, (4.3, 3.0), margin, shape, sharey=True) as (figure, places):
        for k, (axes, variant) in enumerate(zip(places, variants, strict=True)):
            axes.set_title(variant)
            for n, style in styles.items():
                if (of_length := shares.get((variant, n))) is not None:
                    counts = np.flatnonzero(of_length)
                    look = {"color": style.colour, "marker": style.marker, "linestyle": style.linestyle}
                    axes.plot(counts, of_length[counts], label=f"n = {n}", **look)
            axes.set_yscale("log")
            axes.set_xlabel("flips that change the decision, s(f, x)")
            axes.xaxis.set_major_locator(ticker.MaxNLocator(integer=True))
            if k == 0:
                axes.set_ylabel("share of inputs")
        legend_below(figure, [legend_handle(f"n = {n}", style) for n, style in styles.items()], 4)
    return figure


def _draw_models(models: pandas.DataFrame, shape: Shape) -> Figure:
    styles = variant_styles([*models["variant"].unique()])
    values: Any = models["per_position"].dropna()
    largest = float(values.max()) if (values > 0).any() else 1.0
    edges, lengths = np.linspace(0, largest, BINS + 1), sorted({int(n) for n in models["n"]})
    columns = 2 if len(lengths) == 4 else 3
    with grid("", len(lengths), columns, (4.6, 2.9), (0.0, 0.6), shape) as (figure, places):
        for axes, n in zip(places, lengths, strict=True):
            axes.set_title(f"n = {n}")
            for variant, style in styles.items():
                chosen: Any = models[(models["variant"] == variant) & (models["n"] == n)]
                counts, _ = np.histogram(chosen["per_position"].dropna(), edges)
                axes.stairs(counts, edges, color=style.colour, linewidth=1.8, linestyle=style.linestyle)
            axes.set_xlabel("average sensitivity per position")
            axes.set_ylabel("number of models")
        legend_below(figure, [legend_handle(label, style, marker="") for label, style in styles.items()], 4)
    return figure
