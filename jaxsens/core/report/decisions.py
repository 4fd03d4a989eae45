"""The sensitivity of decisions in a sweep: how it is distributed over inputs, and over the models of the seeds.

A model's decisions are a function f of its inputs. s(f, x) is the number of flips of x that change the decision, and
as(f) its mean over the inputs measured (Bhattamishra et al. 2023; Kover et al. 2026).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from matplotlib import ticker
from matplotlib.figure import Figure

from jaxsens.core.report.data import Decisions
from jaxsens.core.report.figures import ReportFigure
from jaxsens.core.report.fits import LEVEL, enumeration, t_interval
from jaxsens.core.report.page import DASH, ReportTable, Section, table_of
from jaxsens.core.report.panels import Shape, grid, legend_below, legend_handle, variant_styles
from jaxsens.core.report.texts import text

BINS = 20
"""The number of bars of a histogram over models, from 0 to the largest value."""


def decision_sections(decisions: Decisions) -> list[Section]:
    """The sections of a report: over inputs, if some point measured all flips, and over models."""
    sections = []
    if decisions.profiles:
        sections.append(Section("At how many flips an input is sensitive", figures=[input_figure(decisions)]))
    figures, tables = [model_figure(decisions)], [model_table(decisions)]
    sections.append(Section("The models of the seeds", figures=figures, tables=tables))
    return sections


def input_figure(decisions: Decisions) -> ReportFigure:
    """The distribution of s(f, x) over inputs: a panel per variant, a line per length. With a profile at least."""
    variants = [name for name in decisions.variants if any(name == key for key, _ in decisions.profiles)]
    return ReportFigure(
        name="sensitivity-distribution",
        heading="How many flips of an input change the decision?",
        caption=text("distribution"),
        description=f"How many flips change the decision, over inputs, for {enumeration(variants)}.",
        draw=partial(_draw_inputs, decisions, variants),
        panels=len(variants),
    )


def model_figure(decisions: Decisions) -> ReportFigure:
    """Histograms of the average sensitivity per position over seeds: a panel per length, a line per variant."""
    return ReportFigure(
        name="sensitivity-models",
        heading="How sensitive are the decisions of these models?",
        caption=text("models-of-seeds"),
        description=f"The average sensitivity of the models of {enumeration(decisions.variants)}.",
        draw=partial(_draw_models, decisions),
        panels=len(decisions.lengths),
    )


def model_table(decisions: Decisions) -> ReportTable:
    """A row per variant and length: the average sensitivity over models, and the extremes over inputs."""
    models: Any = decisions.models.groupby(["variant", "n"], sort=False)
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
    return table_of(text("table-of-decisions", level=LEVEL), models, columns, numeric=7)


def _integer(value: float) -> str:
    return DASH if math.isnan(value) else f"{value:g}"


def _with_interval(values: Any) -> str:
    """The mean of independent values with its interval, to three digits."""
    low, high = t_interval(values.tolist())
    text = f"{values.mean():.3g}"
    return text if math.isnan(low) else f"{text} [{low:.3g}, {high:.3g}]"


def _draw_inputs(decisions: Decisions, variants: Sequence[str], shape: Shape) -> Figure:
    styles = variant_styles([f"n = {n}" for n in decisions.lengths])
    rows = math.ceil(len(styles) / 4)
    margin = (0.0, 0.2 + 0.2 * rows)
    with grid("", len(variants), 3, (4.3, 3.0), margin, shape, sharey=True) as (figure, places):
        for k, (axes, variant) in enumerate(zip(places, variants, strict=True)):
            axes.set_title(variant)
            for (label, style), n in zip(styles.items(), decisions.lengths, strict=True):
                if (shares := decisions.profiles.get((variant, n))) is not None:
                    counts = np.flatnonzero(shares)
                    look = {"color": style.colour, "marker": style.marker, "linestyle": style.linestyle}
                    axes.plot(counts, shares[counts], label=label, **look)
            axes.set_yscale("log")
            axes.set_xlabel("flips that change the decision, s(f, x)")
            axes.xaxis.set_major_locator(ticker.MaxNLocator(integer=True))
            if k == 0:
                axes.set_ylabel("share of inputs")
        legend_below(figure, [legend_handle(label, style) for label, style in styles.items()], 4)
    return figure


def _draw_models(decisions: Decisions, shape: Shape) -> Figure:
    styles = variant_styles(decisions.variants)
    values: Any = decisions.models["per_position"].dropna()
    largest = float(values.max()) if (values > 0).any() else 1.0
    edges = np.linspace(0, largest, BINS + 1)
    count = len(decisions.lengths)
    with grid("", count, 2 if count == 4 else 3, (4.6, 2.9), (0.0, 0.6), shape) as (figure, places):
        for axes, n in zip(places, decisions.lengths, strict=True):
            axes.set_title(f"n = {n}")
            for variant, style in styles.items():
                models: Any = decisions.models
                chosen = (models["variant"] == variant) & (models["n"] == n)
                counts, _ = np.histogram(models["per_position"][chosen].dropna(), edges)
                axes.stairs(counts, edges, color=style.colour, linewidth=1.8, linestyle=style.linestyle)
            axes.set_xlabel("average sensitivity per position")
            axes.set_ylabel("number of models")
        handles = [legend_handle(label, style, marker="") for label, style in styles.items()]
        legend_below(figure, handles, 4)
    return figure
