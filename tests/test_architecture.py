"""The shape of the source: which way imports run and what they cost, lines of rooms, public names, and texts."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import importlib.metadata
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import jaxsens
from jaxsens.core.report import data as texts
from tools.lines import Count, Plan
from tools.planted import faults

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "jaxsens"

# What each package may import beside itself. The core imports none of the others: they meet by entry points.
MAY_IMPORT: dict[str, set[str]] = {
    "core": set(),
    "first_order": {"core"},
    "formal": {"core"},
    "theory": {"core", "formal"},
    "training": {"core", "formal"},
    "pretrained": {"core"},
    "analysis": {"core"},
    "service": {"core", "pretrained"},
    "logic": {"formal"},
    "languages": {"formal"},
    "cli": {"core", "first_order", "formal", "theory", "training", "pretrained", "analysis", "service"},
    "__main__": {"cli"},
}
# The rooms of the core: each may import those before it.
CORE = (
    *("base", "measures", "models", "flips", "engines", "checks", "placement", "choose", "results"),
    *("explain", "flip_sensitivity", "sweeps", "report", "sweep"),
)
# What is proved shares no code with what is measured, so that tests can compare the two. These measure:
MEASURING = ("engines", "checks", "placement", "choose", "results", "explain", "flip_sensitivity")
PROVED = "jaxsens.theory"
COMPARE = ("jaxsens.theory.search", "jaxsens.theory.tables")
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


def core_room(name: str) -> str:
    """The room of the core that a module lies in; '' for modules elsewhere and for the core's door sign."""
    return [*name.split("."), "", ""][2] if room(name) == "core" else ""


def problem(importer: str, target: str) -> str | None:
    """Why this import is not allowed, or None."""
    here, there = room(importer), room(target)
    if here == "":
        return None  # the root re-exports from everywhere
    if there == "":
        return f"{importer} imports the root, which re-exports everything: import the module that defines the name"
    proved = importer.startswith(PROVED) and not importer.startswith(COMPARE) and importer != PROVED
    if proved and core_room(target) in MEASURING:
        return f"{importer} is to share no code with {target}, which measures"
    inner, outer = core_room(importer), core_room(target)
    if here == there == "core" and inner != outer:
        if not outer or not inner:
            return f"{importer} must not import {target}: the core's door sign is no module"
        allowed = outer in CORE[: CORE.index(inner)]
        return None if allowed else f"{importer} must not import {target}: {outer} comes after {inner}"
    allowed = here == there or there in MAY_IMPORT.get(here, set())
    return None if allowed else f"{importer} must not import {target}"


def test_the_rule_for_imports_says_what_the_architecture_says():
    for importer, target, allowed in (
        ("jaxsens.core.flips.flip_table", "jaxsens.core.models.parts.masks", True),
        ("jaxsens.core.models.parts.masks", "jaxsens.core.flips.flips", False),
        ("jaxsens.core.choose", "jaxsens.core.flip_sensitivity", False),
        ("jaxsens.core.choose", "jaxsens.first_order.engine", False),
        ("jaxsens.first_order.engine", "jaxsens.core.engines.engine", True),
        ("jaxsens.theory.rules", "jaxsens.core.models.parts.masks", True),
        ("jaxsens.theory.rules", "jaxsens.core.engines.vmap", False),
        ("jaxsens.theory.search.worst_input", "jaxsens.core.flip_sensitivity", True),
        ("jaxsens.theory.hard_attention.restrict", "jaxsens.formal.languages.named", True),
        ("jaxsens.formal.languages.parity", "jaxsens.theory.lemma5", False),
        ("jaxsens.service.client", "jaxsens.cli", False),
        ("jaxsens.core.models.parts.masks", "jaxsens", False),
        ("jaxsens.core.models.parts.masks", "jaxsens.core", False),
        ("jaxsens.analysis.row_changes", "jaxsens.core", True),
    ):
        assert (problem(importer, target) is None) == allowed, (importer, target)


def test_imports_are_found_in_every_form():
    source = (
        "import jaxsens.cli\nfrom . import a\nfrom ..cli import b\ndef f():\n    import jaxsens.core.base\n"
    )
    expected = {"jaxsens.cli", "jaxsens.core.flips", "jaxsens.core.cli", "jaxsens.core.base"}
    assert imported("jaxsens.core.flips.table", source) == expected
    assert imported("jaxsens.core", "from . import a\n", is_package=True) == {"jaxsens.core"}


def test_every_room_has_its_place_in_the_import_order():
    assert {room(name) for name in FILES} - {""} == set(MAY_IMPORT)
    assert {core_room(name) for name in FILES} - {""} == set(CORE)


