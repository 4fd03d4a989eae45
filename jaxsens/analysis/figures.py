"""The line figures of a report, made from the table of points and the fits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from jaxsens.analysis.findings import (
    by_growth,
    enumeration,
    interval,
    signed,
    statistic_name,
    summary_sentence,
)
from jaxsens.analysis.fits import ExponentFit
from jaxsens.analysis.local_slopes import LocalSlope
from jaxsens.analysis.panels import Guide, Line, Panel, draw_panels
from jaxsens.analysis.points_table import lengths_of, spreads
from jaxsens.analysis.style import LineStyle, variant_styles

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

NORM_SYMBOLS = {"l1": "₁", "l2": "₂", "linf": "\N{INFINITY}"}


@dataclass(frozen=True)
class ReportFigure:
    """A figure with what a report needs to show it.

    name: of its files, without ending. caption: how to read it. description: what is seen, for who cannot see it.
    """

    name: str
    caption: str
    description: str
    figure: Figure


def sensitivity_figure(
    points: pandas.DataFrame,
    fits: Sequence[ExponentFit],
    styles: Mapping[str, LineStyle],
    *,
    statistics: Sequence[str],
    name: str = "sensitivity",
    heading: str = "How much does the output change when one symbol of the input is exchanged?",
    norm: str = "l2",
) -> ReportFigure:
    """Statistics against input length, log-log: a panel a statistic, a line a variant, exponents in the legend.

    fits: of every variant in `styles` and every statistic in `statistics`. norm: "l1", "l2" or "linf".
    """
    panels = [sensitivity_panel(points, fits, styles, statistic=one, norm=norm) for one in statistics]
    return ReportFigure(
        name=name,
        caption=(
            "Both axes are logarithmic, so a power of n is a straight line. Line: median over seeds; vertical "
            "stroke: smallest to largest seed (the variants of one length stand side by side). The thin grey "
            "lines have the slopes 0 (constant) and \N{MINUS SIGN}1 (falling as 1/n). "
            "Behind each name stands the fitted power of n, with the interval over seeds in brackets. Values that are "
            "exactly 0 have no place on a logarithmic axis; they lie in the grey strip at the bottom."
        ),
        description=" ".join(summary_sentence(fits, statistic) for statistic in statistics),
        figure=draw_panels(panels, heading=heading),
    )


def sensitivity_panel(
    points: pandas.DataFrame,
    fits: Sequence[ExponentFit],
    styles: Mapping[str, LineStyle],
    *,
    statistic: str,
    norm: str = "l2",
) -> Panel:
    """One statistic against input length. Further lines and guides can be added with `dataclasses.replace`."""
    of_statistic = {fit.variant: fit for fit in fits if fit.statistic == statistic}
    lines = []
    for variant, style in styles.items():
        by_length = spreads(points, variant, statistic)
        label = f"{variant}:  {fitted_power(of_statistic[variant])}"
        lines.append(Line(label, style, tuple(by_length), tuple(by_length.values())))
    lengths = lengths_of(points)
    return Panel(
        title=_upper(statistic_name(statistic)),
        findings=growth_lines(list(of_statistic.values())),
        y_label=change_label(norm),
        lines=tuple(lines),
        guides=_slope_guides(lines, lengths),
        ticks=tuple(lengths),
        legend_title=_legend_title(fits),
    )


def local_slope_figure(
    slopes: Sequence[LocalSlope], styles: Mapping[str, LineStyle], *, statistics: Sequence[str]
) -> ReportFigure:
    """Slopes between successive lengths: a panel a variant, a line a statistic."""
    statistic_styles = dict(zip(statistics, _statistic_styles(len(statistics)), strict=True))
    panels = []
    for variant in styles:
        own = [slope for slope in slopes if slope.variant == variant]
        if not own:
            continue
        lines = []
        for statistic, style in statistic_styles.items():
            of_statistic = [slope for slope in own if slope.statistic == statistic]
            lines.append(
                Line(
                    statistic_name(statistic),
                    style,
                    tuple(slope.middle for slope in of_statistic),
                    tuple(slope.spread for slope in of_statistic),
                )
            )
        lengths = sorted({n for slope in own for n in (slope.n_low, slope.n_high)})
        ends = (float(lengths[0]), float(lengths[-1]))
        panels.append(
            Panel(
                title=variant,
                findings=() if any(slope.slopes for slope in own) else ("no slope: too few values above 0",),
                y_label="local exponent of n",
                lines=tuple(lines),
                ticks=tuple(lengths),
                guides=(
                    Guide("constant", ends, (0.0, 0.0)),
                    Guide("1/n", ends, (-1.0, -1.0)),
                ),
                log=False,
            )
        )
    return ReportFigure(
        name="local-slopes",
        caption=(
            "The exponent between each length and the next, in place of one exponent for the whole range. A true power "
            "of n is level here; a line that still rises or falls says that the fitted exponent is an average over the "
            "range and not yet the law (log(n)/n, for one, sinks slowly towards \N{MINUS SIGN}1). "
            "Line: median over seeds; vertical stroke: smallest to largest seed. "
            "There is no slope where a value is exactly 0."
        ),
        description="Slopes between successive lengths for " + enumeration(list(styles)) + ".",
        figure=draw_panels(
            panels,
            heading="Does one power of n describe the whole range? Slopes from each length to the next",
            columns=3,
            width=4.3,
            height=2.3,
            share_legend=True,
        ),
    )


def fitted_power(fit: ExponentFit) -> str:
    """The fitted power of n with its interval, or why there is none, short enough for a legend."""
    if fit.points == 0:
        return "always exactly 0" if fit.always_zero else "too few positive values for a fit"
    text = f"$n^{{{signed(fit.exponent).replace(chr(0x2212), '-')}}}$  {interval(fit)}"
    if fit.zeros:
        text += f"  ({fit.zeros} zero{'s' if fit.zeros > 1 else ''} left out)"
    return text


def growth_lines(fits: Sequence[ExponentFit], width: int = 62) -> tuple[str, ...]:
    """What is seen, a line for each way of growing, cut to fit above a panel."""
    lines = []
    for kind, names in by_growth(fits).items():
        text = f"{kind.value}: "
        for k, variant in enumerate(names):
            piece = variant + (", " if k + 1 < len(names) else "")
            if len(text) + len(piece) > width:
                lines.append(text.rstrip())
                text = "    "
            text += piece
        lines.append(text)
    return tuple(lines)


def change_label(norm: str, lines: int = 1) -> str:
    """The measured quantity, for an axis, on one line or two."""
    return f"change of the output,{'  ' if lines == 1 else chr(10)}‖y(x) \N{MINUS SIGN} y(x′)‖{NORM_SYMBOLS[norm]}"


def _slope_guides(lines: Sequence[Line], lengths: Sequence[int]) -> tuple[Guide, ...]:
    """Slopes 0 and -1 from the upper left corner of the data; none without positive values at two lengths."""
    highest = max((value.high for line in lines for value in line.values if value.high > 0), default=0.0)
    if highest == 0 or len(lengths) < 2:
        return ()
    start, ends = 1.3 * highest, (float(lengths[0]), float(lengths[-1]))
    return (
        Guide("constant", ends, (start, start)),
        Guide("1/n", ends, (start, start * ends[0] / ends[1])),
    )


def _legend_title(fits: Sequence[ExponentFit]) -> str:
    seeds = max((fit.seeds for fit in fits), default=0)
    if seeds < 2:
        return "Fitted power of n  (one seed: no interval)" if seeds else ""
    return f"Fitted power of n  [{100 * fits[0].confidence:g} % interval over {seeds} seeds]"


def _statistic_styles(count: int) -> list[LineStyle]:
    return list(variant_styles([str(k) for k in range(count)]).values())


def _upper(text: str) -> str:
    return text[:1].upper() + text[1:]
