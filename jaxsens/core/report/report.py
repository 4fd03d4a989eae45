"""The report of a sweep: one self-contained report.html, its figures as files, and the exponents as summary.csv."""

from __future__ import annotations

import math
import os
from pathlib import Path

import numpy as np

from jaxsens.core.base.files import only_inside
from jaxsens.core.flips.fields import READOUT
from jaxsens.core.report.data import SweepData, text
from jaxsens.core.report.distances import Distances, decision_sections, distance_sections, write_distances
from jaxsens.core.report.fits import enumeration, having, summary_sentence
from jaxsens.core.report.page import (
    Report,
    Section,
    exponent_table,
    local_slope_figure,
    profile_figure,
    run_table,
    sensitivity_figure,
    variant_table,
    write_fits,
    write_page,
)
from jaxsens.core.sweeps.points import AVERAGE_SENSITIVITY, PER_POSITION
from jaxsens.core.sweeps.sweep import write_points_csv, write_results_csv


def write_report(
    data: SweepData, directory: str | os.PathLike[str], format: str = "svg", width: str = "page"
) -> Path:
    """Writes points.csv, NAME.csv of the sweep's tables, summary.csv, local_slopes.csv, distances.csv,
    distance_exponents.csv, figures/ and report.html into a directory, each file atomically. Returns the page's path.

    Takes some seconds, most of them for drawing.

    Raises:
        InputError: for a statistic that no norm can have.
    """
    folder, fits = Path(directory), data.fits
    with only_inside(folder):
        write_points_csv(folder, data.metadata, data.plan)
        for name, table in data.plan.sweep_tables.items():
            write_results_csv(folder, data.results[name], name, table)
        write_fits(folder, fits)
        if (distances := distances_of(data)) is not None:
            write_distances(folder, distances)
        return write_page(build_report(data), folder, format, width)


def build_report(data: SweepData) -> Report:
    """Chooses what the report of a sweep shows."""
    plan, fits, distances = data.plan, data.fits, distances_of(data)
    statistics = ("mean", "max", AVERAGE_SENSITIVITY, PER_POSITION)
    main = tuple(name for name in statistics if name in plan.statistics) or plan.statistics[:1]
    findings = [*(summary_sentence(fits, statistic) for statistic in main), *about_equals(data)]
    caveats = [text("samples")] if data.sampled else []
    caveats += [_about_estimates(data)] if data.estimated else []
    caveats += about_unresolved(data)
    caveats += [text("beyond-exactness", variant=variant, n=n) for variant, n in data.inexact.items()]
    norm, others = plan.measurement.measure.kind, [name for name in plan.statistics if name not in main]
    figure = sensitivity_figure(data.points, fits, statistics=[*main, *others], norm=norm)
    fitted = [text("fitted-from", n=plan.fit_from)] if any(n < plan.fit_from for n in plan.lengths) else []
    sections = [
        Section("What was found", paragraphs=caveats, bullets=findings),
        Section("Sensitivity against input length", figures=[figure]),
        Section("The variants", tables=[variant_table(data)]),
        Section("Fitted exponents", fitted, tables=[exponent_table(fits)]),
    ]
    if any(fit.local for fit in fits if fit.statistic in main):
        figure = local_slope_figure(fits, statistics=main, lengths=sorted(set(data.points["n"])))
        sections.append(Section("Is one exponent enough?", figures=[figure]))
    sections += decision_sections(data.flips)
    profiles = data.flips.profiles
    if profiles and plan.measurement.flips.positions != (READOUT,):  # there is no profile of one position
        figure = profile_figure(profiles, data.names, norm=norm)
        sections.append(Section("Which positions matter", figures=[figure]))
    if distances is not None:
        sections += distance_sections(distances)
    for name, table in plan.sweep_tables.items():
        sections += table.sections(data, data.results[name])
    if plan.config:
        sections.append(Section("The config", ["The config file as it was given:"], code=plan.config))
    sections.append(Section("What was run", tables=[run_table(data)]))
    flips = "every flip, at some points of a random sample," if data.sampled else "every flip"
    if all(point.flips < point.population for point in data.metadata):
        flips = "a random sample of all flips"
    flips += ", in part by estimates," if data.estimated else ""
    return Report(
        title=plan.title or "Flip sensitivity against input length",
        claim=plan.claim,
        introduction=_introduction(data, flips, distances),
        warning=_warning(data),
        sections=sections,
    )


