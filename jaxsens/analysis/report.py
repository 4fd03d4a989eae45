"""One self-contained report.html a sweep, with its figures as files and the exponents as summary.csv."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from jaxsens.analysis.bounds import bounds_sections
from jaxsens.analysis.bounds_data import BoundsData
from jaxsens.analysis.figures import local_slope_figure, sensitivity_figure
from jaxsens.analysis.findings import enumeration, sentence, summary_sentence
from jaxsens.analysis.fits import ExponentFit, fit_exponents
from jaxsens.analysis.heat_maps import profile_figure
from jaxsens.analysis.load import load_sweep
from jaxsens.analysis.local_slopes import local_slopes
from jaxsens.analysis.page import Report, Section, write_page
from jaxsens.analysis.points_table import statistic_columns
from jaxsens.analysis.report_tables import (
    exponent_table,
    missing_text,
    points_table,
    run_table,
    variant_table,
)
from jaxsens.analysis.style import variant_styles
from jaxsens.analysis.sweep_data import SweepData
from jaxsens.analysis.tables import write_summary

DEFAULT_TITLE = "Flip sensitivity against input length"

WHAT_IS_MEASURED = (
    "Exchange one symbol of an input of n symbols: by how much does the output of a transformer change? That distance, "
    "‖y(x) \N{MINUS SIGN} y(x′)‖ at the position that is read out, is measured here for {flips} (a flip), on "
    "{networks}."
)

RANDOM_NETWORKS = "networks that share their weights and inputs and differ in one choice only"

UNSEEDED_NETWORKS = {
    "constructed": "networks with constructed weights, which no seed changes",
    "trained": "networks with trained weights, which no seed changes",
}

WHAT_IS_KNOWN = (
    "With softmax attention and position embeddings that stay bounded as n grows, it is at most of order 1/n: "
    "in long inputs a single symbol all but ceases to matter (Hahn 2020, Lemma 5). Attention scores multiplied "
    "by a factor that grows with n, or position embeddings that grow with n, lift that limit (Yang et al. 2024), "
    "and it was never one for hard attention. That a variant may escape the limit does not mean that its weights "
    "make use of it."
)

BEYOND_EXACTNESS = (
    "Rounding may have changed results at the longest inputs: {variant} is predicted to be exact up to n = {n}. "
    "What is said of longer inputs is what that number format computes, not what the construction promises."
)

ABOUT_SAMPLES = (
    "Points with many flips measured a random sample of them. Means and quantiles are estimates then, and the largest "
    "change is that of the sample: the largest over all flips may be larger."
)


def write_report(
    directory: str | os.PathLike[str], *, minimum_length: int = 1, confidence: float = 0.95
) -> Path:
    """Writes summary.csv, figures/*.png, figures/*.svg and report.html into a sweep directory; returns the last.

    A sweep that is not finished gives a report that says what is missing. Each file is written atomically.

    minimum_length: only lengths from this one on enter a fit. confidence: of the intervals.

    Raises InputError if the directory holds no point, or for a `confidence` outside (0, 1).
    Takes some seconds, most of them to draw; reads one point's flips at a time.
    """
    folder = Path(directory)
    data = load_sweep(folder)
    fits = fit_exponents(
        data.points, variants=data.variants, minimum_length=minimum_length, confidence=confidence
    )
    write_summary(folder / "summary.csv", fits)
    return write_page(build_report(data, fits), folder)


def build_report(data: SweepData, fits: Sequence[ExponentFit]) -> Report:
    """Chooses what the report of a sweep shows. fits: of every variant and statistic in `data.points`."""
    statistics = statistic_columns(data.points)
    styles = variant_styles(data.variants)
    main = tuple(name for name in ("mean", "max") if name in statistics) or statistics[:1]
    others = tuple(name for name in statistics if name not in main)

    flips = "a random sample of such exchanges" if data.sampled else "every such exchange"

    scaling = [sensitivity_figure(data.points, fits, styles, statistics=main, norm=data.norm)]
    if others:
        more = sensitivity_figure(
            data.points,
            fits,
            styles,
            statistics=others,
            name="sensitivity-others",
            heading="The same for the other statistics",
            norm=data.norm,
        )
        scaling.append(more)
    sections = [
        Section(
            "What was found",
            paragraphs=((ABOUT_SAMPLES,) if data.sampled else ()) + _beyond_exactness(data),
            bullets=(
                *(summary_sentence(fits, statistic) for statistic in main),
                *(sentence(fit) for fit in fits if fit.variant == data.variants[0] and fit.statistic in main),
            ),
        ),
        Section("The variants", tables=(variant_table(data),)),
        Section("Sensitivity against input length", figures=tuple(scaling)),
        Section("Fitted exponents", tables=(exponent_table(fits, data.bounded),)),
    ]
    slopes = local_slopes(data.points, statistics=main, variants=data.variants)
    if any(slope.slopes for slope in slopes):
        figure = local_slope_figure(slopes, styles, statistics=main)
        sections.append(Section("Is one exponent enough?", figures=(figure,)))
    if data.profiles:
        figure = profile_figure(data.profiles, data.variants, norm=data.norm)
        sections.append(Section("Which positions matter", figures=(figure,)))
    unseeded = frozenset(data.constructed | data.trained)
    sections += bounds_sections(BoundsData(data.bounds, data.points, data.variants, data.norm, unseeded))
    sections.append(Section("The points", tables=(points_table(data),)))
    if data.config_text:
        sections.append(Section("The config", ("As it was given:",), code=data.config_text))
    sections.append(Section("What was run", tables=(run_table(data),)))
    return Report(
        title=data.title or DEFAULT_TITLE,
        claim=data.claim,
        introduction=(WHAT_IS_MEASURED.format(flips=flips, networks=_networks(data)), WHAT_IS_KNOWN),
        warning=_warning(data),
        sections=tuple(sections),
    )


def _networks(data: SweepData) -> str:
    by_weights: dict[str, list[str]] = {}
    for variant in data.variants:
        by_weights.setdefault(data.weights(variant), []).append(variant)
    if set(by_weights) == {"random"}:
        return RANDOM_NETWORKS
    if len(by_weights) == 1:
        return UNSEEDED_NETWORKS[next(iter(by_weights))]
    listed = ["networks with random weights"] if "random" in by_weights else []
    listed += [
        f"{text} ({enumeration(by_weights[weights])})"
        for weights, text in UNSEEDED_NETWORKS.items()
        if weights in by_weights
    ]
    return f"{' and on '.join(listed)}, all with the same inputs"


def _beyond_exactness(data: SweepData) -> tuple[str, ...]:
    """A paragraph for each variant that was measured at lengths for which it is not exact."""
    return tuple(BEYOND_EXACTNESS.format(variant=v, n=n) for v, n in data.inexact.items())


def _warning(data: SweepData) -> str:
    missing = data.missing
    if not missing:
        return ""
    return (
        f"{len(missing)} of {len(data.planned)} planned points are missing: {missing_text(missing)}. "
        "Run the same sweep again to measure them; what is here is made from the points there are."
    )
