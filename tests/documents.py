"""What documents hold that can be wrong: code, config tables, commands, and the names in their sentences."""

from __future__ import annotations

import ast
import builtins
import importlib
import inspect
import json
import keyword
import re
import shlex
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import jaxsens

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted(
    path
    for pattern in ("*.md", "docs/**/*.md", "docs/**/*.ipynb", "benchmarks/*.md")
    for path in ROOT.glob(pattern)
    if path.name != "CHANGELOG.md"  # it tells of names that were
)

ELSEWHERE = frozenset(
    re.findall(
        r"\w+",
        "Dockerfile Origin PYTHONPATH cmp kubernetes nohup transformers h100x8 x8 RMSNorm c_attn c_fc c_proj checkify "
        "jax_enable_x64 shard_map approximate lru_cache attn_implementation FeatureAblation xla_gpu_enable_triton_gemm "
        "scaled_dot_product_attention expm1 Literal VALUES JAXSENS_TYPES quick long parametrize Q_a bidirectional "
        "auto_map cuda12",
    )
)
"""Names in documents that are those of other programs and packages."""


def prose_and_code(path: Path) -> tuple[str, list[tuple[str, str]]]:
    """The text of a document without its blocks, and the blocks: their language and what they hold."""
    text = path.read_text("utf-8")
    if path.suffix == ".ipynb":
        cells = json.loads(text)["cells"]
        of = {
            kind: ["".join(c["source"]) for c in cells if c["cell_type"] == kind]
            for kind in ("markdown", "code")
        }
        return "\n\n".join(of["markdown"]), [("python", code) for code in of["code"]]
    blocks = re.findall(r"(?ms)^```(?:\{code-cell\} )?(\w+)\n(.*?)^```", text)
    return re.sub(r"(?ms)^```.*?^```", "", text), blocks


def inline(prose: str) -> list[str]:
    """The code within sentences."""
    return [" ".join(code.split()) for code in re.findall(r"(?<!`)`([^`]+)`(?!`)", prose)]


# Names


def public_modules() -> list[Any]:
    """The modules that have public names: jaxsens, and those that are public names of it."""
    return [jaxsens, *filter(inspect.ismodule, (getattr(jaxsens, name) for name in jaxsens.__all__))]


@cache
def public() -> dict[str, Any]:
    """What users call by its name: every public name, and what the reference lists."""
    reference = "\n".join(file.read_text("utf-8") for file in (ROOT / "docs" / "reference").glob("*.md"))
    found = {}
    for path in re.findall(r"\.\. auto\w+:: ([\w.]+)", reference):
        room, _, name = path.rpartition(".")
        owner = jaxsens if room == "jaxsens" else importlib.import_module(room)
        found[name] = getattr(owner, name)
    for room in public_modules():
        names = getattr(room, "__all__", None) or [name for name in vars(room) if name[0] != "_"]
        found |= {name: getattr(room, name) for name in names}
    return found


def parameters(called: Any) -> dict[str, inspect.Parameter]:
    """The parameters of what can be called; none where that does not say them."""
    try:
        return dict(inspect.signature(called).parameters)
    except (TypeError, ValueError):
        return {}


@cache
def members(kind: type) -> frozenset[str]:
    """The attributes of a class, of its instances, as its source names them, and of the classes made of it."""
    found = {*dir(kind)}.union(*map(members, kind.__subclasses__()))
    for base in kind.__mro__:
        found |= {*getattr(base, "__annotations__", {})}
        if base.__module__.startswith("jaxsens"):
            found |= {*re.findall(r"\bself\.(\w+)", inspect.getsource(base))}
    return frozenset(found)


@cache
def defined(pattern: str) -> tuple[frozenset[str], frozenset[str]]:
    """The names in some files, and those of their functions and methods.

    The first are those of classes, of functions outside classes, of attributes with a type and of constants; the words
    that they compare or accept, such as names of weightings; and the files' own names.
    """
    found, called = set(), set()
    for file in ROOT.glob(pattern):
        tree = ast.parse(file.read_text("utf-8"))
        nodes = [*ast.walk(tree)]
        holders = [node for node in nodes if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)]
        told = {id(node.body[0].value) for node in holders if isinstance(node.body[0], ast.Expr)}
        found |= {
            file.stem,
            file.parent.name,
            *(one.name for one in tree.body if isinstance(one, ast.FunctionDef)),
        }
        for node in nodes:
            if isinstance(node, ast.FunctionDef):
                called.add(node.name)
            elif isinstance(node, ast.ClassDef):
                found.add(node.name)
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                found.add(node.target.id)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in told:
                found |= {*re.findall(r"\w+" if " " not in node.value else r"\w+_\w+", node.value)}
        assigned = [target for one in tree.body if isinstance(one, ast.Assign) for target in one.targets]
        found |= {target.id for target in assigned if isinstance(target, ast.Name)}
    return frozenset(found), frozenset(called)