def test_imports_run_one_way():
    problems = [
        problem(importer, target)
        for importer, targets in imports().items()
        for target in sorted(targets)
        if target.split(".")[0] == "jaxsens"
    ]
    assert [text for text in problems if text] == []


def folder(name: str) -> str:
    """The folder that a module lies in; itself for a door sign, and for a file beside the core's folders: a room."""
    alone = FILES[name].name == "__init__.py" or name.rpartition(".")[0] == "jaxsens.core"
    return name if alone else name.rpartition(".")[0]


def test_no_two_modules_import_each_other_even_through_others():
    graph = {name: {target for target in targets if target in FILES} for name, targets in imports().items()}
    del graph["jaxsens"]  # re-exports lazily
    TopologicalSorter(graph).prepare()  # raises an error with the circle


def test_no_two_folders_import_each_other_even_through_others():
    graph: dict[str, set[str]] = {}
    for name, targets in imports().items():
        if folder(name) not in {"jaxsens", name}:  # the root and door signs re-export
            found = graph.setdefault(folder(name), set())
            found |= {folder(target) for target in targets if target in FILES} - {folder(name)}
    TopologicalSorter(graph).prepare()


def test_every_folder_has_a_door_sign():
    signs = {
        name: ast.get_docstring(tree(file)) for name, file in FILES.items() if file.name == "__init__.py"
    }
    assert {FILES[name].parent for name in signs} == {file.parent for file in FILES.values()}
    assert [name for name, sign in signs.items() if not sign] == []


def kinds_asked_for(source: str, kinds: set[str]) -> list[str]:
    """The classes of measures that a module's isinstance, issubclass, type comparison or match asks for."""
    names: list[str] = []
    for node in ast.walk(ast.parse(source)):
        match node:
            case (
                ast.Call(func=ast.Name("isinstance" | "issubclass"), args=[_, asked])
                | ast.MatchClass(cls=asked)
            ):
                names += [part.rpartition(".")[2] for part in re.findall(r"[\w.]+", ast.unparse(asked))]
            case ast.Compare(left=ast.Attribute(attr="kind"), comparators=[ast.Constant(value)]):
                names += [name for name in kinds if name.lower() == str(value).replace("-", "")]
            case ast.Compare(left=left, comparators=[right, *_]):
                names += [one.id for one in (left, right) if isinstance(one, ast.Name)]
    return [name for name in names if name in kinds]


def kinds_of_measures() -> set[str]:
    """The names of all classes derived from `Measure`."""
    classes: list[type[Any]] = [importlib.import_module("jaxsens.core.measures").Measure]
    for one in classes:
        classes += one.__subclasses__()
    return {one.__name__ for one in classes} - {"Measure"}


def test_a_question_for_the_kind_of_a_measure_is_found_in_every_form():
    for source in (
        "isinstance(m, L2)",
        "isinstance(m, KL | Decision)",
        "isinstance(m, (measures.L2, int))",
        "issubclass(k, Norm)",
        "type(m) is L2",
        "m.kind == 'l2'",
        "match m:\n    case KL():\n        pass",
    ):
        assert kinds_asked_for(source, kinds_of_measures()) != [], source
    assert kinds_asked_for("isinstance(m, Measure)\nL2() == m\nfound = L2", kinds_of_measures()) == []


def test_only_the_measures_ask_of_which_kind_a_measure_is():
    assert {"Norm", "L2", "KL", "Decision", "Function", "LogProbability"} <= kinds_of_measures()
    elsewhere = {name: file for name, file in FILES.items() if core_room(name) != "measures"}
    kinds = kinds_of_measures()
    asked = {name: kinds_asked_for(file.read_text("utf-8"), kinds) for name, file in elsewhere.items()}
    assert [name for name, found in asked.items() if found] == []


def test_no_file_of_the_core_names_an_engine_that_a_package_brings():
    brought = {entry.name for entry in importlib.metadata.entry_points(group="jaxsens.engines")}
    assert "first-order" in brought
    for path in (PACKAGE / "core").rglob("*.py"):
        constants = [
            node.value
            for node in ast.walk(ast.parse(path.read_text("utf-8")))
            if isinstance(node, ast.Constant)
        ]
        assert not brought.intersection(one for one in constants if isinstance(one, str)), path


def brought(file: Path, seen: set[Path]) -> Iterator[str]:
    """What a test needs from around the core when it is read, its programs in a text and what it shares included."""
    if file in seen or not file.exists():
        return
    seen.add(file)
    for found in re.findall(
        r"^(?:from|import) ([\w.]+)(?: import (\([^)]*\)|.+))?", file.read_text(encoding="utf-8"), re.M
    ):
        first, *below = found[0].split(".")
        if first == "jaxsens":
            rooms = below[:1] or re.findall(r"\w+", found[1])
            yield from (name for name in rooms if name in MAY_IMPORT and name != "core")
        elif first in ("tests", "tools", "benchmarks"):
            yield from brought(ROOT.joinpath(first, *below).with_suffix(".py"), seen)


