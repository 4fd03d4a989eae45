"""Progress of a sweep: a bar on a terminal, timed lines otherwise, with the time left."""

from __future__ import annotations

import abc
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Column

_LINE_EVERY = 1.0
_INSIDE_EVERY = 30.0


class Reporter(abc.ABC):
    """Says what a sweep is doing. Use it as a context manager."""

    def __init__(self, console: Console, total: int, done: int) -> None:
        self.console = console
        self.total = total
        self.done = done
        self.left: float | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    @abc.abstractmethod
    def note(self, text: str) -> None:
        """Something that must not be missed: a damaged file, a failed point."""

    def warn(self, text: str) -> None:
        """Something that is printed however quiet the console is."""
        self.note(text)

    @abc.abstractmethod
    def inside(self, name: str, done: int, of: int | None, unit: str = "flips") -> None:
        """A point is under way: so much of it is done, of what is known or not."""

    @abc.abstractmethod
    def finished(self, text: str, left: float | None) -> None:
        """A point has ended, well or not, and so many seconds are left (None: not known yet)."""


class LogReporter(Reporter):
    """Lines with the seconds since the start, at most one a second, and one at least every 30 s of a long point."""

    def __init__(self, console: Console, total: int, done: int) -> None:
        super().__init__(console, total, done)
        self._began = self._last = time.monotonic()

    def note(self, text: str) -> None:
        """Prints at once."""
        self._line(text)

    def inside(self, name: str, done: int, of: int | None, unit: str = "flips") -> None:
        """Prints where nothing was for a while."""
        if time.monotonic() - self._last >= _INSIDE_EVERY:
            part = str(done) if of is None else f"{done} of {of}"
            self._line(f"{self.done}/{self.total}  {name}: {part} {unit}")

    def finished(self, text: str, left: float | None) -> None:
        """Prints, except within a second of the line before; always the last."""
        self.done += 1
        if time.monotonic() - self._last >= _LINE_EVERY or self.done == self.total:
            self._line(f"{self.done}/{self.total}  {text}{left_text(left)}")

    def _line(self, text: str) -> None:
        self._last = time.monotonic()
        line = f"[{self._last - self._began:8.1f} s]  {text}"
        self.console.print(line, markup=False, highlight=False, soft_wrap=True)


class BarReporter(Reporter):
    """A bar that stays in place; notes are printed above it."""

    def __init__(self, console: Console, total: int, done: int) -> None:
        super().__init__(console, total, done)
        self._progress = Progress(
            BarColumn(bar_width=20),
            MofNCompleteColumn(table_column=Column(no_wrap=True, min_width=7)),
            TimeElapsedColumn(table_column=Column(no_wrap=True, min_width=7)),
            TextColumn(
                "{task.fields[left]}{task.description}",
                markup=False,
                table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1),
            ),
            console=console,
            expand=True,
        )
        self._task = self._progress.add_task("", total=total, completed=done, left="")

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def note(self, text: str) -> None:
        """Prints above the bar."""
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def inside(self, name: str, done: int, of: int | None, unit: str = "flips") -> None:
        """Shows the point and how far it is."""
        part = str(done) if of is None else f"{done}/{of}"
        self._progress.update(self._task, description=f"  {name}: {part} {unit}")

    def finished(self, text: str, left: float | None) -> None:
        """Moves the bar on."""
        self.done += 1
        self._progress.update(
            self._task, completed=self.done, left=left_text(left)[2:], description=f"  {text}"
        )


class QuietReporter(LogReporter):
    """Nothing but warnings."""

    def warn(self, text: str) -> None:
        """Prints on the standard error output."""
        Console(stderr=True).print(text, markup=False, highlight=False, soft_wrap=True)


@contextmanager
def reporting(console: Console, total: int, done: int) -> Iterator[Reporter]:
    """The reporter that suits the console, for `total` points of which `done` are done."""
    kind = QuietReporter if console.quiet else BarReporter if console.is_terminal else LogReporter
    with kind(console, total, done) as reporter:
        yield reporter


def left_text(seconds: float | None) -> str:
    """`; about 3 min left`, or nothing where it is not known."""
    if seconds is None:
        return ""
    return f"; about {duration(seconds)} left"


def duration(seconds: float) -> str:
    """A rough duration in the unit that suits it."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 100 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
