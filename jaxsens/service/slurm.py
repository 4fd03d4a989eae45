"""Measurements as jobs of Slurm: the server hands them over, and follows them."""

from __future__ import annotations

import asyncio
import json
import shlex
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from jaxsens.base.errors import InputError
from jaxsens.base.files import write_text
from jaxsens.service.pool import WorkerProcess
from jaxsens.service.store import StoreFull
from jaxsens.service.worker.process import COMMAND

_LOOKS_EVERY = 1.0


class SlurmWorker(WorkerProcess):
    """A local process that looks at questions, and Slurm, which measures them: each in a job of its own.

    A job's folder, STORE/slurm/ID, must be seen by the nodes. It holds what the job reads, what it said, its log and
    its number, by which a server that was started again finds it.

    Args:
        settings, environment: as for `WorkerProcess`, of the local process.
        folder: for the folders of jobs.
        options: of sbatch, such as ("--gres=gpu:1", "--time=1:00:00").
    """

    in_turns = False

    def __init__(
        self,
        settings: Mapping[str, Any],
        environment: Mapping[str, str],
        folder: Path,
        options: tuple[str, ...],
    ) -> None:
        super().__init__(settings, environment)
        self._folder, self._options = folder, options
        self._following: dict[str, asyncio.Task[None]] = {}
        self._cancelled: set[str] = set()
        self._on_event: Callable[[dict[str, Any]], None] = lambda message: None

    async def run(self, on_event: Callable[[dict[str, Any]], None]) -> str:
        """As of `WorkerProcess`."""
        self._on_event = on_event
        return await super().run(on_event)

    def send(self, **message: Any) -> None:
        """Hands jobs over to Slurm; the local process gets what is left."""
        match message.get("do"):
            case "measure" | "sweep":
                job = message["job"]["id"]
                self._cancelled.discard(job)
                self._following[job] = asyncio.ensure_future(self._follow(job, message))
                self._on_event({"event": "submitted"})
            case "cancel":
                asyncio.ensure_future(self._cancel(message["id"]))  # noqa: RUF006 - it reports nothing
            case _:
                super().send(**message)

    async def end(self) -> None:
        """Ends the local process. Slurm's jobs go on; the next server follows them."""
        for task in self._following.values():
            task.cancel()
        await super().end()

    async def _follow(self, job: str, message: dict[str, Any]) -> None:
        """Submits a job, unless Slurm has it already, and hands on what it says until it has ended."""
        folder, kind = self._folder / job, {"measure": "measured", "sweep": "turned"}[message["do"]]
        said, ended, over = folder / "said", False, False
        try:
            number = await self._known(folder) or await self._submit(folder, message)
            read = 0
            while not ended:
                there = await self._is_there(number)  # asked before reading: what is said at the end is read
                lines = said.read_bytes()[read:] if said.exists() else b""
                for line in lines[: lines.rfind(b"\n") + 1].splitlines(keepends=True):
                    read += len(line)
                    one = json.loads(line)
                    if one["event"] in ("compiling", "running", kind):
                        await self._hand_on(one)
                    over = over or (one["event"] == kind and one.get("ended", True))
                    if one["event"] == "refused":
                        raise InputError(one["message"])
                    ended = ended or one["event"] == "idle"
                if not there and not ended:
                    raise InputError(f"Slurm's job {number} ended without a result; see {folder}/log")
                await asyncio.sleep(0.0 if ended else _LOOKS_EVERY)
        except (InputError, OSError, ValueError) as error:
            await self._hand_on({"event": kind, "id": job, "error": str(error)})
        else:
            if not over:  # Slurm stopped it before it had begun
                await self._hand_on({"event": kind, "id": job, "stopped": True})
        finally:
            if self._following.get(job) is asyncio.current_task():
                del self._following[job]
        (folder / "number").unlink(missing_ok=True)

    async def _hand_on(self, message: dict[str, Any]) -> None:
        """Hands on what a job said; where the store takes no more, as soon as it does."""
        while True:
            try:
                self._on_event(message)
                return
            except StoreFull:
                await asyncio.sleep(_LOOKS_EVERY)

    async def _submit(self, folder: Path, message: dict[str, Any]) -> str:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "said").unlink(missing_ok=True)
        write_text(folder / "asked", f"{json.dumps(self._settings)}\n{json.dumps(message)}\n")
        words = shlex.join([*COMMAND, str(folder / "asked"), str(folder / "said")])
        name, log = f"--job-name=jaxsens-{folder.name}", f"--output={folder / 'log'}"
        number = await _told(
            "sbatch", "--parsable", "--signal=TERM@60", name, log, *self._options, "--wrap", words
        )
        number = number.strip().partition(";")[0]
        write_text(folder / "number", number)
        if folder.name in self._cancelled:  # while it was submitted
            await self._cancel(folder.name)
        return number

    async def _known(self, folder: Path) -> str | None:
        """Returns the number of a job that was submitted before and is not over."""
        with suppress(FileNotFoundError):
            number = (folder / "number").read_text()
            if await self._is_there(number):
                return number
        return None

    async def _is_there(self, number: str) -> bool:
        """Whether Slurm has a job that waits or runs. A job that is over is unknown to it, sooner or later.

        Where Slurm does not answer, as while its controller starts again, the job is taken to be there.
        """
        try:
            return bool((await _told("squeue", "--noheader", "--jobs", number)).strip())
        except InputError as error:
            return "invalid job id" not in str(error).lower()

    async def _cancel(self, job: str) -> None:
        self._cancelled.add(job)
        with suppress(InputError, FileNotFoundError):
            await _told("scancel", (self._folder / job / "number").read_text())


async def _told(*command: str) -> str:
    """Returns what a command of Slurm prints.

    Raises:
        InputError: if it is not there, or fails.
    """
    try:
        process = await asyncio.create_subprocess_exec(
            *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
    except FileNotFoundError as error:
        raise InputError(f"serve: --executor = 'slurm': {command[0]} is not on the PATH") from error
    out, err = await process.communicate()
    if process.returncode:
        raise InputError(f"{command[0]} failed: {err.decode(errors='replace').strip()}")
    return out.decode()
