"""The command: options in; table, CSV file, plot and record of the machine out."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import tyro
from rich.console import Console

from benchmarks import machine, run
from benchmarks.agreement import Disagreement
from benchmarks.options import Case, Options, Plan, plan
from benchmarks.rows import Row, compared, csv_text
from benchmarks.table import markdown, rich_table
from jaxsens.core.base.errors import InputError
from jaxsens.core.base.files import write_bytes, write_text


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the benchmark; 0 if it came to an end, 1 if the methods disagree, 2 for options that cannot be used."""
    options = tyro.cli(Options, args=arguments, prog="benchmark.py")
    console = Console(stderr=True, highlight=False)
    try:
        if options.profile is not None:
            return _profile(options)
        benchmark(plan(options), console)
    except InputError as error:
        console.print(str(error), style="red", markup=False)
        return 2
    except Disagreement as error:
        console.print(str(error), style="red", markup=False)
        return 1
    return 0


def benchmark(made: Plan, console: Console) -> list[Row]:
    """Checks, measures and writes; files are written again after every input, so that an interrupted run leaves them.

    Raises:
        Disagreement: if the methods do not give the same numbers. Nothing is written then.
        InputError: if no method is left.
    """
    warnings = [f"{name} is left out: {reason}" for name, reason in made.missing.items()]
    if not made.methods:
        raise InputError("benchmark: no method is left; " + "; ".join(warnings))
    record = machine.describe() | {"started": datetime.now(UTC).isoformat(timespec="seconds")}
    record["load_at_start"] = machine.load()
    warnings.append(machine.busy(machine.load(), machine.BUSY_AT_START, "start") or "")
    _warn(console, warnings)

    began = time.perf_counter()

    def say(text: str) -> None:
        console.print(f"[{time.perf_counter() - began:6.0f} s] {text}", markup=False)

    run.check_agreement(made, say)
    say("measuring the machine's rates")
    rates, device = machine.rates_apart(made.quick)
    record |= {"device": device, "operations_per_second": rates.operations, "bytes_per_second": rates.bytes}
    say(f"{device}: {rates.operations / 1e9:.1f} Gop/s, {rates.bytes / 1e9:.1f} GB/s")
    rows: list[Row] = []
    for some in run.measure_all(made, rates, say):
        rows = compared([*rows, *some])
        _write(made, rows, record | {"warnings": [text for text in warnings if text]})
    end = machine.load()
    warnings.append(machine.busy(end, machine.BUSY_AT_END, "end") or "")
    _warn(console, warnings[-1:])
    record |= {"load_at_end": end, "seconds": round(time.perf_counter() - began, 1)}
    _write(made, rows, record | {"warnings": [text for text in warnings if text]})
    _draw(made, rows, record)
    wide = Console(width=None if sys.stdout.isatty() else 220)
    wide.print(rich_table(rows, wide.width))
    console.print(f"written to {made.out}", markup=False)
    return rows


def _warn(console: Console, texts: Sequence[str]) -> None:
    for text in texts:
        if text:
            console.print(f"warning: {text}", style="yellow", markup=False)


def _write(made: Plan, rows: Sequence[Row], record: dict[str, Any]) -> None:
    write_text(made.out / "benchmark.csv", csv_text(rows))
    write_text(made.out / "benchmark.md", markdown(rows))
    write_text(made.out / "machine.json", json.dumps(record, indent=2) + "\n")


def _draw(made: Plan, rows: Sequence[Row], record: dict[str, Any]) -> None:
    from benchmarks.plot import seconds_figure
    from jaxsens.core.report.panels import figure_bytes

    if all(row.seconds is None for row in rows):
        return
    figure = seconds_figure(rows, f"{record['cpu']}, {record['cores']} cores; {record['device']}")
    for format in ("png", "svg"):
        write_bytes(made.out / f"benchmark.{format}", figure_bytes(figure, format))


def _profile(options: Options) -> int:
    from benchmarks.profiling import profile, profile_table

    made = plan(options)
    method, layers, n = options.profile or ("", 0, 0)
    case = Case(method, layers, n)
    folder = made.out / f"profile-{method}-L{layers}-n{n}"
    spent = profile(case, folder)
    Console(width=None if sys.stdout.isatty() else 160).print(profile_table(case, spent))
    Console(stderr=True).print(f"trace written to {folder}", markup=False, highlight=False)
    return 0
