"""Arguments of wrong types and values: `python -m tools.wrong_arguments`.

Every public function, class and method is called with each of its arguments in turn replaced by each of `WRONG`; every
command with each of its options. A call must end in a result or an `InputError` that names the argument; a command in
the exit code 0, 1 or 2 and one error. What goes wrong is printed. `test_edges.py` runs them.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import inspect
import io
import os
import re
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

import jaxsens
from jaxsens import DurationWarning, InputError, languages, logic, theory
from jaxsens.core.base import errors
from tests.documents import public_modules
from tests.pretrained.folders import write_folder
from tests.training.tiny import tiny

SECONDS = 5.0
"""Of all processors together: a wrong argument is refused before long work."""

WRONG: dict[str, Any] = {
    "None": None, "object": object(), "text": "x", "empty text": "", "bytes": b"x", "NaN": float("nan"),
    "infinity": float("inf"), "minus one": -1, "zero": 0, "huge": 10**30, "too large a float": 10**400, "half": 0.5,
    "complex": 3 + 4j, "ragged": [[0, 1], [1]], "empty": [], "texts": ["x"], "nones": [None], "dict": {"a": 1},
    "pairs": {0: None}, "missing path": Path("no") / "such" / "place", "NUL": "\x00", "surrogate": "\ud800",
    "lambda": lambda: None, "true": True, "array of texts": np.array(["x"]), "empty array": np.zeros((0, 2)),
    "class": int, "iterator": iter(()), "set": {1, "x"}, "quote": "'",
}  # fmt: skip

# Right arguments


def summed(y: Any) -> Any:
    """A number of an output."""
    return jnp.sum(y)


def of_both(y: Any, new: Any) -> Any:
    """A number of two outputs."""
    return jnp.sum(y * new)


def summed_leaves(parameters: Any) -> Any:
    """A number of parameters."""
    return sum(jnp.sum(leaf) for leaf in jax.tree.leaves(parameters))


@cache
def prepared() -> dict[str, Any]:
    """What right arguments are made of."""
    folder = Path(tempfile.mkdtemp(prefix="wrong-arguments-"))
    (folder / "bert").mkdir()
    write_folder(folder / "bert", "bert")
    model = jaxsens.Transformer(
        jaxsens.TransformerConfig(alphabet_size=2, width=4, heads=1, layers=1, feed_forward=4, logits=3)
    )
    result = jaxsens.flip_sensitivity(model, [0, 1, 1, 0])
    hard = jaxsens.Transformer(
        jaxsens.TransformerConfig(2, width=4, heads=1, layers=1, feed_forward=0, weighting="leftmost-hard")
    )
    normed = jaxsens.Transformer(jaxsens.TransformerConfig(2, width=4, heads=1, layers=1, layer_norm="pre"))
    return {
        "folder": folder, "model": model, "result": result, "hard": hard, "config": tiny(), "normed": normed,
        "restriction": theory.restrict(hard, 8),
    }  # fmt: skip


LANGUAGE = languages.Parity()
GENERATOR = np.random.default_rng(0)
MEMBER = logic.formula("parity")
WORDS = np.array([[0, 1, 1, 0]])
SHAPE: dict[str, Any] = {"width": 4, "layers": 1, "heads": 1, "hidden": 4, "symbols": 3, "longest": 8}
SHAPE |= {"causal": True, "activation": "relu"}

RIGHT: dict[str, Callable[[], Any]] = {
    "model": lambda: prepared()["model"], "subject": lambda: prepared()["model"], "tokens": lambda: [0, 1, 1, 0],
    "n": lambda: 4, "result": lambda: prepared()["result"], "results": lambda: [prepared()["result"]],
    "path": lambda: prepared()["folder"] / "kept", "scores": lambda: [[0.0, -1.0]], "gaps": lambda: [0.5],
    "generator": lambda: GENERATOR, "count": lambda: 2, "formula": lambda: MEMBER, "alphabet": lambda: ["0", "1"],
    "prefixes": lambda: WORDS, "word": lambda: ["0", "1"], "text": lambda: "the cat", "longest": lambda: 4,
    "q": lambda: 0.5, "name": lambda: "parity", "left": lambda: MEMBER, "right": lambda: MEMBER,
    "operand": lambda: MEMBER, "ids": lambda: [2, 8, 3], "lengths": lambda: [4, 5, 6], "epsilon": lambda: 0.1,
    "config": lambda: prepared()["config"], "alphabet_size": lambda: 2, "pairs": lambda: [(1, 0)], "f": lambda: summed,
    "count_of": lambda: logic.CountLeft(MEMBER), "heads": lambda: 1, "symbol": lambda: 1, "token": lambda: 1,
    "largest_length": lambda: 4, "log_probabilities": lambda: np.zeros((1, 5)), "statistic": lambda: "mean",
    "table": lambda: prepared()["config"].table(), "k": lambda: 0, "models": lambda: {"one": lambda n, seed: summed},
    "parameters": lambda: {"a": jnp.ones(2)}, "key": lambda: jax.random.key(0), "noise": lambda: 0.1,
    "loss": lambda: summed_leaves, "weights": dict, "symbols": lambda: [0, 1],
    "module": lambda: prepared()["model"], "gram": lambda: ["0", "1"], "hops": lambda: 1, "output": lambda: "0",
    "value": lambda: logic.CountLeft(MEMBER), "relation": lambda: ">=", "wanted": lambda: 1, "copies": lambda: 2,
    "address": lambda: "http://127.0.0.1:9", "directory": lambda: prepared()["folder"] / "missing",
    "folder": lambda: prepared()["folder"] / "bert", "language": lambda: LANGUAGE, "condition": lambda: "temperature",
    "weighting": lambda: "softmax", "given": lambda: "cat", "job": lambda: "1",
}  # fmt: skip
"""By the argument's name; a call may have others."""


