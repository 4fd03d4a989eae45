"""Every flip of deep models: the first-order engine and one forward pass for each flip, in one run.

An estimate is timed by itself: the flips that `flip_sensitivity` measures exactly to check it are forward passes, which
the table has, too. Forward passes are timed on a sample of the flips, and the time is scaled up.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import tyro

from benchmarks.auto import Process
from benchmarks.costs import first_order_operations, forward_pass_operations
from benchmarks.options import ESTIMATES, Case, chosen, lacking
from benchmarks.rows import MIB
from benchmarks.worker import Worker, WorkerFailed
from jaxsens.core.base.errors import InputError, Problems

PASSES = ("vmap", "incremental", "torch")
"""Exact methods, timed on a sample."""

ABLATION, LONGEST = "captum-16", 1024
"""A method that takes all flips, which would take minutes on longer inputs."""

THEN = "vmap of the baseline"


@dataclass(frozen=True)
class Options:
    """Times first-order estimates and forward passes.

    Attributes:
        lengths: Lengths n of the input.
        layers: Depth L of the transformer (width 64, 4 heads, d_ff = 256, softmax, float32).
        turns: Timed runs of each method, after one that compiles; the fastest counts.
        baseline: Another checkout of the repository, whose vmap is timed too.
        flips: Flips in the sample of forward passes at the shortest length; each doubling of n halves it, to 8.
    """

    lengths: Annotated[tuple[int, ...], tyro.conf.arg(metavar="N ...")] = (1024, 2048, 4096, 8192)
    layers: int = 4
    turns: int = 2
    baseline: Path | None = None
    flips: int = 32


@dataclass(frozen=True)
class Timed:
    """One method at one length: seconds of all flips, peak memory in MiB, operations of the algorithm."""

    method: str
    n: int
    seconds: float
    peak_mib: float | None
    operations: float
    sampled: int | None


def timed(options: Options, n: int, say: Callable[[str], None]) -> list[Timed]:
    """Every method at one length. All processes live at once, and each turn runs all of them."""
    count = max(8, options.flips * min(options.lengths) // n)
    sample = chosen(n, count)
    seconds: dict[str, list[float]] = {}
    peaks: dict[str, float | None] = {}
    with ExitStack() as stack:
        workers = {
            name: stack.enter_context(Worker(Case(name, options.layers, n)))
            for name in (*ESTIMATES, *PASSES, *((ABLATION,) if n <= LONGEST else ()))
            if lacking(name) is None
        }
        then = None
        if options.baseline is not None:
            then = stack.enter_context(Process(options.baseline, "vmap", options.layers, n))
            then.measure(count)
        for name, worker in workers.items():
            worker.run(sample if name in PASSES else None, 1200.0)
            worker.begin_memory()
        for _ in range(options.turns):
            for name, worker in workers.items():
                ran = worker.run(sample if name in PASSES else None, 1200.0)
                seconds.setdefault(name, []).append(ran.seconds)
                peaks[name] = worker.peak() / MIB
            if then is not None:
                seconds.setdefault(THEN, []).append(then.measure(count)["seconds"])
                peaks[THEN] = None
    rows = [_row(options, n, name, min(found), peaks[name], count) for name, found in seconds.items()]
    say(f"n = {n}: " + ", ".join(f"{row.method} {row.seconds:.3g} s" for row in rows))
    return rows


def _row(options: Options, n: int, name: str, seconds: float, peak: float | None, count: int) -> Timed:
    if name in ESTIMATES:
        return Timed(name, n, seconds, peak, first_order_operations(Case(name, options.layers, n)), None)
    operations = (n - 1) * forward_pass_operations(options.layers, n)
    if name == ABLATION:
        return Timed(name, n, seconds, peak, operations, None)
    return Timed(name, n, seconds * (n - 1) / count, peak, operations, count)


HEAD = """| L | n | method | seconds | growth | peak MiB | × vmap | × baseline | operations | vmap's ÷ these |
| --: | --: | :-- | --: | --: | --: | --: | --: | --: | --: |"""


def table(layers: int, rows: Sequence[Timed]) -> str:
    """A Markdown table: growth per doubling of n, ratios to vmap in time and in operations."""
    known = {(row.method, row.n): row for row in rows}
    lines = [HEAD]
    for row in sorted(rows, key=lambda row: row.n):
        shorter = [n for method, n in known if method == row.method and n < row.n]
        growth = ""
        if shorter:
            before = known[row.method, max(shorter)]
            growth = f"{(row.seconds / before.seconds) ** (1 / np.log2(row.n / before.n)):.2f}"
        vmap, then = known["vmap", row.n], known.get((THEN, row.n))
        about = "" if row.sampled is None else "≈ "
        lines.append(
            f"| {layers} | {row.n} | {row.method} | {about}{row.seconds:.3g} | {growth} | "
            f"{'' if row.peak_mib is None else f'{row.peak_mib:.0f}'} | {vmap.seconds / row.seconds:.3g} | "
            f"{'' if then is None else f'{then.seconds / row.seconds:.3g}'} | {row.operations:.2g} | "
            f"{vmap.operations / row.operations:.3g} |"
        )
    return "\n".join(lines)


def check(options: Options) -> None:
    """Refuses what cannot be measured, before anything is."""
    problems = Problems("benchmark_first_order")
    if min(options.lengths) < 64:
        problems.add("--lengths", options.lengths, "lengths of at least 64")
    for name in ("layers", "turns", "flips"):
        if getattr(options, name) < 1:
            problems.add(f"--{name}", getattr(options, name), "at least 1")
    if options.baseline is not None and not (options.baseline / "jaxsens" / "__init__.py").is_file():
        problems.add("--baseline", str(options.baseline), "the folder of a checkout of this repository")
    problems.raise_if_any()


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the table after every length; 0, or 2 for options that cannot be used or a method that failed."""
    options = tyro.cli(Options, args=arguments, prog="benchmark_first_order.py")
    rows: list[Timed] = []
    try:
        check(options)
        for n in sorted(options.lengths):
            rows += timed(options, n, lambda text: print(text, file=sys.stderr, flush=True))
    except (InputError, WorkerFailed) as error:
        print(error, file=sys.stderr)
        return 2
    finally:
        if rows:
            print(table(options.layers, rows), flush=True)
    return 0
