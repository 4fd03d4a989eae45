"""What the points of a sweep are expected to take, before one is measured."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

from jaxsens.core.base.errors import InputError
from jaxsens.core.base.programs import PLATFORMS, Platform
from jaxsens.core.choose import PlannedRun, here
from jaxsens.core.engines.request import Request
from jaxsens.core.explain import planned_run
from jaxsens.core.sweeps.points import Point

START_SECONDS = 12.0
"""To import, to read the config, and to draw the report, on the reference machine."""

POINT_SECONDS = 0.15
"""To make a point's model and inputs, to check it, and to write its file."""


@dataclass(frozen=True)
class ExpectedPoints:
    """The points of one variant and length.

    Attributes:
        points: they differ in their seeds.
        run: what measures one input of them.
        inputs: the inputs of a point.
        flips: the flips of a point, all inputs together.
    """

    points: tuple[Point, ...]
    run: PlannedRun
    inputs: int
    flips: int

    @property
    def operations(self) -> float:
        """The floating-point operations of one point: each of its inputs is prepared once."""
        return self.run.cost.operations(self.inputs, self.flips)

    @cached_property
    def seconds(self) -> float:
        """The seconds of one point on this machine, without compilation."""
        return self.run.seconds_of(self.inputs, self.flips)

    def host_seconds(self, everything: bool) -> float:
        """The seconds of one point on a host: `everything`, or what tells the rounding of outputs."""
        return self.seconds if everything else self.run.cost.rounding(here(PLATFORMS["cpu"]), self.inputs)

    @property
    def programs(self) -> tuple[object, ...]:
        """What the programs are compiled for: points that agree in it share them."""
        return self.run.engine.shared, self.run.n, self.run.model.dtype


def expected_points(
    chosen: Iterable[Point], platform: Platform | None = None, refused: list[tuple[Point, str]] | None = None
) -> Iterator[ExpectedPoints]:
    """Yields what the chosen points take on a platform, by default JAX's, variant by variant and by rising n. Nothing
    is run. `refused` gets the first point of each variant and length that cannot be measured, and why."""
    groups: dict[tuple[str, int], list[Point]] = {}
    for point in chosen:
        groups.setdefault(point.group, []).append(point)
    order = list(dict.fromkeys(variant for variant, _ in groups))
    for group in sorted(groups, key=lambda one: (order.index(one[0]), one[1])):
        first = groups[group][0]
        try:
            measure, inputs = first.measure, len(first.tokens())
            flips, engine = measure.flips_at(first.n), measure.engine_at(first.n).shared_by(first.seeds)
            request = Request(flips.drawing(None), measure.measure, engine)
            run = planned_run(first.model(), first.n, request, platform)
        except InputError as error:
            if refused is not None:
                refused.append((first, str(error)))
            continue
        drawn, every = flips.sample, run.flips * inputs
        yield ExpectedPoints(tuple(groups[group]), run, inputs, every if drawn is None else min(every, drawn))