@cache
def vocabulary() -> frozenset[str]:
    """Every name that users may come across today: public ones with their parameters and attributes, what modules of
    the package define, the keys and values of shipped configs and of tables of the package, and names of tests."""
    found = {*public(), *dir(builtins), *keyword.kwlist, *defined("jaxsens/**/*.py")[0]}
    for each in public().values():
        found |= {*parameters(each)}
        if inspect.isclass(each):
            found |= members(each)
            for name in members(each):
                found |= {*parameters(getattr(each, name, None))}
    found |= {file.stem for file in ROOT.glob("jaxsens/**/*.toml")}
    for pattern in ("configs/**/*.toml", "cluster/*.*", "jaxsens/pretrained/families/*.toml"):
        for file in ROOT.glob(pattern):
            found |= {*re.findall(r"\w+", file.read_text("utf-8"))}
    for file in ROOT.glob("tests/**/*.py"):
        found |= {file.stem, *re.findall(r"(?m)^def (test_\w+)", file.read_text("utf-8"))}
    return frozenset(found)


@cache
def inside() -> frozenset[str]:
    """The names that pages for those who work on the package have too: methods, and what scripts define."""
    rooms = (defined(f"{room}/*.py")[0] for room in ("scripts", "benchmarks", "tools"))
    return defined("jaxsens/**/*.py")[1].union(*rooms)


INSIDE = ("CONTRIBUTING.md", "docs/bounds.md", "benchmarks/README.md")
"""The pages for those who work on the package."""


# Python


class Code(ast.NodeVisitor):
    """Notes which names, attributes and arguments of this package, in the code of a page, do not exist."""

    def __init__(self) -> None:
        self.faults: list[str] = []
        self.known: dict[str, Any] = {"jaxsens": jaxsens}
        self.kinds: dict[str, tuple[type, ...]] = {}

    def visit_Import(self, node: ast.Import) -> None:
        for one in node.names:
            if one.name.split(".")[0] == "jaxsens":
                self.known[one.asname or "jaxsens"] = (
                    importlib.import_module(one.name) if one.asname else jaxsens
                )

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        if (node.module or "").split(".")[0] != "jaxsens":
            return
        for one in node.names:
            try:
                self.known[one.asname or one.name] = getattr(
                    importlib.import_module(str(node.module)), one.name
                )
            except (ImportError, AttributeError):
                self.faults.append(f"from {node.module} import {one.name}")

    def visit_Assign(self, node: ast.Assign) -> None:
        self.generic_visit(node)
        for target in node.targets:
            if isinstance(target, ast.Name):
                self.known.pop(target.id, None)
                self.kinds[target.id] = self.kind(node.value)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        outside = dict(self.known), dict(self.kinds)
        for each in node.args.args:
            self.known.pop(each.arg, None)
            self.kinds.pop(each.arg, None)
        self.generic_visit(node)
        self.known, self.kinds = outside

    def visit_Attribute(self, node: ast.Attribute) -> None:
        self.generic_visit(node)
        self.found(node)

    def visit_Call(self, node: ast.Call) -> None:
        self.generic_visit(node)
        called = self.found(node.func, noted=True)
        starred = any(isinstance(each, ast.Starred) for each in node.args) or any(
            not k.arg for k in node.keywords
        )
        if (
            not callable(called)
            or starred
            or not str(getattr(called, "__module__", "")).startswith("jaxsens")
        ):
            return
        own = [None] if isinstance(node.func, ast.Attribute) and self.kind(node.func.value) else []
        try:
            signature = inspect.signature(called)
            signature.bind(*own, *node.args, **{each.arg: None for each in node.keywords if each.arg})
        except TypeError as error:
            self.faults.append(f"{ast.unparse(node)}: {error}")

    def kind(self, node: ast.expr) -> tuple[type, ...]:
        """The classes one of which an expression gives, where a constructor or an annotation says it."""
        if isinstance(node, ast.Name):
            return self.kinds.get(node.id, ())
        called = self.found(node.func, noted=True) if isinstance(node, ast.Call) else None
        if inspect.isclass(called):
            return (called,)
        returned = str(getattr(called, "__annotations__", {}).get("return", ""))
        near = getattr(inspect.unwrap(called), "__globals__", {}) if callable(called) else {}
        names = [name for name in returned.split(" | ") if not name.startswith("list[")]
        told = [public().get(name) or near.get(name) for name in names]
        return (
            tuple(each for each in told if inspect.isclass(each)) if all(map(inspect.isclass, told)) else ()
        )

    def found(self, node: ast.expr, noted: bool = False) -> Any:
        """What a name or an attribute of this package stands for; None for anything else."""
        if isinstance(node, ast.Name):
            return self.known.get(node.id)
        if not isinstance(node, ast.Attribute):
            return None
        kinds, owner = self.kind(node.value), self.found(node.value, noted=True)
        having = [kind for kind in kinds if node.attr in members(kind) or hasattr(kind, "__getattr__")]
        if kinds and not having and not noted:
            self.faults.append(f"{ast.unparse(node)}: {kinds[0].__name__} has no {node.attr}")
        if inspect.ismodule(owner) and not hasattr(owner, node.attr) and not noted:
            self.faults.append(f"{ast.unparse(node)}: no such name")
        return getattr(having[0] if having else owner, node.attr, None)


