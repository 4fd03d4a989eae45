"""What a sweep of very many points costs besides the measurements: planning, starting a process, watching, collecting.

Points are made up, one file each as a sweep writes it. Each step runs in a process of its own, so that its peak of
memory is its own.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import resource
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import tyro
from rich.console import Console

from jaxsens.cli.status import sweep_status
from jaxsens.core.base.errors import InputError, Problems
from jaxsens.core.base.files import write_text
from jaxsens.core.engines.engine import EngineChoice
from jaxsens.core.flips.flip_table import FlipTable
from jaxsens.core.results.measured import Provenance, RequestRecord
from jaxsens.core.results.result import FlipSensitivity
from jaxsens.core.sweep import load_sweep
from jaxsens.core.sweeps.config import load_sweep_config
from jaxsens.core.sweeps.job import run
from jaxsens.core.sweeps.points import Point, PointMetadata, select, write_point
from jaxsens.core.sweeps.progress import Reporter
from jaxsens.core.sweeps.sweep import PLAN, PointsJob, Sweep, check_grows

MIB = 2**20
LENGTHS = tuple(range(8, 88, 8))
VARIANTS = (
    *("softmax", "temperature-log", "temperature-sqrt", "temperature-linear", "unbounded"),
    *("leftmost-hard", "rightmost-hard", "average-hard", "sparsemax", "saturated"),
)
MOST_BY_ONE = 20_000
CONFIG = """
title = "made-up points"
lengths = {lengths}
seeds = {seeds}
variants = {built_in}
statistics = ["mean", "max"]

[model]
alphabet_size = 2
width = 64
heads = 4
layers = 2
feed_forward = 256

[[variant]]
name = "saturated"
model = {{ feed_forward = 128 }}
"""
EACH = len(LENGTHS) * len(VARIANTS)
"""Points a seed."""


@dataclass(frozen=True)
class Options:
    """What a sweep of very many points costs besides the measurements.

    Attributes:
        points: how many points, one run each; multiples of 100.
        hosts: the processes between which the points are dealt.
        folder: where the sweeps' directories are made, and removed; the system's temporary folder if not given. In
            memory (/dev/shm) the files cost no disk's time.
    """

    points: tuple[int, ...] = (1_000, 10_000)
    hosts: int = 100
    folder: Path | None = None


@dataclass(frozen=True)
class Step:
    """What a step took.

    Attributes:
        name: of the step.
        seconds: wall time.
        cpu: seconds of the processor.
        mib: the peak of memory above that at the step's beginning.
        note: what it left or found.
    """

    name: str
    seconds: float
    cpu: float
    mib: float
    note: str


def made_up(point: Point, rng: np.random.Generator) -> FlipSensitivity:
    """A result such as the point's measurement gives: one input, a flip a position, changes of about 1/n."""
    n = point.n
    tokens = rng.integers(0, 2, (1, n))
    flips = FlipTable(
        np.zeros(n - 1, np.int32),
        np.arange(n - 1)[:, None],
        1 - tokens[0, :-1, None],
        np.array([n - 1]),
        (0, 1),
    )
    measure = point.measure
    asked = RequestRecord(
        measure.flips, measure.measure, measure.engine, "last", None, "model", "weights", (n - 1,)
    )
    return FlipSensitivity(
        values=(rng.random(n - 1) / n).astype(np.float32),
        resolution=np.zeros(n - 1, np.float32),
        flips=flips,
        tokens=tokens,
        asked=asked,
        engine=EngineChoice("made up", "nothing was measured"),
        run=Provenance("float32", {"jaxsens": "0", "jax": "0", "numpy": "0", "device": "none"}),
    )


# The steps: each returns what it found


def plan(config: Path, folder: Path) -> str:
    """Reads the config, and plans every point, as each process does."""
    sweep = load_sweep_config(config)
    sweep.plan.write(folder / PLAN)
    return f"{PLAN}: {(folder / PLAN).stat().st_size / MIB:.1f} MiB"


class MadeUp(PointsJob):
    """A sweep's points, made up rather than measured."""

    def __init__(self, sweep: Sweep, directory: Path) -> None:
        super().__init__(sweep, directory)
        self._rng = np.random.default_rng(0)

    def compute(self, item: Point, reporter: Reporter) -> PointMetadata:
        """Writes a point."""
        return write_point(self.directory, item, made_up(item, self._rng), self.sweep.statistics, 0.1)


