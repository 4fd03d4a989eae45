"""`python -m tools.trace_call` counts what of jaxsens runs before the first flip does.

A call of `flip_sensitivity` with every option at its default, on a small transformer, runs in a fresh process. Counted
are the functions entered until the program that computes flips is called, and the files that they stand in. That
program is the first that gets every flip, in their order: their symbols, or the words that they make.

The modules that the call imports are imported before it, so that functions which only importing runs do not count.
`PYTHONPATH=../then python tools/trace_call.py` counts those of another checkout.
"""

from __future__ import annotations

import argparse
import functools
import inspect
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import jax
import numpy as np

WORD = (0, 1, 1, 0, 1, 0, 0, 0, 1, 1, 0, 2)
"""A word whose flips no other array of a call is likely to hold. Its last symbol ends the sequence."""


def holds_every_flip(leaves: Sequence[Any]) -> bool:
    """Whether some array among the arguments of a program has the symbol of every flip, or the word, in their order."""
    word = np.array(WORD)
    symbols = 1 - word[:-1]
    words = np.repeat(word[None], len(symbols), 0)
    words[np.arange(len(symbols)), np.arange(len(symbols))] = symbols
    for leaf in leaves:
        if not np.issubdtype(getattr(leaf, "dtype", np.float32), np.integer):
            continue
        try:
            values = np.asarray(leaf).ravel()
        except (TypeError, RuntimeError, jax.errors.JAXTypeError):  # traced, or of several processes
            continue
        for sought in (symbols, words.ravel()):
            starts = range(len(values) - len(sought) + 1)
            if any(np.array_equal(values[start : start + len(sought)], sought) for start in starts):
                return True
    return False


class Watched:
    """A jitted function, or what it was lowered or compiled to, that tells before it is run."""

    def __init__(self, inner: Any, tell: Callable[[Any], None]) -> None:
        self.inner, self.tell = inner, tell
        functools.update_wrapper(self, inner, updated=())

    def __call__(self, *args: Any, **options: Any) -> Any:
        """Runs it."""
        self.tell((args, options))
        return self.inner(*args, **options)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.inner, name)
        if name not in ("trace", "lower", "compile"):
            return value
        return lambda *args, **options: Watched(value(*args, **options), self.tell)


class Trace:
    """The functions entered so far, in order, until the program of the flips is called."""

    def __init__(self, package: str) -> None:
        self.package, self.entered, self.over = package, {}, False
        self.own: dict[CodeType, str | None] = {}

    def profile(self, frame: FrameType, event: str, _argument: Any) -> None:
        """What `sys.setprofile` calls."""
        if event != "call" or self.over:
            return
        code = frame.f_code
        if code not in self.own:
            is_function = code.co_flags & inspect.CO_OPTIMIZED and not code.co_name.startswith("<")
            inside = code.co_filename.startswith(self.package + os.sep)
            self.own[code] = (
                os.path.relpath(code.co_filename, self.package) if inside and is_function else None
            )
        file = self.own[code]
        if file is not None:
            self.entered.setdefault((file, code.co_qualname, code.co_firstlineno))

    def tell(self, given: Any) -> None:
        """What a program is called with."""
        if not self.over and holds_every_flip(jax.tree.leaves(given)):
            self.over = True


def modules_of_ours() -> list[str]:
    """The modules of jaxsens imported so far."""
    return sorted(name for name in sys.modules if name.split(".")[0] == "jaxsens")


def call(modules: Sequence[str]) -> dict[str, Any]:
    """Imports the modules, makes the call, and returns what it entered and imported."""
    trace = Trace("")
    compiled = jax.jit
    jax.jit = lambda *args, **options: (  # pyright: ignore[reportAttributeAccessIssue]
        Watched(compiled(*args, **options), trace.tell)
        if args
        else lambda function: Watched(compiled(function, **options), trace.tell)
    )
    import jaxsens

    for name in modules:
        import_module(name)
    trace.package = str(Path(jaxsens.__file__).parent)
    config = jaxsens.TransformerConfig(alphabet_size=2, width=8, heads=2, layers=2, feed_forward=16)
    model = jaxsens.Transformer(config, seed=0)
    threading.setprofile(trace.profile)
    sys.setprofile(trace.profile)
    result = jaxsens.flip_sensitivity(model, np.array(WORD))
    sys.setprofile(None)
    if not trace.over or len(result) != len(WORD) - 1:
        sys.exit(
            "no program got every flip in their order: tools.trace_call has to learn how flips are passed on"
        )
    return {"entered": [*trace.entered], "modules": modules_of_ours(), "engine": result.engine.name}


def in_a_process(modules: Sequence[str]) -> dict[str, Any]:
    """What `call` returns in a fresh process."""
    package = find_spec("jaxsens")
    if package is None or package.origin is None:
        sys.exit("jaxsens is not importable: run this in a checkout, or set PYTHONPATH to one")
    ran = subprocess.run(
        [sys.executable, __file__, "--modules", json.dumps(modules)],
        capture_output=True,
        text=True,
        env={**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(Path(package.origin).parents[1])},
    )
    if ran.returncode:
        sys.exit(ran.stderr)
    return json.loads(ran.stdout.splitlines()[-1])


def main() -> int:
    """Prints the numbers."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--list", action="store_true", help="print the files in the order in which they are entered"
    )
    parser.add_argument("--modules", type=json.loads, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.modules is not None:
        print(json.dumps(call(arguments.modules)))
        return 0
    found = in_a_process(in_a_process([])["modules"])
    files: dict[str, int] = {}
    for file, _name, _line in found["entered"]:
        files[file] = files.get(file, 0) + 1
    if arguments.list:
        for file, count in files.items():
            print(f"{file}: {count}")
    print(
        f"{len(files)} files and {len(found['entered'])} functions before the first flip ({found['engine']})"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
