"""Compiles every engine for GPUs and TPUs that are not at hand: seconds, and bytes against memory and budget.

The cells are a covering array: every pair of values of any two of (engine and edit, model, length, device, number of
devices) that can meet stands in one of them. Each has a process of its own, and a time limit.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from pathlib import Path
from typing import Annotated, Any

import tyro

from benchmarks.auto import ROOT
from jaxsens.core.base.told import in_words

WORK = (
    *((name, "substitute") for name in ("vmap", "incremental", "difference", "first-order")),
    *(("vmap", edit) for edit in ("delete", "insert", "groups")),
)
"""Engines, and the flips that each serves."""

LAYERS = ("1", "2", "4", "12")
LARGE = "llama-3-8b"
LENGTHS = {"own": (1024, 16384), "published": (128, 500), "large": (1024, 8192)}
"""The lengths of inputs: of a published model of this size, what it reads."""

TARGETS = {
    **{name: {1: name, 8: f"{name}x8"} for name in ("a100", "h100", "h200", "b200")},
    "v5e": {1: "v5e", 8: "v5e-8"},
    "v5p": {1: "v5p", 8: "v5p-16"},
    "v6e": {1: "v6e", 8: "v6e-8"},
}
"""What one device and eight of each kind are called."""

LIMITS = {"difference": 30.0}
OTHERS = 20.0
"""The seconds that a cell may take to compile on two cores, by engine."""

HEAD = """| device | engine | flips | model | n | prepare, s | flips, s | batch | arguments | temporary | of budget | |
| :-- | :-- | :-- | :-- | --: | --: | --: | --: | --: | --: | --: | :-- |"""


@dataclass(frozen=True)
class Cell:
    """A program to compile: an engine with its edit, a model, a short or long input, devices and their number."""

    work: tuple[str, str]
    model: str
    long: bool
    device: str
    devices: int

    @property
    def published(self) -> bool:
        """Whether the model is a published one."""
        return self.model not in LAYERS

    @property
    def n(self) -> int:
        """The length."""
        kind = "large" if self.model == LARGE else "published" if self.published else "own"
        return LENGTHS[kind][self.long]

    @property
    def command(self) -> list[str]:
        """What compiles it."""
        given = TARGETS[self.device][self.devices], self.model, str(self.n), *self.work
        return [sys.executable, "-m", "benchmarks.accelerators_worker", *given]

    @property
    def served(self) -> bool:
        """Whether the engine serves the model: difference has rules for jaxsens transformers alone."""
        return not (self.published and self.work[0] == "difference")


@dataclass(frozen=True)
class Options:
    """Compiles programs for devices that are not here, and prints a table.

    Attributes:
        folder: A published model, in the Hugging Face layout; without it none is compiled.
        devices: Compile for these alone.
        engines: Compile these alone.
        only: Compile only so many cells.
        large: Compile Llama 3 8B alone, in bfloat16 and split over eight devices.
        limit: Seconds after which a cell is given up.
    """

    folder: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None
    devices: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME ...")] = tuple(TARGETS)
    engines: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME ...")] = tuple({name for name, _ in WORK})
    only: int | None = None
    large: bool = False
    limit: float = 300.0


def cells(options: Options) -> list[Cell]:
    """The covering array: each next cell has the most pairs of values that none before it has, until none is left."""
    if options.large:
        work = ("vmap", "substitute")
        return [Cell(work, LARGE, long, device, 8) for device in ("h100", "v5e") for long in (False, True)]
    models = LAYERS if options.folder is None else (*LAYERS, str(options.folder))
    works = [work for work in WORK if work[0] in options.engines]
    rows = [
        row for row in product(works, models, (False, True), options.devices, (1, 8)) if Cell(*row).served
    ]
    pairs = {row: {*combinations(enumerate(row), 2)} for row in rows}
    left = set().union(*pairs.values())
    chosen: list[Cell] = []
    while left and len(chosen) < (options.only or len(rows)):
        best = max(rows, key=lambda row: len(pairs[row] & left))  # the first of equals
        left -= pairs[best]
        chosen.append(Cell(*best))
    return chosen


def compiled(cell: Cell, limit: float) -> dict[str, Any]:
    """What the worker tells of a cell; "failed" with its last line if it ends otherwise."""
    began = time.perf_counter()
    try:
        ran = subprocess.run(cell.command, cwd=ROOT, capture_output=True, text=True, timeout=limit)
    except subprocess.TimeoutExpired:
        return {"failed": f"not compiled in {limit:.0f} s"}
    if ran.returncode:
        lines = [line for line in ran.stderr.splitlines() if line.strip()]
        return {"failed": (lines or ["no message"])[-1][:200], "seconds": time.perf_counter() - began}
    return json.loads(ran.stdout.splitlines()[-1])


def over(cell: Cell, told: dict[str, Any]) -> list[str]:
    """The limit that a cell's seconds exceed, if they do."""
    most = LIMITS.get(cell.work[0], OTHERS)
    return [f"over {most:.0f} s"] * (sum(one["seconds"] for one in told.get("programs", ())) > most)


def faults(told: dict[str, Any]) -> Iterator[str]:
    """What is wrong with a cell."""
    if "programs" not in told:
        yield told.get("failed") or told["refused"]
        return
    for one in told["programs"]:
        whole = one["arguments"] + one["temporary"]
        if not one["on_host"] and whole > told["memory"]:
            yield f"{one['name']} does not fit the device: {in_words(whole)}"
        if not one["on_host"] and whole > told["budget"]:
            yield f"{one['name']} over the budget: {in_words(whole)}"


def line(cell: Cell, told: dict[str, Any], wrong: Sequence[str]) -> str:
    """A line of the table."""
    name = LARGE if cell.model == LARGE else "published" if cell.published else f"L = {cell.model}"
    begin = f"| {TARGETS[cell.device][cell.devices]} | {' | '.join(cell.work)} | {name} | {cell.n} |"
    if "programs" not in told:
        return f"{begin} | | | | | | {'; '.join(wrong)} |"
    first, last = told["programs"]
    where = " (host)" if first["on_host"] else ""
    share = (last["arguments"] + last["temporary"]) / told["budget"]
    return (
        f"{begin} {first['seconds']:.1f}{where} | {last['seconds']:.1f}{' (host)' if last['on_host'] else ''} "
        f"| {last['batch']} | {in_words(last['arguments'])} | {in_words(last['temporary'])} | {share:.0%} "
        f"| {'; '.join(wrong)} |"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the table; 1 if a cell fails or does not fit. What takes too long, as a busy machine does, is told."""
    options = tyro.cli(Options, args=arguments, prog="benchmark_accelerators.py")
    chosen, bad, slow = cells(options), 0, 0
    print(f"{len(chosen)} cells", file=sys.stderr)
    print(HEAD, flush=True)
    for cell in chosen:
        told = compiled(cell, options.limit)
        wrong, late = [*faults(told)], over(cell, told)
        bad, slow = bad + bool(wrong), slow + bool(late)
        print(line(cell, told, wrong + late), flush=True)
    print(f"\nOf {len(chosen)} cells {bad} fail or do not fit, and {slow} take longer than they may")
    return 1 if bad else 0