def test_tests_of_the_core_run_where_the_packages_around_it_are_missing():
    found = {str(file): set(brought(file, set())) for file in (ROOT / "tests/core").rglob("*.py")}
    assert not {name: rooms for name, rooms in found.items() if rooms}
    assert set(brought(ROOT / "tests/together/flip_sensitivity/test_result_file.py", set())) == {
        "first_order"
    }
    assert set(brought(ROOT / "tests/together/base/test_stopped_commands.py", set())) == {"cli"}


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


@pytest.mark.parametrize(
    "package", ["", ".analysis", ".formal", ".pretrained", ".service", ".theory", ".training"]
)
def test_every_public_name_resolves_and_is_documented(package):
    module = importlib.import_module(f"jaxsens{package}")
    assert set(module.__all__) <= set(dir(module))
    undocumented = []
    for name in module.__all__:
        value = getattr(module, name)
        if not (inspect.isclass(value) or callable(value)):
            continue
        text = value.__doc__ or ""
        generated = dataclasses.is_dataclass(value) and text.startswith(f"{name}(")
        if not text.strip() or generated:
            undocumented.append(name)
    assert undocumented == []


if TYPE_CHECKING:
    from typing import assert_type

    from jaxsens.formal.constructions.soften import SoftenedTransformer
    from jaxsens.languages import Language

    def types_that_pyright_sees_in_the_stub(model: jaxsens.Transformer) -> None:
        assert_type(jaxsens.language("parity"), Language)
        assert_type(jaxsens.formal.soften(model, 3, 0.1), SoftenedTransformer)
        assert_type(jaxsens.__version__, str)


STUB = ast.parse((ROOT / "jaxsens" / "__init__.pyi").read_text(encoding="utf-8"))
LISTED = [
    (node.module, alias.name, alias.asname)
    for node in STUB.body
    if isinstance(node, ast.ImportFrom)
    for alias in node.names
]


def test_the_stub_lists_every_public_name_once():
    assert sorted(name for _, name, _ in LISTED) == sorted(jaxsens.__all__)
    assert {"flip_sensitivity", "theory", "TransformerConfig"} <= set(jaxsens.__all__)
    assert set(jaxsens.__all__) | {"__version__"} == set(dir(jaxsens))


def test_each_name_comes_from_the_module_that_the_stub_names():
    for module, name, alias in LISTED:
        assert alias == name  # what type checkers take for a re-export
        if module is None:
            expected = importlib.import_module(f"jaxsens.{name}")
        else:
            expected = getattr(importlib.import_module(f"jaxsens.{module}"), name)
            assert expected.__module__ == f"jaxsens.{module}"
        assert getattr(jaxsens, name) is expected, name


def test_an_unknown_attribute_is_refused_as_python_does_it():
    with pytest.raises(AttributeError, match=r"^module 'jaxsens' has no attribute 'flipsensitivity'$"):
        _ = jaxsens.flipsensitivity  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(ImportError, match="cannot import name 'flipsensitivity' from 'jaxsens'"):
        from jaxsens import flipsensitivity  # noqa: F401 # pyright: ignore[reportAttributeAccessIssue]


FAULTS = faults()


def test_there_are_forty_faults_in_every_room_that_computes_or_guards():
    assert len(FAULTS) == 40
    computing = {room.name for room in Plan.load().rooms if room.of_package}
    # Those two put together what the other rooms do.
    assert {fault.room for fault in FAULTS.values()} == computing - {"core/flip_sensitivity", "core/sweep"}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_has_a_place_something_that_it_does_and_tests(name):
    fault = FAULTS[name]
    assert fault.function().__code__ is not None
    assert callable(fault.body())
    assert fault.tests
    assert all((ROOT / file).is_file() for file in fault.tests)


FAMILIES = ("flip-", "heading-", "networks-")
"""The beginnings of names that the code makes."""


def test_every_text_is_used_and_every_used_text_is_there():
    sources = "".join(file.read_text("utf-8") for file in PACKAGE.rglob("*.py"))
    named = set(re.findall(r"""["']([a-z0-9-]+)["']""", sources))
    assert {name for name in texts._texts() if not name.startswith(FAMILIES)} - named == set()
    assert set(re.findall(r'\btext\("([^"]+)"', sources)) - set(texts._texts()) == set()


def test_places_are_filled_in():
    told = texts.text("missing", missing=2, planned=5, which="softmax n = 64 (seeds 1, 2)")
    assert told.startswith("2 of 5 planned points are missing: softmax n = 64 (seeds 1, 2). Run")
