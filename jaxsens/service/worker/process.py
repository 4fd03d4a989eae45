"""A worker process: holds models on one device, and measures what the server sends, one question after another.

It reads lines of JSON from standard input and writes lines of JSON to standard output. `admit` is answered at once, in
a thread of its own; `measure` waits for the one before. When standard input ends, so does the worker, also in the
middle of a step: the server asks again for what was not answered.
"""

from __future__ import annotations

import ctypes
import json
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from jaxsens.core.base.errors import InputError
from jaxsens.core.base.files import remedy, takes_no_more
from jaxsens.core.base.program_cache import cache_in
from jaxsens.core.base.text import printable
from jaxsens.service.worker.measuring import Desk
from jaxsens.service.worker.models import ServedModels
from jaxsens.service.worker.question import read_question

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
