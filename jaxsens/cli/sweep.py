"""`jaxsens sweep`, in one process or as one of a job of several, `jaxsens report` and `jaxsens status`; and `jaxsens
schema`, the JSON schema of a sweep's config, made from the classes that read it.
"""

from __future__ import annotations

import inspect
import json
import os
import re
import shlex
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import MISSING, asdict, dataclass, fields, is_dataclass
from importlib.resources import files
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Never, Union, get_args, get_origin, get_type_hints

import tyro
from rich.console import Console

from jaxsens.cli import shared
from jaxsens.core.base import stopping
from jaxsens.core.base.errors import InputError, ProcessLost, collecting
from jaxsens.core.base.registry import Option, entries, load
from jaxsens.core.base.text import print_text

if TYPE_CHECKING:
    from jaxsens.core.sweeps.job import Outcome
    from jaxsens.core.sweeps.points import Point
    from jaxsens.core.sweeps.sweep import Sweep

Format = Literal["svg", "png", "pdf"]
Width = Literal["page", "one", "two"]
_SHARE_ABOVE = 60

LOST = 75
"""The exit code of a process that ended because another one of its job has: EX_TEMPFAIL, start all again."""


@dataclass(frozen=True)
class MeasuredOptions:
    """Which points are measured, and where they are kept.

    Attributes:
        config: A TOML file; see configs/.
        out: The output directory, which is required. To extend a sweep, reuse its directory with a config that adds
            lengths, seeds, variants or statistics.
        only: Measure only these points: variant=NAME, n=LENGTH or seed=SEED; separate values by commas; repeatable.
        shard: Measure part K of M of the points, for job arrays. Parts count from 0: 0/16 to 15/16. The last part to
            finish writes the report.
        format: The format of the files in figures/.
        width: As on the page, or as wide as one column (3.25 inches) or two (6.75) of a paper: the files in figures/.
        quiet: Print only failures and warnings.
    """

    config: tyro.conf.Positional[Annotated[shared.File, shared.default("", "[CONFIG]")]] = None
    out: Annotated[shared.OptionalOut, shared.default("")] = None
    only: shared.Only = ()
    shard: Annotated[shared.Text, shared.default("all", "K/M")] = None
    compilation_cache: shared.CacheFolder = None
    format: Format = "svg"
    width: Width = "page"
    quiet: shared.Flag = False

    example_config = "configs/theorem6_quick.toml is a config"

    @property
    def places(self) -> tuple[Path, Path]:
        """The config and the output directory."""
        if self.config is None or self.out is None:
            values = {"CONFIG": self.config, "--out": self.out}
            missing = " and ".join(name for name, value in values.items() if value is None)
            raise InputError(f"{missing} missing; {self.example_config}")
        return self.config, self.out


