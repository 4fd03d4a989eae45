"""A worker process: holds models on one device, says what questions would cost, and measures what the server sends,
one question after another. Models have names given at the start; they are loaded when they are first needed, and
kept.

It reads lines of JSON from standard input and writes lines of JSON to standard output. `admit` is answered at once, in
a thread of its own; `measure` waits for the one before. When standard input ends, so does the worker, also in the
middle of a step: the server asks again for what was not answered.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib
import json
import os
import queue
import signal
import sys
import threading
import time
import warnings
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from importlib.metadata import version
from operator import attrgetter
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from jaxsens.core.base.errors import InputError, Problems, collecting
from jaxsens.core.base.files import only_inside, remedy, takes_no_more
from jaxsens.core.base.program_cache import cache_in
from jaxsens.core.base.programs import numerics
from jaxsens.core.base.text import printable
from jaxsens.core.choose import PlannedRun
from jaxsens.core.engines.options import MANY_CALLS
from jaxsens.core.engines.request import Request
from jaxsens.core.explain import planned_run
from jaxsens.core.flip_sensitivity import flip_sensitivity
from jaxsens.core.models.adapters import as_inputs, as_model, encoded
from jaxsens.core.models.transformer.layered import LayeredModel
from jaxsens.core.results.measured import fingerprint, weights_of
from jaxsens.pretrained.folder import hub_command, in_hub_cache
from jaxsens.pretrained.load import load_pretrained
from jaxsens.service.worker.question import Question, read_question


class ServedModels:
    """Models by name and by the output that is read of them.

    Args:
        given: by name, a folder that `load_pretrained` reads, or "package.module:make", a function without arguments
            that returns a model.
        dtype: of the parameters of models from folders.
    """

    def __init__(self, given: Mapping[str, str], dtype: str) -> None:
        self.given = {name: str(_folder_of(place) or place) for name, place in given.items()}
        self._dtype, self._loading = dtype, threading.RLock()
        self._loaded = dict[tuple[str, str], tuple[Any, str]]()

    def get(self, name: str, output: str) -> tuple[Any, str]:
        """Returns a model and the digest of its weights.

        Raises:
            InputError: if it cannot be loaded, or has no such output.
        """
        with self._loading:
            given = self.given[name]
            published = Path(given).is_dir()
            key = name, output if published else ""
            if key not in self._loaded:
                options: Any = {"output": output, "dtype": self._dtype}
                model = load_pretrained(given, **options) if published else _made(name, given)
                self._loaded[key] = model, weights_of(as_model(model))
            return self._loaded[key]

    def descriptions(self) -> list[dict[str, Any]]:
        """Loads the models, and returns what clients read of them, as JSON values.

        Raises:
            InputError: if one cannot be loaded.
        """
        models = {name: self.get(name, "hidden")[0] for name in self.given}
        return [
            {
                "name": name,
                "loaded": True,
                "family": getattr(model, "family", type(model).__name__),
                "texts": isinstance(model, LayeredModel) and hasattr(model, "encode"),
                "labels": _labels(self.given[name]),
            }
            for name, model in models.items()
        ]


def _labels(given: str) -> list[str]:
    """Returns the names of a classifier's labels, which its config has whatever output is read."""
    try:
        named = json.loads((Path(given) / "config.json").read_text("utf-8"))
        classifier = any("Classification" in one for one in named.get("architectures") or ())
        return [str(name) for name in named["id2label"].values()] if classifier else []
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        return []


def _folder_of(place: str) -> Path | None:
    return Path(place) if place and Path(place).is_dir() else in_hub_cache(place)


def check_given(given: Mapping[str, str], problems: Problems) -> None:
    """Adds an error for each model that is neither a folder nor a function's name."""
    if not given:
        problems.note("--model", "give at least one, as NAME=FOLDER or NAME=package.module:make")
    for name, place in given.items():
        module, _, function = place.partition(":")
        named = all(part.isidentifier() for part in (*module.split("."), *function.split(".")))
        if not (name and name.replace("-", "").replace(".", "").replace("_", "").isalnum()):
            problems.add(
                "--model", f"{name}={place}", "a name of letters, digits, dots and hyphens before the ="
            )
        elif not named and _folder_of(place) is None:
            remedy = f"a folder that is there, or package.module:make{hub_command(place)}"
            problems.add("--model", f"{name}={place}", remedy)


def _made(name: str, given: str) -> Any:
    """Returns the model that a function makes. Importing its module runs it."""
    module, _, function = given.partition(":")
    try:
        return attrgetter(function)(importlib.import_module(module))()
    except Exception as error:
        raise InputError(f"serve: --model = {name}={given}: {type(error).__name__}: {error}") from error


