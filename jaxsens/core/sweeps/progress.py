"""How far a job or a training is: a bar on a terminal, timed lines elsewhere, and the time left."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Collection, Iterator, Mapping
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
            before = ", now " if left is None else "  "  # None: the item is under way
            self.note(f"{self.done}/{self.total}{failed}{before}{text}{left or ''}")


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


def left_text(seconds: float | None) -> str:
    """`; about 3 min left`, or nothing where the time left is not known."""
    return "" if seconds is None else f"; about {duration(seconds)} left"


class TimeLeft:
    """Estimates how long the rest of a job takes, from the items that are done.

    An item has a group, such as the variant of a sweep, and a length n: items that agree in both share a program. The
    first of them compiles it, and takes the longest. The others take as long as the lower median of the latest. Items
    longer than all that are done take longer by the power of n that the last two lengths of their group show, or those
    of other groups.
    """

    def __init__(self) -> None:
        self._seconds: dict[tuple[str, int], deque[float]] = {}

    def add(self, group: str, n: int, seconds: float) -> None:
        """Adds an item that took `seconds`."""
        self._seconds.setdefault((group, n), deque(maxlen=_LATEST)).append(seconds)

    def of(self, counts: Mapping[tuple[str, int], int]) -> float | None:
        """Seconds that so many items of each (group, n) take together; None where that would be a guess."""
        warm = {key: _lower_median(each) for key, each in self._seconds.items() if len(each) > 1}
        compiling = {key: max(self._seconds[key]) - seconds for key, seconds in warm.items()}
        lengths = [_of_group(group, warm) for group in {group for group, _ in warm}]
        powers = [_power(near) for near in lengths if len(near) > 1]
        total = 0.0
        for (group, n), count in counts.items():
            begun = (group, n) in self._seconds
            near = _of_group(group, warm)
            if not near:  # what compiles says nothing of items that do not
                return None
            if not begun:
                total += _lower_median(_of_group(group, compiling).values())
            longest = max(near)
            m = min((m for m in near if m >= n), default=longest)
            power = _power(near) if len(near) > 1 else _lower_median(powers) if powers else None
            if n > longest * _FARTHEST or (n > longest and power is None):
                return None
            total += count * near[m] * max(1.0, n / m) ** (power or 0.0)
        return total


def _of_group(group: str, seconds: Mapping[tuple[str, int], float]) -> dict[int, float]:
    """The seconds of a group by length; those of all groups if it has none."""
    return {m: one for (name, m), one in seconds.items() if name == group} or {
        m: one for (_, m), one in seconds.items()
    }


def _power(seconds: Mapping[int, float]) -> float:
    """The power of n by which the seconds of the last two lengths grow: from 0 to 3."""
    *_, before, longest = sorted(seconds)
    if min(seconds[before], seconds[longest]) <= 0.0:  # shorter than the clock tells
        return 0.0
    return min(3.0, max(0.0, math.log(seconds[longest] / seconds[before]) / math.log(longest / before)))


def _lower_median(seconds: Collection[float]) -> float:
    return sorted(seconds)[(len(seconds) - 1) // 2]