@dataclass(frozen=True)
class Call:
    """A public callable, and what it is called with where an argument has to be given and is not in `RIGHT`."""

    name: str
    function: Callable[..., Any]
    given: dict[str, Callable[[], Any]] = field(default_factory=dict)
    runs: bool = True
    """Whether the right arguments give a result; otherwise they are refused, or take long."""

    def arguments(self) -> dict[str, inspect.Parameter]:
        """Its arguments by name."""
        return dict(inspect.signature(self.function).parameters)

    def right(self) -> dict[str, Any]:
        """Right arguments: those that must be given, and those that are given here."""
        needed = [
            name
            for name, one in self.arguments().items()
            if one.default is inspect.Parameter.empty
            and one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL)
        ]
        return {name: {**RIGHT, **self.given}[name]() for name in dict.fromkeys([*needed, *self.given])}

    def __call__(self, **given: Any) -> Any:
        first = [name for name, one in self.arguments().items() if one.kind is one.POSITIONAL_ONLY]
        placed = [given.pop(name) for name in first if name in given]
        return self.function(*placed, **given)  # options have any name


_ENGINES_CALL = {
    "agree", "apart", "atom_text", "attention", "at_length", "between", "budget", "check", "chosen", "combined",
    "differs", "drawing", "drawn", "equals", "given", "of", "of_array", "of_changes", "of_outputs", "output_of",
    "refusal", "resolution", "rows_of", "scale", "shaped", "shorthand", "text", "told", "values", "without_function",
    "written", "least", "holds", "as_sum",
}  # fmt: skip
"""Methods by which a part of the package asks another, some of them inside compiled programs: no user calls them."""


def methods(name: str, made: Callable[[], Any], **given: Callable[[], Any]) -> Iterator[Call]:
    """A call of each public method of an object that takes arguments."""
    one = made()
    for method in sorted(dir(type(one))):
        if (method.startswith("_") and method != "__call__") or method in _ENGINES_CALL:
            continue
        if callable(getattr(type(one), method)):
            found = getattr(one, method)
            own = str(getattr(found, "__module__", "")).startswith("jaxsens.")
            if own and inspect.signature(found).parameters:
                right = {k: v for k, v in given.items() if k in _names(found)}
                if method in ("to_html", "to_png", "to_svg"):
                    right["path"] = lambda ending=method[3:]: prepared()["folder"] / f"picture.{ending}"
                yield Call(f"{name}.{method}", found, right)


def _names(function: Callable[..., Any]) -> set[str]:
    return set(inspect.signature(function).parameters)


SWEEP: dict[str, Callable[[], Any]] = {"lengths": lambda: [2, 3, 4], "seeds": lambda: 2, "flips": lambda: 2}
CONFIGS = {
    "Transformer": jaxsens.TransformerConfig, "LSTM": jaxsens.training.LSTMConfig, "RNN": jaxsens.training.RNNConfig,
    "Convolution": jaxsens.training.ConvolutionConfig,
}  # fmt: skip


