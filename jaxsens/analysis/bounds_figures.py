"""The figures of bounds over all inputs: from below, from above, Lemma 5; and the inputs that matter."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from jaxsens.analysis.bounds_data import SIDES_OF, BoundsData, findings, mattering
from jaxsens.analysis.figures import ReportFigure, change_label, fitted_power
from jaxsens.analysis.findings import enumeration, interval, signed
from jaxsens.analysis.fits import ExponentFit
from jaxsens.analysis.panels import Guide, Line, Panel, draw_panels
from jaxsens.analysis.points_table import Spread, spreads, statistic_columns
from jaxsens.analysis.style import LineStyle, variant_styles

SIDES = (
    "The largest change on the inputs that were measured, the largest that a search over all inputs found, and the "
    "certified bound; both axes are logarithmic."
)
WITH_LEMMA5 = "The same with Lemma 5's closed form, by powers of ten."
MATTERING = (
    "How many of the inputs left free the output may depend on, out of all that are free (grey line). A count of 0 "
    "lies in the grey strip."
)
EXACT = (
    " A filled mark of a worst input: every input was tried, so there is no larger change. A hollow one: inputs were "
    "searched, and there may be."
)
TRIED = "filled: every input tried"
BESIDE = (
    "Right: the largest change that one symbol makes, {}: hard attention hears few inputs, but those fully; soft "
    "attention hears all, each less and less."
)
SIDES_AND_LEMMA5 = f"Left: {SIDES[0].lower()}{SIDES[1:]} Right: {WITH_LEMMA5[0].lower()}{WITH_LEMMA5[1:]}"

_Found = tuple[str, dict[int, Spread], ExponentFit | None]
"""A line: its name, its values by length, and its fit if it has one."""


def sides_figures(data: BoundsData) -> list[ReportFigure]:
    """The bounds against n: with one or two certified variants in one figure, with more in a grid each without and with
    Lemma 5, the latter of those that it has a closed form for; and the worst inputs of variants that have no certified
    bound."""
    if not data.certified:
        return [_worst_figure(data)]
    closed = [v for v in data.having(lambda record: record.log_lemma5) if v in data.certified]
    few = len(data.certified) <= 2
    paired = few and len(closed) == len(data.certified)
    layout: dict[str, Any] = (
        {"share_y": False}
        if few
        else {"share_y": False, "columns": 3, "width": 4.3, "height": 2.6, "share_legend": True}
    )
    sides = [_sides_panel(data, variant, named=few) for variant in data.certified]
    lemma5 = [_lemma5_panel(data, variant) for variant in closed]
    heading = "How large can the change be, over every input?"
    groups = [
        ("bounds", [panel for pair in zip(sides, lemma5, strict=False) for panel in pair], SIDES_AND_LEMMA5)
    ]
    if not paired:
        groups = [("bounds", sides, SIDES)] + ([("bounds-lemma5", lemma5, WITH_LEMMA5)] if closed else [])
    figures = [
        ReportFigure(
            name=name,
            caption=f"{caption} Line: median over seeds; vertical stroke: smallest to largest seed.{_exact(data)}",
            description=" ".join(findings(data)),
            figure=draw_panels(panels, heading=heading, **layout),
        )
        for name, panels, caption in groups
    ]
    if set(data.searched) - set(data.certified):
        figures.append(_worst_figure(data))
    return figures


def _lines_of(data: BoundsData, variant: str) -> list[_Found]:
    lines: list[_Found] = []
    if "max" in statistic_columns(data.points):
        lines.append(("largest measured", spreads(data.points, variant, "max"), None))
    for name, value in SIDES_OF:
        by_length = data.spreads(variant, value)
        if by_length:
            lines.append((name, by_length, data.fit(variant, value, name)))
    return lines


def _sides_panel(data: BoundsData, variant: str, named: bool) -> Panel:
    """named: whether the legend belongs to this panel alone, and so has room for its exponents."""
    found = _lines_of(data, variant)
    styles = variant_styles([name for name, _, _ in found])
    lines = []
    for name, by_length, fit in found:
        label = f"{name}:  {fitted_power(fit)}" if named and fit is not None else name
        hollow = _searched(data, variant) if name == SIDES_OF[0][0] else frozenset()
        label += f"  ({TRIED})" if named and hollow else ""
        lines.append(Line(label, styles[name], tuple(by_length), tuple(by_length.values()), hollow))
    return Panel(
        title=variant,
        y_label=change_label(data.norm),
        lines=tuple(lines),
        ticks=_ticks(found),
        findings=() if named else _powers(found),
    )


def _powers(found: Sequence[_Found]) -> tuple[str, ...]:
    return tuple(
        f"{name}: n^{signed(fit.exponent)} {interval(fit)}".rstrip()
        for name, _, fit in found
        if fit is not None and not math.isnan(fit.exponent)
    )


def _lemma5_panel(data: BoundsData, variant: str) -> Panel:
    found = _lines_of(data, variant)
    logs: dict[int, Spread] = data.spreads(
        variant, lambda record: None if record.log_lemma5 is None else record.log_lemma5 / math.log(10)
    )
    named = [name for name, _, _ in found]
    styles = variant_styles([*named, "Lemma 5"])
    lines = [
        Line(
            name,
            styles[name],
            tuple(by_length),
            tuple(map(_log10, by_length.values())),
            _searched(data, variant) if name == SIDES_OF[0][0] else frozenset(),
        )
        for name, by_length, _ in found
    ]
    if logs:
        lines.append(Line("Lemma 5, closed form", styles["Lemma 5"], tuple(logs), tuple(logs.values())))
    return Panel(
        title=f"{variant}, with Lemma 5",
        y_label="log\N{SUBSCRIPT ONE}\N{SUBSCRIPT ZERO} of the change",
        lines=tuple(lines),
        ticks=_ticks(found),
        log=False,
    )


def _log10(value: Spread) -> Spread:
    def log(number: float) -> float:
        return math.log10(number) if number > 0 else math.nan

    return Spread(log(value.median), log(value.low), log(value.high), value.seeds)


def _worst_figure(data: BoundsData) -> ReportFigure:
    styles = variant_styles(data.variants)
    return ReportFigure(
        name="worst-inputs",
        caption=(
            "The largest change that a search over all inputs and flips found. Line: median over seeds; vertical "
            "stroke: smallest to largest seed." + _exact(data)
        ),
        description="The worst input found, for " + enumeration(data.searched) + ".",
        figure=draw_panels([_worst_panel(data, data.searched, styles)]),
    )


def _worst_panel(data: BoundsData, variants: Sequence[str], styles: Mapping[str, LineStyle]) -> Panel:
    lines = []
    for variant in variants:
        by_length = data.spreads(variant, SIDES_OF[0][1])
        fit = data.fit(variant, SIDES_OF[0][1], "worst")
        label = f"{variant}:  {fitted_power(fit)}"
        values = tuple(by_length.values())
        lines.append(Line(label, styles[variant], tuple(by_length), values, _searched(data, variant)))
    return _change_panel(data, "Worst input found", lines)


def _searched(data: BoundsData, variant: str) -> frozenset[float]:
    """The lengths to mark as those at which inputs were searched, where there are others that all were tried at."""
    if not data.mixes_exact:
        return frozenset()
    return frozenset(data.spreads(variant, SIDES_OF[0][1])) - set(data.exactly_known(variant))


def _exact(data: BoundsData) -> str:
    """What the marks say, where they differ."""
    return EXACT if data.mixes_exact else ""


def _measured_panel(data: BoundsData, styles: Mapping[str, LineStyle]) -> Panel:
    lines = []
    for variant in data.variants:
        by_length = spreads(data.points, variant, "max")
        lines.append(Line(variant, styles[variant], tuple(by_length), tuple(by_length.values())))
    return _change_panel(data, "Largest change measured", lines)


def _change_panel(data: BoundsData, title: str, lines: Sequence[Line]) -> Panel:
    return Panel(title=title, y_label=change_label(data.norm), lines=tuple(lines), ticks=_lengths(data))


def mattering_figure(data: BoundsData) -> ReportFigure:
    """How many free inputs may matter, beside the worst input found, or the largest change measured where none was."""
    styles = variant_styles(data.variants)
    lines = []
    for variant in data.restricted:
        by_length = data.spreads(variant, lambda record: record.matter)
        lines.append(Line(variant, styles[variant], tuple(by_length), tuple(by_length.values())))
    free = data.spreads(data.restricted[0], lambda record: record.free)
    panels = [
        Panel(
            title="Free inputs that may matter",
            y_label="inputs",
            lines=tuple(lines),
            ticks=_lengths(data),
            guides=(Guide("left free", tuple(free), tuple(one.median for one in free.values())),),
        )
    ]
    if data.searched:
        panels.append(_worst_panel(data, data.searched, styles))
    elif "max" in statistic_columns(data.points):
        panels.append(_measured_panel(data, styles))
    beside = BESIDE.format("as found by the search" if data.searched else "on the inputs measured")
    heading = "How many inputs decide"
    heading += ", and how much does one of them?" if len(panels) > 1 else "?"
    return ReportFigure(
        name="inputs-that-matter",
        caption=(f"{MATTERING} {beside}" if len(panels) > 1 else MATTERING) + _exact(data),
        description=" ".join(mattering(data)),
        figure=draw_panels(panels, heading=heading),
    )


def _ticks(found: Sequence[_Found]) -> tuple[int, ...]:
    return tuple(sorted({n for _, by_length, _ in found for n in by_length}))


def _lengths(data: BoundsData) -> tuple[int, ...]:
    return tuple(sorted({record.n for record in data.records}))
