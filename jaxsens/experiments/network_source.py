"""Networks with random weights as a sweep's models, and how their config is read from a table."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, get_args

from pydantic import ValidationError

from jaxsens.errors import Faults, InputError
from jaxsens.experiments.inputs import Symbols
from jaxsens.experiments.strict import check_fields, did_you_mean, field_names, messages, note_faults
from jaxsens.models.baselines import LSTM, RNN, Convolution
from jaxsens.models.baselines_config import BaselineConfig, ConvolutionConfig, LSTMConfig, RNNConfig
from jaxsens.models.config import TransformerConfig
from jaxsens.models.positions import PositionTerm
from jaxsens.models.schedules import SCHEDULES, Schedule
from jaxsens.models.transformer import Transformer, check_length
from jaxsens.models.weighting import Weighting

CONFIGS: dict[str, type] = {
    "transformer": TransformerConfig,
    "lstm": LSTMConfig,
    "rnn": RNNConfig,
    "convolution": ConvolutionConfig,
}
"""The kinds of network with random weights, by the name that `kind` in a `[model]` table gives."""

EVERY = "every coordinate"

_MODULES: dict[type, Callable[..., Any]] = {
    TransformerConfig: Transformer,
    LSTMConfig: LSTM,
    RNNConfig: RNN,
    ConvolutionConfig: Convolution,
}

_LATER = frozenset({"centred_scores"})
"""Fields that configs got when points were stored already, under keys made without them: written out only where they
are not the default, so that these points are found again."""

_TYPED: dict[str, type] = {
    cls.__name__: cls for cls in (*get_args(Weighting), *get_args(PositionTerm), Schedule)
}


@dataclass(frozen=True)
class Network:
    """A network with random weights drawn by the point's seed."""

    config: TransformerConfig | BaselineConfig
    constructed: ClassVar[bool] = False
    exact_length: ClassVar[int | None] = None

    @property
    def symbols(self) -> Symbols:
        """The alphabet it reads."""
        return Symbols(self.config.alphabet_size, self.config.end_of_sequence)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its symbols: their numbers."""
        return tuple(map(str, range(self.config.alphabet_size)))

    @property
    def dtype(self) -> str:
        """The dtype it computes in."""
        return self.config.dtype

    @property
    def bounded(self) -> bool:
        """Whether its position embeddings stay bounded as n grows; True where it has none."""
        return self.config.bounded if isinstance(self.config, TransformerConfig) else True

    @property
    def designated(self) -> str:
        """In words, which coordinates of the output are measured where the sweep does not say."""
        return EVERY

    @property
    def output_size(self) -> int:
        """How many coordinates its output has."""
        return self.config.logits or self.config.width

    def expanded(self) -> dict[str, Any]:
        """The config with every default written out, as JSON values; but for the fields `_LATER`."""
        written = plain(self.config)
        for name in _LATER & written.keys():
            if getattr(self.config, name) == type(self.config).__dataclass_fields__[name].default:
                del written[name]
        return written

    def check_length(self, n: int, faults: Faults) -> None:
        """Notes why it cannot read inputs of length n, if it cannot."""
        readout = getattr(self.config, "readout", "last")
        if isinstance(self.config, TransformerConfig):
            check_length(self.config, n, faults)
        elif isinstance(readout, int) and readout >= n:
            faults.add("tokens", f"length {n}", f"longer than the readout position {readout}")

    def build(self, seed: int) -> Any:
        """The model, a Flax NNX module."""
        return _MODULES[type(self.config)](self.config, seed=seed)


def read_network(table: Mapping[str, Any], path: str, faults: Faults) -> Network | None:
    """The network that a `[model]` table describes, or None after noting every fault below `path`."""
    table = dict(table)
    kind = table.pop("kind", "transformer")
    if not isinstance(kind, str) or kind not in CONFIGS:
        faults.add(f"{path}.kind", kind, f"one of {', '.join(CONFIGS)}")
        return None
    config = _read_config(CONFIGS[kind], table, path, faults)
    return None if config is None else Network(config)


def _read_config(config: type, table: Mapping[str, Any], path: str, faults: Faults) -> Any:
    """The config made of a table; None after noting what its types, and the config itself, refuse."""
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
        note_faults(error, path, noted, {"": ("formula", "construction", "kind", *field_names(config))})
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