def torch_module() -> Any:
    """A PyTorch module; a model that is none without PyTorch."""
    try:
        torch: Any = importlib.import_module("torch")
    except ModuleNotFoundError:
        return prepared()["model"]
    return torch.nn.Embedding(2, 3).eval()


def own_arguments() -> dict[str, dict[str, Callable[[], Any]]]:
    """Right arguments of one function or class, where its argument is not what the name means elsewhere."""
    here = prepared()
    return {
        "flip_sensitivity": {"progress": lambda: False}, "sweep": SWEEP, "Function": {"f": lambda: summed},
        "Comparison": {"f": lambda: of_both}, "Pairs": {"flips": lambda: [(1, 0)]},
        "Architecture": {name: lambda one=one: one for name, one in SHAPE.items()}, "Mask": {"symbol": lambda: 1},
        "Insert": {"symbols": lambda: [0, 1]},
        "soften": {"n": lambda: 3, "model": lambda: jaxsens.construction("parity", "average-hard")},
        "compile_formula": {"formula": lambda: "Q_0", "alphabet": lambda: ["0", "1"]},
        "from_weights": {"architecture": lambda: jaxsens.pretrained.Architecture(**SHAPE)},
        "check": {"restriction": lambda: theory.restrict(here["hard"], 8), "model": lambda: here["hard"]},
        "restrict": {"model": lambda: here["hard"], "n": lambda: 8, "symbols": lambda: [0, 1]},
        "misclassified_pair": {"model": lambda: here["hard"], "language": lambda: "parity", "n": lambda: 8},
        "layer_norm_blowup": {"subject": lambda: here["normed"], "tokens": lambda: WORDS},
        "evaluate_tokens": {"tokens": lambda: WORDS}, "parse": {"text": lambda: "Q_0"},
        "Predicate": {"family": lambda: FAMILY, "arguments": lambda: ()},
        "PredicateFamily": {"name": lambda: "f", "parameters": tuple, "function": lambda: bool},
        "CountComparison": {"terms": lambda: ((1, logic.CountLeft(MEMBER)),), "constant": lambda: 0},
        "LinearSum": {"terms": lambda: ((1, logic.CountLeft(MEMBER)),)}, "Constant": {"value": lambda: True},
        "Symbol": {"name": lambda: "a"}, "PositionPredicate": {"predicate": lambda: EVEN},
        "CountPredicate": {"predicate": lambda: EVEN, "count": lambda: logic.CountLeft(MEMBER)},
        "FormulaLanguage": {"symbols": lambda: ("0", "1")}, "Client": {"token": lambda: "t"},
        "TrainConfig": {
            "language": lambda: LANGUAGE, "model": lambda: jaxsens.training.RNNConfig(2),
            "optimiser": lambda: here["config"].optimiser, "data": lambda: here["config"].data,
        },
        "from_torch": {"module": torch_module},
        **{name: {"config": lambda of=of: of(2, width=4)} for name, of in CONFIGS.items()},
    }  # fmt: skip


def _objects() -> dict[str, Any]:
    """One object of each class whose methods users call."""
    model = prepared()["model"]
    return {
        "FlipSensitivity": prepared()["result"], "Transformer": model,
        "LSTM": jaxsens.training.LSTM(jaxsens.training.LSTMConfig(2, width=4)),
        "CompiledTransformer": jaxsens.construction("parity"),
        "PretrainedModel": jaxsens.load_pretrained(prepared()["folder"] / "bert", output="logits"),
        "TransformerConfig": model.config, "RowChanges": jaxsens.analysis.layer_changes(model, [0, 1, 1, 0]),
        "AttentionStatistics": jaxsens.analysis.attention_statistics(model, [0, 1, 1, 0]),
        "CriticalTemperatures": jaxsens.analysis.critical_temperatures(model, [0, 1, 1, 0]),
        "WorstInput": jaxsens.theory.worst_input(model, 3), "Lemma5": theory.lemma5(model, 4),
        "CertifiedBound": theory.certified_bound(model, 4), "Restriction": prepared()["restriction"],
        "TrainConfig": prepared()["config"],
        "SweepResult": jaxsens.sweep(RIGHT["models"](), **{name: one() for name, one in SWEEP.items()}),
        "Automaton": logic.automaton(MEMBER, ["0", "1"]), "EVEN": FAMILY,
        "Parity": LANGUAGE, "Majority": languages.Majority(), "Dyck": languages.Dyck(2),
        "FlipFlop": languages.FlipFlop(), "FormulaLanguage": jaxsens.language(MEMBER, ["0", "1"]),
        "SetComplement": languages.SetComplement(4), "Client": jaxsens.service.Client("http://127.0.0.1:9", "t"),
        "EqualBlocks": languages.EqualBlocks(), "OneStar": languages.OneStar(),
    }  # fmt: skip


