"""Tables of a config file read strictly: every unknown key, missing key and wrong type at once, with its path."""

from __future__ import annotations

import dataclasses
import difflib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import date, time
from functools import cache
from typing import Any, TypeVar, get_args, get_type_hints

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError, create_model

from jaxsens.errors import Faults, InputError

T = TypeVar("T")

STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
"""Unknown keys are refused, and so are 3.7 or "3" for a whole number and "false" for a Boolean."""


Keys = Mapping[str, Iterable[str]]
"""The keys that a table may have, by the table's name; "" is the outermost."""


def read_table(adapter: TypeAdapter[T], table: object, path: str, faults: Faults, keys: Keys) -> T | None:
    """The typed value of `table`, or None after noting every fault below `path`.

    `keys` serves "did you mean". The table passes through JSON, where a strict
    adapter takes a list for a tuple and a table for a dataclass but still no number for another kind of number.
    """
    dates = list(_dates(table, path))
    faults.messages += [f"{where}: no date or time is meant anywhere; put it in quotes" for where in dates]
    try:
        return adapter.validate_json(json.dumps(table, default=str))
    except ValidationError as error:
        note_faults(error, path, faults, keys)
    return None


def _dates(table: object, path: str) -> Iterator[str]:
    """Where a table holds TOML's dates and times, which JSON does not have."""
    if isinstance(table, date | time):
        yield path
    elif isinstance(table, dict | list):
        for key, value in table.items() if isinstance(table, dict) else enumerate(table):
            yield from _dates(value, join(path, [key]))


def note_faults(error: ValidationError, path: str, faults: Faults, keys: Keys) -> None:
    """Notes each of pydantic's findings, those on the members of one union as one."""
    remedies: dict[str, list[str]] = {}
    given: dict[str, str] = {}
    for detail in error.errors(include_url=False):
        where = join(path, [part for part in detail["loc"] if not _is_member(part)])
        remedies.setdefault(where, []).append(_remedy(detail, keys))
        if detail["type"] not in _NO_VALUE:
            shown = repr(detail["input"])
            given[where] = f", not {shown if len(shown) <= 80 else shown[:77] + '...'}"
    for where, listed in remedies.items():
        faults.messages.append(f"{where}: {' or '.join(dict.fromkeys(listed))}{given.get(where, '')}")


_UNKNOWN = ("extra_forbidden", "unexpected_keyword_argument")
_MISSING = ("missing", "missing_argument")
_NO_VALUE = (*_UNKNOWN, *_MISSING)


def _is_member(part: object) -> bool:
    """Whether a part of a location names a member of a union, such as `int` or `tuple[int, ...]`, and no key."""
    return isinstance(part, str) and (
        part in ("int", "float", "str", "bool") or part.endswith(("]", "-table"))
    )


def _remedy(detail: Any, keys: Keys) -> str:
    if detail["type"] in _UNKNOWN:
        *above, key = (part for part in detail["loc"] if isinstance(part, str) and not _is_member(part))
        return f"unknown key{did_you_mean(key, keys.get(above[-1] if above else '', ()))}"
    if detail["type"] in _MISSING:
        return "required, but not given"
    message = detail["msg"].removeprefix("Value error, ").replace("Input should", "should")
    return re.sub(r"an instance of (\w+)", r'a table {type = "\1", ...}', message)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`; did you mean "lengths"?` where a known word is close, else the known words if they are few."""
    known = tuple(known)
    close = difflib.get_close_matches(word, known, n=1)
    if close:
        return f'; did you mean "{close[0]}"?'
    return f"; known: {', '.join(known)}" if 0 < len(known) <= 30 else ""


def join(path: str, parts: Iterable[object]) -> str:
    """A location as `variant[2].model.width`."""
    for part in parts:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else str(part)
    return path


def messages(error: InputError) -> list[str]:
    """The single faults that an `InputError` made by `Faults` lists, without their subject."""
    _, _, text = str(error).partition(": ")
    first, *rest = text.split("\n  - ")
    return rest or [first]


def field_names(config: type) -> tuple[str, ...]:
    """The names of a dataclass's fields."""
    return tuple(field.name for field in dataclasses.fields(config))


def check_fields(config: type, values: Mapping[str, Any]) -> None:
    """Checks keyword arguments of the dataclass `config`: their names, that none is missing, strictly their types.

    Fields that take a name or a typed value are left to the dataclass itself, whose message is the better one.

    Raises:
        ValidationError: pydantic's, with every fault.
    """
    _fields_model(config)(**values)


@cache
def _fields_model(config: type) -> type[BaseModel]:
    hints = get_type_hints(config)
    fields: dict[str, Any] = {}
    for field in dataclasses.fields(config):
        union = get_args(hints[field.name])
        hint = Any if any(map(_holds_dataclass, union)) else hints[field.name]
        required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        fields[field.name] = (hint, ... if required else None)
    return create_model(config.__name__, __config__=STRICT, **fields)


def _holds_dataclass(hint: Any) -> bool:
    return dataclasses.is_dataclass(hint) or any(_holds_dataclass(part) for part in get_args(hint))
