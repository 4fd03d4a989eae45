"""Mutated inputs: `python -m tools.edge_fuzz --cases 2000 --seed 0`.

Sweep configs, config.json, tokenizer.json, headers of safetensors files and arguments of `flip_sensitivity` are mutated
at random. Each must end in an `InputError`, an `OSError` or a result, within ten seconds and two gigabytes: no other
exception, no hang. The machine is taken to have one gibibyte. What goes wrong is printed with the number that makes it
again (`--only KIND NUMBER`), and the exit code is 1. `test_edges.py` runs a few of each.
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import json
import multiprocessing
import random
import resource
import struct
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

import jaxsens
from jaxsens import DurationWarning, InputError
from jaxsens.core.base import errors
from jaxsens.core.engines.options import AskedEngine
from jaxsens.core.flips.flips import Flips
from jaxsens.core.measures import Measure
from jaxsens.core.sweeps.config import load_sweep_config
from tests.core.sweeps.tiny import TINY
from tests.pretrained.folders import CONFIGS, write_folder

KINDS = ("sweep", "config", "tokenizer", "header", "arguments")

SECONDS = 10.0
"""Of all processors together, as others may use them too."""

HANGING = 120.0
"""Seconds by the clock after which a case hangs."""

BYTES = 2 * 10**9
MACHINE = 2**30
FRESH = 100
"""Cases after which a process is replaced: JAX keeps the programs that it compiles."""

SWEEP = (
    TINY
    + """
[inputs]
count = 2
kind = "uniform"

[measure]
engine = "auto"
measure = {kind = "l2", outputs = [0, 1]}

[[variant]]
name = "wide"
description = "twice as wide"
model = {width = 8, positions = ["sinusoidal", {type = "Learned", max_length = 64}]}

[[variant]]
name = "lstm"
model = {kind = "lstm", layers = 2}
"""
)
VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 1, 2, 7, 10**5, 2**31, 10**9, 10**12, 10**30, 10**400, 0.5, -0.0, 1e308, float("inf"),
    float("nan"), "", "x", "2", "../../etc/passwd", "softmax", "\u0000", "a" * 10_000, [], [[]], [0, 0], [1, [2]], {},
    {"type": "Learned"}, {"a": {"a": {"a": 1}}},
)  # fmt: skip


@dataclass
class Tally:
    """What became of the cases."""

    results: int = 0
    refused: int = 0
    said: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    slowest: float = 0.0
    largest: int = 0

    def note(self, kind: str, number: int, outcome: str, seconds: float, size: int = 0) -> None:
        """Notes how a case ended."""
        self.results += outcome == "result"
        self.refused += outcome == "refused"
        self.said[f"{kind}: {outcome.partition(chr(10))[0]}"] += 1
        self.slowest, self.largest = max(self.slowest, seconds), max(self.largest, size)
        if outcome not in ("result", "refused"):
            self.wrong.append(f"{kind} {number}: {outcome}")
        if seconds > SECONDS:
            self.wrong.append(f"{kind} {number}: {seconds:.1f} s")
        if size > BYTES:
            self.wrong.append(f"{kind} {number}: the process has grown to {size / 1e9:.2f} GB")


# Mutations


def places(tree: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of all parts of a JSON value."""
    inside = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    return [path] * bool(path) + [place for key, part in inside for place in places(part, (*path, key))]


def mutated_tree(tree: Any, rng: random.Random) -> Any:
    """A JSON value in which a few parts are others, gone, twice or under another name."""
    tree = copy.deepcopy(tree)
    for _ in range(rng.choice((0, 1, 1, 1, 2, 5))):
        listed = places(tree)
        if not listed:
            return tree
        *above, last = rng.choice(listed)
        parent = tree
        for key in above:
            parent = parent[key]
        match rng.randrange(6):
            case 0:
                del parent[last]
            case 1 if isinstance(parent, dict):
                parent[rng.choice((last + "s", last[:-1], "", "a.b"))] = parent.pop(last)
            case 2 if isinstance(parent, list):
                parent.insert(last, copy.deepcopy(parent[last]))
            case 3 if isinstance(parent[last], int | float):
                parent[last] += rng.choice((-1, 1, 10**6, 0.5))
            case _:
                parent[last] = copy.deepcopy(rng.choice(VALUES))
    return tree


