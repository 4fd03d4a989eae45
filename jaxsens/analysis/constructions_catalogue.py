"""The catalogue of constructions on a terminal: all in short, or one with its promise in every condition."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from jaxsens.constructions.catalogue import EVERY_CONDITION, Entry, catalogue
from jaxsens.constructions.compiled import Promise
from jaxsens.constructions.conditions import CONDITIONS, Condition
from jaxsens.constructions.named import REFERENCES
from jaxsens.errors import InputError
from jaxsens.logic import LIBRARY

_GAPS_AT = (16, 256, 4096)


def overview() -> RenderableType:
    """Every construction: its name, what it computes, the conditions it exists in."""
    parts: list[RenderableType] = []
    for entry in catalogue():
        parts += [Text(entry.name, "bold"), _indented(entry.description)]
        if entry.name not in REFERENCES:
            parts.append(_indented(conditions_text(entry.conditions), "dim"))
    parts += [Text(), Text("* autoregressive, too: future-masked, and nothing depends on n")]
    return Group(*parts)


def conditions_text(conditions: Sequence[Condition]) -> str:
    """The conditions by name, with a star where the autoregressive one is there as well."""
    if len(conditions) == len(EVERY_CONDITION):
        return "every condition*"
    starred = {each.name for each in conditions if each.autoregressive}
    plain = {each.name for each in conditions if not each.autoregressive}
    if plain == CONDITIONS.keys() and not starred:
        return "every condition"
    return ", ".join(name + ("*" if name in starred else "") for name in CONDITIONS if name in plain)


def details(name: str) -> RenderableType:
    """One construction: what it is, and its promise in each condition or the reasons why there is none.

    Raises:
        InputError: for a name that is not in the catalogue.
    """
    entries = {entry.name: entry for entry in catalogue()}
    if name not in entries:
        raise InputError(f"constructions: name = {name!r}: one of {', '.join(entries)}")
    entry = entries[name]
    parts: list[RenderableType] = [Text(name, "bold"), _indented(entry.description)]
    if entry.note:
        parts.append(_indented(f"Note: {entry.note}"))
    if name in LIBRARY:
        known = LIBRARY[name]
        parts.append(_indented(f"{known.formula}   over {' '.join(known.alphabet)}"))
    parts += _gaps(name) if name in REFERENCES else _promises(entry)
    return Group(*parts)


def _promises(entry: Entry) -> Iterator[RenderableType]:
    refused: dict[str, list[str]] = {}
    for condition in EVERY_CONDITION:
        reasons = entry.refused(condition)
        label = condition.name + (", autoregressive" if condition.autoregressive else "")
        for reason in reasons:
            refused.setdefault(reason, []).append(label)
        if not reasons:
            yield Text()
            yield _promise(entry.build(condition).promise)
    for reason, labels in refused.items():
        yield Text(f"\nnot {'; '.join(labels)}:")
        yield _indented(reason)


def _promise(promise: Promise) -> RenderableType:
    """A promise as it prints, but for its first line, the formula; long lines are continued where their text begins."""
    table = Table.grid(padding=(0, 2))
    for line in str(promise).splitlines()[1:]:
        key, value = re.split(" {2,}", line.strip(), maxsplit=1)
        table.add_row(Text(key), Text(value))
    return Padding(table, (0, 0, 0, 2))


def _gaps(name: str) -> Iterator[RenderableType]:
    """The options, and the closed forms of the gap that a flip makes."""
    yield Text(f"\nThe change that a flip makes, at n = {', '.join(map(str, _GAPS_AT))}:")
    for layer_norm, log_length in itertools.product((False, True), repeat=2):
        model = REFERENCES[name](layer_norm=layer_norm, log_length=log_length)
        gaps = ", ".join(f"{model.closed_form(n):.3g}" for n in _GAPS_AT)
        yield _indented(f"layer_norm={layer_norm!s:5} log_length={log_length!s:5}  {gaps}")
    yield Text("Other options: layer_norm_epsilon (0), sharpness (1).")


def _indented(text: str, style: str = "") -> Padding:
    return Padding(Text(text, style), (0, 0, 0, 2))
