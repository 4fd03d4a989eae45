"""`jaxsens schema`: the JSON schema of a sweep's config, made from the classes that read it."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Sequence
from dataclasses import MISSING, fields, is_dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

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
