"""`jaxsens.sweep`: models of the user's own side by side, by length and seed; and `jaxsens.load_sweep`."""

from __future__ import annotations

import dataclasses
import os
import signal
import tempfile
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import jax
from rich.console import Console

from jaxsens.core.base.errors import InputError, Problem, Problems, collecting
from jaxsens.core.base.files import try_writing_to
from jaxsens.core.base.inputs import plain_numbers
from jaxsens.core.base.program_cache import programs_kept
from jaxsens.core.base.strict import is_path, naming_arguments, read_fields, typed_arguments
from jaxsens.core.engines.options import AskedEngine, Auto
from jaxsens.core.engines.request import Request
from jaxsens.core.flips.flips import Flips, Substitute
from jaxsens.core.measures import L2, Measure
from jaxsens.core.placement.placement import Placement, checked_placement
from jaxsens.core.report.data import FlipTables
from jaxsens.core.report.sweep_result import SweepResult
from jaxsens.core.sweeps.beyond import check_estimates
from jaxsens.core.sweeps.config import NAME, NAME_RULE, Settings, check_points, check_variant, inputs_of
from jaxsens.core.sweeps.inputs import RandomWords
from jaxsens.core.sweeps.points import AVERAGE_SENSITIVITY, Measurement, select
from jaxsens.core.sweeps.sources import own_source, own_words
from jaxsens.core.sweeps.sweep import (
    Sweep,
    SweepVariant,
    read_plan,
    read_points,
    read_records,
    run_sweep,
    table_rows,
)
from jaxsens.core.sweeps.tables import PointTable


class SweepInterrupted(KeyboardInterrupt):
    """Ctrl-C during `jaxsens.sweep`. `partial` is the result of the finished points; None if there are none. The same
    call with the same `out` measures the others."""

    def __init__(self, partial: SweepResult | None, number: int = signal.SIGINT) -> None:
        done = 0 if partial is None else len(partial.metadata)
        super().__init__(f"interrupted after {done} points; see .partial")
        self.partial, self.signal = partial, number


