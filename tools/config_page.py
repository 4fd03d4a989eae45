"""`python -m tools.config_page` writes docs/reference/sweep-configs.md from the schema that `jaxsens schema` prints."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jaxsens.cli.sweep import config_schema

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "reference" / "sweep-configs.md"
HEAD = """# Keys of sweep configs

`jaxsens sweep CONFIG` reads these keys and tables; [the guide](../configs.md) builds a config step by step, and
`jaxsens sweep --example` prints one with comments. [What is flipped and measured](measuring.md) and
{class}`~jaxsens.TransformerConfig` explain their keys in full, as does the JSON schema that `jaxsens schema` prints:
editors complete and check configs by it. [Config files](config-files.md#a-model) have the keys of other models.
Examples are from the shipped configs.
"""
TYPES = {
    "array": "list",
    "object": "table",
    "string": "text",
    "boolean": "true or false",
}


def page() -> str:
    """Returns the page: a section for each table, with a row for each key that no table above explains so."""
    configs = [tomllib.loads(path.read_text("utf-8")) for path in sorted(ROOT.glob("configs/**/*.toml"))]
    sweeps = [one for one in configs if {"variant", "variants"} & one.keys()]
    parts = [HEAD]
    explained: dict[str, str] = {}  # by path and row, the first kind of the table
    for path, table in tables("", config_schema()):
        kind = table["properties"].get("kind", {}).get("const")
        rows, above = [], []
        for key, value in table["properties"].items():
            if value == {"const": kind}:
                continue
            example = next(examples(sweeps, [*filter(None, path.split(".")), key], value.get("default")), "")
            row = row_of(key, value, key in table.get("required", ()), example)
            if kind is not None and explained.setdefault(path + row, kind) != kind:
                above.append(f"`{key}`")
            else:
                rows.append(row)
        title = f"`{path}`" + f', `kind = "{kind}"`' * (kind is not None)
        lines = [f"## {title}\n\n{table['description']}\n" if path else "## Keys before the first table\n"]
        lines += (
            ["| key | type | default | example | meaning |", "|---|---|---|---|---|", *rows, ""]
            if rows
            else []
        )
        lines += [f"Also, as above: {', '.join(above)}.\n"] if above else []
        parts.append("\n".join(lines))
    return "\n".join(parts)


def row_of(key: str, value: dict[str, Any], required: bool, example: str) -> str:
    """Returns the row of a key."""
    default = "required" if required else f"`{json.dumps(value['default'])}`" if "default" in value else ""
    meaning = in_short(value["description"].replace("|", "\\|"))
    return f"| `{key}` | {words(value)} | {default} | {example} | {meaning} |"


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


def examples(configs: list[dict[str, Any]], keys: list[str], default: Any) -> Iterator[str]:
    """Yields the values of configs at a path of keys that are short, and no default."""
    inside: list[Any] = [*configs]
    for key in keys:
        inside = [one[key] for one in inside if isinstance(one, dict) and key in one]
        inside = [one for part in inside for one in (part if key == "variant" else [part])]
    texts = [json.dumps(one) for one in inside if one != default]
    yield from (f"`{text}`" for text in texts if len(text) <= 40 and "{" not in text)


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
