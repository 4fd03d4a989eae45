"""Shards of one sweep killed at random moments: `python -m tests.shard_stress --shards 64 --points 192`.

All shards of a sweep work on one directory, a few at a time and in random order. Some are sent SIGKILL or SIGTERM at a
random moment, and started again later; some are started twice at once, as by a scheduler that takes a living process
for dead. The last two meet before their last point, so that both see a directory in which
something is missing, and end together. Looked at is that every point is in points.csv once, with the numbers of a plain
run, that the report is there, and that nothing is left behind; counted, how many points were measured twice. What goes
wrong is printed, and the exit code is 1.

Each shard is a process that was forked from this one, which has imported everything and computed nothing: it runs the
command as it is, but need not wait for imports.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.distributed_stress import table, write_config

PATIENCE = 300.0
"""Seconds within which every process must have ended by itself."""

MEETING = 60.0
"""Seconds that one of the last two shards waits for the other."""

LENGTHS = (8, 10, 12, 14)
INCOMPLETE = "points are done; `jaxsens report"


@dataclass
class Running:
    """A process: its shard, its log, when it began, and when it is to be sent which signal."""

    shard: int
    log: Path
    began: float
    kill_at: float | None = None
    kind: signal.Signals = signal.SIGTERM


@dataclass
class Tally:
    """What became of the processes, and a line for everything that went wrong."""

    started: int = 0
    ended: Counter[str] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)
    last: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


def import_all() -> None:
    """Imports what the command imports on its way, without using any device."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import jaxsens.cli.sweep
        import jaxsens.experiments.report.data
        import jaxsens.experiments.report.report
        import jaxsens.experiments.sweep.config  # noqa: F401


def append(notes: Path, line: str) -> None:
    """Adds a line to a file to which other processes write, too."""
    with notes.open("a", encoding="utf-8") as file:
        file.write(f"{line}\n")


def note_points(notes: Path, shard: str, meeting: Path | None) -> None:
    """Has this process note every point that it begins and finishes, and meet another before its last one."""
    from jaxsens.experiments.jobs.progress import Reporter
    from jaxsens.experiments.sweep.points import Point, PointMetadata, select
    from jaxsens.experiments.sweep.sweep import PointsJob

    compute = PointsJob.compute

    def noted(self: PointsJob, item: Point, reporter: Reporter) -> PointMetadata:
        append(notes, f"begun {item}")
        if meeting is not None and item == select(self.items, shard=shard)[-1]:
            append(meeting, shard)
            until = time.monotonic() + MEETING
            while len(meeting.read_text().splitlines()) < 2 and time.monotonic() < until:
                time.sleep(0.001)
        found = compute(self, item, reporter)
        append(notes, f"done {item}")
        return found

    PointsJob.compute = noted