def fill(config: Path, folder: Path, hosts: int) -> str:
    """Writes the points of all processes but the first."""
    sweep, rng = load_sweep_config(config), np.random.default_rng(0)
    own = {*select(sweep.points, shard=f"0/{hosts}")} if hosts > 1 else set()
    for point in sweep.points:
        if point not in own:
            write_point(folder, point, made_up(point, rng), sweep.statistics, 0.1)
    sizes = [path.stat().st_size for path in (folder / "points").rglob("*.parquet")]
    return f"{np.mean(sizes):.0f} bytes a file, {len(sizes) // EACH} files a folder"


def part(config: Path, folder: Path, hosts: int, k: int = 1) -> str:
    """A process does its part of the sweep, from its beginning to its end."""
    sweep = load_sweep_config(config)
    check_grows(sweep.plan, folder)
    outcome = run(MadeUp(sweep, folder), Console(quiet=True), select(sweep.points, shard=f"{k}/{hosts}"))
    return f"{outcome.computed} computed; {outcome.finished} of {outcome.planned} done"


def whole(config: Path, folder: Path) -> str:
    """One process does the whole sweep."""
    sweep = load_sweep_config(config)
    outcome = run(MadeUp(sweep, folder), Console(quiet=True))
    return f"{outcome.computed} computed"


def status(folder: Path) -> str:
    """`jaxsens status`."""
    return sweep_status(folder).lines()[0]


def collect(folder: Path) -> str:
    """Reads every point, as the report does."""
    return f"{len(load_sweep(folder).metadata)} points"


def report(folder: Path) -> str:
    """Reads every point, and writes points.csv and the report."""
    page = load_sweep(folder).report(folder)
    table = (folder / "points.csv").stat().st_size
    return f"points.csv {table / MIB:.1f} MiB, report.html {page.stat().st_size / MIB:.1f} MiB"


# Running them


def _in_child(work: Callable[[], str], ends: multiprocessing.connection.Connection) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF)
    began = time.perf_counter()
    note = work()
    after = resource.getrusage(resource.RUSAGE_SELF)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    ends.send((time.perf_counter() - began, cpu, (after.ru_maxrss - before.ru_maxrss) / 1024, note))


def step(name: str, work: Callable[[], str]) -> Step:
    """Runs a step in a process of its own, forked from this one, which has imported all and computed nothing."""
    context = multiprocessing.get_context("fork")
    receives, sends = context.Pipe(duplex=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # JAX warns of forks; it was not used yet
        child = context.Process(target=_in_child, args=(work, sends))
        child.start()
    sends.close()
    try:
        found = receives.recv()
    except EOFError:
        child.join()
        return Step(name, float("nan"), float("nan"), float("nan"), f"ended with {child.exitcode}")
    child.join()
    return Step(name, *found)


def steps(points: int, hosts: int, folder: Path) -> Iterable[Step]:
    """Runs all steps on a sweep of `points` points."""
    config, out = folder / "config.toml", folder / "sweep"
    built_in = [name for name in VARIANTS if name != "saturated"]
    text = CONFIG.format(lengths=[*LENGTHS], seeds=points // EACH, built_in=built_in)
    write_text(config, text.replace("'", '"'))
    yield step("plan", partial(plan, config, out))
    yield step(f"a part of {points // hosts} points, none done before", partial(part, config, out, hosts))
    yield step("all but one part, plainly written", partial(fill, config, out, hosts))
    yield step("that part again, all others but one done", partial(part, config, out, hosts))
    yield step("the part that is left", partial(part, config, out, hosts, 0))
    yield step("status", partial(status, out))
    yield step("collect", partial(collect, out))
    yield step("report", partial(report, out))
    if points <= MOST_BY_ONE:
        yield step("all by one process", partial(whole, config, folder / "one"))


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints a table; 0, or 2 for options that cannot be used."""
    options = tyro.cli(Options, args=arguments, prog="benchmark_many_points.py")
    problems = Problems("benchmark_many_points")
    if any(points < EACH or points % EACH for points in options.points):
        problems.add("--points", options.points, f"multiples of {EACH}: {EACH} points a seed")
    if not 2 <= options.hosts <= min(options.points, default=2):
        problems.add("--hosts", options.hosts, "at least 2, and a point for each")
    try:
        problems.raise_if_any()
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    print("| points | step | seconds | ms a point | CPU s | peak MiB | KiB a point | |")
    print("| --: | :-- | --: | --: | --: | --: | --: | :-- |")
    for points in options.points:
        with tempfile.TemporaryDirectory(prefix="many-points-", dir=options.folder) as name:
            for one in steps(points, options.hosts, Path(name)):
                each = f"{1e3 * one.seconds / points:.3g} | {one.cpu:.3g} | {one.mib:.0f}"
                cells = f"{each} | {1024 * one.mib / points:.2g}"
                print(f"| {points} | {one.name} | {one.seconds:.3g} | {cells} | {one.note} |", flush=True)
    return 0
