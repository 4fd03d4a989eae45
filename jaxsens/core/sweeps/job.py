"""The resumable job: computes the items whose records are missing, one by one, and keeps their tables up to date.

All state is in the records, so a job that was killed is resumed by running it again, and several processes may work on
one directory, each on items of its own. What is particular to a sweep, its tables or an experiment is a subclass of
`Job`.

.RECORD.failed    why the record could not be computed, in one line
.ITEMS.lock       locked by the process that computes these items, and removed by it

A record is kept under a key and sealed. It is read back as it was written or not at all: a job reports a damaged one
and computes it again, and a command that only reads a directory tells its user to run the job again.
"""

from __future__ import annotations

import abc
import fcntl
import secrets
import signal
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, field
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar

from pydantic import TypeAdapter, ValidationError
from rich.console import Console

from jaxsens.core.base.errors import InputError, ProcessLost
from jaxsens.core.base.files import (
    clear_leftovers,
    made_place,
    never_a_link,
    only_inside,
    place_of,
    remedy,
    takes_no_more,
    there_are,
    write_text,
)
from jaxsens.core.base.sealed import DamagedFile, digest, read_sealed, write_sealed
from jaxsens.core.base.stopping import ENDING, check, noting
from jaxsens.core.base.text import print_text
from jaxsens.core.sweeps.progress import Reporter, TimeLeft, reporting


class Planned(Protocol):
    """An item of a job. Items are hashable, and `str(item)` names one."""

    @property
    def group(self) -> tuple[str, int]:
        """Its group and its length n: see `TimeLeft`."""
        ...


class Computed(Protocol):
    """What a job keeps of an item."""

    def summary(self) -> str:
        """It in a few words, for the line that says it is done."""
        ...


Item = TypeVar("Item", bound=Planned)
Row = TypeVar("Row", bound=Computed)
Value = TypeVar("Value")


@dataclass(frozen=True)
class Failure:
    """An item that could not be computed, and why, in one line."""

    item: object
    message: str

    def __str__(self) -> str:
        return f"{self.item}: {self.message}"


@dataclass(frozen=True)
class Outcome:
    """How a run ended.

    Attributes:
        computed: how many of the items the run computed itself.
        finished: how many items of the whole job are done now; by their files, if the run had a part of the items and
            others are not done.
        planned: how many items the whole job has.
        failures: the items that failed.
        stopped_by: the signal that ended the run early, or None.
        unwritable: why the directory takes no more, which ended the run early; empty if it does.
        records: of all that is done, in the order of the items; for a run of a part of the items, of that part, unless
            all is done.
    """

    computed: int
    finished: int
    planned: int
    failures: tuple[Failure, ...]
    stopped_by: int | None
    unwritable: str = ""
    records: tuple[Any, ...] = ()

    @property
    def ended_early(self) -> bool:
        """Whether there may be more to do that was not tried."""
        return self.stopped_by is not None or bool(self.unwritable)

    @property
    def exit_code(self) -> int:
        """0; 1 if an item failed or the directory takes no more; 128 + the signal's number if one stopped the run."""
        if self.stopped_by is not None:
            return 128 + self.stopped_by
        return 1 if self.failures or self.unwritable else 0


class Job(abc.ABC, Generic[Item, Row]):
    """A kind of job: what its items are, and how one is computed and kept.

    Args:
        items: all that there are, in the order of the tables.
        directory: where records are kept, if they are.
    """

    folders: tuple[str, ...] = ()
    """Below the directory, where killed processes may have left temporary files."""
    shared: bool = False
    """Whether several processes compute each item together."""

    def __init__(self, items: Sequence[Item], directory: Path = Path()) -> None:
        self.items = items
        self.directory = directory

    def prepare(self, console: Console) -> None:
        """Does what comes before the items, such as writing the plan."""

    def check(self) -> None:
        """Raises `Stopped` between two items, after a signal."""
        check()

    def path(self, item: Item) -> Path | None:
        """Where an item's record is kept."""
        return None

    def read(self, item: Item) -> Row:
        """Reads an item's record. Raises FileNotFoundError or DamagedFile where there is none to be had."""
        raise FileNotFoundError(str(item))

    @abc.abstractmethod
    def compute(self, item: Item, reporter: Reporter) -> Row:
        """Computes an item's record and keeps it. Whatever it raises fails this item alone, except a full disk."""

    def compile_ahead(self, item: Item) -> None:
        """Compiles what `compute` will run of an item, in another thread, while other items are computed. Nothing else
        changes, and what it raises is dropped: `compute` raises it too."""

    def write_tables(self, records: Sequence[Row]) -> None:
        """Writes the tables of what is done; `records` come in the order of the items."""

    def state(self, item: Item) -> str:
        """ "done", "missing", or "damaged": what there is of an item."""
        try:
            self.read(item)
        except FileNotFoundError:
            return "missing"
        except DamagedFile:
            return "damaged"
        return "done"


