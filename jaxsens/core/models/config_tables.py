"""Reads network configs from tables: `[model]` in a TOML file becomes a typed config, or a list of errors."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from jaxsens.core.base.errors import InputError, Location, Problem, Problems
from jaxsens.core.base.registry import entries, load
from jaxsens.core.base.strict import did_you_mean, field_names, is_later
from jaxsens.core.models.transformer.config import NetworkConfig
from jaxsens.core.models.transformer.module import Network, Transformer


def kinds() -> tuple[str, ...]:
    """Returns what `kind` in a `[model]` table may be: "transformer", or a kind that an installed package brings."""
    return ("transformer", *entries("model_kinds"))


def network(kind: str) -> type[Network[Any, Any]]:
    """Returns the class of a kind of networks.

    Raises:
        InputError: if there is no such kind, or a package brings something else under its name.
    """
    if kind not in kinds():
        raise InputError(Problem(("kind",), kind, f"one of {', '.join(kinds())}"))
    made = Transformer if kind == "transformer" else load("model_kinds", kind)
    if isinstance(made, type) and issubclass(made, Network) and made.of.kind == kind:
        return made
    value = entries("model_kinds")[kind].value
    remedy = f"{value} of its package is no Network with a config of this kind"
    raise InputError(Problem(("kind",), kind, remedy))


def build(config: NetworkConfig, **options: Any) -> Any:
    """Returns the network of a config, a Flax NNX module; the options are `seed` or `parameters`."""
    return network(config.kind)(config, **options)


def config_type(
    table: Mapping[str, Any], path: str | Location, problems: Problems
) -> type[NetworkConfig] | None:
    """Returns the config type named by the key `kind` of a table, by default "transformer"; None after an error."""
    try:
        return network(table.get("kind", "transformer")).of
    except InputError as error:
        problems.include(error.problems, path)
        return None


def read_config(
    table: Mapping[str, Any], path: str | Location, problems: Problems, also: tuple[str, ...] = ()
) -> NetworkConfig | None:
    """Returns the config described by a table with a `kind`, or None after adding all errors below `path`.

    `also` names further keys allowed in such a table, for "did you mean".
    """
    kind = config_type(table, path, problems)
    if kind is None:
        return None
    own, names = Problems(), field_names(kind)
    fields = {key: value for key, value in table.items() if key != "kind"}
    for key in [key for key in fields if key not in names]:
        own.note((key,), f"unknown key{did_you_mean(key, (*also, 'kind', *names))}")
        del fields[key]
    try:
        made = kind(**fields)
        if not own:
            return made
    except InputError as error:
        own.include(error.problems)
    problems.include(own, path)
    return None


def plain(value: Any) -> Any:
    """Returns JSON values for a config: dataclasses as tables with their `type`, tuples as lists.

    Fields made by `strict.later` are left out at their defaults.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        values = [(field, getattr(value, field.name)) for field in dataclasses.fields(value)]
        fields = {field.name: plain(one) for field, one in values if not is_later(field, one)}
        return {"type": type(value).__name__, **fields}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    return value
