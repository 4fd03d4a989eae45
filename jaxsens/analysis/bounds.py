"""The sections of a report on bounds over all inputs, with their tables."""

from __future__ import annotations

import math

from jaxsens.analysis.bounds_data import SIDES_OF, BoundsData, findings, left_out, mattering
from jaxsens.analysis.bounds_figures import mattering_figure, sides_figures
from jaxsens.analysis.page import Section
from jaxsens.analysis.points_table import Spread
from jaxsens.analysis.report_tables import ReportTable

EVERY_INPUT = (
    "What is measured above holds for the inputs that were tried. Here every input of length n is meant."
)
FROM_BELOW = "From below: the input and flip with the largest change that a search over all inputs found."
FROM_ABOVE = (
    "From above: a bound that is certified for every input and every flip, by exact attention weights in the first "
    "layer and interval arithmetic beyond; and Lemma 5's closed form with the constants of the model."
)
BETWEEN = "The truth lies between the worst input found and the certified bound."

ABOUT_MATTERING = (
    "With leftmost- or rightmost-hard attention some inputs can be fixed (a restriction) so that the output depends on "
    "few of those left free, whatever they are (Hahn 2020, Theorem 1). How many may still matter is counted here; each "
    "restriction's certificate was checked apart from the search for it."
)


def bounds_sections(data: BoundsData) -> list[Section]:
    """The sections of a report; none without records."""
    sections = []
    if data.searched or data.certified:
        figures = tuple(sides_figures(data))
        sections.append(
            Section(
                "Bounds over all inputs",
                paragraphs=(_about(data),),
                bullets=tuple(findings(data)),
                figures=figures,
                tables=(bounds_table(data),),
            )
        )
    if data.restricted:
        sections.append(
            Section(
                "Inputs that matter",
                paragraphs=(ABOUT_MATTERING,),
                bullets=tuple(mattering(data)),
                figures=(mattering_figure(data),),
                tables=(mattering_table(data),),
            )
        )
    missing = left_out(data)
    if missing:
        sections.append(Section("Bounds that are left out, and why", bullets=tuple(missing)))
    return sections


def _about(data: BoundsData) -> str:
    parts = [EVERY_INPUT]
    parts += [FROM_BELOW] if data.searched else []
    parts += [FROM_ABOVE] if data.certified else []
    parts += [BETWEEN] if data.searched and data.certified else []
    return " ".join(parts)


def bounds_table(data: BoundsData) -> ReportTable:
    """Both sides, their ratio and Lemma 5: a row a variant and length, medians over seeds."""
    rows = []
    for variant in (v for v in data.variants if v in {*data.searched, *data.certified}):
        worst = data.spreads(variant, SIDES_OF[0][1])
        certified = data.spreads(variant, SIDES_OF[1][1])
        ratios = data.spreads(variant, lambda record: record.ratio)
        logs = data.spreads(variant, lambda record: record.log_lemma5)
        logits = data.spreads(variant, lambda record: record.logit_bound)
        for n in sorted({*worst, *certified}):
            rows.append(
                (
                    variant,
                    str(n),
                    _number(worst.get(n)),
                    _number(certified.get(n)),
                    _number(ratios.get(n)),
                    f"{ratios[n].high:.3g}" if n in ratios else "\N{EM DASH}",
                    f"{logs[n].median / math.log(10):.1f}" if n in logs else "\N{EM DASH}",
                    f"{logits[n].median:.3g}" if n in logits else "\N{EM DASH}",
                )
            )
    return ReportTable(
        caption="Medians over seeds; in bounds.csv every seed with every digit.",
        header=(
            "variant",
            "n",
            "worst found",
            "certified",
            "certified / found",
            "largest of these",
            "log10 of Lemma 5",
            "A, its bound on logits",
        ),
        rows=tuple(rows),
        numeric=7,
    )


def mattering_table(data: BoundsData) -> ReportTable:
    """How many inputs are left free, and how many of them may matter: a row a variant and length."""
    rows = []
    for variant in data.restricted:
        counts = data.spreads(variant, lambda record: record.matter)
        free = data.spreads(variant, lambda record: record.free)
        for n, count in counts.items():
            rows.append((variant, str(n), f"{free[n].low:g}", f"{count.median:g}", f"{count.high:g}"))
    return ReportTable(
        caption="Over seeds.",
        header=("variant", "n", "left free, at least", "matter, median", "matter, at most"),
        rows=tuple(rows),
        numeric=4,
    )


def _number(value: Spread | None) -> str:
    return "\N{EM DASH}" if value is None else f"{value.median:.4g}"