SPECIAL: dict[str, dict[str, Callable[[], Any]]] = {
    "AttentionStatistics": {"statistic": lambda: "entropy"}, "RowChanges": {"statistic": lambda: "mean"},
    "PretrainedModel": {"text": lambda: "cat"},
    "Restriction": {"word": lambda: np.maximum(prepared()["restriction"].values, 0)},
    "Automaton": {"n": lambda: 3, "tokens": lambda: WORDS}, "Client": {"model": lambda: "m", "tokens": lambda: "t"},
    "Parity": {"tokens": lambda: WORDS}, "SweepResult": {"directory": lambda: prepared()["folder"] / "report"},
    "Dyck": {"log_probabilities": lambda: np.zeros((1, 4)), "prefixes": lambda: np.zeros((1, 4), int)},
}  # fmt: skip
"""Right arguments of the methods of one object."""


@cache
def calls() -> tuple[Call, ...]:
    """Every call: of public functions, of classes that users make objects of, of methods of objects."""
    own, made = own_arguments(), []
    for module in public_modules():
        for name in public_names(module):
            given, runs = own.get(name, {}), name not in _LEFT_OUT
            made.append(Call(f"{module.__name__}.{name}", getattr(module, name), given, runs))
    made.append(Call("jaxsens.construction(dyck)", _dyck, {"kinds": lambda: 2}))
    made.append(Call("jaxsens.construction(chiang-cholak-parity)", _chiang))
    made.append(Call("jaxsens.language(options)", _language))
    for name, one in _objects().items():
        made.extend(methods(name, lambda one=one: one, **SPECIAL.get(name, {})))
    return tuple(made)


FAMILY = logic.PredicateFamily("even", (), lambda value: value % 2 == 0)
EVEN = logic.Predicate(FAMILY)
_LEFT_OUT = {
    "load_checkpoint", "load_result", "load_sweep", "from_weights", "from_torch", "train",
}  # fmt: skip
"""What is refused with the right arguments too: files that are not there."""


def public_names(module: Any) -> Iterator[str]:
    """Yields the names of public functions, and of classes that users make objects of: not of results and errors."""
    names = getattr(module, "__all__", None) or [name for name in vars(module) if not name.startswith("_")]
    for name in sorted(names):
        found: Any = getattr(module, name)
        own = getattr(found, "__module__", "").startswith("jaxsens.")
        if own and inspect.isroutine(found):
            yield name
        made_by_users = (
            own and inspect.isclass(found) and name not in RETURNED and not inspect.isabstract(found)
        )
        if (
            made_by_users
            and BaseException not in getattr(found, "__mro__", ())
            and inspect.signature(found).parameters
        ):
            yield name


RETURNED = {
    "AttentionStatistics", "Automaton", "CertifiedBound", "ClosingChoice", "CompiledTransformer", "CorpusRow",
    "CriticalTemperatures", "DescribedModel", "FlipSensitivity", "KeptPrograms",
    "RowChanges", "Lemma5", "MisclassifiedPair", "ModelChanges", "NamedFormula",
    "PretrainedModel", "Restriction", "SweepResult", "TrainedModel", "Verdict",
    "Words", "WorstInput", "Layered",
}  # fmt: skip
"""Classes whose objects functions return: users make none."""


def _dyck(kinds: Any) -> Any:
    return jaxsens.construction("dyck", kinds=kinds)


def _chiang(
    layer_norm: Any = False, layer_norm_epsilon: Any = 0.0, log_length: Any = True, sharpness: Any = 1.0
) -> Any:
    given = {"layer_norm": layer_norm, "layer_norm_epsilon": layer_norm_epsilon, "log_length": log_length}
    return jaxsens.construction("chiang-cholak-parity", **given, sharpness=sharpness)


