"""What a report is made from: a sweep that was read, tables of single flips, readings of the table of points, and
the texts.

Numbers are in tables with the columns "variant", "n" and "seed": a row for each model, input length and seed. The
functions here that take a table take any such table.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, cached_property
from importlib.resources import files
from typing import Any, NamedTuple

import numpy as np
import pandas
from jaxtyping import Float
from numpy.typing import ArrayLike

from jaxsens.core.base.errors import InputError, rule_for
from jaxsens.core.base.programs import resolved
from jaxsens.core.models.transformer.layered import readout_row
from jaxsens.core.report.fits import ExponentFit, fit_exponents
from jaxsens.core.results.result import FlipSensitivity
from jaxsens.core.sweeps.points import PointMetadata
from jaxsens.core.sweeps.sources import SEEDED
from jaxsens.core.sweeps.sweep import PlannedVariant, SweepPlan, point_row

BINS = 32
"""The largest number of cells that a profile divides an input into."""

HALF_OCTAVES = np.unique(np.ceil(2.0 ** (np.arange(80) / 2)))
"""The first distance of each half octave: 1, 2, 3, 4, 6, 8, 12, ..."""

DISTANCE_COLUMNS = ("variant", "n", "seed", "distance", "flips", "mean", "mean_is")
"""The columns of distances.csv. `mean_is` is "at most" where rounding may move the mean by over 1 %, else "exact"."""


class Spread(NamedTuple):
    """How a value varies over seeds: its median, minimum and maximum over `seeds` seeds. NaN if there are none."""

    median: float
    low: float
    high: float
    seeds: int


Profiles = Mapping[tuple[str, int], Float[np.ndarray, " cells"]]
"""The mean sensitivity in equal cells along the input, from first to last, by variant and length of the input.