def of_python(blocks: list[tuple[str, str]]) -> list[str]:
    """What is wrong with the Python of a page: its blocks share their names, as cells do."""
    code = Code()
    for language, text in blocks:
        if language == "python":
            text = re.sub(r"\A(---\n.*?\n---\n|(:.*\n)+)", "", text, flags=re.DOTALL)  # options of a cell
            code.visit(ast.parse(re.sub(r"(?m)^(\s*)[!%].*$", r"\1pass", text)))
    return code.faults


def of_prose(prose: str, blocks: list[tuple[str, str]], page: str = "") -> list[str]:
    """Which names in sentences are those of nothing, which calls cannot be made, and which keys no table has."""
    own = {*re.findall(r"\w+", "\n".join(text for _, text in blocks))} | ELSEWHERE
    own |= inside() if page in INSIDE else set()
    faults = []
    for code in inline(prose):
        if (key := re.fullmatch(r"\[+(\w+)\]+ (\w+)\b.*", code)) and key[1] in tables():
            faults += [code] * (key[2] not in tables()[key[1]])
            continue
        if re.fullmatch(r"[A-Za-z_]\w*", code):
            forms = {code, code.removesuffix("_total"), code.removeprefix("jaxsens_")}  # a metric's, too
            faults += [code] * forms.isdisjoint(vocabulary() | own)
            continue
        try:
            shown = ast.parse(code if not re.match(r"\w+=[^=]", code) else f"_({code})", mode="eval").body
        except SyntaxError:
            continue
        for call in (node for node in ast.walk(shown) if isinstance(node, ast.Call)):
            faults += [f"{code}: {fault}" for fault in _of_call(call, own, prose)]
    return faults


def _of_call(call: ast.Call, own: set[str], prose: str) -> Iterator[str]:
    """What is wrong with a call in a sentence, which need not show every argument."""
    name = ast.unparse(call.func).removeprefix("jaxsens.")
    given = {each.arg for each in call.keywords if each.arg}
    if name == "_":  # arguments alone: of a function that anyone calls, or of what the page names
        told = [each for key, each in public().items() if inspect.isfunction(each) or key in prose]
        accepted = {key for each in told for key in parameters(each)}
        yield from (f"no function that is named here takes {key}" for key in sorted(given - accepted - own))
    elif name in public():
        known = parameters(public()[name])
        if not any(each.kind is each.VAR_KEYWORD for each in known.values()):
            yield from (f"{name} takes no {key}" for key in sorted(given - {*known}))
        if len(call.args) > len(known):
            yield f"{name} takes fewer arguments"
    elif ("." not in name and name not in vocabulary() | own) or name in strings_only():
        yield "nothing is called so"


@cache
def strings_only() -> frozenset[str]:
    """The kinds of flips, measures and engines in configs, which cannot be called: the class has a name of its own."""
    from jaxsens.core.engines.options import AskedEngine
    from jaxsens.core.flips.flips import Flips
    from jaxsens.core.measures import Measure

    return frozenset(name for kind in (AskedEngine, Flips, Measure) for name in kind.kinds)


