"""Two sections of a report: change against the distance from the flipped position to the row that is read; and the
sensitivity of decisions, over inputs and over the models of the seeds.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas
from jaxtyping import Float
from matplotlib import ticker
from matplotlib.figure import Figure

from jaxsens.core.report.data import DISTANCE_COLUMNS, FlipTables, text
from jaxsens.core.report.fits import LEVEL, ExponentFit, Growth, enumeration, fit_exponent, having, t_interval
from jaxsens.core.report.page import (
    DASH,
    ReportFigure,
    ReportTable,
    Section,
    about_inexact,
    change_label,
    measured_line,
    panel_figure,
    powers,
    table_of,
)
from jaxsens.core.report.panels import (
    SMALL,
    LineStyle,
    Panel,
    Shape,
    grid,
    legend_below,
    legend_handle,
    line_style,
    variant_styles,
)
from jaxsens.core.sweeps.job import write_table
from jaxsens.core.sweeps.sweep import row_of

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


READ_AT = 0.5
"""Where the figure has distance 0 on its logarithmic axis."""

FEWEST = 6
"""The fewest distances at which a length is fitted."""

NEGLIGIBLE = 2.0**-52
"""A mean change smaller than the largest of its variant and length by this factor is no part of a fit: beside it, the
output would have to have more digits than float64 has."""

EXPLAINED = 0.9
"""The least share of the variance of the logarithm that a power or an exponential explains where it is stated."""

EXPONENT_COLUMNS = (
    *("variant", "n", "exponent", "ci_low", "ci_high", "seeds", "settled"),
    *("power_r2", "exponential_r2", "values", "points", "zeros", "unresolved", "verdict"),
)
"""The columns of distance_exponents.csv."""


class DistanceLaw(enum.Enum):
    """How a mean change depends on the distance; the value completes the sentence "the mean change ..."."""

    ZERO = "is exactly 0 at every distance"
    FLAT = "shows no dependence on the distance"
    POWER = "follows a power of the distance"
    EXPONENTIAL = "follows an exponential of the distance"
    NEITHER = "follows neither a power nor an exponential of the distance"
    NONE = "has no fit: too few distances have a value above 0 that is resolved"


@dataclass(frozen=True)
class DistanceFit:
    """How the mean change of one variant falls with the distance at one length.

    Attributes:
        variant, n: what was fitted.
        fit: the power of the distance, over seeds, with the slopes between successive distances.
        power_r2, exponential_r2: the share of the variance of log(mean change), averaged over seeds, that a power of
            the distance explains, and an exponential of the distance; NaN where nothing varies.
    """

    variant: str
    n: int
    fit: ExponentFit
    power_r2: float
    exponential_r2: float

    @property
    def verdict(self) -> DistanceLaw:
        """What the fit supports: a power or an exponential only where it explains nearly all of what varies."""
        fit, better = self.fit, max(self.power_r2, self.exponential_r2)
        if fit.always_zero:
            return DistanceLaw.ZERO
        near = max(abs(fit.ci_low), abs(fit.ci_high)) < 0.5 and (fit.may_be(0) or round(fit.exponent, 2) == 0)
        if (near or math.isnan(fit.ci_low)) and fit.growth is Growth.FLAT and fit.settled:
            return DistanceLaw.FLAT
        if math.isnan(fit.exponent) or math.isnan(better):
            return DistanceLaw.NONE
        if better < EXPLAINED or fit.vanishing or fit.may_be(0):
            return DistanceLaw.NEITHER
        return DistanceLaw.POWER if self.power_r2 == better else DistanceLaw.EXPONENTIAL

    @property
    def stated(self) -> ExponentFit:
        """The fit as a report shows it: without an exponent that does not describe the mean change."""
        if self.verdict in (DistanceLaw.FLAT, DistanceLaw.POWER):
            return self.fit
        return replace(self.fit, exponent=math.nan, ci_low=math.nan, ci_high=math.nan, local=())

    @property
    def sentence(self) -> str:
        """The verdict with its numbers, in words."""
        law, shares = self.verdict, f"a power explains {self.power_r2:.2f} of the variance of its logarithm"
        shares += f", an exponential {self.exponential_r2:.2f}"
        shares = "" if law in (DistanceLaw.ZERO, DistanceLaw.FLAT, DistanceLaw.NONE) else shares
        power = f"exponent {self.stated.power}" if self.stated.power else ""
        added = "; ".join(filter(None, (power, shares, self.stated.note)))
        return f"{self.variant}, n = {self.n}: the mean change {law.value}{f' ({added})' if added else ''}"

    @property
    def row(self) -> dict[str, Any]:
        """Its row of distance_exponents.csv."""
        own = row_of(self, ("variant", "n", "power_r2", "exponential_r2")) | {"verdict": self.verdict.value}
        return row_of(self.fit, [name for name in EXPONENT_COLUMNS if name not in own]) | own


@dataclass(frozen=True)
class Distances:
    """The mean change by distance of a sweep.

    Attributes:
        table: `jaxsens.core.report.data.FlipTables.distances`.
        variants: in the order of the config.
        norm: what was measured of the output's change.
    """

    table: pandas.DataFrame
    variants: Sequence[str]
    norm: str

    @cached_property
    def fits(self) -> tuple[DistanceFit, ...]:
        """One for each variant and length with enough distances."""
        fits = []
        for variant in self.variants:
            own = self.table.query("variant == @variant and distance > 0")
            for n in sorted({int(n) for n in own["n"]}):
                rows = own.loc[own["n"] == n]
                distances, means = (rows[name].to_numpy(np.float64) for name in ("distance", "mean"))
                if len({*distances}) >= FEWEST:
                    tiny = (means > 0) & (means < NEGLIGIBLE * np.max(means))
                    blurred = having(rows, "mean", "at most") | tiny
                    options = {"blurred": blurred, "place": "distance "}
                    fit = fit_exponent(distances, means, rows["seed"], variant, "mean", **options)
                    inside = ~np.isin(distances, fit.without)
                    explained = _explained(distances[inside], means[inside])
                    fits.append(DistanceFit(variant, n, fit, *explained))
        return tuple(fits)

    @property
    def longest(self) -> dict[str, DistanceFit]:
        """The fit of the longest inputs of each variant that has one, in the order of the config."""
        return {one.variant: one for one in self.fits}


def _explained(
    distances: Float[np.ndarray, " rows"], means: Float[np.ndarray, " rows"]
) -> tuple[float, float]:
    """R^2 of straight lines through log(mean change), averaged over seeds, against log(distance) and the distance."""
    positive = means > 0
    apart, place = np.unique(distances[positive], return_inverse=True)
    averaged = np.bincount(place, np.log(means[positive])) / np.bincount(place)
    if len(apart) < FEWEST or np.ptp(averaged) == 0:
        return math.nan, math.nan
    power, exponential = (float(np.corrcoef(x, averaged)[0, 1]) ** 2 for x in (np.log(apart), apart))
    return power, exponential


def write_distances(folder: Path, distances: Distances) -> None:
    """Writes distances.csv, a row for each point and cell, and distance_exponents.csv, a row for each fit."""
    write_table(folder / "distances.csv", DISTANCE_COLUMNS, distances.table.to_dict("records"))  # pyright: ignore[reportArgumentType]
    write_table(folder / "distance_exponents.csv", EXPONENT_COLUMNS, [one.row for one in distances.fits])


def distance_sections(distances: Distances) -> list[Section]:
    """The section of a report; none if no variant has enough distances, or none reads a single row."""
    bullets = [one.sentence for one in distances.longest.values()]
    if not bullets:
        return []
    return [
        Section("Distance to the row that is read", bullets=bullets, figures=[distance_figure(distances)])
    ]


def distance_figure(distances: Distances) -> ReportFigure:
    """The mean change against the distance, log-log: a panel per variant, a line per length."""
    styles = {n: line_style(k) for k, n in enumerate(sorted({int(n) for n in distances.table["n"]}))}
    panels = [_panel(distances, variant, styles) for variant in distances.longest]
    caption = text("distance", fewest=FEWEST, spread=text("spread"), strip=text("strip"))
    return panel_figure(
        "distance",
        [caption, *about_inexact(panels)],
        f"Mean change against distance to the readout for {enumeration(distances.longest)}.",
        panels,
        "How does the effect of a flip depend on its distance to the row that is read?",
        **SMALL,
        height=2.8,
    )


def _panel(distances: Distances, variant: str, styles: Mapping[int, LineStyle]) -> Panel:
    own = distances.table.query("variant == @variant")
    lines = []
    for n, style in styles.items():
        of_length = own.loc[own["n"] == n]
        rows = of_length.assign(n=of_length["distance"].replace(0.0, READ_AT))
        lines.append(measured_line(rows, variant, "mean", f"n = {n}", style))
    places = sorted({place for line in lines for place in line.values})
    farthest = max(places)
    marks = (READ_AT, 1, *(4.0**k for k in range(1, 12)))
    ticks = [place for place in marks if places[0] <= place <= farthest]
    return Panel(
        title=variant,
        y_label=change_label(distances.norm, "mean "),
        x_label="distance to the row that is read",
        lines=lines,
        guides=powers(lines, (1.0, float(farthest)), {"1/d": -1}),
        ticks=ticks,
        tick_names={READ_AT: "0"},
    )
