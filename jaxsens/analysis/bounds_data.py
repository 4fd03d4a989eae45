"""The bounds of a sweep by variant: spreads over seeds, exponents, and what is found in words."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from jaxsens.analysis.findings import interval, signed
from jaxsens.analysis.fits import ExponentFit, fit_exponent
from jaxsens.analysis.points_table import Spread, spread
from jaxsens.experiments.bounds import BoundRecord

if TYPE_CHECKING:
    import pandas

Value = Callable[[BoundRecord], float | None]
"""What is read from a record; None where it has none."""

STEADY = 0.1
"""A bound on logits that grows by a smaller power of n than this is taken for one that has a limit."""

SIDES_OF: tuple[tuple[str, Value], ...] = (
    ("worst input found", lambda record: record.worst),
    ("certified for every input", lambda record: record.certified),
)
"""The bound from below and the one from above, by name."""


@dataclass(frozen=True)
class BoundsData:
    """The bounds of a sweep. points: the columns of points.csv. variants: in the order of the config."""

    records: tuple[BoundRecord, ...]
    points: pandas.DataFrame
    variants: tuple[str, ...]
    norm: str

    def of(self, variant: str) -> list[BoundRecord]:
        """The records of one variant."""
        return [record for record in self.records if record.variant == variant]

    def having(self, value: Value) -> tuple[str, ...]:
        """The variants that have this value at some point."""
        return tuple(v for v in self.variants if any(value(record) is not None for record in self.of(v)))

    @cached_property
    def certified(self) -> tuple[str, ...]:
        """The variants with a certified bound."""
        return self.having(lambda record: record.certified)

    @cached_property
    def restricted(self) -> tuple[str, ...]:
        """The variants with a restriction."""
        return self.having(lambda record: record.matter)

    @cached_property
    def searched(self) -> tuple[str, ...]:
        """The variants whose worst input was searched."""
        return self.having(lambda record: record.worst)

    def spreads(self, variant: str, value: Value) -> dict[int, Spread]:
        """The spread over seeds of a value, by input length."""
        found: dict[int, list[float]] = {}
        for record in self.of(variant):
            number = value(record)
            if number is not None:
                found.setdefault(record.n, []).append(number)
        return {n: spread(found[n]) for n in sorted(found)}

    def fit(self, variant: str, value: Value, name: str) -> ExponentFit:
        """The exponent of a value."""
        rows = [(r.n, number, r.seed) for r in self.of(variant) if (number := value(r)) is not None]
        n, numbers, seeds = (np.array(part) for part in zip(*rows, strict=True)) if rows else ([], [], [])
        return fit_exponent(n, numbers, seeds, variant=variant, statistic=name)


def findings(data: BoundsData) -> list[str]:
    """A sentence a variant: the exponents of both sides and how far they are apart, or why one is missing."""
    found = []
    for variant in data.certified:
        ratios = data.spreads(variant, lambda record: record.ratio)
        parts = []
        for name, value in SIDES_OF:
            fit = data.fit(variant, value, name)
            if not math.isnan(fit.exponent):
                parts.append(f"{name} n^{signed(fit.exponent)} {interval(fit)}".rstrip())
        if ratios:
            n, last = list(ratios.items())[-1]
            parts.append(f"certified / found at n = {n}: {last.median:.3g} (at most {last.high:.3g})")
        parts += _logits(data, variant)
        if parts:
            found.append(f"{variant}: {'; '.join(parts)}.")
    without = [v for v in data.searched if v not in data.certified]
    for variant in without:
        fit = data.fit(variant, SIDES_OF[0][1], "worst")
        if not math.isnan(fit.exponent):
            power = f"n^{signed(fit.exponent)} {interval(fit)}".rstrip()
            found.append(f"{variant}: worst input found {power}; no certified bound ({_why(data, variant)}).")
    return found


def _logits(data: BoundsData, variant: str) -> list[str]:
    """What Lemma 5 has to say: its closed form is about exp(2A)^(2L) / n, so that it falls where A hardly grows."""
    rows = sorted(
        (r.n, r.seed, r.log_lemma5, r.logit_bound)
        for r in data.of(variant)
        if r.log_lemma5 is not None and r.logit_bound is not None
    )
    lengths = sorted({n for n, *_ in rows})
    if len(lengths) < 2:
        return []
    first, last = (
        [float(np.median([row[k] for row in rows if row[0] == n])) for k in (2, 3)]
        for n in (lengths[0], lengths[-1])
    )
    logits = f"A = {first[1]:.3g} at n = {lengths[0]}, {last[1]:.3g} at n = {lengths[-1]}"
    if last[0] < first[0]:
        return [f"Lemma 5's closed form falls ({logits})"]
    if last[1] < first[1] * (lengths[-1] / lengths[0]) ** STEADY:
        return [f"Lemma 5's closed form does not fall yet ({logits})"]
    return [f"Lemma 5's closed form grows with its bound on logits and forbids nothing ({logits})"]


def _why(data: BoundsData, variant: str) -> str:
    notes = [record.notes["certified"] for record in data.of(variant) if "certified" in record.notes]
    text = notes[0] if notes else "not asked for"
    return text if len(text) <= 160 else text[:157] + "..."


def mattering(data: BoundsData) -> list[str]:
    """A sentence a variant: how many inputs may matter at the shortest and the longest length."""
    found = []
    for variant in data.restricted:
        counts = data.spreads(variant, lambda record: record.matter)
        first, last = min(counts), max(counts)
        found.append(
            f"{variant}: at most {counts[first].high:g} free inputs matter at n = {first}, {counts[last].high:g} at "
            f"n = {last}."
        )
    return found
