"""`jaxsens sweep --distributed`: one process of a job of several."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, NoReturn

from rich.console import Console

from jaxsens.cli.shared import (
    Count,
    Flag,
    Number,
    OptionGroup,
    Text,
    command_line,
    default,
    flags_named,
    print_text,
    programs_kept,
    say_failures,
    say_why_ended,
)
from jaxsens.cli.sweeping import SweepOptions, report_all
from jaxsens.core.base import stopping
from jaxsens.core.base.errors import InputError, ProcessLost, collecting

if TYPE_CHECKING:
    from jaxsens.core.sweeps.jobs.job import Outcome
    from jaxsens.core.sweeps.sweep import Sweep

_SHARE_ABOVE = 60
_PLACE = ("coordinator", "processes", "process")

LOST = 75
"""The exit code of a process that ended because another one of its job has: EX_TEMPFAIL, start all again."""


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
    def requested(self) -> bool:
        """Whether there is such a job."""
        return not self.given().keys() <= {"share_above"}

    def check(self) -> None:
        """Raises InputError for options that do not go together."""
        with collecting("sweep") as problems:
            host, _, port = (self.coordinator or "").rpartition(":")
            is_port = port.isascii() and port.isdecimal() and 0 < int(port) < 2**16
            if self.coordinator is not None and not (host and is_port):
                problems.add("--coordinator", self.coordinator, "HOST:PORT, the same for all processes")
            if "share_above" in self.given() and not self.requested:
                problems.add("--share-above", self.share_above, "only in a job: add --distributed")
            place = {key: value for key, value in self.given().items() if key in _PLACE}
            if 0 < len(place) < len(_PLACE):
                advice = "all of --coordinator, --processes and --process, or none"
                problems.add("--distributed", next(iter(place.values())), advice)
            elif self.process is not None and self.process not in range(self.processes or 0):
                problems.add("--process", self.process, f"from 0 to --processes - 1, of {self.processes}")


NO_JOB = InJob()
"""The options where there is no job."""


def sweep_in_job(job: InJob, options: SweepOptions) -> NoReturn:
    """Runs a sweep in a job, and ends the process. See `jaxsens sweep`."""
    try:
        code = _swept(job, options)
    except ProcessLost as error:
        code = LOST
        print(f"jaxsens: {error}; what is finished is kept: {command_line()}", file=sys.stderr)
    except InputError as error:
        code = 2
        print(f"jaxsens: {error}", file=sys.stderr)
    except stopping.Stopped as stop:
        code = 128 + stop.signal
        print(f"jaxsens: stopped. To resume: {command_line()}", file=sys.stderr)
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)  # The usual end of a process would wait for the others.


def _swept(job: InJob, options: SweepOptions) -> int:
    """Does this process's part of the sweep, and returns the exit code."""
    import jax

    from jaxsens.core.sweeps import distributed
    from jaxsens.core.sweeps.status import counts_text

    distributed.join(job.coordinator, job.processes, job.process)
    progress, errors = Console(stderr=True, quiet=options.quiet), Console(stderr=True)
    number = jax.process_index()
    print_text(progress, f"process {number} of {jax.process_count()}")
    sweep, chosen = options.load()
    with flags_named({"directory": "--out"}), programs_kept(options.compilation_cache):
        outcomes = distributed.measure(sweep, options.out, chosen, progress, job.share_above)
    say_failures(errors, *outcomes)
    if outcomes[-1].ended_early:
        say_why_ended(errors, outcomes[-1], counts_text(sweep.stored(options.out)))
        return outcomes[-1].exit_code
    print_text(progress, "waiting for the other processes")
    distributed.wait_for_all()
    if number == 0:
        outcomes += _after_all(sweep, options, progress)
    return max(outcome.exit_code for outcome in outcomes)


def _after_all(sweep: Sweep, options: SweepOptions, progress: Console) -> list[Outcome]:
    """Writes the tables and the report of what all processes measured."""
    from jaxsens.core.sweeps.jobs.job import run
    from jaxsens.core.sweeps.status import counts_text
    from jaxsens.core.sweeps.sweep import PointsJob, RecordsJob

    out = options.out
    jobs = [PointsJob(sweep, out), *(RecordsJob(sweep, name, out) for name in sweep.table_points)]
    outcomes: list[Outcome] = [run(job, progress, []) for job in jobs]
    if any(outcome.finished < outcome.planned for outcome in outcomes):
        print_text(progress, counts_text(sweep.stored(out)))
    if outcomes[0].finished:
        report_all(out, options.quiet)
    return outcomes