A cell has NaN if no flip was measured in it, or if rounding may move its mean by over 1 %.
"""


DECISION_COLUMNS = ("variant", "n", "seed", "average", "per_position", "smallest", "largest")
"""The columns of `FlipTables.models`."""


class FlipTables:
    """What a report shows of single flips: by position, by distance and by decision. The flips of a point are added
    and forgotten, so that those of only one point are in memory at a time."""

    def __init__(self) -> None:
        self._cells: dict[tuple[str, int], np.ndarray] = {}
        self._distances: list[tuple[Any, ...]] = []
        self._shares: dict[tuple[str, int], list[np.ndarray]] = {}
        self._models: list[tuple[Any, ...]] = []

    def add(
        self,
        variant: str,
        n: int,
        seed: int,
        positions: ArrayLike,
        norms: ArrayLike,
        resolution: ArrayLike = 0.0,
        readout: int | str | None = None,
    ) -> None:
        """Adds a point's flips: their `positions`, from 0 to n - 1, the `norms` they caused, and how far rounding puts
        these off. A model that reads no single row, or does not say which, has no distances."""
        place, value = np.asarray(positions, np.int64), np.asarray(norms, np.float64)
        errors, bins = np.broadcast_to(np.asarray(resolution, np.float64), value.shape), min(BINS, n)
        errors = np.where(resolved(value, errors), 0.0, errors)  # what is resolved hardly moves a mean
        total = self._cells.setdefault((variant, n), np.zeros((3, bins)))
        total += np.stack(
            [np.bincount(place * bins // n, each, minlength=bins) for each in (value, errors, None)]
        )
        moves = isinstance(readout, str) and readout != "last"  # with the word
        row = None if readout is None or moves else readout_row(readout, n)
        if row is None:
            return
        apart = np.abs(place - row)
        cells = np.searchsorted(HALF_OCTAVES, apart, side="right")  # 0 for distance 0
        for cell, flips in zip(*np.unique(cells, return_counts=True), strict=True):
            inside = cells == cell
            mean, error = np.array(value[inside].mean()), np.array(errors[inside].mean())
            distance = 0.0 if cell == 0 else np.exp(np.log(apart[inside]).mean())
            known = (float(mean), "exact") if resolved(mean, error) else (float(mean + error), "at most")
            self._distances.append((variant, n, seed, distance, flips, *known, cell))

    def add_decisions(self, variant: str, n: int, seed: int, flips: FlipSensitivity) -> None:
        """Adds a point that measured how flips change decisions."""
        smallest, largest = math.nan, math.nan
        if flips.exhaustive:
            shares = flips.sensitivity_distribution
            self._shares.setdefault((variant, n), []).append(shares)
            smallest, largest = np.flatnonzero(shares)[[0, -1]].astype(float)
        per_position = math.nan
        with suppress(InputError):  # a sample of flips that change the length does not say it
            per_position = flips.average_sensitivity_per_position
        self._models.append((variant, n, seed, flips.average_sensitivity, per_position, smallest, largest))

    @property
    def profiles(self) -> Profiles:
        """The means by position over all flips added so far, sorted by variant and length."""
        with np.errstate(invalid="ignore"):  # a cell without flips is 0 / 0, which is the NaN that is wanted
            return {
                key: np.where(resolved(sums, errors), sums, np.nan) / counts
                for key, (sums, errors, counts) in sorted(self._cells.items())
            }

    @property
    def distances(self) -> pandas.DataFrame:
        """The means by distance to the row that is read: a row for each point and half octave of distances (1, 2, 3,
        4 and 5, 6 and 7, 8 to 11, ...), at their geometric mean. A half octave has one distance in all seeds, so that
        they can be compared."""
        table = pandas.DataFrame(self._distances, columns=[*DISTANCE_COLUMNS, "cell"])
        of_cell = table.groupby(["variant", "n", "cell"])["distance"]
        return table.assign(distance=of_cell.transform("median")).drop(columns="cell")

    @property
    def shares(self) -> dict[tuple[str, int], Float[np.ndarray, " counts"]]:
        """Of decisions f: the share of inputs x of which s(f, x) = 0, 1, 2, ... flips change the decision, the mean
        over seeds, by variant and length; without the points that measured a random sample of the flips."""
        shares = {}
        for key, each in sorted(self._shares.items()):
            longest = max(map(len, each))
            shares[key] = np.mean([np.pad(one, (0, longest - len(one))) for one in each], axis=0)
        return shares

    @property
    def models(self) -> pandas.DataFrame:
        """A row for each point that measured decisions, in the order of the config: its average sensitivity, that
        divided by the number of positions (NaN if the point does not say it), and the smallest and the largest s(f, x)
        of its inputs (NaN for a sample of the flips)."""
        return pandas.DataFrame(self._models, columns=[*DECISION_COLUMNS])


def spreads(table: pandas.DataFrame, variant: str, column: str) -> dict[Any, Spread]:
    """The spread over seeds of one column for one variant, by the value of column "n", smallest first.

    The median of an even number of values is the mean of the middle two.
    """
    values = table[table["variant"] == variant].astype({column: float}).groupby("n")[column]
    table_of_spreads = values.agg(["median", "min", "max", "count"])
    return {n: Spread(*row) for n, *row in table_of_spreads.itertuples()}  # pyright: ignore[reportArgumentType]


@dataclass(frozen=True, eq=False)
class SweepData:
    """What the report of a sweep shows.

    Attributes:
        plan: what the sweep was to measure.
        metadata: of the points that have been measured, in the order of the plan.
        flips: what the report shows of single flips.
        results: of each table of the plan, by its name: the rows of a `PointTable`, the records of a `RecordTable`.
    """

    plan: SweepPlan
    metadata: tuple[PointMetadata, ...]
    flips: FlipTables
    results: Mapping[str, Sequence[Any]] = field(default_factory=dict)

    @cached_property
    def points(self) -> pandas.DataFrame:
        """A row for each model, length and seed, as in points.csv.

        `variant`, `n` and `seed` name the point; `inputs` and `flips` count what was measured, `unresolved` the flips
        that the arithmetic does not resolve. Then comes a column for each statistic, such as `mean` and `max`, and
        another, such as `mean_is`, that says what its value is: "exact", "estimated", a "lower bound", an "upper
        bound", or "at most". A sweep with estimates adds `measured`, `mean_low`, `mean_high`, `median_error`,
        `largest_error`, `rank_correlation` and `exceeding`.
        """
        return pandas.DataFrame([point_row(point) for point in self.metadata], columns=[*self.plan.columns])

    @cached_property
    def fits(self) -> tuple[ExponentFit, ...]:
        """The exponent of each statistic of each model, with the slopes between successive lengths. `str` says it in
        words."""
        return fit_exponents(self.points, minimum_length=self.plan.fit_from)

    @cached_property
    def variants(self) -> tuple[PlannedVariant, ...]:
        """The variants with at least one measured point, in the order of the config."""
        measured = {point.variant for point in self.metadata}
        return tuple(variant for variant in self.plan.variants if variant.name in measured)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of these variants."""
        return tuple(variant.name for variant in self.variants)

    @property
    def unseeded(self) -> frozenset[str]:
        """The names of the variants whose weights do not depend on the seed."""
        return frozenset(variant.name for variant in self.variants if variant.weights not in SEEDED)

    @property
    def sampled(self) -> bool:
        """Whether some point measured only a random sample of its flips."""
        return any(point.flips < point.population for point in self.metadata)

    @property
    def estimated(self) -> tuple[PointMetadata, ...]:
        """The points with estimates of flips."""
        return tuple(point for point in self.metadata if point.estimated is not None)

    @property
    def inexact(self) -> dict[str, int]:
        """The variants measured at lengths for which rounding makes them inexact, with the longest exact length."""
        # Of equal keys a dictionary keeps the last, which is the largest length here.
        longest = dict(sorted((point.variant, point.n) for point in self.metadata))
        lengths = {each.name: each.exact_length for each in self.variants if each.exact_length is not None}
        return {name: exact for name, exact in lengths.items() if longest[name] > exact}

    @property
    def missing(self) -> tuple[tuple[str, int, int], ...]:
        """The planned points that have not been measured: variant, input length and seed."""
        measured = {(point.variant, point.n, point.seed) for point in self.metadata}
        planned = ((point.variant, point.n, point.seed) for point in self.plan.points)
        return tuple(key for key in planned if key not in measured)


def text(name: str, **values: object) -> str:
    """Returns the text of this name on one line, with `values` in the places that braces mark. `templates/texts.md`
    holds the paragraphs and captions of reports, each below a heading that names it."""
    return rule_for("the report", "text", name, _texts()).format(**values)


@cache
def _texts() -> dict[str, str]:
    page = files("jaxsens.core.report").joinpath("templates", "texts.md").read_text("utf-8")
    parts = (part.partition("\n") for part in page.split("\n## ")[1:])
    return {name: " ".join(body.split()) for name, _, body in parts}
