"""A sweep, checked and complete: its variants, its points and its plan."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path

from jaxsens.experiments.inputs import Inputs
from jaxsens.experiments.model_source import ModelSource
from jaxsens.experiments.points import Measurement, Point
from jaxsens.experiments.results import Plan, PlannedPoint, PlannedVariant


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
    def plan(self) -> Plan:
        """What a sweep directory says of the sweep."""
        here = Path()
        return Plan(
            title=self.title,
            claim=self.claim,
            lengths=self.lengths,
            seeds=self.seeds,
            statistics=self.statistics,
            norm=self.measure.norm,
            measure=asdict(self.measure),
            inputs={str(n): self.inputs.expanded(self.variants[0].source.symbols, n) for n in self.lengths},
            variants=tuple(
                PlannedVariant(
                    variant.name, variant.description, variant.source.bounded, variant.source.expanded()
                )
                for variant in self.variants
            ),
            points=tuple(
                PlannedPoint(point.variant, point.n, point.seed, point.key, point.path(here).as_posix())
                for point in self.points
            ),
        )