@dataclass(frozen=True)
class SweepOptions(MeasuredOptions):
    """What is measured, where it is kept, and of which job of several processes this is one.

    Attributes:
        list_points: Print a summary of what would be measured, what is done, and the time that the rest takes; measure
            nothing.
        example: Print a commented config, and exit.
        allow_code: Import and call the functions that the config names, as [model] python = "module:make" does.
        distributed: Measure in one job of several processes, on one or more hosts, which need a common --out: start the
            same command in each, by srun, mpirun, in a Kubernetes job or on a TPU pod.
        coordinator: Where process 0 listens, where nothing else says it; give --processes and --process, too.
        processes: The number of processes of the job.
        process: The number of this process, from 0.
        share_above: In a job, points that take one process more seconds than this are measured by all together.
    """

    list_points: Annotated[shared.Flag, tyro.conf.arg(name="list", help_behavior_hint="")] = False
    example: shared.Flag = False
    allow_code: shared.Flag = False
    distributed: shared.Flag = False
    coordinator: Annotated[shared.Text, shared.default("found by JAX", "HOST:PORT")] = None
    processes: Annotated[shared.Count, shared.default("found by JAX")] = None
    process: Annotated[shared.Count, shared.default("found by JAX")] = None
    share_above: Annotated[shared.Number, shared.default(f"{_SHARE_ABOVE}", "SECONDS")] = _SHARE_ABOVE

    example_config = "`jaxsens sweep --example` prints a config of a sweep"

    @property
    def in_job(self) -> bool:
        """Whether this is a process of a job of several."""
        return self.distributed or (self.coordinator, self.processes, self.process) != (None, None, None)

    def check_job(self) -> None:
        """Raises InputError for options of a job that do not go together."""
        with collecting("sweep") as problems:
            host, _, port = (self.coordinator or "").rpartition(":")
            is_port = port.isascii() and port.isdecimal() and 0 < int(port) < 2**16
            if self.coordinator is not None and not (host and is_port):
                problems.add("--coordinator", self.coordinator, "HOST:PORT, the same for all processes")
            if self.share_above != _SHARE_ABOVE and not self.in_job:
                problems.add("--share-above", self.share_above, "only in a job: add --distributed")
            place = [one for one in (self.coordinator, self.processes, self.process) if one is not None]
            if 0 < len(place) < 3:
                advice = "all of --coordinator, --processes and --process, or none"
                problems.add("--distributed", place[0], advice)
            elif self.process is not None and self.process not in range(self.processes or 0):
                problems.add("--process", self.process, f"from 0 to --processes - 1, of {self.processes}")

    def load(self) -> tuple[Sweep, Sequence[Point]]:
        """Returns the sweep of the config, and the points that are chosen of it."""
        from jaxsens.core.sweeps.config import load_sweep_config
        from jaxsens.core.sweeps.points import select

        stopping.check()  # Imports take seconds.
        loaded = load_sweep_config(self.places[0], self.allow_code)
        return loaded, select(loaded.points, self.only, self.shard)


def sweep(options: Annotated[SweepOptions, tyro.conf.arg(name="")]) -> int:
    """Measure variants at every length and seed; write a report.

    Writes tables, plots and report.html. Run it again to resume: finished points are kept.

    For example: jaxsens sweep configs/quickstart.toml --out results/quickstart
    """
    if options.example:
        print(files("jaxsens.core.sweeps").joinpath("example.toml").read_text("utf-8"), end="")
        return 0
    _, out = options.places
    if options.list_points:
        from jaxsens.cli.status import listing

        print_text(Console(), "\n".join(listing(*options.load(), out)))
        return 0
    shared.check_folder("sweep", out)
    options.check_job()
    if options.in_job:
        return sweep_in_job(options)
    from jaxsens.core.sweeps.sweep import run_whole

    sweep, chosen = options.load()
    progress = Console(stderr=True, quiet=options.quiet)
    named = shared.flags_named({"directory": "--out"})
    with named, shared.programs_kept(options.compilation_cache) as programs:
        outcomes = run_whole(sweep, out, chosen, progress)
    if any(outcome.computed for outcome in outcomes):
        print_text(progress, f"{programs}")
    return finish(sweep, outcomes, options)


def finish(sweep: Sweep, outcomes: Sequence[Outcome], options: MeasuredOptions) -> int:
    """Says how the jobs of a sweep ended, writes its report, and returns the exit code.

    Of a shard, others measure the points that are missing, so that there is no report before they are there.
    """
    from jaxsens.cli.status import counts_text
    from jaxsens.core.sweeps.job import why_unwritable
    from jaxsens.core.sweeps.points import select

    (_, out), quiet = options.places, options.quiet
    console, progress, counts = Console(stderr=True), Console(stderr=True, quiet=quiet), sweep.stored(out)
    done, ended = counts_text(counts), shared.say_end(console, outcomes, counts_text(counts))
    if not ended and not select(sweep.points, options.only, options.shard):
        print_text(progress, f"shard {options.shard} has no points; {done}")
    elif not ended and counts["points"][0] == 0:
        print_text(console, "no point could be measured")
    elif not ended and options.shard is not None and any(stored < of for stored, of in counts.values()):
        print_text(progress, f"{done}; `{shlex.join(['jaxsens', 'report', str(out)])}` plots them")
    elif not ended:
        try:
            report(out, format=options.format, width=options.width, quiet=quiet)
        except OSError as error:
            why = why_unwritable(error, out)
            print_text(console, f"stopped: {why}. {done}. To resume: {shared.command_line()}")
            return 1
    return next((outcome.exit_code for outcome in outcomes[::-1] if outcome.exit_code), 0)