def run(job: Job[Item, Row], console: Console, chosen: Sequence[Item] | None = None) -> Outcome:
    """Computes the chosen items that have no sound record yet, in this order; without `chosen`, all of them.

    An item that fails is reported and does not stop the others. Signals (`stopping.ENDING`) leave what was finished,
    and so does a directory that takes no more. Another process that computes the same items is reported.

    Raises:
        InputError: before anything is computed, if a link leads out of the directory.
    """
    unwritable, interrupted = "", None
    running = _Run(job, console, chosen)
    with only_inside(job.directory) if job.folders else nullcontext(), noting(*ENDING) as request:
        try:
            # A link that leads out of the directory from where a record belongs is refused.
            places = {path.parent for path in map(job.path, job.items) if path is not None}
            for place in sorted(places | {job.directory / name for name in job.folders}):
                place_of(place / "record")
            for folder in job.folders:  # what killed processes left
                clear_leftovers((job.directory / folder).rglob(".*.tmp"))
            job.prepare(console)
            running.work()
        except KeyboardInterrupt as stop:
            interrupted = getattr(stop, "signal", signal.SIGINT)
        except OSError as error:
            unwritable = why_unwritable(error, job.directory)
        try:
            running.write_tables()
        except OSError as error:
            unwritable = unwritable or why_unwritable(error, job.directory)
        stopped_by = request.answer() or interrupted
    return Outcome(
        computed=running.computed,
        finished=running.finished,
        planned=len(job.items),
        failures=tuple(running.failures),
        stopped_by=stopped_by,
        unwritable=unwritable,
        records=tuple(running.records),
    )


