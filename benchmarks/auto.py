"""What `engine="auto"` costs against every engine, with compilation and without, and against another checkout's `vmap`.

Every measurement has a process of its own, in which no setting is made. The first call compiles; then all methods take
turns, so that a busy minute hits them alike, and the fastest of a method's later calls counts.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import tyro

from benchmarks.line_process import LineProcess
from jaxsens.core.base.errors import InputError, Problems

ROOT = Path(__file__).resolve().parents[1]
ENGINES = ("vmap", "incremental", "difference")
METHODS = ("auto", *ENGINES)
BASELINE = (2, 1024)
"""Depth and length at which another checkout is timed too."""

SAMPLE = 64
"""The number of flips measured at three layers or more and 1024 symbols or more; the time is extrapolated."""

SETTINGS = ("JAX_NUM_CPU_DEVICES", "JAX_COMPILATION_CACHE_DIR", "XLA_FLAGS")


@dataclass(frozen=True)
class Options:
    """Times auto and every engine.

    Attributes:
        lengths: Lengths n of the input.
        layers: Depths L of the transformer (width 64, 4 heads, d_ff = 256, softmax, float32).
        turns: Later calls of each method.
        baseline: Another checkout of the repository; at L = 2, n = 1024 its vmap is timed too.
    """

    lengths: Annotated[tuple[int, ...], tyro.conf.arg(metavar="N ...")] = (256, 512, 1024)
    layers: Annotated[tuple[int, ...], tyro.conf.arg(metavar="L ...")] = (2, 3, 4)
    turns: int = 3
    baseline: Path | None = None


@dataclass(frozen=True)
class Timed:
    """One method at one depth and length: seconds of all flips, the first call's compilation apart.

    `first` is what the first call took longer than the later ones, plus those.
    """

    method: str
    layers: int
    n: int
    engine: str
    first: float
    later: float
    extrapolated: bool


class Process(LineProcess):
    """A worker that measures a checkout's flips when asked. Use as a context manager."""

    def __init__(self, tree: Path, engine: str, layers: int, n: int) -> None:
        environment = {key: value for key, value in os.environ.items() if key not in SETTINGS}
        self._tree = tree.resolve()
        worker = str(ROOT / "benchmarks" / "auto_worker.py")
        command = [sys.executable, "-P", worker, engine, str(layers), str(n)]
        super().__init__(command, self._tree, environment | {"PYTHONPATH": str(self._tree)})

    def __enter__(self) -> Process:
        return self

    def measure(self, flips: int) -> dict[str, Any]:
        """Seconds of `flips` flips (0: all), and the engine that ran.

        Raises:
            InputError: if the process died, or has imported another jaxsens than its checkout's.
        """
        answer = self.ask(flips)
        if not Path(answer["from"]).is_relative_to(self._tree):
            raise InputError(
                f"--baseline = {str(self._tree)!r}: a checkout of jaxsens; {answer['from']} was imported"
            )
        return answer


def timed(options: Options, layers: int, n: int, say: Callable[[str], None]) -> list[Timed]:
    """Every method at one depth and length."""
    trees = {method: (ROOT, method) for method in METHODS if layers > 1 or method != "incremental"}
    if options.baseline is not None and (layers, n) == BASELINE:
        trees["baseline vmap"] = (options.baseline, "vmap")
    flips = SAMPLE if layers > 2 and n >= 1024 else 0
    scale = (n - 1) / flips if flips else 1.0
    rows: list[Timed] = []
    with ExitStack() as stack:
        processes = {}
        for method, (tree, engine) in trees.items():
            processes[method] = stack.enter_context(Process(tree, engine, layers, n))
            answer = processes[method].measure(flips)
            rows.append(
                Timed(method, layers, n, answer["engine"], answer["seconds"], float("inf"), bool(flips))
            )
        for _ in range(options.turns):
            rows = [
                replace(row, later=min(row.later, processes[row.method].measure(flips)["seconds"]))
                for row in rows
            ]
    rows = [
        replace(row, first=max(0.0, row.first - row.later) + scale * row.later, later=scale * row.later)
        for row in rows
    ]
    say(table(rows))
    return rows


def table(rows: Sequence[Timed]) -> str:
    """Lines of a Markdown table, without its head: both times, and how many times the best engine's they are."""
    lines = []
    for row in rows:
        peers = [r for r in rows if r.method in ENGINES and (r.layers, r.n) == (row.layers, row.n)]
        best = [
            min((getattr(peer, kind) for peer in peers), default=float("nan")) for kind in ("first", "later")
        ]
        about = "≈ " if row.extrapolated else ""
        lines.append(
            f"| {row.layers} | {row.n} | {row.method} | {row.engine} | {about}{row.first:.3g} "
            f"| {row.first / best[0]:.2f} | {about}{row.later:.3g} | {row.later / best[1]:.2f} |"
        )
    return "\n".join(lines)


HEAD = """| L | n | method | engine | first call, s | × best | later calls, s | × best |
| --: | --: | :-- | :-- | --: | --: | --: | --: |"""


def speed_up(rows: Sequence[Timed]) -> str:
    """How much faster `auto` is than the other checkout's vmap, both in later calls."""
    found = {row.method: row for row in rows if (row.layers, row.n) == BASELINE}
    if "baseline vmap" not in found:
        return ""
    ratio = found["baseline vmap"].later / found["auto"].later
    return f"L = {BASELINE[0]}, n = {BASELINE[1]}: auto is {ratio:.1f} times as fast as the baseline's vmap"


def check(options: Options) -> None:
    """Refuses what cannot be measured, before anything is."""
    problems = Problems("benchmark_auto")
    if min(options.lengths) < 2:
        problems.add("--lengths", options.lengths, "lengths of at least 2")
    if min(options.layers) < 1:
        problems.add("--layers", options.layers, "depths of at least 1")
    if options.turns < 1:
        problems.add("--turns", options.turns, "at least 1")
    if options.baseline is not None and not (options.baseline / "jaxsens" / "__init__.py").is_file():
        problems.add("--baseline", str(options.baseline), "the folder of a checkout of this repository")
    if options.baseline is not None and (
        BASELINE[0] not in options.layers or BASELINE[1] not in options.lengths
    ):
        problems.add(
            "--baseline",
            str(options.baseline),
            f"--layers {BASELINE[0]} and --lengths {BASELINE[1]} among others",
        )
    problems.raise_if_any()


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the table, row by row; 0, or 2 for options that cannot be used."""
    options = tyro.cli(Options, args=arguments, prog="benchmark_auto.py")
    try:
        check(options)
        print(HEAD, flush=True)
        rows = [
            row
            for layers in options.layers
            for n in options.lengths
            for row in timed(options, layers, n, lambda text: print(text, flush=True))
        ]
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    print("\n" + speed_up(rows) if options.baseline else "", flush=True)
    return 0