def mutated_bytes(text: bytes, rng: random.Random) -> bytes:
    """A text of which a few bytes are others, gone or there again, or that is cut off."""
    found = bytearray(text)
    for _ in range(rng.choice((1, 1, 2, 8))):
        at = rng.randrange(len(found) + 1)
        length = rng.choice((1, 1, 4, 40))
        match rng.randrange(4):
            case 0:
                found[at : at + 1] = bytes([rng.randrange(256)])
            case 1:
                del found[at : at + length]
            case 2:
                found[at:at] = found[at : at + length] * rng.choice((1, 2, 500))
            case _:
                found[at:at] = rng.choice(
                    (b"[", b"{", b'"', b".", b"\n", b"\x00", b"\xff", b"9" * 5000, b"[" * 500)
                )
    return bytes(found[: rng.randrange(len(found) + 1)]) if rng.random() < 0.1 else bytes(found)


def as_json(table: Any, rng: random.Random) -> bytes:
    """The JSON text of a mutated table, sometimes with a key twice."""
    text = json.dumps(mutated_tree(table, rng))
    if rng.random() < 0.05 and text.startswith("{") and len(text) > 2:
        text = text[:-1] + ", " + text[1:]
    return text.encode()


def toml_value(value: Any) -> str:
    """A value as TOML writes it, more or less."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {toml_value(one)}" for key, one in value.items()) + "}"
    return (
        "[" + ", ".join(map(toml_value, value)) + "]"
        if isinstance(value, list)
        else json.dumps(value).lower()
    )


def mutated_toml(rng: random.Random) -> bytes:
    """A sweep's config of which some lines say something else."""
    lines: list[str] = list(SWEEP.strip().splitlines())
    for _ in range(rng.choice((1, 1, 2, 4))):
        at = rng.randrange(len(lines))
        key, equals, _ = lines[at].partition(" = ")
        match rng.randrange(5):
            case 0:
                del lines[at]
            case 1:
                lines.insert(rng.randrange(len(lines)), lines[at])
            case 2 if equals:
                lines[at] = (
                    rng.choice((key + "s", key[:-1], f"{key}.a", ".".join([key] * rng.choice((2, 20, 2000)))))
                    + lines[at][len(key) :]
                )
            case _ if equals:
                lines[at] = f"{key} = {toml_value(rng.choice(VALUES))}"
            case _:
                lines.insert(
                    at, rng.choice(("[bounds]", 'file = "../x"', "x", "[model.x]", "seed = 3", "[[variant]]"))
                )
    text = "\n".join(lines).encode()
    return mutated_bytes(text, rng) if rng.random() < 0.2 else text


# Cases


def sweep(rng: random.Random, folder: Path) -> None:
    """Reads a mutated sweep's config, and draws the words of its first point."""
    path = folder / "sweep.toml"
    path.write_bytes(mutated_toml(rng))
    load_sweep_config(path).points[0].tokens()


def loaded(folder: Path) -> None:
    """Loads a folder, and runs the model if that can be done."""
    model = jaxsens.load_pretrained(folder)
    ids = model.encode("the cat sat on a zebra")
    if model.architecture.layers <= 4:
        model(ids[: model.max_length])


def config(rng: random.Random, folder: Path) -> None:
    """Loads a folder with a mutated config.json."""
    family = rng.choice(sorted(CONFIGS))
    write_folder(folder, family)
    path = folder / "config.json"
    text = as_json(json.loads(path.read_text()), rng)
    path.write_bytes(mutated_bytes(text, rng) if rng.random() < 0.2 else text)
    loaded(folder)


def tokenizer(rng: random.Random, folder: Path) -> None:
    """Loads a folder with a mutated tokenizer.json."""
    write_folder(folder, rng.choice(("bert", "gpt2")))
    path = folder / "tokenizer.json"
    text = as_json(json.loads(path.read_text()), rng)
    path.write_bytes(mutated_bytes(text, rng) if rng.random() < 0.2 else text)
    loaded(folder)


