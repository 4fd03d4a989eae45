"""Configs of networks read from tables: a `[model]` table of a TOML file becomes a typed config, or all its faults."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import ValidationError

from jaxsens.errors import Faults, InputError
from jaxsens.models.baselines import LSTM, RNN, Convolution
from jaxsens.models.baselines_config import BaselineConfig, ConvolutionConfig, LSTMConfig, RNNConfig
from jaxsens.models.config import TransformerConfig
from jaxsens.models.positions import POSITION_TYPES
from jaxsens.models.schedules import SCHEDULES, Schedule
from jaxsens.models.transformer import Transformer
from jaxsens.models.weighting import WEIGHTING_TYPES
from jaxsens.strict import check_fields, did_you_mean, field_names, messages, note_faults

NetworkConfig = TransformerConfig | BaselineConfig
"""The configs of all networks."""

CONFIGS: dict[str, type] = {
    "transformer": TransformerConfig,
    "lstm": LSTMConfig,
    "rnn": RNNConfig,
    "convolution": ConvolutionConfig,
}
"""The kinds of network, by the name that `kind` in a `[model]` table gives."""

_MODULES: dict[type, Callable[..., Any]] = {
    TransformerConfig: Transformer,
    LSTMConfig: LSTM,
    RNNConfig: RNN,
    ConvolutionConfig: Convolution,
}

_TYPED: dict[str, type] = {cls.__name__: cls for cls in (*WEIGHTING_TYPES, *POSITION_TYPES, Schedule)}


def build(config: NetworkConfig, **options: Any) -> Any:
    """The network of a config, a Flax NNX module; options are the module's: `seed`, or `parameters`."""
    return _MODULES[type(config)](config, **options)


def config_type(table: Mapping[str, Any], path: str, faults: Faults) -> type | None:
    """The type of config that the key `kind` of a table names, "transformer" without it; None after noting it."""
    kind = table.get("kind", "transformer")
    if not isinstance(kind, str) or kind not in CONFIGS:
        faults.add(f"{path}.kind", kind, f"one of {', '.join(CONFIGS)}")
        return None
    return CONFIGS[kind]


def read_config(
    table: Mapping[str, Any], path: str, faults: Faults, also: tuple[str, ...] = ()
) -> NetworkConfig | None:
    """The config that a table with a `kind` describes, or None after noting every fault below `path`.

    The types of its values are checked strictly, then the config checks itself. `also` names further keys that may
    stand in such a table, for "did you mean".
    """
    config = config_type(table, path, faults)
    if config is None:
        return None
    fields = {key: value for key, value in table.items() if key != "kind"}
    return _read_fields(config, fields, path, faults, (*also, "kind"))


def _read_fields(
    config: type, table: Mapping[str, Any], path: str, faults: Faults, also: tuple[str, ...]
) -> Any:
    noted = Faults(path)
    values: dict[str, Any] = {}
    refused: set[str] = set()
    for key, value in table.items():
        before = len(noted.messages)
        values[key] = _typed(value, f"{path}.{key}", noted)
        if len(noted.messages) > before:
            refused.add(key)
    try:
        check_fields(config, {key: value for key, value in values.items() if key not in refused})
    except ValidationError as error:
        refused |= {str(detail["loc"][0]) for detail in error.errors(include_url=False)}
        note_faults(error, path, noted, {"": (*also, *field_names(config))})
    made = None
    try:
        # A config cannot be made without an alphabet; with any, it can say what else is wrong.
        stand_in = {"alphabet_size": 2} if "alphabet_size" in refused else {}
        made = config(**stand_in, **{key: value for key, value in values.items() if key not in refused})
    except InputError as error:
        noted.messages += [f"{path}.{message}" for message in messages(error)]
    faults.extend(noted)
    return None if noted else made


def _typed(value: Any, path: str, faults: Faults) -> Any:
    """Lists as tuples, and tables such as `{type = "Learned", max_length = 64}` as the value they describe."""
    if isinstance(value, list):
        return tuple(_typed(item, f"{path}[{i}]", faults) for i, item in enumerate(value))
    if not isinstance(value, dict):
        return value
    fields = {key: _typed(item, f"{path}.{key}", faults) for key, item in value.items() if key != "type"}
    name = value.get("type")
    if not isinstance(name, str) or name not in _TYPED:
        hint = did_you_mean(name, _TYPED) if isinstance(name, str) else f": one of {', '.join(_TYPED)}"
        faults.messages.append(f"{path}.type = {name!r}: a table needs a known type{hint}")
        return None
    named = fields.get("inverse_temperature")
    if isinstance(named, str) and named in SCHEDULES:
        fields["inverse_temperature"] = SCHEDULES[named]
    try:
        check_fields(_TYPED[name], fields)
        return _TYPED[name](**fields)
    except ValidationError as error:
        note_faults(error, path, faults, {"": field_names(_TYPED[name])})
        return None


def plain(value: Any) -> Any:
    """JSON values for a config: dataclasses as tables with their `type`, tuples as lists."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return {"type": type(value).__name__, **fields}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    return value
