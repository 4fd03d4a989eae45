"""Worker processes as the server sees them: one for each device, started again when one ends."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, ClassVar

from jaxsens.base.errors import EngineRefusal, InputError
from jaxsens.service.worker.process import COMMAND

_LONGEST_LINE = 64 * 2**20
END_SECONDS = 6.0
"""How long a worker may take to save what it has. The server itself leaves 7 s after a signal."""


class WorkerGone(RuntimeError):
    """Raised where a worker process ended before it had answered."""


class WorkerProcess:
    """A worker process, and what it is doing.

    Attributes:
        ready: whether it has loaded its models.
        models: what it says of them.
        process: the process, once started.
        admitting: whether it looked at a question when it ended.
        in_turns: whether sweeps come in turns with measurements.
    """

    in_turns: ClassVar[bool] = True

    def __init__(self, settings: Mapping[str, Any], environment: Mapping[str, str]) -> None:
        self._settings, self._environment = settings, environment
        self.admitting = False
        self._numbers, self._asked = itertools.count(), dict[int, asyncio.Future[dict[str, Any]]]()
        self.process: asyncio.subprocess.Process | None = None
        self.ready, self.models = False, list[dict[str, Any]]()

    async def run(self, on_event: Callable[[dict[str, Any]], None]) -> str:
        """Starts the process, hands on what it says, and returns how it ended.

        Raises:
            InputError: if a model cannot be loaded.
            OSError: if no process can be started; and whatever `on_event` raises, which ends the process.
        """
        self.process = await asyncio.create_subprocess_exec(
            *COMMAND,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **self._environment},
            start_new_session=True,  # Ctrl-C in a terminal is the server's
            limit=_LONGEST_LINE,
        )
        self.send(**self._settings)
        refused = ""
        try:
            while line := await self._read():
                message = json.loads(line)
                if "of" in message:
                    self._answered(message)
                    continue
                if message["event"] == "refused":
                    refused = message["message"]
                if message["event"] in ("ready", "idle"):
                    self.ready, self.models = True, message["models"]
                on_event(message)
            code = await self.process.wait()
        finally:
            self.ready = False
            with suppress(ProcessLookupError):  # nobody hears it any more
                self.process.kill()
            self.admitting = bool(self._asked)
            for future in self._asked.values():
                if not future.done():
                    future.set_exception(WorkerGone("the worker process ended"))
            self._asked.clear()
        if refused:
            raise InputError(refused)
        return _ended(code)

    async def ask(self, kind: str, question: Any) -> dict[str, Any]:
        """Returns what the worker knows of a question without measuring.

        Raises:
            InputError: in the words of `flip_sensitivity`.
            WorkerGone: if it ends before it has answered.
        """
        number = next(self._numbers)
        future = self._asked[number] = asyncio.get_running_loop().create_future()
        self.send(do="admit", of=number, kind=kind, question=question)
        answer = await future
        if answer.get("refusal"):
            raise (EngineRefusal if answer["refusal"] == "EngineRefusal" else InputError)(answer["error"])
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer

    def send(self, **message: Any) -> None:
        """Sends a line. Does nothing if the process has ended."""
        if self.process is not None and self.process.stdin is not None:
            with suppress(ConnectionError, RuntimeError):
                self.process.stdin.write(json.dumps(message).encode() + b"\n")

    async def end(self) -> None:
        """Lets the process save what it has, for `END_SECONDS`."""
        if self.process is None or self.process.returncode is not None:
            return
        self.send(do="end")
        try:
            await asyncio.wait_for(self.process.wait(), END_SECONDS)
        except TimeoutError:
            with suppress(ProcessLookupError):
                self.process.kill()
            await self.process.wait()

    async def _read(self) -> bytes:
        if self.process is None or self.process.stdout is None:
            return b""
        return await self.process.stdout.readline()

    def _answered(self, message: dict[str, Any]) -> None:
        future = self._asked.pop(message["of"], None)
        if future is not None and not future.done():
            future.set_result(message)


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
        name = signal.Signals(-code).name
        hint = "; the system kills a process that takes too much memory" if code == -signal.SIGKILL else ""
        return f"the worker process was ended by {name}{hint}"
    return f"the worker process ended with exit code {code}"
