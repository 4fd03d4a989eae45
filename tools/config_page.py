"""`python -m tools.config_page` writes docs/reference/sweep-configs.md from the schema that `jaxsens schema` prints."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from jaxsens.cli.sweep import config_schema

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "reference" / "sweep-configs.md"
HEAD = """# Keys of sweep configs

[The guide](../configs.md) builds a config step by step. [What is flipped and measured](measuring.md) and the JSON
schema that `jaxsens schema` prints explain keys in full; editors complete and check configs by the schema.
"""
MODEL = """The model; variants change some of its keys. {class}`~jaxsens.TransformerConfig` explains those of a
transformer, and [Config files](config-files.md#a-model) the other kinds. Keys and defaults: """
TYPES = {
    "array": "list",
    "object": "table",
    "string": "text",
    "boolean": "true or false",
}


def page() -> str:
    """Returns the page: a section for each table with an item for each key, or each kind of the table."""
    parts = [HEAD]
    for path, alike in groupby(tables("", config_schema()), key=itemgetter(0)):
        found = [table for _, table in alike]
        title = f"## `{path}`\n" if path else "## Keys before the first table\n"
        if path == "model":
            parts.append(f"{title}\n{MODEL}{keys_of(found[0])}.\n")
        elif all("const" in table["properties"].get("kind", {}) for table in found):
            parts.append(f"## `{path}`, by `kind`\n\n{''.join(item_of_kind(table) for table in found)}")
        else:
            parts += [title, *(section(table) for table in found)]
    return "\n".join(parts)


def section(table: dict[str, Any]) -> str:
    """Returns the description of a table and an item for each of its keys."""
    head = f"{table['description']}\n\n" if "description" in table else ""
    required = table.get("required", ())
    return head + "".join(item_of(key, one, key in required) for key, one in table["properties"].items())


def item_of(key: str, value: dict[str, Any], required: bool) -> str:
    """Returns the item of a key."""
    default = (
        ", required" if required else f" = `{json.dumps(value['default'])}`" if "default" in value else ""
    )
    return f"- `{key}` ({words(value)}{default}): {in_short(value['description'])}\n"


def item_of_kind(table: dict[str, Any]) -> str:
    """Returns the item of a kind, with its other keys."""
    kind = table["properties"]["kind"]["const"]
    keys = keys_of(table, "kind")
    return f"- `{kind}`{f' ({keys})' if keys else ''}: {in_short(table['description'])}\n"


def keys_of(table: dict[str, Any], *without: str) -> str:
    """Returns the keys of a table with their defaults."""
    keys = ((key, value) for key, value in table["properties"].items() if key not in without)
    return ", ".join(
        f"`{key} = {json.dumps(one['default'])}`" if "default" in one else f"`{key}`" for key, one in keys
    )


def in_short(text: str) -> str:
    """Returns the first sentence, or the first two of which the first is short, and those that say a default."""
    first, *others = re.split(r"(?<=.{30}[a-z0-9)`\"]\.) (?=[A-Z])", text)
    return " ".join([first, *(one for one in others if re.search(r"None|[Dd]efault|other kind", one))])


def tables(path: str, table: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields a table and those within it, each with its path; those of `engine_beyond` are those of `engine`."""
    yield path, table
    for key, value in table["properties"].items():
        inside = value.get("items", value)
        for one in inside.get("anyOf", [inside]) if key != "engine_beyond" else ():
            if "properties" in one:
                yield from tables(f"{path}.{key}".strip("."), one)


def words(value: dict[str, Any]) -> str:
    """Returns the type of a value in words."""
    if "anyOf" in value:
        return " or ".join(dict.fromkeys(words(one) for one in value["anyOf"]))
    if "const" in value or "enum" in value:
        return ", ".join(f"`{json.dumps(one)}`" for one in value.get("enum", [value.get("const")]))
    kind = str(value.get("type", "any"))
    return TYPES.get(kind, kind) + (f" of: {words(value['items'])}" if value.get("items") else "")


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
