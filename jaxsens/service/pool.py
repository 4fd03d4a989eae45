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
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from jaxsens.core.base.errors import InputError

COMMAND = (sys.executable, "-m", "jaxsens.service.worker")

SILENT_SECONDS = 60.0
"""After which a worker that says nothing, not even that it is alive, is replaced."""


class WorkerProcess:
    """A worker process.

    Attributes:
        ready: whether it has loaded its models.
        models: what it says of them.
        job: the name of the job that it measures, or None.
    """

    def __init__(self, settings: Mapping[str, Any], environment: Mapping[str, str]) -> None:
        self._settings, self._environment = settings, environment
        self._numbers, self._stepped, self._late = itertools.count(), 0.0, ""
        self._asked = dict[int, tuple[str, asyncio.Future[dict[str, Any]]]]()
        self._process: asyncio.subprocess.Process | None = None
        self.ready, self.models = False, list[dict[str, Any]]()
        self.job: str | None = None

    async def run(self, on_event: Callable[[dict[str, Any]], None]) -> None:
        """Starts the process, hands its events on, and returns when it has ended. Raises InputError if a model cannot
        be loaded, and OSError if no process can be started."""
        environment = {**os.environ, **self._environment}
        environment.pop("JAXSENS_TOKEN", None)
        self._process = process = await asyncio.create_subprocess_exec(
            *COMMAND,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            start_new_session=True,  # Ctrl-C in a terminal is the server's
            limit=64 * 2**20,  # bytes of the longest line
        )
        self.send(**self._settings)
        self._late, why = "", "the worker process was ended"
        try:
            while True:
                async with asyncio.timeout(SILENT_SECONDS):
                    line = await process.stdout.readline() if process.stdout is not None else b""
                    if not line.endswith(b"\n"):  # its output is closed, or it was killed while it wrote
                        why = _ended(await process.wait())
                        return
                message = json.loads(line)
                match message.get("event"):
                    case None:
                        _, answer = self._asked.pop(message["of"])
                        if not answer.done():
                            answer.set_result(message)
                    case "running":
                        self._stepped = time.monotonic()
                        on_event(message)
                    case "ready":
                        self.ready, self.models = True, message["models"]
                        on_event(message)
                    case "refused":
                        raise InputError.of_json(message["refusal"])
        except TimeoutError:
            why = f"the worker process said nothing for {SILENT_SECONDS:.0f} s"
        finally:
            self.ready = False
            self._kill()
            admitted = [number for number, (do, _) in self._asked.items() if do == "admit"]
            for number, (do, answer) in self._asked.items():
                blame = float(number in admitted[:1]) if do == "admit" else 0.5 if admitted else 1.0
                if not answer.done():
                    answer.set_result({"crash": self._late or why, "blame": blame})
            self._asked.clear()
            await process.wait()

    async def ask(self, do: str, seconds: float, **message: Any) -> dict[str, Any]:
        """Returns what the worker answers: to "admit", what it knows of a question; to "measure", what it measured.

        If it ends before, that is why, as `crash`, and how far it is to `blame`: 1 for what ended the process, 0.5 for
        a measurement during which the process also looked at a question, 0 for a question that it had not begun.

        seconds: that it may take, or each of its steps.
        """
        number, answer = next(self._numbers), asyncio.get_running_loop().create_future()
        self._asked[number] = do, answer
        self.send(do=do, of=number, **message)
        asked = time.monotonic()
        while not answer.done():
            began = max(asked, self._stepped) if do == "measure" else asked
            if (left := began + seconds - time.monotonic()) < 0:
                self._kill(f"the worker process gave no sign of a question for {seconds:.0f} s")
            await asyncio.wait([answer], timeout=max(left, 1.0))
        return answer.result()

    def send(self, **message: Any) -> None:
        """Sends a line. Does nothing if the process has ended."""
        if self._process is not None and self._process.stdin is not None:
            with suppress(ConnectionError, RuntimeError):
                self._process.stdin.write(json.dumps(message).encode() + b"\n")

    async def end(self) -> None:
        """Ends the process, also in the middle of a step."""
        self._kill()
        if self._process is not None:
            await self._process.wait()

    def _kill(self, why: str = "") -> None:
        self._late = self._late or why
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.kill()


def device_environments(environ: Mapping[str, str] = os.environ) -> list[dict[str, str]]:
    """Returns the variables of the environment for a worker on each GPU; of a single worker where there is none.

    The worker's JAX then sees one device. The server itself must hold none, so it asks the driver's tool.
    """
    if environ.get("JAX_PLATFORMS", "cuda") not in ("cuda", "gpu", ""):
        return [{}]
    chosen, tool = environ.get("CUDA_VISIBLE_DEVICES"), shutil.which("nvidia-smi")
    if chosen is None and tool is not None:
        listed = subprocess.run([tool, "-L"], capture_output=True, text=True, check=False, timeout=60)
        gpus = [line for line in listed.stdout.splitlines() if line.startswith("GPU ")]
        chosen = ",".join(str(k) for k, _ in enumerate(gpus))
    numbers = [one for one in (chosen or "").split(",") if one not in ("", "-1")]
    return [{"CUDA_VISIBLE_DEVICES": number} for number in numbers] or [{}]


def _ended(code: int) -> str:
    """Returns how a process ended, in words."""
    if code >= 0:
        return f"the worker process ended with exit code {code}"
    hint = "; the system kills a process that takes too much memory" if code == -signal.SIGKILL else ""
    return f"the worker process was ended by signal {-code} ({signal.strsignal(-code)}){hint}"