@naming_arguments
def sweep(
    models: Mapping[str, Callable[[int, int], Any]],
    lengths: Sequence[int],
    *,
    seeds: int | Sequence[int] = 5,
    inputs: Callable[[int, int], Any] | None = None,
    flips: Flips | Any = None,
    measure: Measure | Any = "l2",
    engine: AskedEngine | Any = "auto",
    placement: Placement | None = None,
    out: str | os.PathLike[str] | None = None,
) -> SweepResult:
    """Measures models of your own at every length with every seed, and fits how their changes scale with the length.

    Says on stderr how far it is: by a bar in terminals and notebooks, by a line a minute in scripts.

    All models read the same words. Each is made once before anything is measured, to tell whether it is the one that a
    finished point is of, and once more when it is measured; what is random in it must be drawn by the seed. Compiled
    programs are kept for later sweeps, as by `programs_kept`, unless JAX has a cache of its own.

    >>> import jax.numpy as jnp
    >>> mean = lambda n, seed: lambda tokens: jnp.mean(tokens + seed)
    >>> sweep({"average": mean}, [8, 16, 32], seeds=2, flips=2)
    SweepResult of 6 of 6 points
    average: mean falls about as 1/n (exponent −1.00 [−1.00, −1.00])
    average: max falls about as 1/n (exponent −1.00 [−1.00, −1.00])

    Args:
        models: functions by name. `make(n, seed)` returns any model that `flip_sensitivity` takes, or a config of a
            network, whose weights the seed draws. A model that returns a row for each position must return the one that
            is read: `lambda tokens: model(tokens)[-1]`.
        lengths: n, rising: at least three for an exponent.
        seeds: how many, from 0 on, or a list of them. The interval of an exponent is over seeds.
        inputs: `inputs(n, seed)` returns the words of a point, (n,) or (count, n). By default one random word a seed,
            uniform over the symbols.
        flips, measure, engine: as for `flip_sensitivity`, but a function is no measure of a sweep, and the seed of a
            point draws the sample of its flips.
        placement: where, as for `flip_sensitivity`; of this process's devices.
        out: a folder that is kept, as `jaxsens sweep --out` writes it: `jaxsens.load_sweep`, `jaxsens status` and
            `jaxsens report` read it.
            The same call goes on where it was stopped, and one with more lengths, seeds or models adds them. Models or
            words that have changed are refused there. By default nothing is kept.

    Returns:
        A `SweepResult`: `points`, `exponents`, `plot()`, `to_latex()` and `report(directory)`.

    Warns:
        UserWarning: if some points failed; `failures` has them all.

    Raises:
        InputError: for unusable arguments, all of them together, before anything is measured; for a folder of another
            sweep; and if no point can be measured.
        SweepInterrupted: on Ctrl-C, with the finished points.
    """
    with collecting("sweep") as problems:
        measurement = _measurement(flips, measure, engine, problems)
        n, each = _planned(lengths, seeds, problems)
        variants = _variants(models, n, each, None if flips is None else measurement.flips, problems)
        if flips is None and variants:
            measurement = dataclasses.replace(measurement, flips=variants[0].source.flips)
        own = Problems()
        check_estimates(measurement, (), own)
        for variant in variants:
            check_variant(variant, n, measurement, own)
        for one in own:  # the arguments are those of [measure] in a config
            inside = one.path[1:] if one.path[:1] == ("measure",) else one.path
            problems.append(Problem(inside, one.value, one.remedy))
        check_points(len(variants), n, each, problems)
        source_of_inputs: Any = None
        if inputs is not None:
            source_of_inputs = own_words(inputs, n, each, problems)
        elif not own:  # that no symbols are known is said once
            source_of_inputs = inputs_of(RandomWords(), variants, n, Path(), problems)
        where, folder = checked_placement(placement, problems), _folder(out, problems)
        if where.group is not None:
            remedy = "devices of this process: `jaxsens sweep --distributed` shares a sweep among several"
            problems.add("placement.mesh", where.mesh, remedy)
    statistics = ("mean", AVERAGE_SENSITIVITY if measurement.measure.indicator else "max")
    planned = Sweep("", "", n, each, variants, statistics, source_of_inputs, measurement, "", placement=where)
    planned = dataclasses.replace(planned, text=_call(planned, inputs))
    with tempfile.TemporaryDirectory() if folder is None else nullcontext(folder) as directory:
        return _run(planned, Path(directory))


@typed_arguments
def load_sweep(directory: str | os.PathLike[str]) -> SweepResult:
    """Reads a sweep, finished or not, from the folder that `jaxsens sweep --out` or `jaxsens.sweep(out=...)` wrote.

    Each point's file is read once, with the flips of one point in memory at a time.

    >>> result = load_sweep("results/quickstart")  # doctest: +SKIP
    >>> result.exponents  # doctest: +SKIP

    Raises:
        InputError: if this is not a sweep directory, no point of it is finished, or a file is damaged.
    """
    folder, plan = Path(directory), read_plan(directory)
    metadata, tables = [], FlipTables()
    for point, flips in read_points(folder, plan):
        metadata.append(point)
        key = (point.variant, point.n, point.seed)
        if flips.n == point.n:  # a boundary symbol that does not count in n moves the positions
            tables.add(*key, flips.positions, flips.norms, flips.resolution, flips.readout)
        if flips.measure.indicator:
            tables.add_decisions(*key, flips)
    if not metadata:
        raise InputError.of(
            "directory",
            str(directory),
            f"none of its {len(plan.points)} points is finished; run the sweep first",
        )
    results = {
        name: table_rows(name, table, metadata)
        if isinstance(table, PointTable)
        else read_records(folder, plan, name)
        for name, table in plan.sweep_tables.items()
    }
    return SweepResult(plan, tuple(metadata), tables, results)


