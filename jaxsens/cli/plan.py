"""`jaxsens plan`: what a sweep takes on devices that need not be at hand; and `jaxsens schema`: the JSON schema of
a sweep's config, made from the classes that read it.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Union, get_args, get_origin, get_type_hints

import tyro
from rich.console import Console
from rich.table import Table

from jaxsens.cli.shared import (
    Config,
    File,
    Flag,
    Only,
    OptionGroup,
    Text,
    check_output,
    default,
    write_output,
)
from jaxsens.core.base.errors import collecting
from jaxsens.core.base.files import write_text
from jaxsens.core.base.text import duration, in_words

if TYPE_CHECKING:
    from jaxsens.cli.planning.plan import Plan


@dataclass(frozen=True)
class PlanOptions(OptionGroup):
    """What is planned, and for which devices.

    Attributes:
        config: A TOML file of a sweep; see configs/.
        on: The devices: a100, b200, h100, h200, v5e, v5p, v6e, with their number, as h100x8 or v6e-8; or a TOML file
            that describes one, as docs/planning.md shows.
        only: Plan only these points: variant=NAME, n=LENGTH or seed=SEED; separate values by commas; repeatable.
        allow_code: Import and call the functions that the config names.
        write: Write the job that is suggested: NAME.slurm or NAME.yaml.
    """

    config: Config
    on: Annotated[Text, default("", "DEVICES")] = None
    only: Only = ()
    allow_code: Flag = False
    write: Annotated[File, default("not written", "FILE")] = None


def plan(options: Annotated[PlanOptions, tyro.conf.arg(name="")]) -> int:
    """Estimate what a sweep takes on devices that you do not have.

    Prints memory and the least time, and writes a job. Exit code 1: something does not fit.

    For example: jaxsens plan configs/gpu.toml --on h100 --write job.slurm

    Args:
        options: What is planned.
    """
    from jaxsens.cli.planning.plan import TEMPLATES, job_file, known_devices, planned, target_called
    from jaxsens.core.sweeps.config import load_sweep_config
    from jaxsens.core.sweeps.points import select

    path = options.write
    with collecting("plan") as problems:
        if options.on is None:
            problems.add("--on", None, f"devices, such as {', '.join(known_devices())}, h100x8 or v6e-8")
        if path is not None:
            if path.suffix not in TEMPLATES:
                remedy = f"a name with one of these endings: {', '.join(TEMPLATES)}"
                problems.add("--write", str(path), remedy)
            check_output("--write", path, problems)
    target = target_called(options.on or "")
    sweep = load_sweep_config(options.config, options.allow_code)
    console = Console()
    with console.status("planning"):
        plan = planned(select(sweep.points, options.only), target, sweep.placement.memory_budget)
    for part in (*_tables(plan), *_lines(plan)):
        console.print(part, highlight=False, markup=False)
    if path is not None:
        words = [word for value in options.only for word in ("--only", value)]
        words += ["--allow-code"] * options.allow_code
        text = job_file(plan, path.suffix, options.config, words)
        return write_output("--write", path, lambda: write_text(path, text), text)
    return 0 if plan.fits else 1


_COLUMNS = {
    "n": 7, "points": 6, "engine": 11, "batch": 7, "memory": 9, "Gop": 7, "GB": 7, "least": 9, "compile": 7,
}  # fmt: skip
"""The columns of the table and their widths, together within a terminal of 80 columns."""


def _tables(plan: Plan) -> Iterator[Table | str]:
    """Yields the parts of the table: variants whose numbers are the same stand above one part."""
    target = plan.target
    yield f"{target.name}: {target.count} x {target.device.description}"
    parts: dict[str, list[tuple[str, ...]]] = {}
    for row in plan.rows:
        cells = (
            str(row.expected.run.n),
            str(len(row.expected.points)),
            row.expected.run.choice.name,
            str(row.batch),
            "too large" if row.refusal else in_words(row.arguments + row.temporary),
            f"{row.expected.operations / 1e9:.3g}",
            f"{row.moved / 1e9:.3g}",
            "on host" if row.seconds is None else duration(row.seconds),
            duration(row.expected.run.compiling),
        )
        parts.setdefault(row.expected.points[0].variant, []).append(cells)
    variants: dict[tuple[tuple[str, ...], ...], list[str]] = {}
    for name, rows in parts.items():
        variants.setdefault(tuple(rows), []).append(name)
    for k, (rows, names) in enumerate(variants.items()):
        table = Table(box=None, padding=(0, 1, 0, 0), show_header=not k)
        for name, width in _COLUMNS.items():
            table.add_column(name, justify="left" if name == "engine" else "right", width=width, no_wrap=True)
        for row in rows:
            table.add_row(*row)
        yield f"\n{', '.join(names)}"
        yield table
    yield ""


def _lines(plan: Plan) -> list[str]:
    """The lines below the table."""
    return [
        *(f"{point}: {reason}" for point, reason in plan.unmeasurable),
        *(f"{row.expected.points[0]}: {row.refusal}" for row in plan.rows if row.refusal),
        f"All points: at least {duration(plan.least_seconds)} by the rates of the devices, and about "
        f"{duration(plan.compiling)} to compile, once",
        f"Suggested: {plan.shards} shard{'s' if plan.shards > 1 else ''} of at most {plan.minutes} minutes, if a "
        f"tenth of the rates is reached: {plan.device_hours:.2g} device-hours in all. A shard that runs out of time "
        "goes on where it was",
    ]


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
    from jaxsens.core.base.registry import entries, load
    from jaxsens.core.models.transformer.config import TransformerConfig
    from jaxsens.core.models.transformer.module import kinds
    from jaxsens.core.sweeps.config import BUILT_IN, SweepTables
    from jaxsens.core.sweeps.sources import naming

    config, model = _table(SweepTables), _table(TransformerConfig)
    about = "the kind of network with random weights; each has fields of its own"
    model["properties"] |= {"kind": {"enum": [*kinds()], "default": "transformer", "description": about}}
    model["properties"] |= {key: {"description": "a model that is not drawn at random"} for key in naming()}
    # Constructions, baselines and published models have keys of their own.
    model = {
        **model,
        "additionalProperties": True,
        "description": "The model; variants change some of its keys.",
    }
    del model["required"]
    config["properties"] |= {"model": model}
    config["properties"]["variants"]["items"] = {"enum": [*BUILT_IN]}
    for name in entries("sweep_tables"):
        config["properties"][name] = _table(load("sweep_tables", name))
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **config}


def _table(kind: type[Any]) -> dict[str, Any]:
    """The schema of a dataclass, whose fields are the keys of a table."""
    from jaxsens.core.base.registry import Option

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

    from jaxsens.core.base.registry import Option

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
