"""The families of published models: each maps its options and its tensors' names onto `Architecture`."""

from __future__ import annotations

import dataclasses
import tomllib
from pathlib import Path
from typing import Any

from jaxsens.pretrained.families import family, plain, rotary
from jaxsens.pretrained.families.family import Family

_FILE = Path(__file__).with_name("families.toml")
_TABLES: dict[str, dict[str, Any]] = tomllib.loads(_FILE.read_text("utf-8"))
_FUNCTIONS = {name: found for one in (plain, rotary) for name, found in vars(one).items()}


def _spelt(value: Any) -> Any:
    """Returns a value of families.toml as a field of `Family`."""
    if isinstance(value, dict):
        names = ((part, name) for parts, name in value.items() for part in parts.split())
        return {part: name.replace("%part", part).replace("%p", part[0]) for part, name in names}
    return tuple(value) if isinstance(value, list) else value


def _fields(name: str) -> dict[str, Any]:
    """Returns the fields of a family: its own, and those of the one that it is `like`."""
    own = {key: _spelt(value) for key, value in _TABLES[name].items() if key not in ("like", "newer")}
    base = _fields(_TABLES[name]["like"]) if "like" in _TABLES[name] else {}
    own |= {key: base.get(key, {}) | value for key, value in own.items() if isinstance(value, dict)}
    if "fused" in own:
        own["fused"] = tuple(getattr(family, one) for one in own["fused"])
    architecture = _FUNCTIONS.get(name.replace("-", "_"), base.get("architecture"))
    return {**base, **own, "name": name, "architecture": architecture}


def _family(name: str) -> Family:
    found, newer = Family(**_fields(name)), _TABLES[name].get("newer")
    named = {} if newer is None else {key: _spelt(value) for key, value in newer.items()}
    return dataclasses.replace(found, newer=dataclasses.replace(found, **named)) if named else found


FAMILIES: dict[str, Family] = {name: _family(name) for name in _TABLES}
"""The families that are served, by the `model_type` of config.json."""
