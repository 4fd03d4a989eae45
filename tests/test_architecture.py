"""The shape of the source: which way imports run, what an import costs, how many lines a room has, what is public."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from tools.lines import Count, Plan, lowered

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "jaxsens"

# What each room of the package may import, itself and `base` apart. Below the rooms only circles are forbidden.
MEASUREMENT = {
    "asked",
    "models",
    "sensitivity",
    "search",
    "theory",
    "logic",
    "languages",
    "training",
    "constructions",
    "pretrained",
}
MAY_IMPORT: dict[str, set[str]] = {
    "base": set(),
    "models": set(),
    "languages": {"logic"},
    "asked": set(),
    "sensitivity": {"asked", "models"},
    "pretrained": {"models"},
    "search": {"asked", "models", "sensitivity"},
    "theory": {"asked", "models", "languages"},
    "logic": set(),
    # Each brings sources of models to sweeps.
    "constructions": {"models", "logic", "experiments"},
    "training": {"models", "languages", "experiments"},
    "experiments": MEASUREMENT,
    "planning": MEASUREMENT | {"experiments"},
    "service": MEASUREMENT | {"experiments"},
    "cli": MEASUREMENT | {"experiments", "planning", "service"},
    "__main__": {"cli"},
}
HEAVY = ("jax", "flax", "optax", "orbax", "pandas", "pyarrow", "matplotlib", "scipy", "jinja2")


def module_name(file: Path) -> str:
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = {module_name(file): file for file in sorted(PACKAGE.rglob("*.py"))}


def imported(name: str, source: str, is_package: bool = False) -> set[str]:
    """Full names of the modules that a module imports anywhere in its text, functions included."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                package = name.split(".") if is_package else name.split(".")[:-1]
                package = package[: len(package) - node.level + 1]
                base = ".".join([*package, base] if base else package)
            for alias in node.names:
                below = f"{base}.{alias.name}"
                found.add(below if below in FILES else base)
    return found


@cache
def imports() -> dict[str, set[str]]:
    return {
        name: imported(name, file.read_text(encoding="utf-8"), file.name == "__init__.py")
        for name, file in FILES.items()
    }


def room(name: str) -> str:
    """The room (package or module directly below jaxsens) that a module of jaxsens lies in; '' for jaxsens itself."""
    return [*name.split("."), ""][1]


def problem(importer: str, target: str) -> str | None:
    """Why this import is not allowed, or None."""
    here, there = room(importer), room(target)
    if here == there or here == "":
        return None  # inside a room; and the root re-exports from everywhere
    if there == "":
        return f"{importer} imports the root, which re-exports everything: import the module that defines the name"
    allowed = {"base"} | MAY_IMPORT[here] if here in MAY_IMPORT else set()
    return None if there in allowed else f"{importer} must not import {target}"


def test_the_rule_for_imports_says_what_the_architecture_says():
    for importer, target, allowed in (
        ("jaxsens.core.flips.flip_table", "jaxsens.core.models.parts.masks", True),
        ("jaxsens.core.flips.selection", "jaxsens.core.flips.flips", True),
        ("jaxsens.core.flips.flips", "jaxsens.core.flips.selection", False),
        ("jaxsens.core.models.parts.masks", "jaxsens.core.flips.flips", False),
        ("jaxsens.core.models.parts.masks", "jaxsens.core.flips.flip_table", False),
        ("jaxsens.theory.lipschitz", "jaxsens.core.flips.flip_table", False),
        ("jaxsens.core.flips.flip_table", "jaxsens.theory.lipschitz", False),
        ("jaxsens.theory.search.worst_input", "jaxsens.core.flip_sensitivity", True),
        ("jaxsens.core.flips.flip_table", "jaxsens.theory.search.worst_input", False),
        ("jaxsens.theory.search.worst_input", "jaxsens.theory.lemma5", False),
        ("jaxsens.formal.constructions.soften", "jaxsens.core.models.transformer.module", True),
        ("jaxsens.formal.constructions.soften", "jaxsens.core.flips.flip_table", False),
        ("jaxsens.core.flips.flip_table", "jaxsens.formal.constructions.soften", False),
        ("jaxsens.languages.parity", "jaxsens.core.models", False),
        ("jaxsens.formal.languages.formula", "jaxsens.formal.logic.automata", True),
        ("jaxsens.formal.logic.automata", "jaxsens.formal.languages.base", False),
        ("jaxsens.formal.logic.automata", "jaxsens.core.models.parts.masks", False),
        ("jaxsens.core.base.errors", "jaxsens.core.base.value", False),
        ("jaxsens.core.base.inputs", "jaxsens.core.models.transformer.config", False),
        ("jaxsens.core.base.strict", "jaxsens.core.base.errors", True),
        ("jaxsens.core.base.strict", "jaxsens.core.models.transformer.config", False),
        ("jaxsens.training.config", "jaxsens.core.models.config_tables", True),
        ("jaxsens.training.source", "jaxsens.core.sweeps.sources", True),
        ("jaxsens.core.models.config_tables", "jaxsens.training.config", False),
        ("jaxsens.cli", "jaxsens.core.base.errors", True),
        ("jaxsens.core.models.parts.masks", "jaxsens", False),
    ):
        assert (problem(importer, target) is None) == allowed, (importer, target)


