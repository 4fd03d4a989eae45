"""What the documentation says is true of the package: its tables, its commands, and that its reference is complete;
and so is what the README says, and docs/bounds.md.

The site itself is built by `.ci/run`, which runs the tutorials and follows every link.
"""

from __future__ import annotations

import ast
import dataclasses
import doctest
import functools
import importlib
import inspect
import re
import shlex
import subprocess
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

import jaxsens
import jaxsens.cli
from jaxsens.theory import certified_bound
from jaxsens.theory.certified.bound import HOW_ONE
from tests.commands import run
from tests.documents import PAGES, commands, of_prose, of_python, of_toml, prose_and_code
from tests.pretrained.folders import write_folder

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
REFERENCE = "\n".join(file.read_text("utf-8") for file in sorted((DOCS / "reference").glob("*.md")))


def first_column(page: str, heading: str = "") -> list[str]:
    """The names in the first column of the tables of a page, or of one of its sections."""
    text = (DOCS / page).read_text("utf-8")
    section = text.split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0] if heading else text
    return re.findall(r"(?m)^\| \[?`([^`]+)`", section)


def test_the_table_of_variants_names_those_of_a_shipped_config():
    config = tomllib.loads((ROOT / "configs" / "asymptotic.toml").read_text("utf-8"))
    assert first_column("configs.md", "Built-in variants") == list(config["variants"])


def test_the_table_of_engines_names_them_all():
    from jaxsens.core.engines.options import AskedEngine

    names = [name for name in AskedEngine.kinds if name != "auto"]
    assert first_column("engines.md")[: len(names)] == names


def test_every_shipped_config_is_in_the_guide():
    shipped = {f"configs/{file.name}" for file in (ROOT / "configs").glob("*.toml")}
    assert shipped <= set(first_column("configs.md", "Shipped configs"))


PACKAGES = ("analysis", "formal", "pretrained", "service", "theory", "training")


@pytest.mark.parametrize("module", [jaxsens, *(getattr(jaxsens, name) for name in PACKAGES)])
def test_every_public_name_is_in_the_reference_once(module):
    place = re.escape(module.__name__)
    documented = re.findall(rf"^(?:\.\. auto\w+:: |   ){place}\.(\w+)$", REFERENCE, re.MULTILINE)
    names = {name for name in module.__all__ if not isinstance(getattr(module, name), ModuleType)}
    if module is jaxsens:  # where functions and modules of a page of their own are among them
        names = names - {"language"} | {"languages", "logic"}
    assert sorted(documented) == sorted(names)


def test_every_command_is_in_the_reference(capsys):
    from jaxsens.cli import main

    main(["--help"])
    listed = set(re.findall(r"(?m)^  ([a-z0-9]+)  ", capsys.readouterr().out))
    assert listed == set(re.findall(r"program-output\} jaxsens ([a-z0-9]+) --help", REFERENCE)) != set()


def test_every_table_of_a_config_is_in_the_reference_and_says_what_each_key_means():
    from jaxsens.training.theorem6.run import Theorem6Model, Theorem6Tables

    for table in (Theorem6Tables, Theorem6Model):
        assert f".. autoclass:: {table.__module__}.{table.__qualname__}\n" in REFERENCE
        told = " ".join(base.__doc__ or "" for base in table.__mro__)
        names = [field.name for field in dataclasses.fields(table)]
        assert [name for name in names if not re.search(rf"\b{name}\b", told)] == [], table


def test_the_page_of_sweep_configs_is_what_the_schema_says():
    from tools.config_page import PAGE, page

    assert PAGE.read_text("utf-8") == page(), "run python -m tools.config_page"
    assert len(re.findall(r"(?m)^\| `\w+` \|.*\| .+ \|$", page())) > 60


def test_relative_links_lead_somewhere():
    """Also on the hosting's own view of the files, where no site is built."""
    dead = []
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#`]+)", prose_and_code(page)[0]):
            there = [page.parent / (target + end) for end in ("", ".md", ".ipynb")]
            if "://" not in target and not any(place.exists() for place in there):
                dead.append(f"{relative(page)}: {target}")
    assert dead == []


MODULES = sorted(
    ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for file in ROOT.glob("jaxsens/**/*.py")
    if ">>> " in file.read_text("utf-8")
)


