"""What was asked and what became of it: jobs in SQLite, results beside it as files.

    STORE/jobs.sqlite3          a row for each job
    STORE/results/ID.parquet    what was measured

A job's name is a digest of its question, so the same question is the same job. Rows are changed in transactions and
files renamed into place: after a kill at any moment, a job is as it was or as it became.
"""

from __future__ import annotations

import fcntl
import json
import sqlite3
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxsens.core.base.errors import InputError

WAITING, ENDED = ("queued", "running"), ("finished", "failed", "cancelled")

MOST_CRASHES = 2
"""The worker processes that may end during a job before it has failed."""

_VERSION = 1
_PASSING = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR)
_JSON = ("question", "about", "found")
_TABLE = """CREATE TABLE IF NOT EXISTS jobs (
    id TEXT PRIMARY KEY, state TEXT NOT NULL DEFAULT 'queued', asked REAL NOT NULL,
    question TEXT NOT NULL, about TEXT NOT NULL, found TEXT NOT NULL DEFAULT '{}',
    done INTEGER NOT NULL DEFAULT 0, total INTEGER NOT NULL DEFAULT 0, message TEXT NOT NULL DEFAULT '',
    crashes INTEGER NOT NULL DEFAULT 0, began REAL, ended REAL
) STRICT"""


class StoreFull(OSError):
    """Raised where the store takes no more."""


@dataclass(frozen=True)
class StoredJob:
    """A row of the store.

    Attributes:
        id: a digest of its question.
        state: one of `WAITING` or `ENDED`.
        asked: when it was last asked for, or queued if it waits or runs, in seconds since 1970.
        question: as JSON values.
        about: what was known of it when it was accepted: n, flips, seconds, bytes.
        found: statistics.
        done, total: flips.
        message: why it failed.
        crashes: how many worker processes ended while they measured it. Asking again does not clear it; a start of
            the server does, unless the job has failed.
        began, ended: times.
    """

    id: str
    state: str
    asked: float
    question: dict[str, Any]
    about: dict[str, Any]
    found: dict[str, Any]
    done: int
    total: int
    message: str
    crashes: int
    began: float | None
    ended: float | None

    @property
    def again(self) -> bool:
        """Whether it is measured again when it is asked for again."""
        return self.state == "cancelled" or (self.state == "failed" and self.crashes < MOST_CRASHES)


