"""What a sweep takes on devices that need not be at hand: bytes and the least time, point by point."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from jaxsens.core.base.programs import PLATFORMS
from jaxsens.core.sweeps.expected import POINT_SECONDS, START_SECONDS, ExpectedPoints, expected_points
from jaxsens.core.sweeps.planning.devices import Target
from jaxsens.core.sweeps.points import Point

REACHED = 0.1
"""The share of a device's rates that a job's time limit assumes."""

SHARD_HOURS = 1.0
"""The time that a shard of a job is to take, by that share."""


@dataclass(frozen=True)
class PlannedPoints:
    """The points of one variant and length on a target. Numbers are estimates of one point.

    Attributes:
        expected: the points, and the engine.
        batch: flips of a block on each device.
        arguments: bytes on each device of the model, what flips share, and their table.
        temporary: bytes on each device of temporary memory.
        moved: bytes that the devices read and write at least, all together.
        seconds: the least time, by the rates of the devices; None for what the host computes.
        refusal: why it does not fit; empty if it does.
    """

    expected: ExpectedPoints
    batch: int
    arguments: int
    temporary: int
    moved: float
    seconds: float | None
    refusal: str = ""

    @property
    def first(self) -> Point:
        """The first of the points."""
        return self.expected.points[0]


@dataclass(frozen=True)
class Plan:
    """A sweep on a target.

    Attributes:
        target: the devices.
        rows: its points, by variant and length.
        unmeasurable: the first point of each group that cannot be measured, and why.
    """

    target: Target
    rows: tuple[PlannedPoints, ...]
    unmeasurable: tuple[tuple[Point, str], ...]

    @property
    def fits(self) -> bool:
        """Whether every point can be measured within the memory."""
        return not self.unmeasurable and not any(row.refusal for row in self.rows)

    @property
    def least_seconds(self) -> float:
        """The least time of all points, without compilation."""
        return sum(len(row.expected.points) * (row.seconds or 0.0) for row in self.rows)

    @property
    def compiling(self) -> float:
        """The seconds of compilation, once for each program."""
        return sum({row.expected.programs: row.expected.run.compiling for row in self.rows}.values())

    @property
    def host_seconds(self) -> float:
        """The seconds in which a host like this machine does what it does: the points themselves and what tells their
        rounding, what needs float64 where the devices do not compute in it, and compilation."""
        own = (
            len(row.expected.points) * (POINT_SECONDS + row.expected.host_seconds(row.seconds is None))
            for row in self.rows
        )
        return sum(own) + self.compiling

    @property
    def device_hours(self) -> float:
        """The hours that all devices are held, at the share `REACHED` of their rates, with what the host does."""
        return self.target.count * (self.least_seconds / REACHED + self.host_seconds) / 3600

    @property
    def shards(self) -> int:
        """How many shards take about `SHARD_HOURS` each; no more than there are points."""
        points = sum(len(row.expected.points) for row in self.rows)
        hours = self.device_hours / self.target.count / SHARD_HOURS
        return max(1, min(points, math.ceil(hours)))

    @property
    def minutes(self) -> int:
        """A time limit for each shard, three times what it is expected to take, in whole tens. Each shard compiles what
        it measures, and starts."""
        times = (row.expected.run.compiling + (row.seconds or 0.0) / REACHED for row in self.rows)
        expected = self.device_hours * 3600 / self.target.count / self.shards + max(times, default=0.0)
        return 10 * math.ceil(3 * (expected + START_SECONDS) / 600)


def planned(
    points: Iterable[Point], target: Target, budget: int | None
) -> Iterator[PlannedPoints | tuple[Point, str]]:
    """Yields what points take, variant by variant and by rising n; of those that cannot be measured, why.

    Args:
        points: of a sweep.
        target: the devices.
        budget: the memory budget in bytes; None for the default one.
    """
    for one in expected_points(points, PLATFORMS[target.device.platform]):
        yield _row(one, target, budget) if isinstance(one, ExpectedPoints) else one


def _row(one: ExpectedPoints, target: Target, budget: int | None) -> PlannedPoints:
    run, device = one.run, target.device
    shared = run.arguments
    budget = run.platform.budget_beside(shared, device.memory) if budget is None else budget
    flips = -(-run.flips // target.count)
    batch = max(1, min(run.engine.preferred_batch(run.n, run.platform), flips))
    arguments, temporary = shared + 32 * flips, min(run.block_bytes(batch), budget)
    refusal = ""
    if arguments > budget:
        refusal = f"memory_budget = {budget} bytes: arguments take {arguments} bytes on each device"
    share = one.flips / max(1, run.flips)
    # What is given is read once at least, and what a block writes to temporary memory it reads again.
    moved = one.inputs * (shared + target.count * 2 * temporary * math.ceil(share * flips / batch))
    rate = device.rate("float64" if run.engine.wide else run.model.dtype)
    least = max(one.operations / rate, moved / device.bandwidth) / target.count if rate else None
    return PlannedPoints(one, batch, arguments, temporary, moved, least, refusal)
