"""How far a job or a training is: a bar on a terminal, timed lines elsewhere, and the time left."""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

import numpy as np
from jaxtyping import Float
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Column

from jaxsens.core.base.text import duration, print_text

_LINE_EVERY = 60.0
_FARTHEST = 16  # times the longest length of which the cost is known
_LATEST = 32  # items of a group and length whose cost is remembered
_GOOD_FIT = 0.1  # root mean square of the relative errors


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
        told: dict[str, Any] = {} if left is None else {"left": left[2:]}
        self._bar.update(self._task, completed=self.done, description=f"  {self._prefix}{text}", **told)


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


class Event(Protocol):
    """What `watching` shows of an event: its text, if it has one, as a note or beside the steps that are done."""

    @property
    def text(self) -> str:
        """One line; "" for an event that is not shown."""
        ...

    @property
    def done(self) -> int | None:
        """The number of steps that are done; None for an event that is a note."""
        ...


@contextmanager
def watching(console: Console, steps: int, name: str = "") -> Iterator[Callable[[Event], None]]:
    """Shows work of `steps` steps. Yields the function to call with each event.

    Steps take about equally long, so rich's estimate of the remaining time serves.
    """
    clock = Progress(disable=True, get_time=lambda: time.monotonic(), speed_estimate_period=3600.0)
    task = clock.add_task(name, total=steps)

    def watch(event: Event) -> None:
        if event.done is not None:
            clock.update(task, completed=event.done)
            reporter.reached(event.done, event.text, clock.tasks[0].time_remaining)
        elif event.text:
            reporter.note(event.text)

    with reporting(console, steps, name=name, at_once=True) as reporter:
        yield watch


def left_text(seconds: float | None) -> str:
    """`; about 3 min left`, or nothing where the time left is not known."""
    return "" if seconds is None else f"; about {duration(seconds)} left"


class _Cost(NamedTuple):
    """What an item cost. `first` marks the first of its group and length, for which code was compiled."""

    group: str
    n: int
    first: bool
    seconds: float


class TimeLeft:
    """Estimates how long the rest of a job takes, from the items that are done.

    An item has a group, such as the variant of a sweep, and a length n. In each group it takes a + b n^2 + c n^3
    seconds, with no coefficient negative, for the engines cost between n^2 and n^3. The first item of a group and a
    length also takes the time of a compilation, which is the same for all. The fit is a non-negative least-squares
    fit of relative errors, so that cheap items count as much as expensive ones. It is made on items for which nothing
    was compiled, if there are any: the latest of each group and length.
    """

    def __init__(self) -> None:
        self._first: dict[tuple[str, int], _Cost] = {}
        self._later: dict[tuple[str, int], deque[_Cost]] = {}

    def add(self, group: str, n: int, seconds: float) -> None:
        """Adds an item that took `seconds`."""
        first = (group, n) not in self._first
        cost = _Cost(group, n, first, seconds)
        if first:
            self._first[group, n] = cost
        else:
            self._later.setdefault((group, n), deque(maxlen=_LATEST)).append(cost)

    def of(self, rest: Sequence[tuple[str, int]]) -> float | None:
        """Seconds that the items (group, n) of `rest` take together; None where that would be a guess."""
        if not rest:
            return 0.0
        cold, counted = [*self._first.values()], Counter(rest)
        warm = [cost for costs in self._later.values() for cost in costs]
        costs, longest = warm or cold, max(n for _, n in counted)
        if not _is_enough(costs, longest):
            return None
        fits: dict[str | None, Float[np.ndarray, "3"]] = {None: _fit(costs)}
        for group in {group for group, _ in counted}:
            own = [cost for cost in costs if cost.group == group]
            fits[group] = _fit(own) if _is_enough(own, longest) else fits[None]
        compilations = [cost.seconds - fits.get(cost.group, fits[None]) @ _powers(cost.n) for cost in cold]
        compiling = max(float(np.median(compilations)), 0.0) if cold else 0.0
        new = counted.keys() - self._first.keys()
        known = sum(times * (fits[group] @ _powers(n)) for (group, n), times in counted.items())
        return float(known) + len(new) * compiling


def _is_enough(costs: Sequence[_Cost], longest: int) -> bool:
    """Whether these costs tell what an item of length `longest` costs."""
    lengths = [cost.n for cost in costs]
    if (
        lengths and _FARTHEST * max(lengths) < longest
    ):  # A slip in the fit would say days where hours are left.
        return False
    if not lengths or max(lengths) >= longest:
        return bool(lengths)
    if any(not cost.first for cost in costs):
        return max(lengths) > min(lengths)
    # Compilation hides what short inputs cost: only a wide range of lengths shows how the cost grows.
    return max(lengths) >= 8 * min(lengths) or (2 * max(lengths) >= longest and max(lengths) > min(lengths))


def _fit(costs: Sequence[_Cost]) -> Float[np.ndarray, "3"]:
    """The coefficients a, b and c."""
    from scipy.optimize import nnls

    powers = np.array([_powers(cost.n) for cost in costs])
    scale = powers.max(axis=0)
    relative = powers / scale / np.array([[max(cost.seconds, 1e-6)] for cost in costs])
    coefficients = np.zeros(3)
    # A few items fit a cubic as well as a square, and a needless cubic says hours where minutes are left.
    for terms in (2, 3):
        coefficients[:terms], error = nnls(relative[:, :terms], np.ones(len(costs)))
        if error <= _GOOD_FIT * np.sqrt(len(costs)):
            break
    return coefficients / scale


def _powers(n: int) -> Float[np.ndarray, "3"]:
    return np.array([1.0, float(n) ** 2, float(n) ** 3])
