"""What was asked and what became of it, as files:

    STORE/jobs/ID.json          a job, sealed with a checksum
    STORE/results/ID.parquet    what was measured
    STORE/damaged/              what was damaged, set aside

A job's name is a digest of its question, so the same question is the same job. Files are renamed into place: after a
kill at any moment, a job is as it was or as it became.
"""

from __future__ import annotations

import dataclasses
import fcntl
import os
import re
import secrets
import sys
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pydantic

from jaxsens.core.base.errors import InputError
from jaxsens.core.base.files import only_inside
from jaxsens.core.base.sealed import DamagedFile, read_sealed, write_sealed

WAITING, ENDED = ("queued", "running"), ("finished", "failed", "cancelled")

MOST_CRASHES = 2
"""The worker processes that may end during a job before it has failed."""

_FOLDERS = ("jobs", "results", "damaged")
_OWN = re.compile(r"[\w-]+\.json")


@dataclass(frozen=True)
class StoredJob:
    """A job.

    Attributes:
        id: a digest of its question.
        question: as JSON values.
        about: what was known of it when it was accepted: n, flips, seconds, bytes.
        number: of its turn, which it gets whenever it is asked for, but not while it waits or runs.
        state: one of `WAITING` or `ENDED`.
        asked: when, in seconds since 1970.
        found, done, total: statistics; flips.
        message: why it failed.
        crashes: how many worker processes ended while they measured it; half of one that also looked at a question.
            Asking again does not clear it; a start of the server does, unless the job has failed.
    """

    id: str
    question: dict[str, Any] = field(repr=False)
    about: dict[str, Any]
    number: int
    state: str = "queued"
    asked: float = field(default_factory=time.time)
    found: dict[str, Any] = field(default_factory=dict)
    done: int = 0
    total: int = 0
    message: str = ""
    crashes: float = 0

    @property
    def again(self) -> bool:
        """Whether it is measured again when it is asked for again."""
        return self.state == "cancelled" or (self.state == "failed" and self.crashes < MOST_CRASHES)

    def record(self) -> dict[str, Any]:
        """Returns what is written: a job that runs waits for the next start of the server."""
        waits = {"state": "queued", "done": 0, "total": 0} if self.state in WAITING else {}
        return {**vars(self), **waits}


_JOB = pydantic.TypeAdapter(StoredJob)


class Store:
    """The jobs in a folder, of which one process has the writing.

    No link in the folder is followed. A damaged job is set aside, and measured when it is asked for again.

    Attributes:
        jobs, on_change: the jobs by name; called with the name of one that has changed.

    Raises:
        InputError: if another service has the folder, or if a link lies in it: nothing is then changed.
        OSError: if it cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.on_change: Callable[[str], object] = lambda job: None
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for place in (folder, *(folder / name for name in _FOLDERS)):
            for inside in place.iterdir() if place.is_dir() and not place.is_symlink() else ():
                _no_link(inside)
        self._lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self.close()
            remedy = "another service has it; stop that, or give another folder"
            raise InputError.of("--store", str(folder), remedy, subject="serve") from error
        for name in _FOLDERS:
            (folder / name).mkdir(mode=0o700, exist_ok=True)
        self.jobs = dict[str, StoredJob]()
        for path in (folder / "jobs").iterdir():
            if _OWN.fullmatch(path.name):  # nothing else is the service's
                self._read(path)

    def _read(self, path: Path) -> None:
        try:
            job = _JOB.validate_python(read_sealed(path, "job"))
            if job.id != path.stem or job.state not in ("queued", *ENDED):
                raise DamagedFile(path, "it holds another job")
        except (DamagedFile, pydantic.ValidationError) as error:
            self._set_aside(path, str(error))
            return
        # Crashes count since the start: many a server is killed.
        self.jobs[job.id] = dataclasses.replace(job, crashes=0) if job.state == "queued" else job

    def _set_aside(self, path: Path, why: str) -> None:
        aside = self.folder / "damaged" / f"{path.name}.{secrets.token_hex(4)}"
        path.rename(aside)
        print(f"jaxsens: {why}. It is now {aside}; ask again to measure it", file=sys.stderr, flush=True)

    def close(self) -> None:
        """Lets go of the folder."""
        os.close(self._lock)

    def result(self, job: str) -> Path:
        """Where a measurement's result is. Raises InputError if a link lies there."""
        return _no_link(self.folder / "results" / f"{job}.parquet")

    def lose(self, job: str, why: str) -> None:
        """Fails a job whose result is lost or damaged: asked again, it is measured again."""
        place = self.folder / "results" / f"{job}.parquet"
        if place.exists() and not place.is_symlink():
            self._set_aside(place, why)
        self.change(job, state="failed", message="its result was lost or damaged; ask again")

    def add(self, job: str, question: Any, about: dict[str, Any]) -> StoredJob:
        """Queues a job that is new, or is to be measured `again`. One that waits or runs stays as it is; of any other
        it is noted that it was asked for."""
        before, number = self.jobs.get(job), 1 + max((one.number for one in self.jobs.values()), default=0)
        if before is None or before.again:
            crashes = 0 if before is None else before.crashes
            self._write(StoredJob(job, question, about, number, crashes=crashes))
        elif before.state in ENDED:
            self.change(job, number=number, asked=time.time())
        return self.jobs[job]

    def change(self, job: str, **values: Any) -> None:
        """Changes fields of a job."""
        self._write(dataclasses.replace(self.jobs[job], **values))

    def _write(self, job: StoredJob) -> None:
        before = self.jobs.get(job.id)
        if before is None or before.record() != job.record():
            try:
                with only_inside(self.folder):
                    write_sealed(self.folder / "jobs" / f"{job.id}.json", "job", job.record(), indent=None)
            except (OSError, InputError) as error:
                why = (error.strerror if isinstance(error, OSError) else None) or "a link lies in it"
                raise OSError(f"the store takes no more ({why}); what was measured is kept") from error
        self.jobs[job.id] = job
        self.on_change(job.id)

    def forget(self, job: str) -> None:
        """Removes a job and its result."""
        self.discard(job)
        (self.folder / "jobs" / f"{job}.json").unlink(missing_ok=True)
        self.jobs.pop(job, None)

    def discard(self, job: str) -> None:
        """Removes the result of a job."""
        (self.folder / "results" / f"{job}.parquet").unlink(missing_ok=True)

    def waiting(self) -> tuple[int, float]:
        """Returns how many jobs wait or run, and the seconds they were estimated to take."""
        seconds = [job.about["seconds"] for job in self.jobs.values() if job.state in WAITING]
        return len(seconds), sum(seconds)

    def next(self, taken: Collection[str]) -> StoredJob | None:
        """Returns the queued job that was asked for first, but for those that a worker still has."""
        queued = (job for job in self.jobs.values() if job.state == "queued" and job.id not in taken)
        return min(queued, key=lambda job: job.number, default=None)


def _no_link(path: Path) -> Path:
    """Returns the path. Raises InputError if it is a link: what it leads to is not the store's."""
    if path.is_symlink():
        raise InputError(f"serve: {path} is a link, and none is followed in a store: remove it")
    return path
