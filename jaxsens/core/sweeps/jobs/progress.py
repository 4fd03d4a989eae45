"""How far a job or a training is: a bar on a terminal, timed lines elsewhere, and the time left."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Column

from jaxsens.core.base.text import duration, print_text

_LINE_EVERY = 60.0
_FARTHEST = 16  # times the longest length of which the cost is known
_LATEST = 32  # items of a group and length whose cost is remembered


class Reporter:
    """Prints timed lines, at most one a minute about how far all is. See `reporting` for the arguments."""

    _of = " of "
    _told_all = False  # whether every failure is printed

    def __init__(self, console: Console, total: int, done: int, name: str, at_once: bool = False) -> None:
        self.console, self.total, self.done = console, total, done
        self._prefix = f"{name}: " if name else ""
        self._began = time.monotonic()
        self._failed, self._last_failure = 0, -math.inf
        self._last = -math.inf if at_once else self._began

    def note(self, text: str) -> None:
        """Prints what must not be missed, such as a damaged file or a failed item."""
        print_text(self.console, f"[{time.monotonic() - self._began:8.1f} s]  {self._prefix}{text}")

    def failed(self, text: str) -> None:
        """Counts a failed item, and prints it unless another one was printed within the last minute."""
        self._failed += 1
        if self._told_all or time.monotonic() - self._last_failure >= _LINE_EVERY:
            self._last_failure = time.monotonic()
            self.note(text)

    def warn(self, text: str) -> None:
        """Prints a warning, on a quiet console too."""
        if self.console.quiet:
            print_text(Console(stderr=True), text)
        else:
            self.note(text)

    def inside(self, name: str, done: int, of: int | None, unit: str = "flips") -> None:
        """Tells that the item `name` is under way: `done` of its `of` parts; None where their number is not known."""
        part = f"{done}" if of is None else f"{done}{self._of}{of}"
        self._show(f"{name}: {part} {unit}", None, _LINE_EVERY)

    def finished(self, text: str, left: float | None) -> None:
        """Tells that one more item has ended. `left` is the time left in seconds; None where it is not known."""
        self.reached(self.done + 1, text, left)

    def reached(self, done: int, text: str, left: float | None) -> None:
        """Tells that `done` items or steps have ended."""
        self.done = done
        self._show(text, left_text(left), 0.0 if done == self.total else _LINE_EVERY)

    def _show(self, text: str, left: str | None, every: float) -> None:
        """Prints how far all is, if the last line of this kind is `every` seconds old."""
        if time.monotonic() - self._last >= every:
            self._last = time.monotonic()
            failed = f", {self._failed} failed" if self._failed else ""
            self.note(f"{self.done}/{self.total}{failed}  {text}{left or ''}")


class BarReporter(Reporter):
    """Moves a bar that stays in place, and prints notes above it.

    rich's own column of the remaining time is not used: it extrapolates the number of items, and the last ones of a
    sweep take thousands of times as long as the first.
    """

    _of = "/"
    _told_all = True

    def __init__(self, console: Console, total: int, done: int, name: str, bar: Progress) -> None:
        super().__init__(console, total, done, name)
        self._bar, self._task = bar, bar.add_task(f"  {name}", total=total, completed=done, left="")

    def note(self, text: str) -> None:
        print_text(self.console, f"{self._prefix}{text}")

    def _show(self, text: str, left: str | None, every: float) -> None:
        """Moves the bar, at any time; the time left stands until another is told."""
        fields: dict[str, Any] = {} if left is None else {"left": left[2:]}
        self._bar.update(self._task, completed=self.done, description=f"  {self._prefix}{text}", **fields)


@contextmanager
def reporting(
    console: Console, total: int, done: int = 0, name: str = "", at_once: bool = False
) -> Iterator[Reporter]:
    """Yields the reporter that suits the console: a bar on a terminal, else a line a minute.

    Notes and the last item are always printed. In lines, so is the first failure of every minute.

    Args:
        console: where to print.
        total: the number of items or steps.
        done: how many of them were done before.
        name: printed before every text; may be empty.
        at_once: whether the first finished item is printed however soon it comes.
    """
    if console.quiet or not console.is_terminal:
        yield Reporter(console, total, done, name, at_once)
        return
    columns = (
        BarColumn(bar_width=20),
        MofNCompleteColumn(table_column=Column(no_wrap=True, min_width=9)),
        TimeElapsedColumn(table_column=Column(no_wrap=True, min_width=7)),
        TextColumn(
            "{task.fields[left]}{task.description}",
            markup=False,
            table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1),
        ),
    )
    with Progress(*columns, console=console, expand=True) as bar:
        yield BarReporter(console, total, done, name, bar)


@contextmanager
def watching(console: Console, steps: int, name: str = "") -> Iterator[Callable[[Any], None]]:
    """Shows work of `steps` steps, which take about equally long. Yields the function to call with each event: its
    `text` is one line, "" for an event that is not shown; `done` steps are done, or None for a note."""
    start: list[float] = []

    def watch(event: Any) -> None:
        now = time.monotonic()
        if event.done is not None:
            first, began = start or (event.done, now)
            start[:] = first, began
            left = (now - began) / (event.done - first) * (steps - event.done) if event.done > first else None
            reporter.reached(event.done, event.text, left)
        elif event.text:
            reporter.note(event.text)

    with reporting(console, steps, name=name, at_once=True) as reporter:
        yield watch


def left_text(seconds: float | None) -> str:
    """`; about 3 min left`, or nothing where the time left is not known."""
    return "" if seconds is None else f"; about {duration(seconds)} left"


class TimeLeft:
    """Estimates how long the rest of a job takes, from the items that are done.

    An item has a group, such as the variant of a sweep, and a length n. It takes as long as the finished ones of its
    group and length, without those for which a program was compiled: the lower median of the latest. An item that is
    longer than all of them takes longer by the square of the lengths.
    """

    def __init__(self) -> None:
        self._seconds: dict[tuple[str, int], deque[float]] = {}

    def add(self, group: str, n: int, seconds: float) -> None:
        """Adds an item that took `seconds`."""
        self._seconds.setdefault((group, n), deque(maxlen=_LATEST)).append(seconds)

    def of(self, counts: Mapping[tuple[str, int], int]) -> float | None:
        """Seconds that so many items of each (group, n) take together; None where that would be a guess."""
        warm = {
            key: sorted(each)[(len(each) - 1) // 2] for key, each in self._seconds.items() if len(each) > 1
        }
        total = 0.0
        for (group, n), count in counts.items():
            cold = {} if warm else {key[1]: seconds[0] for key, seconds in self._seconds.items()}
            near = {m: seconds for (name, m), seconds in warm.items() if name == group}
            near = near or {m: seconds for (_, m), seconds in warm.items()} or cold
            longest = max(near, default=0)
            if n > longest * (_FARTHEST if warm else 1):  # what compiles says nothing of longer inputs
                return None
            m = min((m for m in near if m >= n), default=longest)
            total += count * near[m] * max(1.0, n / m) ** 2
        return total