def sweep_in_job(options: SweepOptions) -> Never:
    """Runs a sweep in a job, and ends the process. See `jaxsens sweep`."""
    try:
        code, why = _swept(options), ""
    except ProcessLost as error:
        code, why = LOST, f"{error}; what is finished is kept: {shared.command_line()}"
    except InputError as error:
        code, why = 2, str(error)
    except stopping.Stopped as stop:
        code, why = 128 + stop.signal, f"stopped. To resume: {shared.command_line()}"
    if why:
        print(f"jaxsens: {why}", file=sys.stderr)
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)  # The usual end of a process would wait for the others.


def _swept(options: SweepOptions) -> int:
    """Does this process's part of the sweep, and returns the exit code."""
    import jax

    from jaxsens.cli.status import counts_text
    from jaxsens.core.sweeps import distributed
    from jaxsens.core.sweeps.job import run
    from jaxsens.core.sweeps.sweep import PointsJob, RecordsJob

    distributed.join(options.coordinator, options.processes, options.process)
    progress, errors = Console(stderr=True, quiet=options.quiet), Console(stderr=True)
    (_, out), number = options.places, jax.process_index()
    print_text(progress, f"process {number} of {jax.process_count()}")
    sweep, chosen = options.load()
    with shared.flags_named({"directory": "--out"}), shared.programs_kept(options.compilation_cache):
        outcomes = distributed.measure(sweep, out, chosen, progress, options.share_above)
    if shared.say_end(errors, outcomes, counts_text(sweep.stored(out))):
        return outcomes[-1].exit_code
    print_text(progress, "waiting for the other processes")
    distributed.wait_for_all()
    code = max(outcome.exit_code for outcome in outcomes)
    if number != 0:
        return code
    # What all processes measured.
    jobs = [PointsJob(sweep, out), *(RecordsJob(sweep, name, out) for name in sweep.table_points)]
    outcomes = [run(one, progress, []) for one in jobs]
    return max(code, finish(sweep, outcomes, options))


def report(
    directory: shared.Folder, /, *, format: Format = "svg", width: Width = "page", quiet: shared.Flag = False
) -> int:
    """Write the tables, plots and report.html of a sweep again.

    For example: jaxsens report results/quickstart

    Args:
        directory: The --out of `jaxsens sweep` or `jaxsens theorem6`.
        format: The format of the files in figures/.
        width: As on the page, or as wide as one column (3.25 inches) or two (6.75) of a paper: the files in figures/.
        quiet: Print only errors.
    """
    from jaxsens.core.sweep import load_sweep

    result = load_sweep(directory)
    page = result.report(directory, format=format, width=width)
    print_text(Console(quiet=quiet), f"{result}\n{page}")
    return 0


def status(directory: shared.Folder, /, *, json_output: shared.Json = False) -> int:
    """Print the state of a sweep, running or not, and the time left.

    Any machine that sees the directory will do. For example: jaxsens status results/quickstart

    Args:
        directory: The --out of `jaxsens sweep`.
        json_output: Print JSON, for scripts; its "state" is finished, failed or unfinished.
    """
    from jaxsens.cli.status import sweep_status

    state = sweep_status(directory)
    if json_output:
        print(json.dumps(asdict(state), indent=1), flush=True)
    else:
        print_text(Console(), "\n".join(state.lines()))
    return 0


# The schema of a config

_MEANING = re.compile(r"^ *(\w+(?:, \w+)*): (.+(?:\n {8,}\S.*)*)", re.MULTILINE)
"""What a docstring says of an attribute, or of several."""


def schema() -> int:
    """Print the JSON schema of sweep configs, for editors.

    For example: jaxsens schema > sweep.schema.json
    """
    print(json.dumps(config_schema(), indent=1))
    return 0