_PLANS = 256
"""The shapes of questions whose costs are kept."""


class Desk:
    """Answers questions about served models. `admit` may run in another thread than `measure`.

    Args:
        models: that are served.
        most_tokens: the longest input that is accepted.
    """

    def __init__(self, models: ServedModels, most_tokens: int) -> None:
        self.models, self._most_tokens = models, most_tokens
        self._plans: OrderedDict[tuple[str, int], PlannedRun] = OrderedDict()
        self._measured: set[tuple[str, int]] = set()

    def admit(self, question: Question) -> dict[str, Any]:
        """Returns what is known of a question without measuring, as JSON values: its name `id`, and
        `about`: the inputs' length n, flips, and an estimate of seconds, of seconds to compile what this process has
        not compiled, and of bytes.

        Raises:
            InputError: for what `flip_sensitivity` would reject before it runs the model.
        """
        model, weights = self.models.get(question.model, question.reads)
        subject = as_model(model)
        asked = Request(question.flips, question.measure, question.engine, question.readout)
        with collecting("flip_sensitivity") as problems:
            words = as_inputs(subject, encoded(model, question.tokens), problems)
            n = words.shape[1]
            if n > self._most_tokens:
                limit = f"at most {self._most_tokens} here (--most-tokens); measure it with `jaxsens measure`"
                problems.add("tokens", f"{n} symbols", limit)
            reading, selection, *_ = asked.validated(subject, words, problems)
        flips, run = selection.number(), self._plan(question, n)
        compiled = (question.shape(), n) in self._measured
        about = {"n": n, "inputs": len(words), "flips": flips, "bytes": run.memory}
        about |= {
            "seconds": run.seconds_of(len(words), flips),
            "compiling": 0.0 if compiled else run.compiling,
        }
        with numerics(subject.dtype):
            digest = fingerprint(reading, n, weights)
        # All that a result depends on.
        told = json.dumps([question.shape(), digest, words.tolist(), version("jaxsens")], sort_keys=True)
        return {"id": hashlib.sha256(told.encode()).hexdigest()[:24], "about": about}

    def _plan(self, question: Question, n: int) -> PlannedRun:
        """Returns how inputs of this length are measured. The first question of a shape stands for all."""
        key = question.shape(), n
        if (run := self._plans.get(key)) is None:
            model, _ = self.models.get(question.model, question.reads)
            engine = question.engine.shared_by(MANY_CALLS)
            request = Request(question.flips, question.measure, engine, question.readout)
            try:
                self._plans[key] = run = planned_run(model, n, request)
            except InputError as error:
                raise type(error)(*error.problems, subject="flip_sensitivity") from error
            while len(self._plans) > _PLANS:
                self._plans.popitem(last=False)
        return run

    def measure(
        self, question: Question, job: str, place: Path, progress: Callable[[int, int], object]
    ) -> dict[str, Any]:
        """Measures a question, saves its result, and returns its statistics.

        Args:
            question: what is asked.
            job: its name when it was asked.
            place: where the result is stored, as Parquet.
            progress: is called with (flips done, flips in all) after every step; what it raises ends the measurement.

        Raises:
            InputError: for what cannot be measured, and if the model or jaxsens are others than when it was asked.
            OSError: if the result cannot be written.
        """
        if self.admit(question)["id"] != job:
            raise InputError.of(
                "model",
                question.model,
                "its weights, or jaxsens, are others than when this was asked; ask again",
                subject="flip_sensitivity",
            )
        model, _ = self.models.get(question.model, question.reads)
        with warnings.catch_warnings(record=True) as noted:
            warnings.simplefilter("always")
            result = flip_sensitivity(  # pyright: ignore[reportCallIssue]
                model,
                question.tokens,
                question.flips,
                question.measure,
                readout=question.readout,  # pyright: ignore[reportArgumentType]
                engine=question.engine.shared_by(MANY_CALLS),
                placement=question.placement.placement(),
                progress=progress,
            )
        result = replace(result, run=replace(result.run, model=question.model))  # as it is served
        with only_inside(place.parent.parent):
            result.save(place)
        self._measured.add((question.shape(), result.n))
        own = [str(one.message) for one in noted if one.category.__module__.startswith("jaxsens")]
        numbers = {"mean": result.mean, "max": result.max}
        return {
            "flips": len(result),
            **{name: value if np.isfinite(value) else None for name, value in numbers.items()},
            "unresolved": result.unresolved,
            "engine": {"name": result.engine.name, "reason": result.engine.reason},
            "estimated": result.estimated is not None,
            "warnings": list(dict.fromkeys(own)),
        }


