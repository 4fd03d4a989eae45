"""What a first call costs: the programs that it compiles, and its seconds in XLA and outside it, in new processes."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from benchmarks.auto import ROOT, SETTINGS

ROWS = (
    *(("auto", 2, 1024), ("vmap", 12, 128), ("incremental", 12, 128), ("first-order", 12, 128)),
    *(("vmap", 6, 128), ("vmap", 24, 128), ("incremental", 6, 128), ("incremental", 24, 128)),
    *(("difference", 2, 128), ("difference", 4, 128), ("first-order", 6, 128)),
)
"""Engine, depth L and length n: the rows of the table."""

HEAD = """| engine | L | n | checkout | programs | XLA, s | the rest, s | first call, s |
| :-- | --: | --: | :-- | --: | --: | --: | --: |"""


@dataclass(frozen=True)
class Options:
    """Times first calls, each in a new process without a persistent cache; medians.

    Attributes:
        turns: Processes for each row.
        baseline: Another checkout of the repository, timed in turn with this one.
    """

    turns: int = 3
    baseline: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None


def first_call(tree: Path, row: tuple[str, int, int]) -> dict[str, Any]:
    """One first call of a checkout in a process of its own; what `first_call_worker.py` prints."""
    environment = {key: value for key, value in os.environ.items() if key not in SETTINGS}
    command = [sys.executable, "-P", str(ROOT / "benchmarks" / "first_call_worker.py"), *map(str, row)]
    ran = subprocess.run(
        command, env=environment | {"PYTHONPATH": str(tree)}, capture_output=True, text=True, check=True
    )
    found = json.loads(ran.stdout.splitlines()[-1])
    if not Path(found["from"]).is_relative_to(tree):
        raise SystemExit(f"--baseline = {str(tree)!r}: a checkout of jaxsens; {found['from']} was imported")
    return found


def line(name: str, row: tuple[str, int, int], calls: Sequence[dict[str, Any]]) -> str:
    """One line of the table: medians over the calls."""
    programs, xla, seconds = (
        statistics.median(call[key] for call in calls) for key in ("programs", "xla", "seconds")
    )
    engine, layers, n = row
    return (
        f"| {engine} | {layers} | {n} | {name} | {programs:.0f} "
        f"| {xla:.1f} | {seconds - xla:.1f} | {seconds:.1f} |"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the table, row by row."""
    options = tyro.cli(Options, args=arguments, prog="benchmark_first_call.py")
    trees = {"this": ROOT}
    if options.baseline is not None:
        trees["baseline"] = options.baseline.resolve()
    print(HEAD, flush=True)
    for row in ROWS:
        turns = [{name: first_call(tree, row) for name, tree in trees.items()} for _ in range(options.turns)]
        for name in trees:
            print(line(name, row, [turn[name] for turn in turns]), flush=True)
    return 0