def fork(arguments: Sequence[str], log: Path, notes: Path, shard: str, meeting: Path | None = None) -> int:
    """Starts a process that runs `jaxsens` with these arguments and ends as the command does; returns its number."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of forks, which would matter if this process had used JAX
        number = os.fork()
    if number:
        return number
    code = 70
    try:
        opened = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(opened, 1)
        os.dup2(opened, 2)
        sys.argv = ["jaxsens", *arguments]
        note_points(notes, shard, meeting)
        from jaxsens.cli import run

        run()
    except SystemExit as ended:
        code = int(ended.code or 0)
    finally:
        if code == 70:
            traceback.print_exc()
        os._exit(code)


class Stress:
    """A sweep in so many shards."""

    def __init__(self, folder: Path, options: argparse.Namespace) -> None:
        self.folder, self.options, self.shards = folder, options, options.shards
        self.rng, self.tally = random.Random(options.seed), Tally()
        self.config = write_config(folder, LENGTHS, options.points // len(LENGTHS))
        self.out, self.notes = folder / "sweep", folder / "notes"
        self.meeting = folder / "meeting"
        self.running: dict[int, Running] = {}
        self.typical = 1.0
        self.notes.touch()

    def run(self) -> None:
        """A plain run, then the shards."""
        self._plain()
        order = list(range(self.shards))
        self.rng.shuffle(order)
        again = [shard for shard in order[2:] for _ in range(1 + (self.rng.random() < self.options.twice))]
        self._until_done(again, self.options.at_once, self.options.kill)
        if (self.out / "report.html").exists():
            self.tally.wrong.append("there was a report before all shards had ended")
        self._until_done(order[:2], 2, 0.0, self.meeting)
        self.tally.last = [_said(self.folder / f"shard{shard}.log") for shard in order[:2]]
        self._look()

    def _plain(self) -> None:
        log = self.folder / "plain.log"
        number = fork(self._arguments("plain"), log, self.folder / "plain notes", "0/1")
        if os.waitpid(number, 0)[1]:
            raise RuntimeError(f"a plain run does not come to its end: {log.read_text()}")

    def _arguments(self, out: str, *more: str) -> list[str]:
        cache = ("--compilation-cache", str(self.folder / "compiled"))
        return ["sweep", str(self.config), "--out", str(self.folder / out), *cache, *more]

    def _until_done(
        self, shards: Iterable[int], at_once: int, kill: float, meeting: Path | None = None
    ) -> None:
        """Runs shards, and those that were killed again, until all have come to their end."""
        waiting = list(shards)
        while waiting or self.running:
            while waiting and len(self.running) < at_once:
                self._start(waiting.pop(0), kill, meeting)
            for number, one in [*self.running.items()]:
                self._signal(number, one)
                ended, status = os.waitpid(number, os.WNOHANG)
                if ended:
                    del self.running[number]
                    if not self._ended(one, os.waitstatus_to_exitcode(status)):
                        waiting.append(one.shard)
            time.sleep(0.005)

    def _start(self, shard: int, kill: float, meeting: Path | None) -> None:
        log = self.folder / f"shard{shard}.log"
        share = f"{shard}/{self.shards}"
        arguments = self._arguments("sweep", "--shard", share)
        began = time.monotonic()
        one = Running(shard, log, began)
        if self.rng.random() < kill:
            one.kill_at = began + self.rng.uniform(0.0, 1.2 * self.typical)
            one.kind = self.rng.choice((signal.SIGKILL, signal.SIGTERM))
        self.running[fork(arguments, log, self.notes, share, meeting)] = one
        self.tally.started += 1

    def _signal(self, number: int, one: Running) -> None:
        late = time.monotonic() - one.began > PATIENCE
        if late:
            self.tally.wrong.append(f"shard {one.shard}: it does not end: {one.log.read_text()[-2000:]}")
            one.began = time.monotonic()
        if late or (one.kill_at is not None and time.monotonic() >= one.kill_at):
            os.kill(number, signal.SIGKILL if late else one.kind)
            one.kill_at = None

    def _ended(self, one: Running, code: int) -> bool:
        """Notes how a process ended; returns whether its shard is done."""
        how = {0: "done", -9: "SIGKILL", -15: "SIGTERM, before it listened", 143: "SIGTERM"}
        self.tally.ended[how.get(code, f"exit code {code}")] += 1
        if code == 0:
            seconds = time.monotonic() - one.began
            self.tally.seconds.append(seconds)
            self.typical += 0.2 * (seconds - self.typical)
            return True
        if code not in how:
            self.tally.wrong.append(f"shard {one.shard}: exit code {code}: {one.log.read_text()[-2000:]}")
            return True
        return False

    def _look(self) -> None:
        """Looks at the end: the table, the report, and what is left behind."""
        wrong, (rows, expected) = self.tally.wrong, (table(self.out), table(self.folder / "plain"))
        keys = Counter((row["variant"], row["n"], row["seed"]) for row in rows)
        wrong += [f"{key} is {times} times in points.csv" for key, times in keys.items() if times > 1]
        if rows != expected:
            wrong.append(
                f"points.csv: {len(rows)} rows, not the {len(expected)} of a plain run, or other digits"
            )
        if not (self.out / "report.html").exists():
            wrong.append("there is no report")
        left = [path.name for path in self.out.rglob(".*") if path.is_file()]
        wrong += [f"left behind: {name}" for name in left]

    def told(self) -> list[str]:
        """What happened, in lines."""
        begun, done = counts(self.notes.read_text("utf-8").splitlines())
        twice = sum(times > 1 for times in done.values())
        interrupted = sum(begun.values()) - sum(done.values())
        seconds = sorted(self.tally.seconds)
        return [
            f"{self.tally.started} processes for {self.shards} shards: {dict(self.tally.ended)}",
            f"a shard that was not killed took {seconds[len(seconds) // 2]:.1f} s (median)",
            f"{len(done)} points; measured twice: {twice}; begun and not finished: {interrupted}",
            f"the last two said: {self.tally.last}",
            f"wrong: {len(self.tally.wrong)}",
            *self.tally.wrong,
        ]


def _said(log: Path) -> str:
    """Whether a shard saw that something was missing at its end, or wrote the report."""
    text = " ".join(log.read_text("utf-8").split())
    return (
        "something is missing" if INCOMPLETE in text.split("compiled programs")[-1] else "here is the report"
    )


def counts(notes: Iterable[str]) -> tuple[Counter[str], Counter[str]]:
    """How often each point was begun, and how often it was finished."""
    found = {"begun": Counter[str](), "done": Counter[str]()}
    for line in notes:
        kind, _, point = line.partition(" ")
        found[kind][point] += 1
    return found["begun"], found["done"]


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shards", type=int, default=64)
    parser.add_argument(
        "--points", type=int, default=192, help=f"a multiple of {len(LENGTHS)}, at least the shards"
    )
    parser.add_argument("--at-once", type=int, default=3)
    parser.add_argument("--kill", type=float, default=0.5, help="how likely a process is sent a signal")
    parser.add_argument(
        "--twice", type=float, default=0.1, help="how likely a shard is started twice at once"
    )
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    if options.points % len(LENGTHS) or options.points < options.shards or options.shards < 3:
        parser.error(f"--points is a multiple of {len(LENGTHS)} and at least --shards, which is at least 3")
    os.environ |= {"JAX_PLATFORMS": "cpu", "MPLBACKEND": "agg"}
    import_all()
    with tempfile.TemporaryDirectory(prefix="shard-stress-") as name:
        stress = Stress(Path(name), options)
        stress.run()
        print(*stress.told(), sep="\n", flush=True)
    return 1 if stress.tally.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