# Tables


@cache
def tables() -> dict[str, frozenset[str]]:
    """The keys of the tables of configs, by the table's name."""
    from jaxsens.analysis.tables.sweep import AttentionTable
    from jaxsens.core.base.strict import field_names
    from jaxsens.core.models.transformer.module import kinds as network_kinds
    from jaxsens.core.models.transformer.module import network
    from jaxsens.core.sweeps.config import Variant
    from jaxsens.core.sweeps.inputs import AllWords, PlacementTable, RandomWords, TextFile, WordFile
    from jaxsens.core.sweeps.points import Measurement
    from jaxsens.core.sweeps.sources import naming
    from jaxsens.formal.constructions.catalogue import COMMON
    from jaxsens.pretrained.source import PublishedTable
    from jaxsens.theory.tables.sweep import Bounds

    kinds = {
        "measure": (Measurement,),
        "placement": (PlacementTable,),
        "attention": (AttentionTable,),
        "bounds": (Bounds,),
        "variant": (Variant,),
        "inputs": (RandomWords, AllWords, WordFile, TextFile),
        "model": (PublishedTable, *(network(kind).of for kind in network_kinds())),
    }
    found = {table: {name for kind in of for name in field_names(kind)} for table, of in kinds.items()}
    found["model"] |= {*naming(), *COMMON, "kind", "checkpoints", "alphabet", "lm_predictions"}
    found["inputs"] |= {"kind"}
    return {table: frozenset(names) for table, names in found.items()}


def of_toml(text: str, folder: Path) -> list[str]:
    """What the reader of a config says of it. A fragment is completed to a sweep: one length, a model of two symbols
    and one variant, unless it has its own. Only files that are not there may be missing."""
    from jaxsens.core.base.errors import InputError

    try:
        _read_toml(text, tomllib.loads(text), folder)
    except (InputError, tomllib.TOMLDecodeError) as error:
        lines = str(error).split("\n  - ")
        return [line for line in lines if not re.search(r"no such|there is none|does not exist", line)]
    return []


def _read_toml(text: str, raw: dict[str, Any], folder: Path) -> None:
    from jaxsens.cli.plan import target_called
    from jaxsens.core.sweeps.config import parse_sweep_config
    from jaxsens.core.sweeps.sources import naming
    from jaxsens.training.config import TrainConfig

    if "platform" in raw:
        (folder / "device.toml").write_text(text)
        target_called(str(folder / "device.toml"))
    elif "language" in raw:
        rest = {"task": "recognition", "model": {"kind": "lstm", "width": 4}}
        rest |= {"data": {"lengths": [2, 4]}, "optimiser": {"steps": 10}, "evaluation": {"lengths": [4]}}
        TrainConfig.from_table(raw if "model" in raw else rest | raw, "train.toml")
    else:
        model = raw.get("model", {})
        named = {*naming(), "alphabet_size"} & model.keys()
        longest = 2 * raw.get("measure", {}).get("exact_up_to", 4)
        head = "" if "lengths" in raw else f"lengths = [{longest}]\n"
        tail = "" if raw.keys() & {"variant", "variants"} else '\n[[variant]]\nname = "itself"\n'
        if tail and not named:  # one that has estimates to first order, and one that has none
            head += 'variants = ["softmax", "leftmost-hard"]\n'
        if "[model]" not in text:
            tail += "\n[model]\nalphabet_size = 2\n"
        elif not named:  # [model] says some of it
            text = text.replace("[model]\n", "[model]\nalphabet_size = 2\n", 1)
        parse_sweep_config(head + text + tail, "config", folder, allow_code=True)


# Commands


def commands(prose: str, blocks: list[tuple[str, str]]) -> tuple[list[list[str]], list[str]]:
    """The command lines of `jaxsens` in a page's blocks, as words, and those within sentences, as text."""
    lines = [
        line
        for language, text in blocks
        if language in ("sh", "python", "ini", "bash")
        for line in text.replace("\\\n", " ").splitlines()
    ]
    found = [re.search(r"(?:^|[\s/!=])jaxsens ([a-z0-9]+ ?(?:[^#&|>]|(?<=\S)#)*)", line) for line in lines]
    whole = [shlex.split(each[1]) for each in found if each and "import" not in each[0]]
    return whole, [code for code in inline(prose) if re.match(r"(\.venv/bin/)?jaxsens [a-z]", code)]
