"""What is measured: the command's options, checked, and the cases that follow from them."""

from __future__ import annotations

import dataclasses
import importlib.util
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Int

from jaxsens.core.base.errors import Problems

WIDTH, HEADS, FEED_FORWARD = 64, 4, 256
"""The transformer of every measurement; two symbols, softmax attention, sinusoidal positions, no layer norm."""

METHODS: dict[str, str] = {
    "vmap": 'jaxsens, engine="vmap": one forward pass a flip',
    "incremental": 'jaxsens, engine="incremental": what a flip changes of a forward pass',
    "difference": 'jaxsens, engine="difference"',
    "torch": "PyTorch, one flip a forward pass, fused attention",
    "captum-1": "Captum FeatureAblation, 1 flip a forward pass",
    "captum-16": "Captum FeatureAblation, 16 flips a forward pass",
}
"""Every method by name; the order of tables and plots."""

ESTIMATES: dict[str, tuple[int | None, bool]] = {
    "all outputs": (None, False),
    "sketch of 16": (16, False),
    "a scalar": (None, True),
}
"""What the first-order engine estimates in its benchmark: the sketch, and whether it is one log-probability."""

REFERENCE = "reference"
"""The difference engine in float64, which errors are measured against. Not timed."""

RIVALS = ("torch", "captum-1", "captum-16")
SAMPLED = ("vmap", "incremental", "difference")
"""Methods that are timed on a sample of the flips where all of them would take too long."""

NEEDS: dict[str, tuple[str, ...]] = {
    "torch": ("torch",),
    "captum-1": ("torch", "captum"),
    "captum-16": ("torch", "captum"),
}
"""Packages of the `benchmark` extra that a method cannot do without."""


@dataclass(frozen=True)
class Case:
    """One method on one input: a worker process is made for each."""

    method: str
    layers: int
    n: int


def unserved(case: Case) -> str | None:
    """Returns why a method does not serve a depth, or None if it does."""
    if case.method == "incremental" and case.layers < 2:
        return "needs two layers"
    return None


@dataclass(frozen=True)
class Options:
    """Measures all flips of one input by every method, side by side.

    Attributes:
        out: Folder for the table, the CSV file, the plot and the record of the machine.
        lengths: Lengths n of the input; 128 256 512 1024 2048 4096 if not given.
        layers: Depths L of the transformer; 1 2 3 if not given.
        methods: Of vmap, incremental, difference, torch, captum-1, captum-16; all if not given.
        limit_seconds: Methods go as far as one measurement of all flips is expected to take no longer than this.
        repeats: Timed runs of each measurement, at most; its median counts.
        sample: Flips timed where an engine of jaxsens would take longer than the limit; the time is extrapolated.
        quick: A few minutes: n = 128 256, L = 1 2, three repeats, limit 5 s, unless given otherwise.
        profile: METHOD L N: no benchmark, but where the time of this one measurement goes.
    """

    out: Path
    lengths: tuple[int, ...] | None = None
    layers: tuple[int, ...] | None = None
    methods: tuple[str, ...] | None = None
    limit_seconds: float | None = None
    repeats: int | None = None
    sample: int = 64
    quick: bool = False
    profile: tuple[str, int, int] | None = None


@dataclass(frozen=True)
class Plan:
    """`Options` with every choice made. `missing` are the methods left out, with the reason."""

    out: Path
    lengths: tuple[int, ...]
    layers: tuple[int, ...]
    methods: tuple[str, ...]
    limit_seconds: float
    repeats: int
    sample: int
    quick: bool
    missing: dict[str, str] = dataclasses.field(default_factory=dict)


def plan(options: Options) -> Plan:
    """Fills in what was not given and leaves out methods whose packages are not installed.

    Raises:
        InputError: listing every option that cannot be used.
    """
    quick = options.quick
    lengths = options.lengths or ((128, 256) if quick else (128, 256, 512, 1024, 2048, 4096))
    layers = options.layers or ((1, 2) if quick else (1, 2, 3))
    methods = options.methods or tuple(METHODS)
    limit = options.limit_seconds if options.limit_seconds is not None else (5.0 if quick else 60.0)
    repeats = options.repeats if options.repeats is not None else (3 if quick else 5)
    problems = Problems("benchmark")
    if min(lengths) < 3:
        problems.add("--lengths", lengths, "lengths of at least 3")
    if min(layers) < 1:
        problems.add("--layers", layers, "depths of at least 1")
    unknown = [name for name in methods if name not in METHODS]
    if unknown:
        problems.add("--methods", " ".join(unknown), f"names out of {', '.join(METHODS)}")
    for name, value in (("--repeats", repeats), ("--sample", options.sample)):
        if value < 1:
            problems.add(name, value, "a whole number of at least 1")
    if not limit > 0:
        problems.add("--limit-seconds", limit, "a positive number of seconds")
    if options.profile is not None:
        _check_profile(options.profile, problems)
    problems.raise_if_any()
    missing = {name: reason for name in methods if (reason := lacking(name)) is not None}
    return Plan(
        out=options.out,
        lengths=tuple(sorted(set(lengths))),
        layers=tuple(sorted(set(layers))),
        methods=tuple(name for name in METHODS if name in methods and name not in missing),
        limit_seconds=limit,
        repeats=repeats,
        sample=options.sample,
        quick=quick,
        missing=missing,
    )


def _check_profile(profile: tuple[str, int, int], problems: Problems) -> None:
    method, layers, n = profile
    if method not in METHODS:
        problems.add("--profile", method, f"METHOD L N with a method out of {', '.join(METHODS)}")
    elif (reason := lacking(method)) is not None:
        problems.add("--profile", method, reason)
    if layers < 1 or n < 3:
        problems.add("--profile", f"{layers} {n}", "METHOD L N with L of at least 1 and N of at least 3")


def lacking(method: str) -> str | None:
    """Why a method cannot run here, or None."""
    absent = [name for name in NEEDS.get(method, ()) if importlib.util.find_spec(name) is None]
    if not absent:
        return None
    return f"{' and '.join(absent)} not installed; pip install -e '.[benchmark]'"


def tokens(n: int) -> Int[np.ndarray, " n"]:
    """The input of length n: random bits, and the end-of-sequence symbol last, where the output is read."""
    bits = np.random.default_rng([n]).integers(0, 2, size=n)
    bits[-1] = 2
    return bits


def chosen(n: int, count: int) -> Int[np.ndarray, " count"]:
    """`count` of the n - 1 positions to flip, drawn at random, sorted. A smaller sample is part of a larger one."""
    return np.sort(np.random.default_rng([n, 1]).permutation(n - 1)[:count])