class _Run(Generic[Item, Row]):
    """One run of a job: what is done so far."""

    def __init__(self, job: Job[Item, Row], console: Console, chosen: Sequence[Item] | None) -> None:
        self.job, self.console = job, console
        self.chosen = job.items if chosen is None else chosen
        self.done: dict[Item, Row] = {}
        self.failures: list[Failure] = []
        self.computed = 0
        self._looked = False  # at what is to be computed
        self._looked_at_all = False
        self._left = TimeLeft()
        self._warned: set[tuple[str, type[Warning]]] = set()

    @property
    def _takes_all(self) -> bool:
        """Whether this run is to compute all items, rather than a part of a job that other processes share."""
        return len(self.chosen) == len(self.job.items)

    @property
    def finished(self) -> int:
        """How many items are done, as far as is known; of items that were not looked at, by their files."""
        return len(self.job.items) - len(self._missing())

    def _missing(self) -> list[Item]:
        """The items that are not done, as far as is known, and have no file."""
        others = {item: self.job.path(item) for item in self.job.items if item not in self.done}
        if self._looked_at_all:
            return [*others]
        there = there_are(path for path in others.values() if path is not None)
        return [item for item, path in others.items() if path not in there]

    @property
    def records(self) -> list[Row]:
        return [self.done[item] for item in self.job.items if item in self.done]

    def work(self) -> None:
        damaged = self._look(self.chosen, stoppable=True)
        self._looked, self._looked_at_all = True, self._takes_all
        remaining = [item for item in self.chosen if item not in self.done]
        before, job = len(self.chosen) - len(remaining), self.job
        locks = bool(remaining and job.folders) and not job.shared
        lock = alone(job.directory / job.folders[0], self.chosen) if locks else nullcontext(True)
        ahead = _compiling_ahead(job, remaining)
        with reporting(self.console, len(self.chosen), before) as reporter, lock as is_alone, ahead as begin:
            if not is_alone:
                reporter.warn(
                    f"another process computes the same in {job.directory}, and every item is computed twice: stop one "
                    "of the two; to divide a sweep, give each process a --shard of its own"
                )
            for item, why in damaged.items():
                reporter.note(f"damaged, computed again: {item}: {why}")
            if before:
                reporter.note(f"{before} of {len(self.chosen)} were done before")
            counts = Counter(item.group for item in remaining)
            for item in remaining:
                job.check()
                begin(item)
                text = self._take(item, reporter)
                counts -= Counter([item.group])
                reporter.finished(f"{item}: {text}", self._left.of(counts))

    def write_tables(self) -> None:
        """Writes the tables of all that is done, by other processes too: never with less than is known.

        A run that has not looked at what there is knows nothing that the tables do not hold, and writes none. A run of
        a part of the items lists the others, and reads them and writes the tables only if all are there: if each of
        many processes read everything, a large job would spend its time on that. Of two processes that end at the same
        time, the one that lists later sees what both wrote.
        """
        if not self._looked:
            return
        count = -1
        missing = [self.job.path(item) for item in self.job.items if item not in self.done]
        see_what_others_wrote(path.parent for path in missing if path is not None)
        if not self._looked_at_all and self._missing():
            return
        damaged, self._looked_at_all = self._look(self.job.items), True
        for item, why in ({} if self._takes_all else damaged).items():
            left = "left, because this run is not to compute it"
            print_text(self.console, f"damaged, {left}: {item}: {why}")
        while count < len(self.done):  # Others may have finished more while this one wrote.
            count = len(self.done)
            self.job.write_tables(self.records)
            self._look(self.job.items)

    def _look(self, items: Sequence[Item], stoppable: bool = False) -> dict[Item, str]:
        """Notes which further items are done; returns what is wrong with the damaged ones."""
        damaged = {}
        for item in [item for item in items if item not in self.done]:
            if stoppable:
                self.job.check()
            try:
                self.done[item] = self.job.read(item)
            except FileNotFoundError:
                continue
            except DamagedFile as error:
                damaged[item] = str(error)
        return damaged

    def _take(self, item: Item, reporter: Reporter) -> str:
        """Computes an item; returns what to say of it."""
        self._look([item])
        if item in self.done:
            return "done by another process"
        began, path = time.perf_counter(), self.job.path(item)
        try:
            with warnings.catch_warnings(record=True) as caught:
                record = self.job.compute(item, reporter)
        except Exception as error:  # whatever one item raises, the others are computed
            if takes_no_more(error) or isinstance(error, ProcessLost):
                raise
            self.failures.append(Failure(item, one_line(error)))
            reporter.failed(f"failed: {self.failures[-1]}")
            note_failure(path, self.failures[-1].message)
            return "failed"
        for warning in caught:  # those of one kind once a group: every longer input repeats them
            kind = (item.group[0], warning.category)
            if kind not in self._warned:
                reporter.warn(f"warning: {item}: {warning.message}")
            self._warned.add(kind)
        note_failure(path, None)
        self.done[item] = record
        self.computed += 1
        seconds = time.perf_counter() - began
        self._left.add(*item.group, seconds)
        return f"{record.summary()} ({seconds:.2g} s)"


_AHEAD = 8
"""The groups that are compiled for ahead, at most: those of one length, and no more programs than are kept."""


