"""`SweepData`: a sweep that was read, as the rooms of a report see it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from jaxsens.core.report.data import FlipTables
from jaxsens.core.report.fits import ExponentFit, fit_exponents
from jaxsens.core.sweeps.points import PointMetadata
from jaxsens.core.sweeps.sources import SEEDED
from jaxsens.core.sweeps.sweep import PlannedVariant, SweepPlan, point_row

if TYPE_CHECKING:
    import pandas


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
        import pandas as pd

        return pd.DataFrame([point_row(point) for point in self.metadata], columns=[*self.plan.columns])

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