def config_schema() -> dict[str, Any]:
    """Returns the JSON schema of a sweep's config, with the tables that installed packages bring."""
    from jaxsens.core.models.transformer.config import TransformerConfig
    from jaxsens.core.models.transformer.module import kinds
    from jaxsens.core.sweeps.config import BUILT_IN, SweepTables
    from jaxsens.core.sweeps.sources import naming

    config, model = _table(SweepTables), _table(TransformerConfig)
    about = "the kind of network with random weights; each has fields of its own"
    model["properties"] |= {"kind": {"enum": [*kinds()], "default": "transformer", "description": about}}
    model["properties"] |= {key: {"description": "a model that is not drawn at random"} for key in naming()}
    # Constructions, baselines and published models have keys of their own.
    model |= {"additionalProperties": True, "description": "The model; variants change some of its keys."}
    del model["required"]
    config["properties"] |= {"model": model}
    config["properties"]["variants"]["items"] = {"enum": [*BUILT_IN]}
    for name in entries("sweep_tables"):
        config["properties"][name] = _table(load("sweep_tables", name))
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **config}


def _table(kind: type[Any]) -> dict[str, Any]:
    """The schema of a dataclass, whose fields are the keys of a table."""
    docs = [inspect.getdoc(base) or "" for base in kind.__mro__ if base.__module__.startswith("jaxsens.")]
    meanings: dict[str, str] = {}
    for names, meaning in _MEANING.findall("\n".join(docs[::-1])):
        if not meaning.startswith("as for every"):  # a base class says it
            meanings |= dict.fromkeys(names.split(", "), " ".join(meaning.split()))
    hints, keys, required = get_type_hints(kind, include_extras=True), {}, []
    for field in fields(kind):
        value = _value(hints[field.name])
        if field.name in meanings:
            value["description"] = meanings[field.name]
        default = field.default if field.default_factory is MISSING else field.default_factory()
        if default is MISSING:
            required.append(field.name)
        elif isinstance(default, Option):
            value["default"] = default.kind
        elif isinstance(default, str | int | float | tuple):  # keys of a table have defaults of their own
            value["default"] = [*default] if isinstance(default, tuple) else default
        keys[field.name] = value
    table = {"type": "object", "description": " ".join(docs[0].split("\n\n")[0].split()), "properties": keys}
    return {**table, "required": required, "additionalProperties": False}


def _value(hint: Any) -> dict[str, Any]:
    """The schema of a value of a type; {} where it has no schema of JSON, and nothing is said of it."""
    import pydantic

    origin, parts = get_origin(hint), get_args(hint)
    if origin is Annotated:
        written = [getattr(one, "json_schema_input_type", None) for one in parts[1:]]
        return _value(next((one for one in written if get_origin(one) is not None), parts[0]))
    if origin in (UnionType, Union):
        each = [_value(part) for part in parts if part is not NoneType]
        each = [one for k, one in enumerate(each) if one and one not in each[:k]]
        return each[0] if len(each) == 1 else {"anyOf": each} if each else {}
    if origin in (list, tuple, Sequence):
        return {"type": "array", "items": _value(parts[0])}
    if inspect.isclass(hint) and issubclass(hint, Option):
        return _option(hint)
    if inspect.isclass(hint) and hint.__module__.startswith("jaxsens.core.models.parts."):
        return {"type": "object", "required": ["type"]}  # the class, with its fields
    if inspect.isclass(hint) and is_dataclass(hint):
        return _table(hint)
    try:
        return pydantic.TypeAdapter(hint).json_schema()
    except pydantic.errors.PydanticUserError:
        return {}


def _option(base: Any) -> dict[str, Any]:
    """The schema of an argument such as `flips`: the name of a kind, a table with its fields, or a shorthand."""
    kinds = {name: kind for name, kind in base.kinds.items() if getattr(kind, "portable", True)}
    tables = []
    for name, kind in kinds.items():
        table = _table(kind)
        table["properties"].pop("seed", None)  # the seed of each point draws
        table["properties"] = {"kind": {"const": name}, **table["properties"]}
        tables.append({**table, "required": ["kind", *table["required"]]})
    shorthands = [{"type": "integer"}, {"type": "array"}] if "shorthand" in vars(base) else []
    return {"anyOf": [{"enum": [*kinds]}, *tables, *shorthands]}