_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Runs a worker. The first line says which models it serves."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(
            _PR_SET_PDEATHSIG, signal.SIGKILL
        )  # a stopped process reads no end of its input
    lines, out = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libraries print is no answer
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # the server ends its workers
    _Worker(json.loads(lines.readline()), out).run(lines)
    os._exit(0)  # without the interpreter's teardown, which does not wait for computations


class _Worker:
    """The state of a worker process."""

    def __init__(self, settings: dict[str, Any], out: BinaryIO) -> None:
        self._settings, self._out = settings, out
        self._writing = threading.Lock()
        self._jobs: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._cancelled = False
        self._admitting = ThreadPoolExecutor(1)

    def run(self, lines: BinaryIO) -> None:
        """Loads the models, and measures until the process is ended. Returns if a model cannot be loaded."""
        threading.Thread(target=self._beat, daemon=True).start()
        given = self._settings
        kept = None
        if given["cache"] != "off":
            kept = cache_in(given["cache"], "serve", "--compilation-cache", "another folder, or off")
        models = ServedModels(given["models"], given["dtype"])
        self._desk = Desk(models, given["most_tokens"])
        threading.Thread(target=self._listen, args=(lines,), daemon=True).start()
        try:
            self._send(event="ready", models=models.descriptions())
        except InputError as error:
            self._send(event="refused", refusal=error.json())
            return
        while True:
            message = self._jobs.get()
            self._answer(self._measured, message)
            if kept is not None:
                kept.keep()  # a worker ends by being killed

    def _beat(self) -> None:
        """Says that the process runs: the server replaces one that says nothing."""
        while True:
            self._send(event="alive")
            time.sleep(1.0)

    def _listen(self, lines: BinaryIO) -> None:
        """Reads what the server sends, and ends the process when the server has ended."""
        for line in lines:
            message = json.loads(line)
            match message["do"]:
                case "admit":
                    self._admitting.submit(self._answer, self._admitted, message)
                case "cancel":
                    self._cancelled = True
                case "measure":  # one at a time: the server waits for the answer to the one before
                    self._cancelled = False
                    self._jobs.put(message)
                case unknown:
                    error = InputError(f"worker: {unknown!r} is nothing that a worker does")
                    self._send(event="refused", refusal=error.json())
        os._exit(0)

    def _admitted(self, message: dict[str, Any]) -> dict[str, Any]:
        return self._desk.admit(read_question(message["question"], self._settings["models"]))

    def _measured(self, message: dict[str, Any]) -> dict[str, Any]:
        def progress(done: int, total: int) -> None:
            if self._cancelled:
                raise KeyboardInterrupt  # as Ctrl-C would: the server no longer waits for an answer
            self._send(event="running", id=message["id"], done=done, total=total)

        question = read_question(message["question"], self._settings["models"])
        return {"found": self._desk.measure(question, message["id"], Path(message["place"]), progress)}

    def _answer(self, act: Callable[[dict[str, Any]], dict[str, Any]], message: dict[str, Any]) -> None:
        answer = json.dumps(_answered(act, message))
        for name, place in self._settings["models"].items():  # strangers need not know where models are
            if Path(place).is_absolute():
                answer = answer.replace(json.dumps(place)[1:-1], name)
        self._send(of=message["of"], **json.loads(answer))

    def _send(self, **message: Any) -> None:
        with self._writing, suppress(OSError):  # the server may be gone
            self._out.write(json.dumps(message).encode() + b"\n")
            self._out.flush()


def _answered(act: Callable[[dict[str, Any]], dict[str, Any]], message: dict[str, Any]) -> dict[str, Any]:
    """Returns what `act` returns; or why it failed, and whether that is the question's fault.

    Whatever a model raises fails its question alone, a library's panic too, which is no `Exception`.
    """
    try:
        return act(message)
    except InputError as error:
        return {"error": str(error), "refusal": error.json()}
    except OSError as error:
        print(f"jaxsens: {printable(str(error))}", file=sys.stderr, flush=True)
        why = error.strerror or str(error)  # without a path of this machine
        return {"error": f"{why}; {remedy(error)}" if takes_no_more(error) else why}
    except BaseException as error:  # noqa: BLE001 - whatever a model raises
        return {"error": f"{type(error).__name__}: {error}"}


if __name__ == "__main__":
    main()
