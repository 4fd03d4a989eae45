"""Bounds over all inputs in the report of a sweep: their data by variant, sentences, figures, tables and sections."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from jaxsens.core.base.errors import shortened
from jaxsens.core.report import page
from jaxsens.core.report.data import Spread, spreads, text
from jaxsens.core.report.fits import ExponentFit, enumeration, fit_exponent, signed, statistic_columns
from jaxsens.core.report.panels import SMALL, Guide, Line, LineStyle, Panel, line_style, variant_styles
from jaxsens.core.sweeps.sweep import row_of
from jaxsens.theory.tables.record import BOUND_COLUMNS, PARTS, BoundRecord

if TYPE_CHECKING:
    import pandas

SIDES = {"worst": "worst input found", "certified": "certified for every input"}
"""The bound from below and the one from above, by column, in words."""

TRIED = "filled: every input tried"

STEADY = 0.1
"""A bound on logits that grows more slowly than n to this power is taken to have a limit."""

_VALUES = tuple(name for name in BOUND_COLUMNS if name not in ("variant", "n", "seed", "worst_exact"))


@dataclass(frozen=True)
class BoundsData:
    """The bounds of a sweep.

    Attributes:
        records, variants: in the order of the plan, and of the config.
        points: the table of points.csv.
        norm: of the change of the output: "l1", "l2" or "linf".
        unseeded: the variants whose weights do not depend on the seed.
    """

    records: Sequence[BoundRecord]
    points: pandas.DataFrame
    variants: Sequence[str]
    norm: str
    unseeded: frozenset[str] = frozenset()

    @cached_property
    def table(self) -> pandas.DataFrame:
        """A row per record; NaN where a value is missing. "log10_lemma5" is Lemma 5's closed form by powers of ten."""
        import pandas as pd

        rows = [row_of(record, BOUND_COLUMNS) for record in self.records]
        table = pd.DataFrame(rows, columns=[*BOUND_COLUMNS]).astype(dict.fromkeys(_VALUES, float))
        return table.assign(log10_lemma5=table["log_lemma5"] / math.log(10))

    def rows(self, variant: str, column: str) -> pandas.DataFrame:
        """The rows of one variant that have a value in this column."""
        return self.table.query("variant == @variant").dropna(subset=column)

    def having(self, column: str) -> tuple[str, ...]:
        """The variants that have a value in this column at some point."""
        return tuple(variant for variant in self.variants if len(self.rows(variant, column)))

    def spreads(self, variant: str, column: str) -> dict[int, Spread]:
        """The spread of a value over seeds, by input length."""
        return spreads(self.rows(variant, column), variant, column)

    @property
    def lengths(self) -> list[int]:
        """The input lengths with a record."""
        return sorted({record.n for record in self.records})

    @cached_property
    def fits(self) -> dict[tuple[str, str], ExponentFit]:
        """The exponents of both sides, by variant and column, as far as there are values.

        Where the model does not depend on the seed and the values do not either, the seeds are not repetitions: one of
        them is fitted, and there is no interval.
        """
        found = {}
        sides = [(variant, side) for side in SIDES for variant in self.having(side)]
        for variant, column in sides:
            rows = self.rows(variant, column)
            different = rows.drop_duplicates(["n", column])
            if variant in self.unseeded and len(different) == different["n"].nunique():
                rows = different.assign(seed=0)
            columns = (rows["n"], rows[column], rows["seed"])
            found[variant, column] = fit_exponent(*columns, variant, SIDES[column])
        return found

    def exactly_known(self, variant: str) -> list[int]:
        """The lengths at which the worst input was found by trying every input, for every seed."""
        rows = self.rows(variant, "worst")
        return sorted({*rows["n"]} - {*rows.query("not worst_exact")["n"]})

    @cached_property
    def mixes_exact(self) -> bool:
        """Whether every input was tried at some points, and inputs were searched at others."""
        return len({record.worst_exact for record in self.records if record.worst is not None}) == 2

    def searched_lengths(self, variant: str) -> frozenset[int]:
        """The lengths to mark as searched; none if all points are alike and there is nothing to tell apart."""
        if not self.mixes_exact:
            return frozenset()
        return frozenset(self.spreads(variant, "worst")) - set(self.exactly_known(variant))


def bounds_sections(data: BoundsData) -> list[page.Section]:
    """The sections of a report; none without records."""
    sections = []
    searched, certified = data.having("worst"), data.having("certified")
    if searched or certified:
        said = {"from-below": searched, "from-above": certified, "between": searched and certified}
        about = " ".join([text("every-input"), *(text(name) for name, has in said.items() if has)])
        table = _table(data, text("table-of-bounds"), ("worst", "certified"), _OF_BOUNDS)
        figures = sides_figures(data)
        sections.append(page.Section("Bounds over all inputs", [about], findings(data), figures, [table]))
    if data.having("matter"):
        table, figures = _table(data, "Over seeds.", ("matter",), _OF_MATTERING), [mattering_figure(data)]
        about = text("mattering")
        sections.append(page.Section("Inputs that matter", [about], mattering(data), figures, [table]))
    if missing := left_out(data):
        sections.append(page.Section("Bounds that are missing, and why", bullets=missing))
    return sections


