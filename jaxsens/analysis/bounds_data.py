"""The bounds of a sweep by variant: spreads over seeds, exponents, and what is found in words."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from jaxsens.analysis.findings import enumeration, interval, signed
from jaxsens.analysis.fits import ExponentFit, fit_exponent
from jaxsens.analysis.points_table import Spread, spread
from jaxsens.experiments.bounds import PARTS, BoundRecord, shortened

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
    """The bounds of a sweep. points: the columns of points.csv. variants: in the order of the config. unseeded: those
    among them whose model no seed changes."""

    records: tuple[BoundRecord, ...]
    points: pandas.DataFrame
    variants: tuple[str, ...]
    norm: str
    unseeded: frozenset[str] = frozenset()

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
        """The exponent of a value. Without an interval over seeds where these have one value between them because they
        have one model: the seeds are then no repetitions."""
        rows = [(r.n, number, r.seed) for r in self.of(variant) if (number := value(r)) is not None]
        if variant in self.unseeded and len({(n, number) for n, number, _ in rows}) == len(
            {n for n, *_ in rows}
        ):
            rows = [
                (n, number, rows[0][2]) for n, number in dict.fromkeys((n, number) for n, number, _ in rows)
            ]
        n, numbers, seeds = (np.array(part) for part in zip(*rows, strict=True)) if rows else ([], [], [])
        return fit_exponent(n, numbers, seeds, variant=variant, statistic=name)

    def exactly_known(self, variant: str) -> tuple[int, ...]:
        """The lengths at which the worst input was found by trying every input, with every seed."""
        searched = [record for record in self.of(variant) if record.worst is not None]
        open_ends = {record.n for record in searched if not record.worst_exact}
        return tuple(sorted({record.n for record in searched} - open_ends))

    @cached_property
    def mixes_exact(self) -> bool:
        """Whether every input was tried at some points, and at others inputs were searched."""
        return len({record.worst_exact for record in self.records if record.worst is not None}) == 2

    def partly_exact(self, variant: str) -> bool:
        """Whether every input was tried at some lengths, and at others inputs were searched."""
        known = self.exactly_known(variant)
        return 0 < len(known) < len(self.spreads(variant, SIDES_OF[0][1]))


def findings(data: BoundsData) -> list[str]:
    """A sentence a variant: the exponents of both sides and how far they are apart."""
    found = []
    for variant in data.certified:
        ratios = data.spreads(variant, lambda record: record.ratio)
        parts = []
        for name, value in SIDES_OF:
            parts += _power(data, variant, name, value)
        if ratios:
            n, last = list(ratios.items())[-1]
            parts.append(f"certified / found at n = {n}: {last.median:.3g} (at most {last.high:.3g})")
        parts += _logits(data, variant)
        if parts:
            found.append(f"{variant}: {'; '.join(parts)}.")
    without = [v for v in data.searched if v not in data.certified]
    for variant in without:
        powers = _power(data, variant, *SIDES_OF[0])
        if powers:
            found.append(f"{variant}: {powers[0]}; no certified bound.")
    return found


def _power(data: BoundsData, variant: str, name: str, value: Value) -> list[str]:
    """The exponent of a side, with what its reader must know of the values behind it; nothing where there is none."""
    fit = data.fit(variant, value, name)
    if fit.always_zero:
        return [f"{name}: exactly 0 at every length"]
    if math.isnan(fit.exponent):
        return []
    notes = []
    if name == SIDES_OF[0][0] and data.partly_exact(variant):
        known = enumeration([str(n) for n in data.exactly_known(variant)])
        notes.append(f"every input tried at n = {known}, searched at the others")
    notes += [fit.note] if fit.zeros else []
    beside = f"({'; '.join(notes)})" if notes else ""
    return [" ".join(filter(None, (name, f"n^{signed(fit.exponent)}", interval(fit), beside)))]


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


def mattering(data: BoundsData) -> list[str]:
    """A sentence a variant: how many inputs may matter at the shortest and the longest length with a restriction; and
    how many points that is said of, where some have none."""
    found = []
    for variant in data.restricted:
        counts = data.spreads(variant, lambda record: record.matter)
        first, last = min(counts), max(counts)
        had, asked = sum(count.seeds for count in counts.values()), len(data.of(variant))
        beside = (
            ""
            if had == asked
            else f" This is said of {had} of {asked} points; the others have no restriction."
        )
        found.append(
            f"{variant}: at most {counts[first].high:g} free inputs matter at n = {first}, {counts[last].high:g} at "
            f"n = {last}.{beside}"
        )
    return found


def left_out(data: BoundsData) -> list[str]:
    """A sentence a part and reason: for which variants it is missing, and at how many of their points."""
    reasons: dict[tuple[str, str, int, int], list[str]] = {}
    for part in PARTS:
        for variant in data.variants:
            records = data.of(variant)
            notes = [record.notes[part] for record in records if part in record.notes]
            if notes:
                reason = notes[0] if len(set(notes)) == 1 else f"at the first of these: {notes[0]}"
                reasons.setdefault((part, reason, len(notes), len(records)), []).append(variant)
    return [
        f"{enumeration(variants)}: no {PARTS[part]} at {missing} of {asked} points"
        f"{' each' if len(variants) > 1 else ''} ({shortened(reason, 400)})."
        for (part, reason, missing, asked), variants in reasons.items()
    ]
