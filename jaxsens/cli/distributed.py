"""`jaxsens sweep --distributed`: one process of a job of several."""

from __future__ import annotations

import os
import shlex
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
            host, _, port = (self.coordinator or "").rpartition(":")
            known = port.isascii() and port.isdecimal() and 0 < int(port) < 2**16
            if self.coordinator is not None and not (host and known):
                problems.add("--coordinator", self.coordinator, "HOST:PORT, the same for all processes")
            if "share_above" in self.given() and not self.asked:
                problems.add("--share-above", self.share_above, "only in a job: add --distributed")
            place = {key: value for key, value in self.given().items() if key in _PLACE}
            if 0 < len(place) < len(_PLACE):
                advice = "all of --coordinator, --processes and --process, or none"
                problems.add("--distributed", next(iter(place.values())), advice)
            elif self.process is not None and self.process not in range(self.processes or 0):
                problems.add("--process", self.process, f"from 0 to --processes - 1, of {self.processes}")


NO_JOB = InJob()
"""The options where there is no job."""


def sweep_in_job(options: InJob, asked: SweepOptions) -> NoReturn:
    """Runs a sweep in a job, and ends the process. See `jaxsens sweep`.

    Args:
        options: of the job.
        asked: of the sweep.
    """
    again = asked.again + options.again
    try:
        code = _swept(options, asked, again)
    except ProcessLost as error:
        code = LOST
        print(f"jaxsens: {error}; what is finished is kept: {again}", file=sys.stderr)
    except InputError as error:
        code = 2
        print(f"jaxsens: {error}", file=sys.stderr)
    except stopping.Stopped as stop:
        code = 128 + stop.signal
        print(f"jaxsens: stopped. To resume: {again}", file=sys.stderr)
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)  # The usual end of a process would wait for the others.


def _swept(options: InJob, asked: SweepOptions, again: str) -> int:
    """Does this process's part of the sweep, and returns the exit code."""
    import jax

    from jaxsens.core.sweeps import distributed
    from jaxsens.core.sweeps.status import told_done

    distributed.join(options.coordinator, options.processes, options.process)
    progress = Console(stderr=True, quiet=asked.quiet)
    number, count = jax.process_index(), jax.process_count()
    print_text(progress, f"process {number} of {count}")
    sweep, chosen = asked.load()
    with flags_named({"directory": "--out"}), programs_kept(asked.compilation_cache):
        outcomes = distributed.measure(sweep, asked.out, chosen, progress, options.share_above)
    say_failures(Console(stderr=True), *outcomes)
    last = outcomes[-1]
    if last.ended_early:
        say_why_ended(Console(stderr=True), last, told_done(outcomes[0].finished, outcomes[0].planned), again)
        return last.exit_code
    print_text(progress, "waiting for the other processes")
    distributed.wait_for_all()
    if number == 0:
        outcomes += _after_all(sweep, asked, progress)
    return max(outcome.exit_code for outcome in outcomes)


def _after_all(sweep: Sweep, asked: SweepOptions, progress: Console) -> list[Outcome]:
    """Writes the tables and the report of what all processes measured."""
    from jaxsens.core.sweeps.jobs.job import run
    from jaxsens.core.sweeps.status import told_done
    from jaxsens.core.sweeps.sweep import PointsJob, RecordsJob

    out = asked.out
    jobs = [PointsJob(sweep, out), *(RecordsJob(sweep, name, out) for name in sweep.table_points)]
    ended: list[Outcome] = [run(job, progress, []) for job in jobs]
    if any(outcome.finished < outcome.planned for outcome in ended):
        print_text(progress, told_done(ended[0].finished, ended[0].planned))
    if ended[0].finished:
        report_all(out, asked.quiet)
    return ended