def findings(data: BoundsData) -> list[str]:
    """A sentence per variant: the exponents of both sides, how far apart they are, and what Lemma 5 says."""
    found = []
    certified = data.having("certified")
    for variant in certified:
        parts = [text for column in SIDES for text in _power(data, variant, column)]
        ratios = data.spreads(variant, "ratio")
        if ratios:
            n, last = max(ratios.items())
            over_seeds = f"{last.median:.3g} (the median over seeds; at most {last.high:.3g})"
            parts.append(f"certified / found at n = {n}: {over_seeds}")
        parts += _logits(data, variant)
        if parts:
            found.append(f"{variant}: {'; '.join(parts)}.")
    for variant in data.having("worst"):
        powers = [] if variant in certified else _power(data, variant, "worst")
        found += [f"{variant}: {power}; no certified bound." for power in powers]
    return found


def _power(data: BoundsData, variant: str, column: str) -> list[str]:
    """The exponent of a side, with what a reader must know of the values behind it; nothing if there is none."""
    fit = data.fits.get((variant, column))
    if fit is None:
        return []
    if fit.always_zero:
        return [f"{fit.statistic}: exactly 0 at every length"]
    if math.isnan(fit.exponent):
        return []
    notes = [fit.note] if fit.note else []
    known = data.exactly_known(variant) if column == "worst" else []
    if 0 < len(known) < len(data.spreads(variant, "worst")):
        notes.insert(0, f"every input tried at n = {enumeration(map(str, known))}, searched at the others")
    added = f"({'; '.join(notes)})" if notes else ""
    return [" ".join(filter(None, (fit.statistic, f"n^{signed(fit.exponent)}", fit.interval(), added)))]


def _logits(data: BoundsData, variant: str) -> list[str]:
    """What Lemma 5 says: its closed form is about exp(2A)^(2L) / n, so it falls only if A hardly grows."""
    rows = data.rows(variant, "log_lemma5").dropna(subset="logit_bound")
    lemma5, logits = (spreads(rows, variant, column) for column in ("log_lemma5", "logit_bound"))
    if len(lemma5) < 2:
        return []
    first, last = min(lemma5), max(lemma5)
    start, end = logits[first].median, logits[last].median
    told = f"A = {start:.3g} at n = {first}, {end:.3g} at n = {last}, medians over seeds"
    if lemma5[last].median < lemma5[first].median:
        return [f"Lemma 5's closed form falls ({told})"]
    if end < start * (last / first) ** STEADY:
        return [f"Lemma 5's closed form does not fall yet ({told})"]
    return [f"Lemma 5's closed form grows with its bound on the logits and rules nothing out ({told})"]


def mattering(data: BoundsData) -> list[str]:
    """A sentence per variant: how many inputs may matter at the shortest and at the longest restricted length, and at
    how many points there is a restriction, if not at all of them."""
    found = []
    for variant in data.having("matter"):
        counts = data.spreads(variant, "matter")
        first, last = min(counts), max(counts)
        had, asked = len(data.rows(variant, "matter")), len(data.rows(variant, "variant"))
        some = f" This holds for {had} of {asked} points; the others have no restriction."
        found.append(
            f"{variant}: at most {counts[first].high:g} free inputs matter at n = {first}, {counts[last].high:g} at "
            f"n = {last}.{some * (had < asked)}"
        )
    return found


def left_out(data: BoundsData) -> list[str]:
    """A sentence per missing part and reason: for which variants, and at how many of their points."""
    reasons: dict[tuple[str, str, int, int], list[str]] = {}
    for part in PARTS:
        for variant in data.variants:
            records = [record for record in data.records if record.variant == variant]
            notes = [record.notes[part] for record in records if part in record.notes]
            if notes:
                reason = notes[0] if len(set(notes)) == 1 else f"at the first of these: {notes[0]}"
                reasons.setdefault((part, reason, len(notes), len(records)), []).append(variant)
    return [
        f"{enumeration(variants)}: no {PARTS[part]} at {missing} of {asked} points"
        f"{' each' if len(variants) > 1 else ''} ({shortened(reason, 400)})."
        for (part, reason, missing, asked), variants in reasons.items()
    ]