def header(rng: random.Random, folder: Path) -> None:
    """Loads a folder whose weights have a mutated header."""
    write_folder(folder, rng.choice(("bert", "llama")))
    path = folder / "model.safetensors"
    whole = path.read_bytes()
    (size,) = struct.unpack("<Q", whole[:8])
    text = as_json(json.loads(whole[8 : 8 + size]), rng)
    if rng.random() < 0.3:
        text = mutated_bytes(whole[8 : 8 + size], rng)
    told = rng.choice((0, 8, 2**32, 2**63, 2**64 - 1, len(text) // 2)) if rng.random() < 0.1 else len(text)
    rest = whole[8 + size :]
    path.write_bytes(struct.pack("<Q", told) + text + (rest[:100] if rng.random() < 0.1 else rest))
    loaded(folder)


def summed(tokens: Any) -> Any:
    """A model that is a function."""
    return jnp.stack([jnp.sum(tokens * 1.0), jnp.max(tokens * 1.0)])


def weighted(parameters: Any, tokens: Any) -> Any:
    """A model that is a function of parameters."""
    return parameters["table"][tokens].mean(axis=0)


MODELS: tuple[Any, ...] = (
    jaxsens.Transformer(
        jaxsens.TransformerConfig(alphabet_size=3, width=4, heads=1, layers=1, feed_forward=4)
    ),
    jaxsens.training.RNN(jaxsens.training.RNNConfig(alphabet_size=3, width=4)),
    summed,
    (weighted, {"table": np.eye(4, dtype=np.float32)}),
)
_MASKED = np.ma.array([0, 1, 0, 1], mask=[False, True, False, False])
_MORE: tuple[Any, ...] = (
    np.array([0, 1]), np.array([[0, 1], [1, 0]]), np.zeros((0,), int), np.zeros((2, 0)), _MASKED, np.ma.masked, 3 + 4j,
    np.array([0.5]), np.int64(1), np.float32("nan"), range(3), {3: [0, 1]}, {0, 1}, (0, 1), [(1, 0)], [(0, 1), (2,)],
    b"01", object(), jnp.arange(3), np.datetime64("now"), np.array(["0", "1"]), np.array([10**20]), lambda *given: 0.0,
    [None], [0, None], [2**31], [-1], [10**30], [[0, 1], [1]], ["0", "1"], "auto", "last", "mean", "all", "l1",
)  # fmt: skip
ANYTHING = VALUES + _MORE
LONG = (10**6, 10**8, 10**9)
TOKENS: tuple[Any, ...] = ([0, 1, 1, 0, 1], [[0, 1, 1], [1, 0, 1]], [[0, 1], [1, 0, 1]], np.arange(12) % 2)
USUAL: dict[str, tuple[Any, ...]] = {
    "flips": (2, 3, [0, 1], {1: [0]}, "delete", jaxsens.Pairs([(1, 0), (2, 0)]), jaxsens.Substitute(groups=[(0, 1)])),
    "measure": ("l1", "linf", "cosine", "kl", "decision", jaxsens.Function(jnp.sum), jaxsens.Decision(0.5)),
    "engine": ("vmap", "incremental", "difference", "first-order", jaxsens.FirstOrder(sketch=1, verify=2)),
    "placement": (jaxsens.Placement(batch_size=3), jaxsens.Placement(memory_budget=2**28)),
    "readout": ("last", 0, "mean", None), "progress": (False,),
}  # fmt: skip
MADE: dict[str, tuple[Callable[..., Any], ...]] = {
    "flips": tuple(Flips.kinds.values()), "measure": tuple(Measure.kinds.values()),
    "engine": tuple(AskedEngine.kinds.values()), "placement": (jaxsens.Placement,),
}  # fmt: skip
"""What makes the objects of arguments. A table of their fields makes them too."""


def made(rng: random.Random, name: str) -> Any:
    """An object for an argument, or a table of one, of which some fields are usual and some are anything."""
    kind = rng.choice(MADE[name])
    fields = sorted(field.name for field in dataclasses.fields(cast(Any, kind)) if field.init)
    chosen = rng.sample(fields, min(len(fields), rng.choice((0, 1, 2))))
    given = {field: rng.choice(rng.choice((ANYTHING, (2, [0, 1], [(0, 1)])))) for field in chosen}
    if rng.random() < 0.3 and name != "placement":
        return {"kind": cast(Any, kind).kind, **given}
    return kind(**given)


def arguments(rng: random.Random, folder: Path) -> None:
    """Calls `flip_sensitivity` or `explain` with arguments of which some are usual and some are anything."""
    del folder
    model, tokens = rng.choice(MODELS), rng.choice(TOKENS)
    if rng.random() < 0.3:
        tokens = rng.choice((*ANYTHING, *(np.broadcast_to(np.int8(0), n) for n in LONG)))
    names = rng.sample(sorted(USUAL), rng.choice((0, 1, 2, 3)))
    given = {name: rng.choice(USUAL[name] if rng.random() < 0.5 else ANYTHING) for name in names}
    if rng.random() < 0.4:
        name = rng.choice(sorted(MADE))
        given[name] = made(rng, name)
    if len(given) < 2 and model in MODELS[2:]:
        given.setdefault("flips", 2)
    if rng.random() < 0.2:
        asked = {name: given[name] for name in given.keys() & {"flips", "measure", "readout", "engine"}}
        jaxsens.explain(model, rng.choice((4, 9, *LONG, *ANYTHING)), **asked)
        return
    if isinstance(tokens, np.ndarray) and tokens.size in LONG:
        given.pop("progress", None)  # which would leave out the warning that ends a long measurement
    jaxsens.flip_sensitivity(model, tokens, **given)


CASES: dict[str, Callable[[random.Random, Path], None]] = {
    case.__name__: case for case in (sweep, config, tokenizer, header, arguments)
}


def outcome_of(kind: str, number: int) -> str:
    """Runs a case: "result", "refused", or what went wrong."""
    rng = random.Random(f"{kind} {number}")
    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.object(errors, "machine_memory", return_value=MACHINE),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", DurationWarning)
        try:
            CASES[kind](rng, Path(folder))
        except (InputError, OSError, DurationWarning) as error:
            return "refused" if str(error) else f"{type(error).__name__} without words"
        except BaseException as error:  # a panic of a library in Rust is no Exception
            if isinstance(error, KeyboardInterrupt | SystemExit):
                raise
            return "".join(traceback.format_exception(error)[-1:] + traceback.format_exception(error)[-4:-1])
    return "result"


def fuzz(kind: str, numbers: Iterable[int], tally: Tally) -> None:
    """Runs cases in this process, whose size is not looked at: others have made it grow."""
    for number in numbers:
        began = time.process_time()
        outcome = outcome_of(kind, number)
        tally.note(kind, number, outcome, time.process_time() - began)


# Processes


def _work(asked: Any) -> None:
    """Runs the cases that a pipe names, and says how each ended, and how large the process has been."""
    asked.send("ready")
    while True:
        kind, number = asked.recv()
        began = time.process_time()
        outcome = outcome_of(kind, number)
        seconds = time.process_time() - began
        if number % 10 == 0:
            jax.clear_caches()
        asked.send((outcome, seconds, 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss))


class Worker:
    """A process that runs cases, one after the other."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, far = context.Pipe()
        self._process = context.Process(target=_work, args=(far,), daemon=True)
        self._process.start()
        far.close()
        self._pipe.recv()

    def run(self, kind: str, number: int) -> tuple[str, float, int]:
        """How a case ended, its seconds, and the bytes of the process; a hang, or the process's end, if it did not."""
        self._pipe.send((kind, number))
        try:
            if not self._pipe.poll(HANGING):
                self.end()
                return f"no end in {HANGING:g} s", 0.0, 0
            return self._pipe.recv()
        except EOFError:
            return f"the process ended: {self._process.exitcode}", 0.0, 0

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self._process.is_alive()

    def end(self) -> None:
        """Ends the process."""
        self._process.kill()
        self._process.join()


def main() -> int:
    """Runs the cases of all kinds in turn; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs=2, metavar=("KIND", "NUMBER"))
    asked = parser.parse_args()
    if asked.only is not None:
        print(outcome_of(asked.only[0], int(asked.only[1])))
        return 0
    tally, began, worker = Tally(), time.perf_counter(), Worker()
    for k in range(asked.cases):
        kind, number = KINDS[k % len(KINDS)], 10**6 * asked.seed + k // len(KINDS)
        if not worker.alive or k % FRESH == FRESH - 1:
            worker.end()
            worker = Worker()
        before = len(tally.wrong)
        outcome, seconds, size = worker.run(kind, number)
        tally.note(kind, number, outcome, seconds, size)
        for line in tally.wrong[before:]:
            print(line, flush=True)
        if size > BYTES:
            worker.end()
    worker.end()
    for said, count in sorted(tally.said.items()):
        print(f"{count:6} {said}")
    print(
        f"{asked.cases} cases in {time.perf_counter() - began:.0f} s: {tally.results} results, {tally.refused} "
        f"refused, {len(tally.wrong)} wrong; the slowest took {tally.slowest:.1f} s of processors, the largest process "
        f"had {tally.largest / 1e9:.2f} GB"
    )
    return 1 if tally.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
