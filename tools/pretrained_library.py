"""What the transformers library reads of a config.json, by family: `python -m tools.pretrained_library` writes it.

From the library's source, for each family: the options of its config's class with their defaults, its other names of
options, and every name that the config, the model and the modules that all models share read of a config. What no name
in this table is cannot change a row. `jaxsens/pretrained/families/library.json` has the table.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import json
from pathlib import Path
from typing import Any

from jaxsens.pretrained.families import FAMILIES

FILE = Path(__file__).resolve().parents[1] / "jaxsens" / "pretrained" / "families" / "library.json"
SHARED = (
    "configuration_utils", "masking_utils", "modeling_layers",
    "modeling_rope_utils", "modeling_utils",
)  # fmt: skip


def classes() -> dict[str, Any]:
    """Returns the class of each family's config; of a nested one, that of its text part."""
    mapping: Any = importlib.import_module("transformers.models.auto.configuration_auto").CONFIG_MAPPING
    return {name: mapping[family.text or name] for name, family in FAMILIES.items()}


def read_names(module: Any, own: bool = False) -> set[str]:
    """Returns the names that a module's source reads of a config: attributes, and keys of what was given. In the
    module of a config's class, `own`, the config is called self."""
    found = set[str]()
    for node in ast.walk(ast.parse(Path(module.__file__).read_text("utf-8"))):
        match node:
            case ast.Attribute(value=of, attr=name) if _is_config(of, own):
                found.add(name)
            case ast.Call(
                func=ast.Name(id="getattr" | "hasattr"), args=[of, ast.Constant(value=str(name)), *_]
            ):
                if _is_config(of, own):
                    found.add(name)
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id="kwargs"), attr="pop" | "get" | "setdefault"),
                args=[ast.Constant(value=str(name)), *_],
            ) if own:
                found.add(name)
            case ast.Subscript(value=ast.Name(id="kwargs"), slice=ast.Constant(value=str(name))) if own:
                found.add(name)
    return {name for name in found if not name.startswith("__")}


def _is_config(node: ast.expr, own: bool) -> bool:
    name = {ast.Name: "id", ast.Attribute: "attr"}.get(type(node), "")
    called = str(getattr(node, name, ""))
    return called.endswith("config") or (own and called == "self")


def _module(name: str) -> Any:
    return importlib.import_module(f"transformers.{name}")


def table() -> dict[str, Any]:
    """Returns the table: what all families share, and what each has beside it."""
    base: Any = _module("configuration_utils").PreTrainedConfig
    methods = {name for name in dir(base) if callable(getattr(base, name, None))}
    shared = set[str]().union(
        *(read_names(_module(name), own="config" in name or "rope" in name) for name in SHARED)
    )
    shared |= {one.name for one in dataclasses.fields(base)}
    shared -= methods
    families = {}
    for name, kind in classes().items():
        model = importlib.import_module(kind.__module__.replace("configuration_", "modeling_"))
        config = importlib.import_module(kind.__module__)
        reads = (read_names(config, own=True) | read_names(model)) - methods
        fields = {one.name: one.default for one in dataclasses.fields(kind) if one.name not in _names(base)}
        theta = kind.default_theta
        base_of = {"rope_theta": theta} if "rope_parameters" in fields and not isinstance(theta, dict) else {}
        own = sorted((reads | set(fields)) - shared - {"config"} - set(fields))
        defaults = {key: _plain(one) for key, one in {**fields, **base_of}.items()}
        families[name] = {"defaults": defaults, "aliases": dict(kind.attribute_map), "reads": own}
    version = importlib.import_module("transformers").__version__
    return {"transformers": version, "shared": sorted(shared), "families": families}


def _names(kind: Any) -> set[str]:
    return {one.name for one in dataclasses.fields(kind)}


def _plain(default: Any) -> Any:
    return None if default is dataclasses.MISSING else default


def main() -> None:
    """Writes the table, a family a line, where transformers is installed."""
    made = table()
    lines = [f"{json.dumps(name)}: {json.dumps(one)}" for name, one in made.pop("families").items()]
    head = json.dumps(made)[:-1]
    FILE.write_text(head + ', "families": {\n' + ",\n".join(lines) + "\n}}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
