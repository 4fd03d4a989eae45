"""A worker process: holds models on one device, says what questions would cost, and measures what the server sends,
one question after another.

It reads lines of JSON from standard input and writes lines of JSON to standard output. `admit` is answered at once, in
a thread of its own; `measure` waits for the one before. When standard input ends, so does the worker, also in the
middle of a step: the server asks again for what was not answered.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import queue
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Collection, Mapping
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
from jaxsens.core.base.program_cache import KeptPrograms, cache_in
from jaxsens.core.base.programs import numerics
from jaxsens.core.base.sealed import digest
from jaxsens.core.base.text import printable
from jaxsens.core.explain import planned_run
from jaxsens.core.flip_sensitivity import flip_sensitivity
from jaxsens.core.models.adapters import as_inputs, as_model, encoded
from jaxsens.core.models.transformer.layered import LayeredModel
from jaxsens.core.results.measured import fingerprint, weights_of
from jaxsens.pretrained.folder import hub_command, in_hub_cache
from jaxsens.pretrained.load import load_pretrained
from jaxsens.service.question import Question, read_question


def check_given(given: Collection[str], problems: Problems) -> None:
    """Adds an error for each NAME=WHERE that is neither a folder, nor in the hub's cache, nor a function's name."""
    if not given:
        problems.note("--model", "give at least one, as NAME=FOLDER or NAME=package.module:make")
    for one in given:
        name, _, place = one.partition("=")
        module, _, function = place.partition(":")
        named = all(part.isidentifier() for part in (*module.split("."), *function.split(".")))
        if not name.replace("-", "").replace(".", "").replace("_", "").isalnum():
            problems.add("--model", one, "a name of letters, digits, dots and hyphens before the =")
        elif sum(other.startswith(f"{name}=") for other in given) > 1:
            problems.add("--model", one, "each name once")
        elif not place:
            problems.add("--model", one, "NAME=FOLDER or NAME=package.module:make")
        elif not named and _folder_of(place) is None:
            problems.add(
                "--model", one, f"a folder that is there, or package.module:make{hub_command(place)}"
            )


def _folder_of(place: str) -> Path | None:
    return Path(place) if place and Path(place).is_dir() else in_hub_cache(place)


def _made(name: str, place: str) -> Any:
    """Returns the model that a function makes. Importing its module runs it."""
    module, _, function = place.partition(":")
    try:
        return attrgetter(function)(importlib.import_module(module))()
    except Exception as error:
        raise InputError(f"serve: --model = {name}={place}: {type(error).__name__}: {error}") from error


def _labels(folder: Path) -> list[str]:
    """Returns the names of a classifier's labels, which its config has whatever output is read."""
    try:
        named = json.loads((folder / "config.json").read_text("utf-8"))
        classifier = any("Classification" in one for one in named.get("architectures") or ())
        return [str(name) for name in named["id2label"].values()] if classifier else []
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        return []