@pytest.mark.quick(0, 10)
@pytest.mark.parametrize("name", MODULES)
def test_the_examples_in_docstrings_hold(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0


# Documents


@pytest.fixture(scope="module")
def example_folder(tmp_path_factory):
    """A folder with what the TOML of documents names: a module of one's own, as docs/side-by-side.md shows it, and a
    published model with a text."""
    folder = tmp_path_factory.mktemp("documents")
    _, blocks = prose_and_code(DOCS / "side-by-side.md")
    code = next(text for language, text in blocks if language == "python").split("models = ")[0]
    (folder / "models" / "gpt2").mkdir(parents=True)
    write_folder(folder / "models" / "gpt2", "gpt2", {"n_positions": 128})
    (folder / "texts.txt").write_text(f"{'the cat sat on a mat ' * 40}\n")
    (folder / "my_models.py").write_text(f"{code}\n\nmake = make_softmax\n")
    return folder


def relative(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_the_names_calls_and_tables_of_a_document_are_those_of_today(page, example_folder):
    prose, blocks = prose_and_code(page)
    assert of_python(blocks) == []
    assert of_prose(prose, blocks, relative(page)) == []
    tables = [text for language, text in blocks if language == "toml"]
    assert [fault for text in tables for fault in of_toml(text, example_folder)] == []


@pytest.fixture
def parsed(monkeypatch):
    """Parses a command line with the command's own parser; returns its exit code without running it."""
    from jaxsens import cli
    from jaxsens.cli import constructed, corpus, measure, plan, serve, sweep, trained

    for module in (constructed, corpus, measure, plan, serve, sweep, trained):
        for name, command in inspect.getmembers(module, inspect.isfunction):
            if command.__module__ == module.__name__ and name in COMMANDS:

                @functools.wraps(command)
                def parse_only(*_, **__):
                    return 0

                monkeypatch.setattr(module, name, parse_only)
    return cli.main


COMMANDS = re.findall(r"program-output\} jaxsens ([a-z0-9]+) --help", REFERENCE)
PLACES = {"N": "8", "K/M": "0/4", "K/100": "0/100", "2/4": "2/4"}
"""What stands for a number in a command line of a document, and a number."""


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_the_command_lines_of_a_document_are_accepted_by_the_parser(page, parsed, capsys):
    refused = []
    for words in commands(*prose_and_code(page))[0]:
        try:
            code = parsed([PLACES.get(word, word) for word in words])
        except SystemExit as stopped:
            code = stopped.code
        refused += [(words, capsys.readouterr())] * (code != 0)
    assert refused == []


def test_the_commands_in_the_sentences_of_documents_have_the_options_that_they_show(capsys):
    told = {command: run(capsys, command, "--help")[1] for command in COMMANDS}
    unknown = [
        (relative(page), text, option)
        for page in PAGES
        for text in commands(*prose_and_code(page))[1]
        for option in re.findall(r"(?<=\s)--[a-z-]+", text)
        if not re.search(rf"{option}\b(?!-)", told[text.split()[1]])
    ]
    assert unknown == []


PLANTED = {
    "jaxsens.neighbors": ("python", "import jaxsens\njaxsens.neighbors(8)"),
    "sampled": ("python", "import jaxsens\njaxsens.Substitute(sampled=8)"),
    "biggest": ("python", "r = jaxsens.flip_sensitivity(f, x)\nr.biggest"),
    "Neighbors": ("python", "from jaxsens import Neighbors"),
    "masking()": ("prose", "What is lost? `masking()` replaces each."),
    "scalar": ("prose", "`scalar` measures any number."),
    "[measure] positions": ("prose", "In sweeps, `[measure] positions` says which."),
    "flipping": ("prose", "`flip_sensitivity(model, x, flipping=3)` does."),
    "lenghts": ("toml", "lenghts = [8]"),
    "construction": ("toml", '[model]\nconstruction = "parityy"'),
}
"""What a document could hold that is no more, or never was; and what is said of it."""


@pytest.mark.parametrize("told", PLANTED)
def test_a_stale_name_is_found(told, tmp_path):
    kind, text = PLANTED[told]
    faults = {
        "python": lambda: of_python([("python", text)]),
        "prose": lambda: of_prose(text, []),
        "toml": lambda: of_toml(text, tmp_path),
    }[kind]()
    assert faults
    assert told in faults[0]


README = (ROOT / "README.md").read_text("utf-8")


def blocks(language: str, text: str = README) -> list[str]:
    return re.findall(rf"(?ms)^```{language}\n(.*?)^```$", text)


def test_there_are_two_commands_and_an_example():
    assert [len(text.splitlines()) for text in blocks("sh")] == [1, 1]
    assert len(blocks("python")) == 1


def test_it_is_a_screen_and_a_half():
    assert len(README.splitlines()) <= 100


SWEEP, TESTS = (text.strip() for text in blocks("sh"))


def test_ci_runs_the_readmes_test_command_and_stops_where_it_fails():
    # `a && b && c` alone would not stop a script under `set -e` when a or b fails.
    lines = (ROOT / ".ci" / "run").read_text("utf-8").splitlines()
    assert f"{TESTS} --durations=30 || exit 1" in lines


@pytest.mark.parametrize("command", [SWEEP, TESTS])
def test_a_command_makes_its_own_environment_and_installs_with_pip(command):
    make, install, *_ = (shlex.split(part) for part in command.split(" && "))
    assert make == ["python3", "-m", "venv", ".venv"]
    assert install[:3] == [".venv/bin/pip", "install", "-e"]


def test_the_first_command_sweeps_a_shipped_config():
    program, subcommand, config, option, out = shlex.split(SWEEP.split(" && ")[-1])
    assert (program, subcommand, option) == (".venv/bin/jaxsens", "sweep", "--out")
    assert (ROOT / config).is_file()
    ignored = subprocess.run(["git", "check-ignore", "--quiet", out], cwd=ROOT, check=False)
    # 128: there is no repository.
    assert ignored.returncode in (0, 128), "what the command writes is not ignored by git"


@pytest.mark.parametrize("page", ["README.md", "docs/start.md"])
def test_the_code_prints_what_is_shown(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (code,), (shown,) = (blocks(kind, (ROOT / page).read_text("utf-8")) for kind in ("python", "text"))
    exec(compile(code, "README.md", "exec"), {"__name__": "readme"})
    printed = capsys.readouterr().out
    number = r"\d+\.\d+"
    assert re.split(number, printed) == re.split(number, shown)
    rounding = pytest.approx([float(each) for each in re.findall(number, shown)], abs=0.011)
    assert [float(each) for each in re.findall(number, printed)] == rounding


def test_the_home_page_has_the_same_code():
    home = (ROOT / "docs" / "index.md").read_text("utf-8")
    ((start, end),) = re.findall(r'\{include\} ../README.md\n:start-after: "(.*)"\n:end-before: "(.*)"', home)
    shown = README.split(start)[1].split(end)[0]
    assert re.findall(r"(?m)^```(\w+)", shown) == ["python", "text"]


FORMULA = re.compile(r"\\tag\{([^}]*)\}")


def functions() -> dict[str, str | None]:
    """Every function and method of jaxsens.theory.certified, with its docstring."""
    files = (ROOT / "jaxsens" / "theory" / "certified").glob("*.py")
    nodes = (node for file in files for node in ast.walk(ast.parse(file.read_text("utf-8"))))
    return {node.name: ast.get_docstring(node) for node in nodes if isinstance(node, ast.FunctionDef)}


def test_every_formula_names_functions_that_there_are():
    text = (ROOT / "docs" / "bounds.md").read_text("utf-8")
    named = {name for names in FORMULA.findall(text) for name in names.split(", ")}
    known = functions()
    assert len(named) >= 15
    assert named <= known.keys()
    assert all(known[name] for name in named)


TEXT = (DOCS / "bounding.md").read_text(encoding="utf-8")


def test_the_examples_run_and_give_what_is_shown():
    names: dict[str, object] = {}
    shown = 0
    for block in re.findall(r"```python\n(.*?)```", TEXT, flags=re.DOTALL):
        lines = block.splitlines()
        for statement in ast.parse(block).body:
            code = ast.unparse(statement)
            _, _, remark = lines[(statement.end_lineno or 0) - 1].partition("  # ")
            if remark:
                assert str(eval(code, names)) == remark.split(":")[0], code
                shown += 1
            else:
                exec(code, names)
    assert shown == 5


@pytest.mark.parametrize(
    ("options", "exact"),
    [
        ({}, True),
        ({"scores": "additive"}, True),
        ({"logits": 2}, True),
        ({"feed_forward": 0}, True),
        ({"readout": "mean"}, False),
        ({"layer_norm": "pre"}, False),
    ],
)
def test_a_bound_of_one_layer_is_as_near_as_it_says(options, exact):
    told = re.search(
        r"within a factor of (\d) to (\d) of the worst input found for one layer whose `bound.how`", TEXT
    )
    assert told
    assert HOW_ONE in " ".join(TEXT.split())
    config = {"width": 16, "heads": 2, "layers": 1, "feed_forward": 32} | options
    model = jaxsens.Transformer(jaxsens.TransformerConfig(2, **config), seed=0)
    bound = certified_bound(model, 8)
    ratio = bound.value / jaxsens.theory.worst_input(model, 8).value
    assert (bound.how == HOW_ONE) == exact
    assert (int(told[1]) <= ratio <= int(told[2])) == exact