def _language(end_probability: Any = 0.1) -> Any:
    return jaxsens.language("parity", end_probability=end_probability)


# Outcomes


@dataclass
class Tally:
    """What became of the calls."""

    said: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    slowest: float = 0.0

    def note(self, what: str, outcome: str, seconds: float) -> None:
        """Notes how a call ended."""
        kind = outcome.partition(":")[0]
        self.said[kind] += 1
        self.slowest = max(self.slowest, seconds)
        if kind in ("raw", "unnamed"):
            self.wrong.append(f"{what}: {outcome}")
        if seconds > SECONDS:
            self.wrong.append(f"{what}: {seconds:.1f} s")


@contextlib.contextmanager
def elsewhere() -> Iterator[None]:
    """A block in an empty folder, on a machine of one gibibyte, in which long work and standard output end."""
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.chdir(folder),
        mock.patch.object(errors, "machine_memory", return_value=2**30),
        contextlib.redirect_stdout(io.StringIO()),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", DurationWarning)
        yield


def outcome_of(call: Call, name: str, value: Any) -> str:
    """Makes a call with one argument replaced: "result", "refused", "unnamed: ..." or "raw: ..."; "sent" where the
    service, which is not there, would judge it."""
    signal.signal(signal.SIGALRM, _too_long)
    signal.alarm(int(4 * SECONDS))
    try:
        made = call(**{**call.right(), name: value})
        if hasattr(made, "close"):
            made.close()
    except (jaxsens.service.ServiceError, logic.FormulaSyntaxError) as error:
        return (
            "sent" if isinstance(error, jaxsens.service.ServiceError) else "refused"
        )  # at a column of the text
    except (InputError, DurationWarning) as error:
        named = not call.runs or re.search(rf"\b{name}\b|\b{name.replace('_', ' ')}\b", str(error))
        return "refused" if named else f"unnamed: {error}"
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt | SystemExit):
            raise
        where = traceback.extract_tb(error.__traceback__)[-1]
        inner = [one for one in traceback.extract_tb(error.__traceback__) if "/jaxsens/" in one.filename]
        where = inner[-1] if inner else where
        place = f"{Path(where.filename).parent.name}/{Path(where.filename).name}:{where.lineno}"
        return f"raw: {type(error).__name__} at {place}: {str(error)[:150]}"
    finally:
        signal.alarm(0)
    return "result"


def _too_long(number: int, frame: Any) -> None:
    raise TimeoutError(f"no end in {4 * SECONDS:g} s")


def cases(call: Call) -> Iterator[tuple[str, str]]:
    """Yields each argument of a call with the name of each wrong value."""
    for name, one in call.arguments().items():
        if one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL):
            for wrong in WRONG:
                yield name, wrong


def tried(call: Call, tally: Tally) -> None:
    """Makes a call with each argument replaced by each wrong value."""
    with elsewhere():
        for name, wrong in cases(call):
            value = iter(()) if wrong == "iterator" else WRONG[wrong]
            began = time.process_time()
            outcome = outcome_of(call, name, value)
            tally.note(f"{call.name}({name}={wrong})", outcome, time.process_time() - began)


ENDLESS: dict[str, str] = {}
"""Calls of `main` that are not made, with the reason."""


def main() -> int:
    """Makes all calls, prints those that go wrong, and counts; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="calls whose name contains this")
    parser.add_argument("--seconds", type=float, default=300, help="no call begins later than this")
    asked = parser.parse_args()
    # A path that is read as the number of a file closes standard output.
    tally, out = Tally(), os.fdopen(os.dup(1), "w", errors="backslashreplace")
    wanted = [call for call in calls() if asked.only in call.name]
    began, left = time.monotonic(), []
    for call in wanted:
        if call.name in ENDLESS or time.monotonic() - began > asked.seconds:
            left.append(call.name)
            continue
        before = len(tally.wrong)
        tried(call, tally)
        print(
            *tally.wrong[before:],
            f"# {call.name}: {time.monotonic() - began:.0f} s",
            sep="\n",
            flush=True,
            file=out,
        )
    print(f"{len(wanted) - len(left)} callables, {dict(tally.said)}, {tally.slowest:.1f} s at most", file=out)
    print("not called:", ", ".join(left) or "none", file=out)
    return 1 if tally.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
