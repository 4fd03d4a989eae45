"""Where a point's model comes from: a `[model]` table becomes one of a few typed sources.

A source says everything that determines the model (`expanded`), what the sweep needs to know of it without a seed,
and builds it for a seed. A key of the table says which kind of source it is: `formula`, `construction`, `checkpoint`,
or `kind` for networks with random weights. A further kind of source is one more class and one more line in `_READERS`
and `keys_of`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from jaxsens.errors import Faults
from jaxsens.experiments.checkpoint_source import CheckpointModel, read_checkpoint
from jaxsens.experiments.constructed_source import (
    COMMON,
    ConstructionModel,
    FormulaModel,
    read_construction,
    read_formula,
)
from jaxsens.experiments.network_source import Network, read_network
from jaxsens.models.config_tables import CONFIGS
from jaxsens.strict import field_names

ModelSource = Network | FormulaModel | ConstructionModel | CheckpointModel
"""All kinds of source."""

_Reader = Callable[[Mapping[str, Any], str, Faults, Path], ModelSource | None]

_READERS: dict[str, _Reader] = {
    "formula": lambda table, path, faults, folder: read_formula(table, path, faults),
    "construction": lambda table, path, faults, folder: read_construction(table, path, faults),
    "checkpoint": read_checkpoint,
    "kind": lambda table, path, faults, folder: read_network(table, path, faults),
}
"""How a table is read, by the key that says what it describes."""


def read_source(
    table: Mapping[str, Any], path: str, faults: Faults, folder: Path = Path()
) -> ModelSource | None:
    """The source that a `[model]` table describes, or None after noting every fault below `path`. Files and
    directories that it names are looked for in `folder`."""
    named = [key for key in _READERS if key in table]
    if len(named) > 1:
        faults.messages.append(f"{path}: {' and '.join(named)} each name a model; give one of them")
        return None
    return _READERS[named[0] if named else "kind"](table, path, faults, folder)


def keys_of(table: Mapping[str, Any]) -> frozenset[str]:
    """The keys that a table which describes the same kind of model as `table` may have, for all that we know: a
    construction may have options of its own. Empty for a kind that there is not."""
    if "formula" in table:
        return frozenset(field_names(FormulaModel))
    if "construction" in table:
        return frozenset({"construction", *COMMON})
    if "checkpoint" in table:
        return frozenset({"checkpoint"})
    kind = table.get("kind", "transformer")
    config = CONFIGS.get(kind) if isinstance(kind, str) else None
    return frozenset() if config is None else frozenset({"kind", *field_names(config)})


def changed(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """A `[model]` table with some keys replaced. Where the changes name another kind of model, or another construction,
    the keys of `base` that it does not have are dropped."""
    if any(key in changes for key in _READERS) and _described(changes) != _described(base):
        kept = keys_of(changes) - _READERS.keys()
        return {**{key: value for key, value in base.items() if key in kept}, **changes}
    return {**base, **changes}


def _described(table: Mapping[str, Any]) -> tuple[str, object]:
    """What kind of model a table describes; of constructions, which."""
    if "formula" in table:
        return "formula", None
    if "construction" in table:
        return "construction", table["construction"]
    if "checkpoint" in table:
        return "checkpoint", None
    return "kind", table.get("kind", "transformer")
