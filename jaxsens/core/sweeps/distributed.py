"""What the points of a sweep are expected to take before they are measured; and a sweep in a distributed job: which of
them all processes measure together, and which one process each.

Long points are shared, and come first, because all processes begin at the same time; the others are dealt out whole.
No process waits for another in between. At the end all meet, and the first one writes the tables.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import jax
from rich.console import Console

from jaxsens.core.base import stopping
from jaxsens.core.base.errors import InputError
from jaxsens.core.base.programs import PLATFORMS, Platform
from jaxsens.core.base.text import print_text
from jaxsens.core.choose import PlannedRun, here
from jaxsens.core.engines.request import Request
from jaxsens.core.explain import planned_run
from jaxsens.core.placement.placement import Placement, global_mesh
from jaxsens.core.sweeps.job import Outcome, run
from jaxsens.core.sweeps.points import Point
from jaxsens.core.sweeps.sweep import PointsJob, Sweep, check_grows, run_whole

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


HEARTBEAT_SECONDS = 20
"""A process that is silent for this long is taken for dead, and JAX's runtime ends the others."""

_LONGEST = 10**6  # seconds that a process waits at the end for those that still measure


def join(coordinator: str | None, processes: int | None, process: int | None) -> None:
    """Makes this process part of the job. Before anything else uses JAX.

    With None for all three, JAX looks for Slurm's, Open MPI's, Kubernetes' or a TPU pod's environment.

    Args:
        coordinator: "HOST:PORT", where process 0 listens.
        processes: the number of processes.
        process: the number of this one, from 0.

    Raises:
        InputError: if nothing says what the job is, or it cannot be joined.
    """
    # SIGTERM stays with this program, which stops after the running step, as it does outside a job.
    jax.config.update("jax_enable_preemption_service", False)
    try:
        jax.distributed.initialize(
            coordinator,
            processes,
            process,
            heartbeat_timeout_seconds=HEARTBEAT_SECONDS,
            shutdown_timeout_seconds=_LONGEST,
        )
    except (ValueError, RuntimeError) as error:
        message = " ".join(str(error).split())[:300]
        raise InputError(
            f"sweep: --distributed: {message}; start it by srun, mpirun, in a Kubernetes job or on a TPU pod, or give "
            "--coordinator HOST:PORT, --processes and --process, the same in all processes except the last"
        ) from error


def measure(
    sweep: Sweep, directory: Path, chosen: Sequence[Point], console: Console, share_above: float
) -> list[Outcome]:
    """Measures this process's part of the chosen points, then the records of tables for them. All processes call it.

    Args:
        sweep: the sweep.
        directory: the same for all processes, on a file system that all of them see.
        chosen: the points of the whole job.
        console: where to print.
        share_above: seconds in one process above which a point is shared by all.

    Raises:
        InputError: if the directory belongs to another config.
        ProcessLost: if another process has ended.
    """
    check_grows(sweep.plan, directory)
    group = Placement(global_mesh()).group
    if group is None:
        return run_whole(sweep, directory, chosen, console)
    with group.together(f"sweep {[point.key for point in chosen]} {share_above}".encode()):
        job, shared = PointsJob(sweep, directory), b"[]"
        if group.rank == 0:
            long = {one.points[0].group for one in expected_points(chosen) if one.seconds > share_above}
            missing = [k for k, point in enumerate(chosen) if job.state(point) != "done"]
            shared = json.dumps([k for k in missing if chosen[k].group in long]).encode()
        numbers = json.loads(group.from_first(shared))
    first, outcomes = group.rank == 0, []
    if numbers:
        print_text(console, f"{len(numbers)} long points are shared by {group.size} processes")
        together = PointsJob(sweep, directory, first, group)
        outcomes.append(run(together, console, [chosen[k] for k in numbers]))
        if outcomes[0].ended_early:
            return outcomes
    remaining = [point for k, point in enumerate(chosen) if k not in set(numbers)]
    own = remaining[group.rank :: group.size]
    return [*outcomes, *run_whole(sweep, directory, own, console, first)]


def wait_for_all() -> None:
    """Waits until every process of the job has come here, and leaves the job.

    Raises:
        Stopped: on a signal to this process.
    """
    leaving = threading.Thread(target=jax.distributed.shutdown, daemon=True)
    leaving.start()
    while leaving.is_alive():
        leaving.join(0.1)
        stopping.check()
