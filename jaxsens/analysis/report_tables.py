"""The tables of a report, as rows of text."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from jaxsens.analysis.findings import growth, interval, signed
from jaxsens.analysis.fits import ExponentFit
from jaxsens.analysis.points_table import KEY_COLUMNS, statistic_columns
from jaxsens.analysis.sweep_data import PointKey, PointRun, SweepData


@dataclass(frozen=True)
class ReportTable:
    """A table of a report. numeric: how many of the last columns hold numbers, which stand to the right.

    collapsed: its caption is a heading to click on.
    """

    caption: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numeric: int = 0
    collapsed: bool = False


def exponent_table(fits: Sequence[ExponentFit], bounded: Mapping[str, bool]) -> ReportTable:
    """A row a variant and statistic: boundedness of its embeddings, exponent and interval, also in words."""
    level = f"{100 * fits[0].confidence:g} %" if fits else "95 %"
    rows = []
    for fit in fits:
        rows.append(
            (
                fit.variant,
                _boundedness(bounded, fit.variant),
                fit.statistic,
                growth(fit).value,
                fit.note,
                "\N{EM DASH}" if math.isnan(fit.exponent) else signed(fit.exponent, 3),
                interval(fit, 3) or "\N{EM DASH}",
                str(fit.points),
                str(fit.seeds),
            )
        )
    header = (
        "variant",
        "embeddings",
        "statistic",
        "as n grows, it",
        "note",
        "exponent",
        f"{level} interval",
        "points",
        "seeds",
    )
    return ReportTable(
        caption=(
            f"Exponent e of statistic ~ n^e: mean over seeds of the log-log slope, with Student's {level} interval "
            "over seeds. In summary.csv with every digit."
        ),
        header=header,
        rows=tuple(rows),
        numeric=4,
    )


def variant_table(data: SweepData) -> ReportTable:
    """What each variant is, whether Lemma 5's condition on position embeddings holds for it, and what is measured."""
    rows = [
        (
            variant,
            data.descriptions.get(variant, ""),
            data.weights(variant),
            _boundedness(data.bounded, variant),
            data.outputs.get(variant, "\N{EM DASH}"),
        )
        for variant in data.variants
    ]
    header = ("variant", "what it is", "weights", "position embeddings", "measured in the output")
    return ReportTable(caption="", header=header, rows=tuple(rows))


def points_table(data: SweepData) -> ReportTable:
    """Every point with its statistics to four digits."""
    statistics = statistic_columns(data.points)
    order = {variant: k for k, variant in enumerate(data.variants)}
    rows = []
    for row in data.points.to_dict("records"):
        keys = tuple(str(row[column]) for column in KEY_COLUMNS)
        rows.append(
            (
                (order[keys[0]], int(row["n"]), int(row["seed"])),
                keys + tuple(_short(row[s]) for s in statistics),
            )
        )
    return ReportTable(
        caption=f"All {len(rows)} points (in points.csv with every digit)",
        header=(*KEY_COLUMNS, *statistics),
        rows=tuple(text for _, text in sorted(rows)),
        numeric=len(KEY_COLUMNS) - 1 + len(statistics),
        collapsed=True,
    )


def run_table(data: SweepData) -> ReportTable:
    """What was run, on what, with what: values that differ between points are listed with how often each occurs."""
    runs = data.runs
    rows = [
        (
            "points",
            f"{len(data.points)} of {len(data.planned)} planned" if data.planned else str(len(data.points)),
        ),
        ("missing", missing_text(data.missing) or "none"),
        ("flips", _flips(runs)),
        ("computing time", f"{duration(sum(run.seconds for run in runs))}, summed over points"),
        ("device", _tally(run.device for run in runs)),
        ("number format", _tally(run.dtype for run in runs)),
        ("matrix-product precision", _tally(run.precision for run in runs)),
        (
            "engine",
            _tally(
                f"{run.engine} ({run.engine_reason})" if run.engine_reason else run.engine for run in runs
            ),
        ),
    ]
    names = sorted({name for run in runs for name in run.versions})
    rows += [(name, _tally(run.versions.get(name, "not recorded") for run in runs)) for name in names]
    return ReportTable(caption="", header=(), rows=tuple(rows))


def missing_text(missing: Sequence[PointKey]) -> str:
    """The missing points, those of one variant and length together: "softmax n = 64 (seeds 1, 2)"; ten such at most."""
    groups: dict[tuple[str, int], list[int]] = {}
    for variant, n, seed in missing:
        groups.setdefault((variant, n), []).append(seed)
    listed = [
        f"{variant} n = {n} (seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, sorted(seeds)))})"
        for (variant, n), seeds in groups.items()
    ]
    if len(listed) > 10:
        listed[9:] = [f"and {len(listed) - 9} more lengths of variants"]
    return "; ".join(listed)


def duration(seconds: float) -> str:
    """A time for a reader: "3.2 s", "4 min 05 s" or "2 h 10 min"."""
    if round(seconds, 1) < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def _flips(runs: Sequence[PointRun]) -> str:
    measured, population = sum(run.flips for run in runs), sum(run.population for run in runs)
    if measured == population:
        return f"all {population:,}"
    return f"random samples: {measured:,} of {population:,}"


def _boundedness(bounded: Mapping[str, bool], variant: str) -> str:
    if variant not in bounded:
        return "\N{EM DASH}"
    return "bounded" if bounded[variant] else "unbounded"


def _tally(values: Iterable[str]) -> str:
    counts = Counter(values)
    if len(counts) == 1:
        return next(iter(counts))
    return (
        "; ".join(f"{value} (\N{MULTIPLICATION SIGN}{count})" for value, count in counts.most_common())
        or "not recorded"
    )


def _short(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.4g}"