def distances_of(data: SweepData) -> Distances | None:
    """The mean change by distance to the row that is read; None if no model reads a single row."""
    table = data.flips.distances
    if table.empty:
        return None
    return Distances(table, data.names, data.plan.measurement.measure.kind)


def _introduction(data: SweepData, flips: str, distances: Distances | None) -> list[str]:
    """What was measured, and what is known of it."""
    measurement = data.plan.measurement
    edit, replaced = measurement.flips, measurement.flips.longer == 0
    values = {"flips": flips, "networks": _networks(data)}
    values["edit"] = text(
        f"flip-{'substitute' if replaced else edit.kind}",
        symbol="the symbol at the readout" if edit.positions == (READOUT,) else "one symbol",
        copies=f"{1 + edit.copies} copies",
    )
    if not measurement.measure.indicator or measurement.measure.threshold is None:
        beside = distances is not None and np.min(distances.table["distance"]) > 0
        values["read"] = f" {text('read')}" if beside else ""
        return [text("measured", **values), text("known") if replaced else text("known-of-edits")]
    threshold = measurement.measure.threshold
    threshold = (
        f"the {threshold} of its outputs on the inputs" if isinstance(threshold, str) else f"{threshold:g}"
    )
    limits = [text("known-of-decisions")] if replaced else []
    return [text("decisions", threshold=threshold, **values), *limits]


def _about_estimates(data: SweepData) -> str:
    estimates = [point.estimated or {} for point in data.estimated]

    def known(name: str) -> list[float]:
        values = (one[name] for one in estimates)
        return [value for value in values if value is not None and not math.isnan(value)]

    ranks, largest = known("rank_correlation"), known("largest_error")
    return text(
        "estimates",
        points=len(estimates),
        all=len(data.metadata),
        flips=f"{sum(point.flips for point in data.estimated):,}",
        measured=f"{sum(int(one['measured'] or 0) for one in estimates):,}",
        error=max(known("median_error"), default=math.nan),
        rank=text("estimates-rank", rank=min(ranks)) if ranks else "",
        largest=f" {text('estimates-largest', largest=max(largest))}" if largest else "",
    )


def about_equals(data: SweepData) -> list[str]:
    """Which variants have the same numbers, to the last bit, in words: one remark for each set of them. Those that are
    0 everywhere are left out: of them the fits say so."""
    equal: dict[bytes, list[str]] = {}
    for variant in data.names:
        rows = data.points.query("variant == @variant").sort_values(["n", "seed"])
        numbers = rows[["n", "seed", *data.plan.statistics]].to_numpy(float)
        if np.any(np.nan_to_num(numbers[:, 2:])):
            equal.setdefault(numbers.tobytes(), []).append(variant)
    return [text("equals", variants=enumeration(names)) for names in equal.values() if len(names) > 1]


def about_unresolved(data: SweepData) -> list[str]:
    """Which lengths of which statistics are not resolved, in words: one remark for each variant and statistic."""
    table, remarks = data.points, []
    dtypes = ", ".join(sorted({point.dtype for point in data.metadata if point.at_most}))
    for variant in data.names:
        rows = table.query("variant == @variant")
        for statistic in data.plan.statistics:
            if lengths := sorted(set(rows["n"][having(rows, statistic, "at most")])):
                where = {"lengths": ", ".join(map(str, lengths)), "all": rows["n"].nunique()}
                what = {"variant": variant, "statistic": statistic, "dtype": dtypes}
                remarks.append(text("unresolved", **what, **where, some=len(lengths)))
    return remarks


def _networks(data: SweepData) -> str:
    by_weights: dict[str, list[str]] = {}
    for variant in data.variants:
        by_weights.setdefault(variant.weights, []).append(variant.name)
    if len(by_weights) == 1:
        return text(f"networks-{next(iter(by_weights))}")
    listed = (f"{text(f'networks-{kind}')} ({enumeration(names)})" for kind, names in by_weights.items())
    same = all(table.get("kind") != "language" for table in data.plan.inputs.values())
    return f"{' and on '.join(listed)}, {'all with the same inputs' if same else 'each on words of its language'}"


def _warning(data: SweepData) -> str:
    if not data.missing:
        return ""
    names = [f"{variant} n = {n} seed = {seed}" for variant, n, seed in data.missing[:10]]
    more = f" and {len(data.missing) - 10} more" if len(data.missing) > 10 else ""
    which, planned = ", ".join(names) + more, len(data.plan.points)
    return text("missing", missing=len(data.missing), planned=planned, which=which)
