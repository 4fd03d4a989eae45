"""Change against the distance from the flipped position to the row that is read: means, fits, figure and tables.

Distances are taken together in half octaves, each at the geometric mean of those that were flipped in it. Distance 0
is a flip of the row that is read, if it was flipped at all. Fits leave it out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from jaxsens.analysis.data import DISTANCE_COLUMNS, unresolved
from jaxsens.analysis.figures import SPREAD, ReportFigure, about_inexact, change_label, measured_line
from jaxsens.analysis.fits import LEVEL, ExponentFit, enumeration, fit_exponent, least_squares, signed
from jaxsens.analysis.page import DASH, ReportTable, Section
from jaxsens.analysis.panels import Guide, LineStyle, Panel, draw_panels, evenly, variant_styles
from jaxsens.experiments.job import write_table

if TYPE_CHECKING:
    import pandas

READ_AT = 0.5
"""Where the figure has distance 0 on its logarithmic axis."""

MOST_LENGTHS = 5
"""The largest number of lengths in a panel."""

FEWEST = 6
"""The fewest distances at which a length is drawn and fitted."""

EXPONENT_COLUMNS = (
    *("variant", "n", "exponent", "ci_low", "ci_high", "seeds", "settled"),
    *("power_r2", "exponential_r2"),
)
"""The columns of distance_exponents.csv."""


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
    def row(self) -> dict[str, Any]:
        """Its row of distance_exponents.csv."""
        fit = self.fit
        return {
            "variant": self.variant,
            "n": self.n,
            "exponent": fit.exponent,
            "ci_low": fit.ci_low,
            "ci_high": fit.ci_high,
            "seeds": fit.seeds,
            "settled": fit.settled,
            "power_r2": self.power_r2,
            "exponential_r2": self.exponential_r2,
        }


@dataclass(frozen=True)
class Distances:
    """The mean change by distance of a sweep.

    Attributes:
        table: of `jaxsens.analysis.data.DistanceBuilder`.
        variants: in the order of the config.
        norm: what was measured of the output's change.
    """

    table: pandas.DataFrame
    variants: Sequence[str]
    norm: str

    @cached_property
    def fits(self) -> tuple[DistanceFit, ...]:
        """One for each variant and length with enough distances."""
        found = []
        for variant in self.variants:
            own = self.table.query("variant == @variant and distance > 0")
            for n in sorted({int(n) for n in own["n"]}):
                rows = own.query("n == @n")
                distances, means = (rows[name].to_numpy(np.float64) for name in ("distance", "mean"))
                if len({*distances}) >= FEWEST:
                    blurred = unresolved(rows, "mean")
                    fit = fit_exponent(distances, means, rows["seed"], variant, "mean", blurred=blurred)
                    explained = _explained(distances[~blurred], means[~blurred])
                    found.append(DistanceFit(variant, n, fit, *explained))
        return tuple(found)

    @property
    def shown(self) -> tuple[str, ...]:
        """The variants with a fit."""
        fitted = {one.variant for one in self.fits}
        return tuple(variant for variant in self.variants if variant in fitted)

    @cached_property
    def lengths(self) -> tuple[int, ...]:
        """The lengths that are drawn: the longest, and others evenly between it and the shortest."""
        return evenly(sorted({one.n for one in self.fits}), MOST_LENGTHS)


def _explained(
    distances: Float[np.ndarray, " rows"], means: Float[np.ndarray, " rows"]
) -> tuple[float, float]:
    """R^2 of straight lines through log(mean change), averaged over seeds, against log(distance) and the distance."""
    positive = means > 0
    apart, place = np.unique(distances[positive], return_inverse=True)
    averaged = np.bincount(place, np.log(means[positive]), len(apart)) / np.bincount(
        place, minlength=len(apart)
    )
    if len(apart) < FEWEST or np.ptp(averaged) == 0:
        return math.nan, math.nan
    return _r2(np.log(apart), averaged), _r2(apart, averaged)


def _r2(x: Float[np.ndarray, " cells"], y: Float[np.ndarray, " cells"]) -> float:
    slope = least_squares(x, y)
    rest = y - y.mean() - slope * (x - x.mean())
    return 1 - float(rest @ rest) / float((y - y.mean()) @ (y - y.mean()))


def write_distances(folder: Path, distances: Distances) -> None:
    """Writes distances.csv, a row for each point and cell, and distance_exponents.csv, a row for each fit."""
    write_table(folder / "distances.csv", DISTANCE_COLUMNS, distances.table.to_dict("records"))  # pyright: ignore[reportArgumentType]
    write_table(folder / "distance_exponents.csv", EXPONENT_COLUMNS, [one.row for one in distances.fits])


def distance_sections(distances: Distances) -> list[Section]:
    """The section of a report; none if no variant has enough distances, or none reads a single row."""
    if not distances.shown:
        return []
    return [
        Section(
            "Distance to the row that is read",
            bullets=[_sentence(distances, variant) for variant in distances.shown],
            figures=[distance_figure(distances)],
            tables=[distance_table(distances.fits)],
        )
    ]


def _sentence(distances: Distances, variant: str) -> str:
    """What the longest inputs of a variant say."""
    last = [one for one in distances.fits if one.variant == variant][-1]
    if math.isnan(last.fit.exponent):
        return f"{variant}, n = {last.n}: no power of the distance ({last.fit.note})"
    power = f"{signed(last.fit.exponent)} {last.fit.interval()}".rstrip()
    told = f"{variant}, n = {last.n}: the mean change goes with the distance to the power {power}"
    if last.fit.unsettled:
        told += f" ({last.fit.unsettled})"
    better = "power" if last.power_r2 >= last.exponential_r2 else "exponential"
    return (
        f"{told}; a power of the distance explains {last.power_r2:.2f} of the variance of its logarithm, an "
        f"exponential {last.exponential_r2:.2f}, so the {better} fits better"
    )


def distance_table(fits: Sequence[DistanceFit]) -> ReportTable:
    """A row per variant and length."""
    rows = [
        (
            one.variant,
            one.fit.unsettled or one.fit.note or DASH,
            str(one.n),
            DASH if math.isnan(one.fit.exponent) else signed(one.fit.exponent, 3),
            one.fit.interval(3) or DASH,
            *(DASH if math.isnan(r2) else f"{r2:.3f}" for r2 in (one.power_r2, one.exponential_r2)),
        )
        for one in fits
    ]
    return ReportTable(
        caption=(
            "Exponent e of mean change ~ distance^e at each length: the mean over seeds of the log-log slope over all "
            f"distances from 1, with Student's {LEVEL} interval over seeds; and the share of the variance of the "
            "logarithm that a power, and an exponential, of the distance explains. The files distances.csv and "
            "distance_exponents.csv have every digit."
        ),
        header=(
            *("variant", "note", "n", "exponent", f"{LEVEL} interval"),
            *("R² of a power", "R² of an exponential"),
        ),
        rows=rows,
        numeric=5,
    )


def distance_figure(distances: Distances) -> ReportFigure:
    """The mean change against the distance, log-log: a panel per variant, a line per length."""
    styles = variant_styles([f"n = {n}" for n in distances.lengths])
    fits = {(one.variant, one.n): one.fit for one in distances.fits}
    panels = [_panel(distances, variant, styles, fits) for variant in distances.shown]
    return ReportFigure(
        name="distance",
        caption=(
            "Both axes are logarithmic, so a power of the distance is a straight line. The row that is read is on the "
            "left (0, if it was flipped), the far end of the input on the right. Each marker is the mean over the "
            "flips whose distance is in one half octave, over inputs and symbols. The lines are lengths; below a "
            "panel's title is the power of the distance fitted at the longest. "
            f"{SPREAD} The grey line has slope \N{MINUS SIGN}1."
            + about_inexact([line for panel in panels for line in panel.lines])
        ),
        description=f"Mean change against distance to the readout for {enumeration(distances.shown)}.",
        draw=partial(
            draw_panels,
            panels,
            heading="How does the effect of a flip depend on its distance to the row that is read?",
            columns=3,
            width=4.3,
            height=2.8,
            share_legend=True,
        ),
    )


def _panel(
    distances: Distances,
    variant: str,
    styles: Mapping[str, LineStyle],
    fits: Mapping[tuple[str, int], ExponentFit],
) -> Panel:
    own = distances.table.query("variant == @variant")
    lines = []
    for n, (label, style) in zip(distances.lengths, styles.items(), strict=True):
        of_length = own.query(f"n == {n}")
        rows = of_length.assign(n=of_length["distance"].replace(0.0, READ_AT))
        lines.append(measured_line(rows, variant, "mean", label, style))
    places = sorted({place for line in lines for place in line.values})
    farthest = max(places)
    ticks = [
        place for place in (READ_AT, 1, *(4.0**k for k in range(1, 12))) if places[0] <= place <= farthest
    ]
    values = [spread.high for line in lines for place, spread in line.values.items() if place >= 1]
    top = max((value for value in values if value > 0), default=0.0)
    ends = (1.0, float(farthest))
    guides = (Guide("1/d", ends, (top, top / farthest)),) if top and farthest > 1 else ()
    longest = fits[variant, max(n for name, n in fits if name == variant)]
    return Panel(
        title=variant,
        y_label=f"mean {change_label(distances.norm)}" if variant == distances.shown[0] else "",
        x_label="distance to the row that is read",
        lines=lines,
        guides=guides,
        ticks=ticks,
        tick_names={READ_AT: "0"},
        findings=(_finding(longest),),
    )


def _finding(fit: ExponentFit) -> str:
    if math.isnan(fit.exponent):
        return "no power of the distance"
    told = f"distance to the power {signed(fit.exponent)} {fit.interval()}".rstrip()
    return told if fit.settled else f"{told}, not settled"
