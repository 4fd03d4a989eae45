"""A sweep, checked and complete: its variants, its points and its plan."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path

from jaxsens.experiments.bounds import BoundPoint, Bounds
from jaxsens.experiments.points import Measurement, Point
from jaxsens.experiments.results import Plan, PlannedPoint, PlannedVariant
from jaxsens.experiments.sources import EVERY, ModelSource
from jaxsens.experiments.words import Inputs, Symbols


@dataclass(frozen=True)
class SweepVariant:
    """A variant with the model it leads to."""

    name: str
    description: str
    source: ModelSource


@dataclass(frozen=True)
class Sweep:
    """A sweep, checked and with every default written out."""

    title: str
    claim: str
    lengths: tuple[int, ...]
    seeds: tuple[int, ...]
    variants: tuple[SweepVariant, ...]
    statistics: tuple[str, ...]
    inputs: Inputs
    measure: Measurement
    text: str
    bounds: Bounds | None = None

    @cached_property
    def points(self) -> tuple[Point, ...]:
        """Every point: variant by variant, by rising n, by seed as listed."""
        return tuple(
            Point(variant.name, n, seed, variant.source, self.inputs, self.measure)
            for variant in self.variants
            for n in self.lengths
            for seed in self.seeds
        )

    @cached_property
    def bound_points(self) -> tuple[BoundPoint, ...]:
        """What is asked of all inputs, in the order of the points; nothing without a `[bounds]` table."""
        return () if self.bounds is None else tuple(BoundPoint(point, self.bounds) for point in self.points)

    @property
    def _symbols(self) -> Symbols:
        """What all variants read; without the end-of-sequence symbol where not all have it."""
        every = {variant.source.symbols for variant in self.variants}
        return every.pop() if len(every) == 1 else every.pop().without_end()

    @cached_property
    def plan(self) -> Plan:
        """What a sweep directory says of the sweep."""
        here = Path()
        return Plan(
            config=self.text,
            title=self.title,
            claim=self.claim,
            lengths=self.lengths,
            seeds=self.seeds,
            statistics=self.statistics,
            norm=self.measure.norm,
            measure=asdict(self.measure),
            inputs={str(n): self.inputs.expanded(self._symbols, n) for n in self.lengths},
            variants=tuple(
                PlannedVariant(
                    variant.name,
                    variant.description,
                    variant.source.bounded,
                    variant.source.expanded(),
                    variant.source.weights == "constructed",
                    _measured(variant.source, self.measure.outputs),
                    variant.source.exact_length,
                    variant.source.weights == "trained",
                )
                for variant in self.variants
            ),
            points=tuple(
                PlannedPoint(point.variant, point.n, point.seed, point.key, point.path(here).as_posix())
                for point in self.points
            ),
            bounds=tuple(
                PlannedPoint(
                    bound.point.variant,
                    bound.point.n,
                    bound.point.seed,
                    bound.key,
                    bound.path(here).as_posix(),
                )
                for bound in self.bound_points
            ),
        )


def _measured(source: ModelSource, outputs: str | tuple[int, ...]) -> str:
    """In words, which coordinates of the output enter the norm."""
    if outputs == "designated":
        return source.designated
    return EVERY if outputs == "all" else f"coordinates {', '.join(map(str, outputs))}"
