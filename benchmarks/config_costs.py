"""What a sweep's config costs on an accelerator, estimated; and how such an estimate compares with this machine.

The operations are those that `jaxsens.explain` counts for the engines that run, which do not depend on the machine. For
transformers of the benchmark's size the bytes that these algorithms move at least are counted as well, as in
`benchmarks.costs`. Neither takes less time than at the machine's best rates. How much more it takes is measured here,
at small n.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from benchmarks.costs import Cost, Rates, cost
from benchmarks.machine import rates_apart
from benchmarks.options import FEED_FORWARD, HEADS, SAMPLED, WIDTH, Case
from jaxsens.base.errors import InputError, Problems
from jaxsens.experiments.sweep.config import load_sweep_config
from jaxsens.experiments.sweep.points import Point
from jaxsens.experiments.sweep.sweep import Sweep
from jaxsens.models.transformer.config import TransformerConfig
from jaxsens.sensitivity.explain import Explanation, explain
from jaxsens.sensitivity.subjects.adapters import measurable

GIGA = 1e9


@dataclass(frozen=True)
class Options:
    """What a sweep's config costs on an accelerator, estimated from the operations of the engines that run.

    Attributes:
        config: The sweep's config.
        operations: Operations a second of the accelerator, in a large matrix product.
        bandwidth: Bytes a second of its memory.
        check: Lengths at which every variant is measured here, and compared with the count.
        repeats: Measurements of each, after one that compiles; the median counts.
    """

    config: Annotated[Path, tyro.conf.Positional]
    operations: float = 1e13
    bandwidth: float = 1e12
    check: tuple[int, ...] = ()
    repeats: int = 3


@dataclass(frozen=True)
class Estimate:
    """The cost of the points of one variant and length; `bytes` is None where no count is known."""

    point: Point
    explained: Explanation
    bytes: float | None

    def seconds(self, rates: Rates) -> float:
        """The least time that such rates allow."""
        return Cost(self.explained.operations, self.bytes or 0.0).seconds(rates)


def estimates(sweep: Sweep) -> Iterator[Estimate]:
    """Yields the cost of one point of every variant and length."""
    first = {(point.variant, point.n): point for point in reversed(sweep.points)}
    for point in reversed(first.values()):
        model = point.model()
        flips, engine = point.measure.flips_at(point.n).drawing(None), point.measure.engine_at(point.n)
        explained = explain(model, point.n, flips, point.measure.measure, engine=engine)
        yield Estimate(point, explained, bytes_of(model, explained))


def bytes_of(model: object, explained: Explanation) -> float | None:
    """Bytes that the engine's algorithm moves at least; None for models of other kinds and sizes."""
    config, name = measurable(model).config, explained.engine.name
    if not isinstance(config, TransformerConfig) or name not in SAMPLED:
        return None
    if (config.width, config.heads, config.feed_forward) != (WIDTH, HEADS, FEED_FORWARD):
        return None
    return cost(Case(name, config.layers, explained.n)).bytes


def print_estimates(sweep: Sweep, rates: Rates) -> None:
    """Prints the table of all lengths of each variant, and of the longest."""
    found: dict[str, list[Estimate]] = {}
    for one in estimates(sweep):
        found.setdefault(one.point.variant, []).append(one)
    seeds, operations, seconds = len(sweep.seeds), 0.0, 0.0
    print(
        f"| variant | engine at n = {max(sweep.lengths)} | Gop | GB | seconds | all {seeds} seeds and lengths: s |"
    )
    print("| :-- | :-- | --: | --: | --: | --: |")
    for variant, each in found.items():
        longest = max(each, key=lambda one: one.point.n)
        own = seeds * sum(one.seconds(rates) for one in each)
        operations += seeds * sum(one.explained.operations for one in each)
        seconds += own
        moved = "" if longest.bytes is None else f"{longest.bytes / GIGA:.3g}"
        cells = (
            f"{longest.explained.operations / GIGA:.3g} | {moved} | {longest.seconds(rates):.3g} | {own:.3g}"
        )
        print(f"| {variant} | {longest.explained.engine.name} | {cells} |", flush=True)
    print(
        f"\nAll {len(sweep.points)} points: {operations:.3g} operations, at least {seconds:.3g} s\n",
        flush=True,
    )


def measured(point: Point, repeats: int) -> float:
    """The median of the seconds that a point takes once it is compiled."""
    model, tokens, seconds = point.model(), point.tokens(), []
    for _ in range(1 + repeats):
        began = time.perf_counter()
        point.measure.flip_sensitivity(model, tokens, point.seed)
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds[1:])


def print_check(sweep: Sweep, lengths: Sequence[int], repeats: int) -> None:
    """Prints the count and the time that this machine takes."""
    here, device = rates_apart(quick=True)
    print(
        f"Here, on {device}: {here.operations / GIGA:.3g} Gop/s in a matrix product, {here.bytes / GIGA:.3g} GB/s\n"
    )
    print("| variant | n | engine | Gop | at least, s | explain, s | measured, s | ÷ least | ÷ explain |")
    print("| :-- | --: | :-- | --: | --: | --: | --: | --: | --: |")
    for one in estimates(sweep):
        if one.point.n not in lengths:
            continue
        seconds, told, least = measured(one.point, repeats), one.explained, one.seconds(here)
        cells = f"{told.operations / GIGA:.3g} | {least:.3g} | {told.seconds:.3g} | {seconds:.3g}"
        ratios = f"{seconds / least:.2g} | {seconds / told.seconds:.2g}"
        print(f"| {one.point.variant} | {told.n} | {told.engine.name} | {cells} | {ratios} |", flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the tables; 0, or 2 for options or a config that cannot be used."""
    options = tyro.cli(Options, args=arguments, prog="benchmark_config.py")
    problems = Problems("benchmark_config")
    try:
        sweep = load_sweep_config(options.config)
        unknown = sorted(set(options.check) - set(sweep.lengths))
        if unknown:
            problems.add("--check", unknown, f"of the config's lengths, {', '.join(map(str, sweep.lengths))}")
        if min(options.operations, options.bandwidth) <= 0 or options.repeats < 1:
            problems.add("--operations, --bandwidth, --repeats", options.repeats, "positive numbers")
        problems.raise_if_any()
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    print_estimates(sweep, Rates(options.operations, options.bandwidth))
    if options.check:
        print_check(sweep, options.check, options.repeats)
    return 0