_OF_BOUNDS = {
    "worst found": ("worst", "median", ".4g"),
    "certified": ("certified", "median", ".4g"),
    "certified / found": ("ratio", "median", ".4g"),
    "largest ratio": ("ratio", "high", ".3g"),
    "log10 of Lemma 5": ("log10_lemma5", "median", ".1f"),
    "A, its bound on logits": ("logit_bound", "median", ".3g"),
}
_OF_MATTERING = {
    "free, at least": ("free", "low", "g"),
    "matter, median": ("matter", "median", "g"),
    "matter, at most": ("matter", "high", "g"),
}


def _table(
    data: BoundsData, caption: str, needed: Sequence[str], shown: Mapping[str, tuple[str, str, str]]
) -> page.ReportTable:
    """A row for each variant and length with one of the `needed` values.

    shown: by heading the column of `data.table`, which number of its spread over seeds is shown, and how.
    """
    rows = []
    for variant in data.variants:
        found = {column: data.spreads(variant, column) for column, _, _ in shown.values()}
        for n in sorted({n for column in needed for n in found[column]}):
            cells = (
                f"{getattr(found[column][n], which):{form}}" if n in found[column] else page.DASH
                for column, which, form in shown.values()
            )
            rows.append((variant, str(n), *cells))
    return page.ReportTable(caption, ("variant", "n", *shown), rows, numeric=1 + len(shown))


def sides_figures(data: BoundsData) -> list[page.ReportFigure]:
    """The bounds against n, and the worst inputs of variants without a certified bound."""
    certified, figures = data.having("certified"), []
    read = text("spread"), text("every-input-tried") * data.mixes_exact
    if certified:
        layout: dict[str, Any] = {} if len(certified) <= 2 else {**SMALL, "height": 2.6}
        panels = [_sides_panel(data, variant) for variant in certified]
        heading, about = "How large can the change be, over every input?", " ".join(findings(data))
        caption = text("sides"), *read
        figures.append(page.panel_figure("bounds", caption, about, panels, heading, **layout, share_y=False))
    searched = data.having("worst")
    if set(searched) - set(certified):
        caption = "The largest change that a search over all inputs and flips found."
        about = f"The worst input found, for {enumeration(searched)}."
        panel = _worst_panel(data, searched, variant_styles(data.variants))
        figures.append(page.panel_figure("worst-inputs", (caption, *read), about, [panel], "", share_y=False))
    return figures


def mattering_figure(data: BoundsData) -> page.ReportFigure:
    """How many free inputs may matter; and the worst input found, or the largest change measured without a search."""
    styles = variant_styles(data.variants)
    restricted, searched = data.having("matter"), data.having("worst")
    free = data.spreads(restricted[0], "free")
    lines = [Line(variant, styles[variant], data.spreads(variant, "matter")) for variant in restricted]
    guides = [Guide(f"free, {restricted[0]}", [*free], [one.median for one in free.values()])]
    panels = [Panel("Free inputs that may matter", "inputs", lines, data.lengths, guides)]
    if searched:
        panels.append(_worst_panel(data, searched, styles))
    elif "max" in statistic_columns(data.points):
        lines = [
            page.measured_line(data.points, variant, "max", variant, styles[variant])
            for variant in data.variants
        ]
        panels.append(Panel("Largest change measured", page.change_label(data.norm), lines, data.lengths))
    both = len(panels) > 1
    where = "as found by the search" if searched else "on the inputs that were measured"
    change = text("largest-change", change=where)
    heading = "How many inputs decide, and how much does one of them?" if both else "How many inputs decide?"
    caption = (text("mattering-figure"), change if both else "", text("every-input-tried") * data.mixes_exact)
    return page.panel_figure("inputs-that-matter", caption, " ".join(mattering(data)), panels, heading)


def _sides_panel(data: BoundsData, variant: str) -> Panel:
    lines = []
    if "max" in statistic_columns(data.points):
        lines.append(page.measured_line(data.points, variant, "max", "largest measured", line_style(0)))
    for column, name in SIDES.items():
        fit = data.fits.get((variant, column))
        if fit is None:
            continue
        hollow = data.searched_lengths(variant) if column == "worst" else frozenset()
        label = f"{name}:  {page.fitted_power(fit)}" + (f"  ({TRIED})" if hollow else "")
        lines.append(Line(label, line_style(len(lines)), data.spreads(variant, column), hollow))
    ticks = sorted({n for line in lines for n in line.values})
    return Panel(variant, page.change_label(data.norm), lines, ticks)


def _worst_panel(data: BoundsData, variants: Sequence[str], styles: Mapping[str, LineStyle]) -> Panel:
    lines = []
    for variant in variants:
        label = f"{variant}:  {page.fitted_power(data.fits[variant, 'worst'])}"
        values, hollow = data.spreads(variant, "worst"), data.searched_lengths(variant)
        lines.append(Line(label, styles[variant], values, hollow))
    return Panel("Worst input found", page.change_label(data.norm), lines, data.lengths)
