"""A process of its own for every measurement, so that its memory is its own and libraries do not share threads."""

from __future__ import annotations

import multiprocessing
import os
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from benchmarks.options import Case

_DEVICE_MEMORY = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}  # on a GPU, all workers share its memory
_STARTING = 180.0  # seconds that importing may take on a busy machine


class WorkerFailed(RuntimeError):
    """A measurement did not come to an end; the message says why."""


@dataclass(frozen=True)
class Ran:
    """One run: its seconds, and the norms."""

    seconds: float
    norms: Float[np.ndarray, " flips"]


class Worker:
    """The parent's side: starts the process, and has it run. Use as a context manager. `remark` is the method's.

    Raises:
        WorkerFailed: from any method, if the process died, raised, or took longer than it may.
    """

    def __init__(self, case: Case) -> None:
        self.remark = ""
        self._context = multiprocessing.get_context("spawn")
        self._pipe, theirs = self._context.Pipe()
        self._process = self._context.Process(target=_serve, args=(theirs, case), daemon=True)
        self._process.start()
        theirs.close()

    def __enter__(self) -> Worker:
        try:
            self.remark = str(self._answer(_STARTING))
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *unused: object) -> None:
        self._end()

    def run(self, positions: Int[np.ndarray, " flips"] | None, timeout: float) -> Ran:
        """Measures once. The first run compiles."""
        return self._ask("run", positions, timeout)

    def begin_memory(self) -> None:
        """Memory counts from now on."""
        self._ask("begin", None, 60.0)

    def peak(self) -> int:
        """Peak memory since `begin_memory` beyond what the model and the libraries take, in bytes."""
        return self._ask("peak", None, 60.0)

    def _end(self) -> None:
        self._process.terminate()
        self._process.join()
        self._pipe.close()

    def _ask(self, what: str, argument: Any, timeout: float) -> Any:
        try:
            self._pipe.send((what, argument))
        except OSError:
            raise self._died() from None
        return self._answer(timeout)

    def _answer(self, timeout: float) -> Any:
        try:
            if not self._pipe.poll(timeout):
                self._process.terminate()  # at once, lest it slow the others down
                raise WorkerFailed(f"stopped after {timeout:.0f} s")
            kind, value = self._pipe.recv()
        except (EOFError, ConnectionError):
            raise self._died() from None
        if kind == "error":
            raise WorkerFailed(value)
        return value

    def _died(self) -> WorkerFailed:
        self._process.join(5.0)
        return WorkerFailed(f"the process died (exit code {self._process.exitcode}); -9: out of memory")


def _serve(pipe: Connection, case: Case) -> None:
    """The process: answers requests until it is ended."""
    os.environ.update({key: os.environ.get(key, value) for key, value in _DEVICE_MEMORY.items()})
    try:
        _answer_requests(pipe, case)
    except KeyboardInterrupt:
        return
    except Exception as error:  # noqa: BLE001  whatever goes wrong is for the parent to report
        pipe.send(("error", f"{type(error).__name__}: {error}"))


def _answer_requests(pipe: Connection, case: Case) -> None:
    import jax.numpy as jnp

    from benchmarks.machine import device_peak
    from benchmarks.memory import PeakMemory
    from benchmarks.methods import build

    method = build(case)
    jnp.zeros(8).block_until_ready()  # JAX's client and threads are there before memory counts
    memory = PeakMemory()
    pipe.send(("ready", method.remark))
    while True:
        what, argument = pipe.recv()
        if what == "run":
            began = time.perf_counter()
            norms = np.asarray(method.measure(argument))
            pipe.send(("ran", Ran(time.perf_counter() - began, norms)))
        elif what == "begin":
            memory.begin()
            pipe.send(("begun", None))
        else:
            on_device = device_peak(case.method)
            pipe.send(("peak", memory.peak() if on_device is None else on_device))
