"""The objects that say what is asked, from the words of a command line: a kind, then its fields as `field=value`."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from datetime import date, time
from typing import Any

from jaxsens.core.base.errors import Problems
from jaxsens.core.base.strict import read_table
from jaxsens.core.base.value import Answer, read

FIELDS = "fields as field=value, with a value as in TOML; several are joined by commas, as in positions=0,5"


def of_words(base: Any, words: Sequence[str], problems: Problems, name: str) -> Any:
    """Returns the object that words such as ("neighbours", "k=8", "sample=1000") describe; None after adding errors.

    Args:
        base: the abstract class of the kinds, or a config without kinds, whose words are all `field=value`.
        words: the words behind an option. The first may be a shorthand too, such as "2" or "3,4" for `Substitute`.
        problems: collects the errors.
        name: the option, for messages.
    """
    own = Problems()
    table: dict[str, Any] = {}
    first, rest = words[:1], words[1:]
    if not issubclass(base, Answer):
        first, rest = (), words
    for word in rest:
        field, equals, text = word.partition("=")
        if not equals or not field.isidentifier():
            own.add(name, word, FIELDS)
        elif field in table:
            own.add((name, field), value_of(text), "once")
        else:
            table[field] = value_of(text)
    made = None
    if not own and issubclass(base, Answer):
        made = read(base, _kind(base, first, table), own, name, file=True)
    elif not own:
        made = read_table(base, table, name, own)
    problems.include(own)
    return made


def _kind(base: Any, first: Sequence[str], table: dict[str, Any]) -> Any:
    """Returns what to read: a table with the kind, the value that stands for one, or nothing that is known."""
    given = value_of(first[0]) if first else ""
    if isinstance(given, str):
        return {"kind": given, **table}
    made = base.shorthand(given)
    return given if made is None else {**made, **table}


def value_of(text: str) -> Any:
    """Returns the value that a text means: a TOML value, a list of values joined by commas, or the text itself."""
    try:
        found = tomllib.loads(f"value = {text}")
    except ValueError:
        found = {}
    if found.keys() == {"value"} and not isinstance(found["value"], date | time):
        return found["value"]
    if "," in text and text[:1] not in tuple("\"'[{"):
        return [value_of(part) for part in text.removesuffix(",").split(",")]
    return text