@contextmanager
def _compiling_ahead(job: Job[Item, Row], items: Sequence[Item]) -> Iterator[Callable[[Item], None]]:
    """Compiles for the first items of the next groups, in two threads: where an item waits for one, a core is free.
    Yields what is told of each item before it is computed: what has not begun for its group is left to it."""
    waiting: dict[tuple[str, int], Item] = {}
    for item in items:
        waiting.setdefault(item.group, item)
    ahead: dict[tuple[str, int], Future[None]] = {}
    threads = ThreadPoolExecutor(2, "jaxsens ahead")

    def begin(item: Item) -> None:
        waiting.pop(item.group, None)
        if item.group in ahead:
            ahead.pop(item.group).cancel()
        for group in [*islice(waiting, _AHEAD - len(ahead))]:
            ahead[group] = threads.submit(job.compile_ahead, waiting.pop(group))

    try:
        yield begin
    finally:  # what still compiles as Python ends crashes it
        threads.shutdown(cancel_futures=True)


def why_unwritable(error: OSError, directory: Path) -> str:
    """Why the directory takes no more, and the remedy. Raises the error again if it has another reason."""
    if error.errno is None or not takes_no_more(error):
        raise error
    return f"{error.strerror}: nothing more can be kept in {directory}; {remedy(error)}"


def one_line(error: Exception) -> str:
    """What went wrong, short enough for a line of the progress, with the remedy if memory ran out."""
    text = " ".join(str(error).split())
    if not isinstance(error, InputError):
        text = f"{type(error).__name__}: {text}"
    if "RESOURCE_EXHAUSTED" in text or isinstance(error, MemoryError):
        text = f"out of memory; give [measure] a smaller memory_budget or batch_size ({text})"
    return text if len(text) <= 400 else text[:397] + "..."


# What processes leave next to the records: why items failed, and which items a process computes


@contextmanager
def alone(folder: Path, items: Iterable[object]) -> Iterator[bool]:
    """Yields False if another process computes exactly these items. Where files cannot be locked, nobody knows."""
    name = digest({"items": [*map(str, items)]})[:12]
    path = made_place(folder / f".{name}.lock")
    with open(path, "w", encoding="utf-8", opener=never_a_link) as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        except OSError:
            pass
        try:
            yield True
        finally:
            path.unlink(missing_ok=True)


def failure_of(path: Path) -> Path:
    """Returns the name of the note that says why there is no record at `path`."""
    return path.with_name(f".{path.name}.failed")


def note_failure(path: Path | None, message: str | None) -> None:
    """Keeps why a record could not be computed, for `jaxsens status`; without a message removes an earlier note."""
    if path is not None:
        with suppress(OSError, InputError):  # The run itself says what failed.
            if message is None:
                failure_of(path).unlink(missing_ok=True)
            else:
                write_text(failure_of(path), f"{message}\n")


