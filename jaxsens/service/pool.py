"""Worker processes as the server sees them: one for each device."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from jaxsens.core.base.errors import InputError

COMMAND = (sys.executable, "-m", "jaxsens.service.worker.process")

_LONGEST_LINE = 64 * 2**20

SILENT_SECONDS = 60.0
"""After which a worker that says nothing, not even that it is alive, is replaced."""


@dataclass
class _Request:
    """What a worker was asked, and when it is replaced if it has neither answered nor told of a step."""

    do: str
    answer: asyncio.Future[dict[str, Any]]
    seconds: float
    until: float


class WorkerGone(RuntimeError):
    """Raised where a worker process ended before it had answered.

    Attributes:
        blame: of the question: 1 if it is what ended the process; 0.5 for a measurement during which the process also
            looked at a question; 0 for a question that it had not begun.
    """

    def __init__(self, why: str, blame: float = 1.0) -> None:
        super().__init__(why)
        self.blame = blame


class WorkerProcess:
    """A worker process.

    Attributes:
        ready: whether it has loaded its models.
        models: what it says of them.
        job: the name of the job that it measures, or None.
    """

    def __init__(self, settings: Mapping[str, Any], environment: Mapping[str, str]) -> None:
        self._settings, self._environment = settings, environment
        self._numbers = itertools.count()
        self._requests = dict[int, _Request]()
        self._process: asyncio.subprocess.Process | None = None
        self.ready, self.models = False, list[dict[str, Any]]()
        self.job: str | None = None

    async def run(self, on_event: Callable[[dict[str, Any]], None]) -> None:
        """Starts the process, hands its events on, and returns when it has ended.

        Raises:
            InputError: if a model cannot be loaded.
            OSError: if no process can be started.
        """
        environment = (os.environ | dict(self._environment)).items()
        self._process = process = await asyncio.create_subprocess_exec(
            *COMMAND,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={name: value for name, value in environment if name != "JAXSENS_TOKEN"},
            start_new_session=True,  # Ctrl-C in a terminal is the server's
            limit=_LONGEST_LINE,
        )
        self.send(**self._settings)
        why, refused, clock = "the worker process was ended", None, asyncio.get_running_loop().time
        self._heard, self._late = clock(), ""
        watching = asyncio.ensure_future(self._watch(process))
        try:
            # A line without an end is that of a process that was killed while it wrote.
            while process.stdout is not None and (line := await process.stdout.readline()).endswith(b"\n"):
                message, self._heard = json.loads(line), clock()
                if "of" in message:
                    request = self._requests.pop(message["of"], None)
                    if request is not None and not request.answer.done():
                        request.answer.set_result(message)
                    continue
                if message["event"] == "running":
                    for request in self._requests.values():
                        request.until = max(
                            request.until, clock() + request.seconds * (request.do == "measure")
                        )
                if message["event"] == "refused":
                    refused = message["refusal"]
                if message["event"] == "ready":
                    self.ready, self.models = True, message["models"]
                if message["event"] in ("ready", "running"):
                    on_event(message)
            ended = _ended(await process.wait())
            why = self._late or ended
        finally:
            watching.cancel()
            self.ready = False
            with suppress(ProcessLookupError):
                process.kill()
            admitting = [request for request in self._requests.values() if request.do == "admit"]
            for request in self._requests.values():
                blame = (
                    float(request in admitting[:1]) if request.do == "admit" else 1.0 - bool(admitting) / 2
                )
                if not request.answer.done():
                    request.answer.set_exception(WorkerGone(why, blame))
            self._requests.clear()
        if refused:
            raise InputError.of_json(refused)

    async def _watch(self, process: asyncio.subprocess.Process) -> None:
        """Ends a process that says nothing, or does not answer in time."""
        clock = asyncio.get_running_loop().time
        while not self._late:
            await asyncio.sleep(1.0)
            late = next((one for one in self._requests.values() if clock() > one.until), None)
            if clock() > self._heard + SILENT_SECONDS:
                self._late = f"the worker process said nothing for {SILENT_SECONDS:.0f} s"
            elif late is not None:
                self._late = f"the worker process gave no sign of a question for {late.seconds:.0f} s"
        with suppress(ProcessLookupError):
            process.kill()

    async def ask(self, do: str, seconds: float, **message: Any) -> dict[str, Any]:
        """Returns what the worker answers: to "admit", what it knows of a question; to "measure", what it measured.

        seconds: that it may take, or each of its steps.

        Raises:
            WorkerGone: if it ends before it has answered.
        """
        number, future = next(self._numbers), asyncio.get_running_loop().create_future()
        until = asyncio.get_running_loop().time() + seconds
        self._requests[number] = _Request(do, future, seconds, until)
        self.send(do=do, of=number, **message)
        return await future

    def send(self, **message: Any) -> None:
        """Sends a line. Does nothing if the process has ended."""
        if self._process is not None and self._process.stdin is not None:
            with suppress(ConnectionError, RuntimeError):
                self._process.stdin.write(json.dumps(message).encode() + b"\n")

    async def end(self) -> None:
        """Ends the process, also in the middle of a step."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()


def device_environments(environ: Mapping[str, str] = os.environ) -> list[dict[str, str]]:
    """Returns the variables of the environment for a worker on each GPU; of a single worker where there is none.

    The worker's JAX then sees one device. The server itself must hold none, so it asks the driver's tool.
    """
    if environ.get("JAX_PLATFORMS", "cuda") not in ("cuda", "gpu", ""):
        return [{}]
    if (chosen := environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        numbers = [one for one in chosen.split(",") if one not in ("", "-1")]
    elif (tool := shutil.which("nvidia-smi")) is not None:
        listed = subprocess.run([tool, "-L"], capture_output=True, text=True, check=False, timeout=60)
        numbers = [str(k) for k, line in enumerate(listed.stdout.splitlines()) if line.startswith("GPU ")]
    else:
        numbers = []
    return [{"CUDA_VISIBLE_DEVICES": number} for number in numbers] or [{}]


def _ended(code: int) -> str:
    """Returns how a process ended, in words."""
    if code < 0:
        known = {one.value: one.name for one in signal.Signals}
        name = known.get(-code, f"signal {-code}")
        hint = "; the system kills a process that takes too much memory" if code == -signal.SIGKILL else ""
        return f"the worker process was ended by {name}{hint}"
    return f"the worker process ended with exit code {code}"