class Store:
    """The jobs in a folder, of which one process has the writing.

    No link in the folder is followed.

    Raises:
        InputError: if another service has the folder, if a link lies in it, or if it is damaged: nothing is then
            changed.
        OSError: if it cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        for inside in folder.iterdir():
            _no_link(inside)
        (folder / "results").mkdir(exist_ok=True)
        self._lock = (folder / "lock").open("a")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._lock.close()
            raise InputError.of(
                "--store",
                str(folder),
                "another service has it; stop that, or give another folder",
                subject="serve",
            ) from error
        # One process has the file, so there is nobody to wait for.
        database = folder / "jobs.sqlite3"
        if database.exists() and not database.is_file():
            self._lock.close()
            raise InputError.of(
                "--store", str(folder), "jobs.sqlite3 is no file; move it away", subject="serve"
            )
        self._rows = sqlite3.connect(database, timeout=0.5, isolation_level=None, check_same_thread=False)
        self._rows.row_factory = sqlite3.Row
        try:
            self._open()
        except sqlite3.DatabaseError as error:
            self.close()
            if getattr(error, "sqlite_errorcode", 0) & 0xFF in _PASSING:
                raise InputError.of(
                    "--store",
                    str(folder),
                    f"jobs.sqlite3 cannot be used now ({error}): end what else has it open, or make room",
                    subject="serve",
                ) from error
            raise InputError.of(
                "--store",
                str(folder),
                f"jobs.sqlite3 is damaged ({error}). Nothing was changed; move it "
                "elsewhere, and the service begins a new one: results/ keeps what was measured",
                subject="serve",
            ) from error

    def _open(self) -> None:
        (sound,) = self._rows.execute("PRAGMA quick_check(1)").fetchone()
        if sound != "ok":
            raise sqlite3.DatabaseError(sound)
        (version,) = self._rows.execute("PRAGMA user_version").fetchone()
        if version not in (0, _VERSION):
            raise sqlite3.DatabaseError(f"it is of version {version}, and this jaxsens knows {_VERSION}")
        # One process alone has the file, which then needs no shared memory: it may lie on a network's file system.
        self._rows.execute("PRAGMA locking_mode = EXCLUSIVE")
        self._rows.execute("PRAGMA journal_mode = WAL")
        self._rows.execute("PRAGMA synchronous = NORMAL")
        self._rows.execute(_TABLE)
        self._rows.execute("CREATE INDEX IF NOT EXISTS next ON jobs (state, asked)")
        self._rows.execute(f"PRAGMA user_version = {_VERSION}")
        # What the last process had begun is begun again. Crashes count since the start: many a server is killed.
        self._rows.execute("UPDATE jobs SET state = 'queued', done = 0 WHERE state = 'running'")
        self._rows.execute("UPDATE jobs SET crashes = 0 WHERE state = 'queued'")

    def close(self) -> None:
        """Lets go of the folder."""
        self._rows.close()
        self._lock.close()

    def result(self, job: str) -> Path:
        """Where a measurement's result is. Raises InputError if a link lies there."""
        return _no_link(self.folder / "results" / f"{job}.parquet")

    def get(self, job: str) -> StoredJob | None:
        """Returns a job, or None."""
        row = self._rows.execute("SELECT * FROM jobs WHERE id = ?", (job,)).fetchone()
        return None if row is None else _job(row)

    def listed(self, count: int) -> list[StoredJob]:
        """Returns the jobs that were asked for last, the last first."""
        order = "SELECT * FROM jobs ORDER BY asked DESC, rowid DESC LIMIT ?"
        return [_job(row) for row in self._rows.execute(order, (count,))]

    def add(self, job: str, question: Any, about: dict[str, Any]) -> StoredJob:
        """Queues a job that is new, or is to be measured `again`. One that waits or runs stays as it is; of any other
        it is noted that it was asked for."""
        before = self.get(job)
        if before is None:
            with _writing():
                self._rows.execute(
                    "INSERT INTO jobs (id, asked, question, about) VALUES (?, ?, ?, ?)",
                    (job, time.time(), json.dumps(question), json.dumps(about)),
                )
        elif before.again:
            self.change(job, state="queued", asked=time.time(), found={}, done=0, message="")
        elif before.state in ENDED:
            self.change(job, asked=time.time())
        found = self.get(job)
        if found is None:
            raise LookupError(job)
        return found

    def change(self, job: str, **values: Any) -> None:
        """Changes fields of a job."""
        named = {name: json.dumps(one) if name in _JSON else one for name, one in values.items()}
        with _writing():
            self._rows.execute(
                f"UPDATE jobs SET {', '.join(f'{name} = ?' for name in named)} WHERE id = ?",
                (*named.values(), job),
            )

    def forget(self, job: str) -> None:
        """Removes a job and its result."""
        with _writing():
            self._rows.execute("DELETE FROM jobs WHERE id = ?", (job,))
        self.discard(job)

    def discard(self, job: str) -> None:
        """Removes the result of a job."""
        (self.folder / "results" / f"{job}.parquet").unlink(missing_ok=True)

    def waiting(self) -> tuple[int, float]:
        """Returns how many jobs wait or run, and the seconds they were estimated to take."""
        seconds = "coalesce(sum(json_extract(about, '$.seconds')), 0)"
        order = f"SELECT count(*), {seconds} FROM jobs WHERE state IN (?, ?)"
        return tuple(self._rows.execute(order, WAITING).fetchone())

    def next(self, taken: Collection[str]) -> StoredJob | None:
        """Returns the queued job that was asked for first, but for those that a worker still has."""
        order = "SELECT * FROM jobs WHERE state = 'queued' ORDER BY asked, rowid LIMIT ?"
        rows = self._rows.execute(order, (len(taken) + 1,))
        return next((_job(row) for row in rows if row["id"] not in taken), None)


def _job(row: sqlite3.Row) -> StoredJob:
    return StoredJob(**{**dict(row), **{name: json.loads(row[name]) for name in _JSON}})


def _no_link(path: Path) -> Path:
    """Returns the path. Raises InputError if it is a link: what it leads to is not the store's."""
    if path.is_symlink():
        raise InputError(f"serve: {path} is a link, and none is followed in a store: remove it")
    return path


@contextmanager
def _writing() -> Iterator[None]:
    """Turns SQLite's errors of a disk that takes no more into one of the system."""
    try:
        yield
    except sqlite3.OperationalError as error:
        raise StoreFull(f"the store takes no more ({error}); make room: what was measured is kept") from error