def read_failure(path: Path) -> str | None:
    """Returns why the record at `path` could not be computed; None if no failure was noted, or it is there by now."""
    try:
        text = failure_of(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return None
    return None if path.exists() else text


def see_what_others_wrote(folders: Iterable[Path]) -> None:
    """Makes network file systems look at these folders again.

    An NFS client remembers for up to a minute which names a folder lacks. It forgets when the folder changes.
    """
    for folder in sorted(set(folders)):
        if folder.is_dir():
            with suppress(OSError, InputError):  # A folder of another user, or one outside the directory.
                probe = place_of(folder / f".probe.{secrets.token_hex(8)}.tmp")
                probe.touch()
                probe.unlink(missing_ok=True)


# Records, and the tables made from them

Place = TypeVar("Place")
Content = TypeVar("Content")


class Record:
    """Base class of the frozen dataclasses that are kept as sealed JSON files.

    kind: names, in the file, what it holds.
    """

    kind: ClassVar[str]

    def write(self, path: Path) -> None:
        """Writes the record atomically. Equal records give the same bytes."""
        write_sealed(path, self.kind, asdict(self))  # pyright: ignore[reportArgumentType] - of a dataclass

    @classmethod
    def read(cls, path: Path, key: str | None = None) -> Self:
        """Reads a record, and checks its `key` where one is given.

        Raises:
            FileNotFoundError: if there is no such file.
            DamagedFile: if the file is not what was written, or holds another record.
        """
        record: Any = _made(cls, read_sealed(path, cls.kind), path, cls.kind)
        if key is not None:
            check_key(path, record.key, key)
        return record


@cache
def _adapter(kind: type[Any]) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def _made(kind: type[Content], content: object, path: Path, name: str) -> Content:
    """The dataclass of what a file holds. Raises `DamagedFile`, which calls it by this name, if it cannot be made."""
    try:
        return _adapter(kind).validate_python(content)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise DamagedFile(path, f"not a {name}: {where}: {first['msg']}") from error


def check_key(path: Path, key: str, expected: str) -> None:
    """Raises `DamagedFile` if a file's record has another key than the one under which it was looked for."""
    if key != expected:
        raise DamagedFile(path, f"holds the record of another key ({key[:12]}, not {expected[:12]})")


_ROW = "row of a table"

_ROW_FORMAT = 1
"""Raised when the meaning of a row of any table, or of the numbers behind it, changes."""


@dataclass(frozen=True)
class Named(Generic[Value]):
    """An item of a job that is known by its name, which no other item of the job has.

    Attributes:
        name: for messages, and for the item's key.
        value: what the item is computed from.
        group: its group and its length n: see `TimeLeft`.
    """

    name: str
    value: Value = field(compare=False)
    group: tuple[str, int] = field(default=("rows", 1), compare=False)

    def __str__(self) -> str:
        return self.name


class RowsJob(Job[Named[Value], Row]):
    """A job that makes one table: each row is a dataclass that a function makes of what its item is given.

    Args:
        items: The rows to come.
        compute: Computes a row from a value, and tells a reporter how far it is.
        row: The class of the rows.
        settings: What determines all rows beside their names, as JSON values.
        directory: Where rows are kept, so that a stopped job can go on; None for memory only.
        folder: In the directory.
    """

    def __init__(
        self,
        items: Sequence[Named[Value]],
        compute: Callable[[Value, Reporter], Row],
        row: type[Row],
        settings: Mapping[str, Any],
        directory: Path | None,
        folder: str = ".",
    ) -> None:
        super().__init__(items, directory or Path())
        self.folders = () if directory is None else (folder,)
        self._compute, self._row, self._settings = compute, row, settings
        self._folder = None if directory is None else directory / folder

    def _key(self, item: Named[Value]) -> str:
        return digest({"format": _ROW_FORMAT, "row": self._row.__name__, "item": item.name, **self._settings})

    def path(self, item: Named[Value]) -> Path | None:
        return None if self._folder is None else self._folder / f"{self._key(item)[:12]}.json"

    def read(self, item: Named[Value]) -> Row:
        path = self.path(item)
        if path is None:
            return super().read(item)
        content = read_sealed(path, _ROW)
        check_key(path, content["key"], self._key(item))
        return _made(self._row, content["row"], path, _ROW)

    def compute(self, item: Named[Value], reporter: Reporter) -> Row:
        row: Any = self._compute(item.value, reporter)
        path = self.path(item)
        if path is not None:
            write_sealed(path, _ROW, {"key": self._key(item), "row": asdict(row)})
        return row

    def forget(self) -> None:
        """Removes this job's rows, and the folder if that leaves it empty."""
        for path in filter(None, map(self.path, self.items)):
            path.unlink(missing_ok=True)
        if self._folder is not None:
            with suppress(OSError):
                self._folder.rmdir()


def read_finished(items: Iterable[Place], read: Callable[[Place], Content], again: str) -> Iterator[Content]:
    """Reads the records that are there, one at a time, in the order of the items; missing ones are left out.

    Raises:
        InputError: if one is damaged, with `again`, the remedy.
    """
    for item in items:
        try:
            yield read(item)
        except FileNotFoundError:
            continue
        except DamagedFile as error:
            raise InputError(f"{error}; {again}") from error


def write_table(
    path: Path, columns: Sequence[str], rows: Iterable[Mapping[str, Any]], missing: str = ""
) -> None:
    """Writes a CSV file atomically. Floats keep every digit, and `rows` may have more columns.

    Equal rows give the same bytes. missing: the field of None and of NaN.
    """
    import pandas as pd

    # As objects: in a column with None, whole numbers would become floats.
    frame = pd.DataFrame(list(rows), columns=list(columns), dtype=object)
    write_text(path, frame.to_csv(index=False, na_rep=missing, lineterminator="\n"))