def _run(planned: Sweep, folder: Path) -> SweepResult:
    """Measures what is not done yet, and reads all of it."""
    # rich's own bar of a notebook needs ipywidgets, and warns without them: the one of a terminal does in both.
    console = Console(stderr=True, force_jupyter=False, force_terminal=True if Console().is_jupyter else None)
    try:
        # A cache that the user gave JAX is left as it is.
        with nullcontext() if jax.config.jax_compilation_cache_dir else programs_kept():  # pyright: ignore[reportAttributeAccessIssue]
            outcome = run_sweep(planned, folder, select(planned.points), console)
    except InputError as error:
        raise InputError(
            *(one.renamed({"directory": "out"}) for one in error.problems), subject="sweep"
        ) from error
    result = None
    if outcome.finished:
        result = dataclasses.replace(load_sweep(folder), failures=outcome.failures)
    if outcome.stopped_by is not None:
        raise SweepInterrupted(result, outcome.stopped_by)
    if outcome.unwritable:
        raise OSError(outcome.unwritable)
    if result is None:
        raise InputError(f"sweep: no point could be measured: {outcome.failures[0]}")
    if outcome.failures:
        message = f"sweep: {len(outcome.failures)} of {outcome.planned} points failed: {outcome.failures[0]}"
        warnings.warn(f"{message}{'; .failures has all' if len(outcome.failures) > 1 else ''}", stacklevel=4)
    return result


def _planned(lengths: Any, seeds: Any, problems: Problems) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The lengths and the seeds, as a config has them."""
    values = {"lengths": _listed(lengths), "seeds": _listed(seeds)}
    fields = read_fields(Settings, values, "", problems)
    return fields.get("lengths", ()), fields.get("seeds", ())


def _listed(values: Any) -> Any:
    """Numbers as Python's, for a strict check, and a sequence of them as a list; anything else unchanged."""
    is_list = isinstance(values, Iterable) and not isinstance(values, str | Mapping)
    return plain_numbers(list(values) if is_list else values)


def _measurement(flips: Any, measure: Any, engine: Any, problems: Problems) -> Measurement:
    asked = Request(flips, measure, engine).read(problems)
    what: Measure | None = asked.measure
    if what is not None and not what.portable:
        remedy = (
            "the files of a sweep hold no function: let the model compute it, or loop over flip_sensitivity"
        )
        problems.add("measure", what, remedy)
    return Measurement(asked.flips or Substitute(), what or L2(), asked.engine or Auto())


def _variants(
    models: Any, lengths: tuple[int, ...], seeds: tuple[int, ...], flips: Flips | None, problems: Problems
) -> tuple[SweepVariant, ...]:
    """A variant for each function."""
    if not isinstance(models, Mapping) or not models:
        problems.add("models", models, 'functions make(n, seed) by name: {"softmax": make_softmax}')
        return ()
    variants = []
    for name, make in models.items():
        own = Problems()
        if not isinstance(name, str) or not NAME.fullmatch(name):
            own.add("name", name, NAME_RULE)
        source = own_source(make, lengths, seeds, flips, own)
        problems.include(own, ("models", name if isinstance(name, str) else repr(name)))
        if source is not None and not own:
            variants.append(SweepVariant(name, _name(make), source))
    return tuple(variants)


def _name(function: Any) -> str:
    """A function as a report calls it."""
    named = f"{getattr(function, '__module__', '')}:{getattr(function, '__qualname__', '')}"
    return named if all(named.split(":")) else type(function).__qualname__


def _folder(out: Any, problems: Problems) -> Path | None:
    if out is None:
        return None
    try:
        if not is_path(out) or Path(out).is_file():
            raise NotADirectoryError("not the name of a directory")
        try_writing_to(Path(out))
        return Path(out)
    except (OSError, TypeError) as error:
        problems.add("out", out, f"a directory that can be written to ({error})")
        return None


def _call(planned: Sweep, inputs: Any) -> str:
    """The call, as a comment in place of the config: what a folder was made by."""
    models = ", ".join(f'"{one.name}": {one.description}' for one in planned.variants)
    options = [f"{{{models}}}", repr([*planned.lengths]), f"seeds={[*planned.seeds]}"]
    options += [] if inputs is None else [f"inputs={_name(inputs)}"]
    parts = (planned.measure.flips, planned.measure.measure, planned.measure.engine)
    options += [f"{one.argument}={one!r}" for one in parts]
    return f"# jaxsens.sweep({', '.join(options)})\n"
