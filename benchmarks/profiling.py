"""Where the time of one measurement goes: a trace, and its operations by the time spent in each itself."""

from __future__ import annotations

import gzip
import importlib
import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from benchmarks.options import NEEDS, Case

MOST = 25
"""Operations that the table shows."""

_NO_WORK = ("$", "PyTorch Profiler")  # Python frames, and the whole stretch that was profiled
_WAITING = "(wait for completion)"


@dataclass(frozen=True)
class Spent:
    """An operation: how often, and how long in it itself, without what it calls. Threads add up."""

    name: str
    calls: int
    seconds: float


def profile(case: Case, folder: Path) -> list[Spent]:
    """Runs a case once to compile and once under the profiler, whose trace lies in `folder` afterwards.

    JAX's for jaxsens's engines (TensorBoard and Perfetto read it), PyTorch's for the rivals. Longest first.
    """
    from benchmarks.methods import build

    folder.mkdir(parents=True, exist_ok=True)
    measure = build(case).measure
    measure(None)
    trace = _torch_trace if case.method in NEEDS else _jax_trace
    return own_times(_events(trace(measure, folder)))


def _jax_trace(measure: Any, folder: Path) -> Path:
    import jax

    with jax.profiler.trace(folder):
        measure(None)
    return max(folder.rglob("*.trace.json.gz"), key=lambda file: file.stat().st_mtime)


def _torch_trace(measure: Any, folder: Path) -> Path:
    torch = importlib.import_module("torch")
    with torch.profiler.profile() as profiler:
        measure(None)
    file = folder / "torch.trace.json"
    profiler.export_chrome_trace(str(file))
    return file


def _events(file: Path) -> list[dict[str, Any]]:
    content = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
    return json.loads(content)["traceEvents"]


def own_times(events: Iterable[dict[str, Any]]) -> list[Spent]:
    """Adds up Chrome trace events by name, each without the events inside it on the same thread. Longest first.

    Python functions, which JAX's trace holds too, and threads that wait for others are left out: they do no work.
    """
    threads: dict[tuple[Any, Any], list[dict[str, Any]]] = defaultdict(list)
    for event in events:
        name = str(event.get("name"))
        if event.get("ph") == "X" and not name.startswith(_NO_WORK) and not name.endswith(_WAITING):
            threads[event.get("pid"), event.get("tid")].append(event)
    calls: dict[str, int] = defaultdict(int)
    own: dict[str, float] = defaultdict(float)
    for thread in threads.values():
        open_events: list[tuple[float, str]] = []
        for event in sorted(thread, key=lambda event: (event["ts"], -event.get("dur", 0))):
            name, start, length = str(event["name"]), event["ts"], event.get("dur", 0)
            while open_events and open_events[-1][0] <= start:
                open_events.pop()
            if open_events:
                own[open_events[-1][1]] -= length
            own[name] += length
            calls[name] += 1
            open_events.append((start + length, name))
    spent = [Spent(name, calls[name], own[name] / 1e6) for name in own]
    return sorted(spent, key=lambda one: -one.seconds)


def profile_table(case: Case, spent: list[Spent]) -> Table:
    """The `MOST` longest operations and their share of the time of all threads."""
    table = Table(title=f"{case.method}, L = {case.layers}, n = {case.n}: time in each operation itself")
    table.add_column("operation", overflow="fold")
    for heading in ("calls", "seconds", "share"):
        table.add_column(heading, justify="right")
    whole = sum(one.seconds for one in spent) or 1.0
    for one in spent[:MOST]:
        table.add_row(one.name, str(one.calls), f"{one.seconds:.4f}", f"{one.seconds / whole:.1%}")
    return table