class Worker:
    """Answers the server's messages: one thread listens, one looks at questions, and the main one measures.

    Args:
        settings: the models, their `dtype`, `most_tokens` of an input, and the `cache` of compiled programs.
        out: where answers and events are written.
    """

    def __init__(self, settings: Mapping[str, Any], out: BinaryIO) -> None:
        self._settings, self._out, self._writing = settings, out, threading.Lock()
        places = settings["models"].items()
        self._folders = {name: folder for name, place in places if (folder := _folder_of(place)) is not None}
        self._models, self._loading = dict[tuple[str, str], tuple[Any, str]](), threading.Lock()
        self._jobs, self._cancelled = queue.SimpleQueue[dict[str, Any]](), False
        self._compiled = set[tuple[str, int]]()

    def run(self, lines: BinaryIO) -> None:
        """Loads the models, and measures until the process is ended. Returns if a model cannot be loaded."""
        threading.Thread(target=self._beat, daemon=True).start()
        kept = KeptPrograms()
        if (cache := self._settings["cache"]) != "off":
            kept = cache_in(cache, "serve", "--compilation-cache", "another folder, or off")
        threading.Thread(target=self._listen, args=(lines,), daemon=True).start()
        try:
            self._send(event="ready", models=[self._described(name) for name in self._settings["models"]])
        except InputError as error:
            self._send(event="refused", refusal=error.json())
            return
        while True:
            self._answer(self._measure, self._jobs.get())
            kept.keep()  # a worker ends by being killed

    def _model(self, name: str, output: str) -> tuple[Any, str]:
        """Returns a model and the digest of its weights. It is loaded when it is first needed, and kept."""
        folder, place = self._folders.get(name), self._settings["models"][name]
        key = name, "" if folder is None else output
        with self._loading:
            if key not in self._models:
                options: Any = {"output": output, "dtype": self._settings["dtype"]}
                model = _made(name, place) if folder is None else load_pretrained(folder, **options)
                self._models[key] = model, weights_of(as_model(model))
            return self._models[key]

    def _described(self, name: str) -> dict[str, Any]:
        """Returns what clients read of a model."""
        model, _ = self._model(name, "hidden")
        return {
            "name": name,
            "loaded": True,
            "family": getattr(model, "family", type(model).__name__),
            "texts": isinstance(model, LayeredModel) and hasattr(model, "encode"),
            "labels": _labels(self._folders[name]) if name in self._folders else [],
        }

    def _beat(self) -> None:
        """Says that the process runs: the server replaces one that says nothing."""
        while True:
            self._send(event="alive")
            time.sleep(1.0)

    def _listen(self, lines: BinaryIO) -> None:
        """Reads what the server sends, and ends the process when the server has ended."""
        admitting = ThreadPoolExecutor(1)
        for line in lines:
            message = json.loads(line)
            match message["do"]:
                case "admit":
                    admitting.submit(self._answer, self._admit, message)
                case "measure":  # one at a time: the server waits for the answer to the one before
                    self._cancelled = False
                    self._jobs.put(message)
                case "cancel":
                    self._cancelled = True
                case other:
                    print(f"jaxsens: no rule for the message {other!r}", file=sys.stderr, flush=True)
                    os._exit(1)
        os._exit(0)

    def _answer(self, act: Callable[..., dict[str, Any]], message: dict[str, Any]) -> None:
        """Sends what `act` returns; or why it failed, and whether that is the question's fault.

        Whatever a model raises fails its question alone, a library's panic too, which is no `Exception`.
        """
        try:
            answer = act(read_question(message["question"], self._settings["models"]), message)
        except InputError as error:
            error.subject = error.subject.replace("explain", "flip_sensitivity")
            answer = {"error": str(error), "refusal": error.json()}
        except OSError as error:
            print(f"jaxsens: {printable(str(error))}", file=sys.stderr, flush=True)
            why = error.strerror or str(error)  # without a path of this machine
            answer = {"error": f"{why}; {remedy(error)}" if takes_no_more(error) else why}
        except BaseException as error:  # noqa: BLE001 - whatever a model raises
            answer = {"error": f"{type(error).__name__}: {error}"}
        told = json.dumps(answer)
        for name, folder in self._folders.items():  # strangers need not know where models are
            told = told.replace(json.dumps(str(folder))[1:-1], name)
        self._send(of=message["of"], **json.loads(told))

    def _send(self, **message: Any) -> None:
        with self._writing, suppress(OSError):  # the server may be gone
            self._out.write(json.dumps(message).encode() + b"\n")
            self._out.flush()

    def _admit(self, question: Question, message: dict[str, Any]) -> dict[str, Any]:
        """Returns what is known of a question without measuring: its name `id`, and `about`: the inputs' length n,
        flips, and an estimate of seconds, of seconds to compile what this process has not compiled, and of bytes."""
        model, weights = self._model(question.model, question.reads)
        subject, most = as_model(model), self._settings["most_tokens"]
        with collecting("flip_sensitivity") as problems:
            words = as_inputs(subject, encoded(model, question.tokens), problems)
            n = words.shape[1]
            if n > most:
                limit = f"at most {most} here (--most-tokens); measure it with `jaxsens measure`"
                problems.add("tokens", f"{n} symbols", limit)
            reading, selection, *_ = question.request.validated(subject, words, problems)
        shape, flips, run = question.shape(), selection.number(), planned_run(model, n, question.request)
        with numerics(subject.dtype):
            function = fingerprint(reading, n, weights)
        # All that a result depends on.
        asked = {"shape": shape, "model": function, "words": words.tolist(), "version": version("jaxsens")}
        about = {"n": n, "inputs": len(words), "flips": flips, "bytes": run.memory}
        about["seconds"] = run.seconds_of(len(words), flips)
        about["compiling"] = 0.0 if (shape, n) in self._compiled else run.compiling
        return {"id": digest(asked)[:24], "about": about}

    def _measure(self, question: Question, message: dict[str, Any]) -> dict[str, Any]:
        """Measures a question, saves its result, and returns its statistics."""
        if self._admit(question, message)["id"] != message["id"]:
            why = "its weights, or jaxsens, are others than when this was asked; ask again"
            raise InputError.of("model", question.model, why, subject="flip_sensitivity")

        def progress(done: int, total: int) -> None:
            if self._cancelled:
                raise KeyboardInterrupt  # as Ctrl-C would: the server no longer waits for an answer
            self._send(event="running", id=message["id"], done=done, total=total)

        model, _ = self._model(question.model, question.reads)
        with warnings.catch_warnings(record=True) as noted:
            warnings.simplefilter("always")
            result = flip_sensitivity(
                model,
                question.tokens,
                **vars(question.request),
                placement=question.placement.placement(),
                progress=progress,
            )
        result = replace(result, run=replace(result.run, model=question.model))  # as it is served
        place = Path(message["place"])
        with only_inside(place.parent.parent):
            result.save(place)
        self._compiled.add((question.shape(), result.n))
        own = [str(one.message) for one in noted if one.category.__module__.startswith("jaxsens")]
        found = {
            "flips": len(result),
            "mean": result.mean if np.isfinite(result.mean) else None,
            "max": result.max if np.isfinite(result.max) else None,
            "unresolved": result.unresolved,
            "engine": {"name": result.engine.name, "reason": result.engine.reason},
            "estimated": result.estimated is not None,
            "warnings": list(dict.fromkeys(own)),
        }
        return {"found": found}


def main() -> None:
    """Runs a worker. The first line says which models it serves."""
    if sys.platform == "linux":  # a stopped process reads no end of its input
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    lines, out = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libraries print is no answer
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # the server ends its workers
    Worker(json.loads(lines.readline()), out).run(lines)
    os._exit(0)  # without the interpreter's teardown, which does not wait for computations


if __name__ == "__main__":
    main()
