"""`jaxsens sweep --distributed`: one process of a job of several, and the parent that supervises it."""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from rich.console import Console

from jaxsens.base import stopping
from jaxsens.base.errors import InputError, ProcessLost, collecting
from jaxsens.cli.shared import (
    Count,
    Flag,
    Number,
    OptionGroup,
    Text,
    default,
    flags_named,
    programs_kept,
    say,
    say_failures,
    say_why_ended,
)
from jaxsens.cli.supervise import LOST, end_with_parent, is_worker, supervise
from jaxsens.cli.sweeping import SweepOptions, report_all, told_done

if TYPE_CHECKING:
    from jaxsens.experiments.jobs.job import Outcome
    from jaxsens.experiments.sweep.sweep import Sweep

_SHARE_ABOVE = 60
_PLACE = ("coordinator", "processes", "process")


@dataclass(frozen=True)
class InJob(OptionGroup):
    """Options of a job of several processes.

    Attributes:
        distributed: Measure in one job of several processes, on one or more hosts, which need a common --out: start the
            same command in each, by srun, mpirun, in a Kubernetes job or on a TPU pod.
        coordinator: Where process 0 listens, where nothing else says it; give --processes and --process, too.
        processes: The number of processes of the job.
        process: The number of this process, from 0.
        share_above: In a job, points that take one process more seconds than this are measured by all together.
    """

    distributed: Flag = False
    coordinator: Annotated[Text, default("found by JAX", "HOST:PORT")] = None
    processes: Annotated[Count, default("found by JAX")] = None
    process: Annotated[Count, default("found by JAX")] = None
    share_above: Annotated[Number, default(f"{_SHARE_ABOVE}", "SECONDS")] = _SHARE_ABOVE

    @property
    def asked(self) -> bool:
        """Whether there is such a job."""
        return not self.given().keys() <= {"share_above"}

    @property
    def again(self) -> str:
        """The options as they were given, with a blank in front."""
        given = {"--distributed": None} | self.flags() | {"--distributed": None}
        parts = [str(part) for pair in given.items() for part in pair if part is not None]
        return f" {shlex.join(parts)}" if self.asked else ""

    def check(self) -> None:
        """Raises InputError for options that do not go together."""
        with collecting("sweep") as problems:
            if self.coordinator is not None and ":" not in self.coordinator:
                problems.add("--coordinator", self.coordinator, "HOST:PORT, the same for all processes")
            place = {key: value for key, value in self.given().items() if key in _PLACE}
            if 0 < len(place) < len(_PLACE):
                advice = "all of --coordinator, --processes and --process, or none"
                problems.add("--distributed", next(iter(place.values())), advice)
            elif self.process is not None and self.process not in range(self.processes or 0):
                problems.add("--process", self.process, f"from 0 to --processes - 1, of {self.processes}")


NO_JOB = InJob()
"""The options where there is no job."""


def sweep_in_job(options: InJob, asked: SweepOptions) -> int:
    """Runs a sweep in a job, and returns the exit code. See `jaxsens sweep`.

    Args:
        options: of the job.
        asked: of the sweep.
    """
    quiet, again = asked.quiet, asked.again + options.again
    options.check()
    if not is_worker():
        return supervise([*shlex.split(again)[1:], *(["--quiet"] if quiet else [])], again)
    end_with_parent()

    def work() -> int:
        import jax

        from jaxsens.experiments.sweep import distributed

        distributed.join(options.coordinator, options.processes, options.process)
        progress = Console(stderr=True, quiet=quiet)
        number, count = jax.process_index(), jax.process_count()
        say(progress, f"process {number} of {count}")
        sweep, chosen = asked.load()
        with flags_named({"directory": "--out"}), programs_kept(asked.compilation_cache):
            outcomes = distributed.measure(sweep, asked.out, chosen, progress, options.share_above)
        say_failures(Console(stderr=True), *outcomes)
        last = outcomes[-1]
        if last.ended_early:
            say_why_ended(
                Console(stderr=True), last, told_done(outcomes[0].finished, outcomes[0].planned), again
            )
            return last.exit_code
        say(progress, "waiting for the other processes")
        distributed.wait_for_all()
        if number == 0:
            outcomes += _after_all(sweep, asked, progress)
        return max(outcome.exit_code for outcome in outcomes)

    code = _ended(work, again)
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)  # The usual end of a process would wait for the others.


def _after_all(sweep: Sweep, asked: SweepOptions, progress: Console) -> list[Outcome]:
    """Writes the tables and the report of what all processes measured."""
    from jaxsens.experiments.jobs.job import run
    from jaxsens.experiments.sweep.sweep import BoundsJob, PointsJob

    out = asked.out
    jobs = [PointsJob(sweep, out), *([BoundsJob(sweep, out)] if sweep.bounds is not None else [])]
    ended: list[Outcome] = [run(job, progress, []) for job in jobs]
    if any(outcome.finished < outcome.planned for outcome in ended):
        say(progress, told_done(ended[0].finished, ended[0].planned))
    if ended[0].finished:
        report_all(out, asked.quiet)
    return ended


def _ended(work: Callable[[], int], again: str) -> int:
    """Returns the exit code of this process's work, and says why it ended early."""
    from jaxsens.experiments.sweep.distributed import HEARTBEAT_SECONDS

    try:
        return work()
    except ProcessLost as error:
        print(f"jaxsens: {error}", file=sys.stderr, flush=True)
        # JAX's runtime soon ends this process, saying which one it has lost; the parent reads that.
        until = time.monotonic() + HEARTBEAT_SECONDS + 10
        while time.monotonic() < until and not stopping.requested():
            time.sleep(0.1)
        return LOST
    except InputError as error:
        print(f"jaxsens: {error}", file=sys.stderr, flush=True)
        return 2
    except stopping.Stopped as stop:
        print(f"jaxsens: stopped. To resume: {again}", file=sys.stderr, flush=True)
        return 128 + stop.signal
