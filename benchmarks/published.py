"""A published encoder on a text: exact, first order, a gradient, and Captum's FeatureAblation on the same weights.

Every method has a process of its own. The first run compiles; then all methods take turns, so that a busy minute hits
them alike, and the fastest run of each counts.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import tyro
from scipy.stats import spearmanr

from benchmarks.line_process import LineProcess
from benchmarks.published_worker import METHODS, ROOT
from jaxsens.core.base.errors import InputError, Problems

EXACT = {"mean readout": "exact, mean readout", "scalar": "exact, scalar"}
"""What an estimate is compared with, by a part of its name; otherwise the exact norms of row 0."""


@dataclass(frozen=True)
class Options:
    """Times a published encoder's sensitivities by several methods.

    Attributes:
        folder: The model: an encoder in the Hugging Face layout, whose tokenizer has [MASK].
        n: The length of the text, with special symbols.
        methods: The methods to run; by default all.
        turns: Timed runs of each method, after one that compiles.
    """

    folder: tyro.conf.Positional[Path]
    n: int = 500
    methods: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME ...")] = tuple(METHODS)
    turns: int = 2


def process_of(method: str, options: Options) -> LineProcess:
    """Returns a method in a process of its own."""
    given = method, str(options.folder.resolve()), str(options.n)
    return LineProcess([sys.executable, "-m", "benchmarks.published_worker", *given], ROOT)


def timed(options: Options) -> dict[str, tuple[float, np.ndarray]]:
    """Returns each method's fastest run: its seconds, and what it found of each flip."""
    found: dict[str, tuple[float, np.ndarray]] = {}
    with ExitStack() as stack:
        processes: dict[str, LineProcess] = {}
        for name in options.methods:
            processes[name] = stack.enter_context(process_of(name, options))
            processes[name].ask()
            print(f"{name}: compiled", file=sys.stderr, flush=True)
        for _ in range(options.turns):
            for name, process in processes.items():
                ran = process.ask()
                if name not in found or ran["seconds"] < found[name][0]:
                    found[name] = ran["seconds"], np.asarray(ran["values"])
    return found


def table(found: dict[str, tuple[float, np.ndarray]]) -> str:
    """A Markdown table: seconds, how many times faster than the better Captum, rank correlation with exact values."""
    ablations = [seconds for name, (seconds, _) in found.items() if name.startswith("captum")]
    lines = [
        "| method | seconds | captum ÷ these | rank correlation with exact |",
        "| :-- | --: | --: | --: |",
    ]
    for name, (seconds, values) in found.items():
        part = next((of for key, of in EXACT.items() if key in name), "exact")
        ratio = f"{min(ablations) / seconds:.3g}" if ablations else ""
        same = f"{spearmanr(np.abs(values), np.abs(found[part][1]))[0]:.3f}" if part in found else ""
        lines.append(f"| {name} | {seconds:.3g} | {ratio} | {same} |")
    return "\n".join(lines)


def check(options: Options) -> None:
    """Refuses what cannot be measured, before anything is."""
    problems = Problems("benchmark_published")
    if not options.folder.is_dir():
        problems.add("FOLDER", str(options.folder), "a folder with config.json and *.safetensors")
    for name in options.methods:
        if name not in METHODS:
            problems.add("--methods", name, f"of {', '.join(METHODS)}")
    for name, least in (("n", 4), ("turns", 1)):
        if getattr(options, name) < least:
            problems.add(f"--{name}", getattr(options, name), f"at least {least}")
    problems.raise_if_any()


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the table; 0, or 2 for options that cannot be used or a method that failed."""
    options = tyro.cli(Options, args=arguments, prog="benchmark_published.py")
    try:
        check(options)
        print(table(timed(options)))
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0