def test_imports_are_found_in_every_form():
    source = "import jaxsens.cli\nfrom . import a\nfrom ..models import b\ndef f():\n    import jaxsens.core.base.files\n"
    expected = {"jaxsens.cli", "jaxsens.core", "jaxsens.core.models", "jaxsens.core.base.files"}
    assert imported("jaxsens.core.explain", source) == expected
    assert imported("jaxsens.core", "from . import a\n", is_package=True) == {"jaxsens.core"}


def test_every_room_has_its_place_in_the_import_order():
    assert {room(name) for name in FILES} - {""} <= set(MAY_IMPORT)


def test_imports_run_one_way():
    problems = [
        problem(importer, target)
        for importer, targets in imports().items()
        for target in sorted(targets)
        if target.split(".")[0] == "jaxsens"
    ]
    assert [text for text in problems if text] == []


def in_circles(graph: dict[str, set[str]]) -> list[str]:
    """What imports each other in a circle, or waits for something that does."""
    while graph:
        free = {name for name, targets in graph.items() if not targets & graph.keys() - {name}}
        if not free:
            return sorted(graph)
        graph = {name: targets for name, targets in graph.items() if name not in free}
    return []


def folder(name: str) -> str:
    """The folder that a module lies in; a folder itself for its door sign."""
    return name if FILES[name].name == "__init__.py" else name.rpartition(".")[0]


def test_no_two_modules_import_each_other_even_through_others():
    graph = {name: {target for target in targets if target in FILES} for name, targets in imports().items()}
    del graph["jaxsens"]  # re-exports lazily
    assert in_circles(graph) == []


def test_no_two_folders_import_each_other_even_through_others():
    graph: dict[str, set[str]] = {}
    for name, targets in imports().items():
        if folder(name) not in {"jaxsens", name}:  # the root and door signs re-export
            found = graph.setdefault(folder(name), set())
            found |= {folder(target) for target in targets if target in FILES}
    assert in_circles(graph) == []


