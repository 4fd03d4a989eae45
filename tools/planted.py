"""A pytest plugin that plants one fault: `JAXSENS_FAULT=NAME python -m pytest -p tools.planted tests/...`.

`tools/faults.toml` says where a fault lies, and `tools/faults.py` what it does. The code of the function is exchanged
when its module is imported, so other modules that import the function have the fault too. `tools.plant` plants all
faults, one by one, also in the processes that tests start.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.util
import inspect
import os
import sys
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
TABLE = ROOT / "tools" / "faults.toml"
FAULT = "JAXSENS_FAULT"
"""The environment variable that names the fault."""

LOG = "JAXSENS_FAULT_LOG"
"""The environment variable that names a file, to which each process adds a line when it reaches the fault."""


@dataclass(frozen=True)
class Fault:
    """A fault.

    Attributes:
        name: with hyphens; its function in `tools.faults` has underscores.
        room: a room of `tools/lines.toml`.
        effect: what goes wrong for a user.
        at: the function that has it, as "module:name" or "module:Class.name".
        tests: the test files of its room.
    """

    name: str
    room: str
    effect: str
    at: str
    tests: tuple[str, ...]

    def body(self) -> Callable[..., Any]:
        """Returns what runs in place of the function: called with the original, then its arguments."""
        return getattr(importlib.import_module("tools.faults"), self.name.replace("-", "_"))

    def function(self) -> FunctionType:
        """Returns the function that gets the fault.

        Raises:
            LookupError: if there is none at this place.
        """
        module, _, path = self.at.partition(":")
        *owners, name = path.split(".")
        try:
            owner: Any = importlib.import_module(module)
            for part in owners:
                owner = vars(owner)[part]
            found = vars(owner)[name]
        except (ImportError, KeyError) as error:
            raise LookupError(
                f"{self.name}: nothing at {self.at}: correct the path in {TABLE.name}"
            ) from error
        for inner in ("__func__", "fget", "func"):  # static and class methods, properties, cached properties
            found = getattr(found, inner, found)
        found = inspect.unwrap(found)
        if not isinstance(found, FunctionType):
            raise LookupError(f"{self.name}: {self.at} is no Python function")
        return found

    def plant(self) -> None:
        """Exchanges the code of the function."""
        function, body = self.function(), self.body()
        code, closure = function.__code__, function.__closure__
        original = FunctionType(code, function.__globals__, function.__name__, function.__defaults__, closure)
        original.__kwdefaults__ = function.__kwdefaults__
        signature, reached = inspect.signature(function), False

        def faulty(*given: Any, **named: Any) -> Any:
            nonlocal reached
            if not reached and (log := os.environ.get(LOG)):
                with open(log, "a", encoding="utf-8") as file:
                    file.write(f"{self.name}\n")
            reached = True
            return body(original, *given, **named)

        function.__globals__["__faulty__"] = faulty
        function.__defaults__ = function.__kwdefaults__ = None
        function.__code__ = _calls_faulty.__code__.replace(co_freevars=code.co_freevars, co_name=code.co_name)
        function.__signature__ = signature  # pyright: ignore[reportFunctionMemberAccess]


def _calls_faulty(*given: Any, **named: Any) -> Any:
    return __faulty__(*given, **named)  # pyright: ignore[reportUndefinedVariable]


def faults(path: Path = TABLE) -> dict[str, Fault]:
    """Returns the faults of the table by name."""
    table = tomllib.loads(path.read_text("utf-8"))
    return {name: Fault(name, **{**one, "tests": tuple(one["tests"])}) for name, one in table.items()}


class _Planting(importlib.abc.MetaPathFinder):
    """Plants a fault once its module has been executed, before any other module imports from it."""

    def __init__(self, fault: Fault) -> None:
        self.fault, self.module = fault, fault.at.partition(":")[0]

    def find_spec(
        self, fullname: str, path: Any = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Returns the spec of the module of the fault, whose loader then plants it."""
        if fullname != self.module:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def executed(module: ModuleType) -> None:
            execute(module)
            self.fault.plant()

        spec.loader.exec_module = executed
        return spec


def _begin(name: str) -> None:
    fault = faults()[name]
    if fault.at.partition(":")[0] in sys.modules:
        fault.plant()
    else:
        sys.meta_path.insert(0, _Planting(fault))


if os.environ.get(FAULT):
    _begin(os.environ[FAULT])