def test_a_circle_is_found_and_what_waits_for_it():
    graph = {"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}, "e": set()}
    assert in_circles(graph) == ["a", "b", "c", "d"]
    assert in_circles({"a": {"b"}, "b": set()}) == []


def test_every_folder_has_a_door_sign():
    signs = {
        name: ast.get_docstring(tree(file)) for name, file in FILES.items() if file.name == "__init__.py"
    }
    assert signs.keys() == {folder(name) for name in FILES}
    assert [name for name, sign in signs.items() if not sign] == []


def test_no_private_jax_module_is_imported():
    private = {
        (name, target)
        for name, targets in imports().items()
        for target in targets
        if target.split(".")[0] in {"jax", "flax", "optax", "orbax"}
        and any(part.startswith("_") for part in target.split("."))
    }
    assert private == set()


@cache
def tree(file: Path) -> ast.Module:
    return ast.parse(file.read_text("utf-8"))


def test_every_public_method_is_documented_in_its_class_or_where_it_comes_from():
    classes = {
        node.name: node
        for file in FILES.values()
        for node in tree(file).body
        if isinstance(node, ast.ClassDef)
    }

    def documented(name: str) -> set[str]:
        bases = [ast.unparse(base).partition("[")[0].rpartition(".")[2] for base in classes[name].bases]
        own = {one.name for one in methods(name) if ast.get_docstring(one)}
        return own.union(*(documented(base) for base in bases if base in classes))

    def methods(name: str) -> list[ast.FunctionDef]:
        return [one for one in classes[name].body if isinstance(one, ast.FunctionDef)]

    public = [name for name in classes if not name.startswith("_")]
    without = [
        f"{name}.{one.name}"
        for name in public
        for one in methods(name)
        if not one.name.startswith("_") and one.name not in documented(name)
    ]
    assert without == []


def test_no_room_has_more_lines_than_its_number():
    assert Count.of(ROOT).problems() == []


PLAN = """
[total]
aim = 4
limit = 5

[rooms."core/base"]
aim = 2
most = {most}
paths = ["jaxsens/core/base/", "jaxsens/old/base.py"]

[rooms.theory]
most = 2
paths = ["jaxsens/old/", "jaxsens/theory.py"]
"""


def counted(root: Path, most: int) -> Count:
    """A checkout of three files and five lines, counted."""
    for path, lines in {"core/base/errors.py": 2, "old/base.py": 1, "old/bounds.py": 2}.items():
        file = root / "jaxsens" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("x = 1\n" * lines)
    (root / "plan.toml").write_text(PLAN.format(most=most))
    return Count.of(root, Plan.load(root / "plan.toml"))


def test_a_file_belongs_to_the_room_with_the_longest_path(tmp_path):
    count = counted(tmp_path, most=3)
    assert {name: [*files.values()] for name, files in count.files.items()} == {
        "core/base": [2, 1],
        "theory": [2],
    }
    assert count.problems() == []
    assert count.loose() == []


def test_a_room_with_more_lines_than_its_number_is_told_with_the_remedy(tmp_path):
    (problem,) = counted(tmp_path, most=2).problems()
    for part in ("core/base", "3 lines", "1 more", "number 2", "tools/lines.toml", "shorten"):
        assert part in problem


def test_a_file_in_no_room_is_told(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "new.py").write_text("x = 1\n")
    (problem,) = counted(tmp_path, most=3).problems()
    assert problem.startswith("elsewhere/new.py: in no room")


def test_numbers_are_lowered_to_what_is_there_and_never_raised(tmp_path):
    loose, tight = counted(tmp_path, most=40), PLAN.format(most=3)
    assert loose.loose() == ["core/base"]
    assert lowered(PLAN.format(most=40), loose) == tight
    assert lowered(PLAN.format(most=2), counted(tmp_path, most=2)) == PLAN.format(most=2)


def test_every_class_has_a_name_of_its_own():
    homes: dict[str, list[str]] = {}
    for name, file in FILES.items():
        for node in ast.walk(tree(file)):
            if isinstance(node, ast.ClassDef):
                homes.setdefault(node.name, []).append(name)
    assert {name: where for name, where in homes.items() if len(where) > 1} == {}


def run_python(code: str) -> str:
    """What a fresh interpreter prints."""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=120)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_importing_jaxsens_loads_nothing_heavy():
    output = run_python(f"import sys, jaxsens\nprint([name for name in {HEAVY} if name in sys.modules])")
    assert output.strip() == "[]"


def test_help_and_version_load_nothing_heavy():
    output = run_python(
        "import sys\nfrom jaxsens.cli import main\n"
        "for arguments in (['--help'], ['sweep', '--help'], ['--version']):\n"
        "    sys.argv = ['jaxsens', *arguments]\n"
        "    try:\n        main()\n        print('exit', 0)\n"
        "    except SystemExit as end:\n        print('exit', end.code or 0)\n"
        f"    print([name for name in {HEAVY} if name in sys.modules])"
    )
    ends = [line for line in output.splitlines() if line.startswith(("exit", "["))]
    assert ends == ["exit 0", "[]"] * 3


def test_every_public_name_resolves_and_is_documented():
    import jaxsens

    assert set(jaxsens.__all__) <= set(dir(jaxsens))
    undocumented = []
    for name in jaxsens.__all__:
        value = getattr(jaxsens, name)
        if not (inspect.isclass(value) or callable(value)):
            continue
        text = value.__doc__ or ""
        generated = dataclasses.is_dataclass(value) and text.startswith(f"{name}(")
        if not text.strip() or generated:
            undocumented.append(name)
    assert undocumented == []


def test_an_unknown_public_name_is_an_attribute_error():
    import jaxsens

    with pytest.raises(AttributeError, match="no_such_name"):
        getattr(jaxsens, "no_such_" + "name")
