"""Progress of a training: a bar on a terminal, timed lines otherwise, with the time left."""

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

from jaxsens.experiments.progress import left_text
from jaxsens.training.evaluation import CrossEntropy
from jaxsens.training.events import Evaluated, Event, Note, Stepped

_LINE_EVERY = 5.0


class TrainingReporter(abc.ABC):
    """Says what a training is doing. Use it as a context manager, and as what `train` tells of its events.

    name: of the model, put before every text; may be empty.
    """

    def __init__(self, console: Console, name: str) -> None:
        self.console = console
        self.name = f"{name}: " if name else ""
        self._first: tuple[int, float] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def __call__(self, event: Event) -> None:
        """Shows an event."""
        if isinstance(event, Stepped):
            self.stepped(event, f"loss {_loss(event)}, n = {event.length}{left_text(self._left(event))}")
        elif isinstance(event, Evaluated):
            self.note(_evaluated(event))
        elif isinstance(event, Note):
            self.note(event.text)

    @abc.abstractmethod
    def note(self, text: str) -> None:
        """Something that must not be missed."""

    @abc.abstractmethod
    def stepped(self, event: Stepped, text: str) -> None:
        """Some steps have ended."""

    def _left(self, event: Stepped) -> float | None:
        """Seconds left, by the steps after the first, which waited for compilation."""
        now = time.monotonic()
        if self._first is None:
            self._first = (event.step, now)
        step, began = self._first
        if event.step <= step:
            return None
        return (now - began) / (event.step - step) * (event.steps - event.step)


class TrainingLog(TrainingReporter):
    """Lines with the seconds since the start: of the steps one at most in five seconds, and one for every note."""

    def __init__(self, console: Console, name: str) -> None:
        super().__init__(console, name)
        self._began = time.monotonic()
        self._last: float | None = None

    def note(self, text: str) -> None:
        """Prints at once."""
        self._line(text)

    def stepped(self, event: Stepped, text: str) -> None:
        """Prints the first, those after five seconds without a line, and the last."""
        due = self._last is None or time.monotonic() - self._last >= _LINE_EVERY
        if due or event.step == event.steps:
            self._line(f"{event.step}/{event.steps}  {text}")
            self._last = time.monotonic()

    def _line(self, text: str) -> None:
        line = f"[{time.monotonic() - self._began:8.1f} s]  {self.name}{text}"
        self.console.print(line, markup=False, highlight=False, soft_wrap=True)


class TrainingBar(TrainingReporter):
    """A bar that stays in place; notes are printed above it."""

    def __init__(self, console: Console, name: str) -> None:
        super().__init__(console, name)
        self._progress = Progress(
            BarColumn(bar_width=20),
            MofNCompleteColumn(table_column=Column(no_wrap=True, min_width=9)),
            TimeElapsedColumn(table_column=Column(no_wrap=True, min_width=7)),
            TextColumn(
                "{task.description}",
                markup=False,
                table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1),
            ),
            console=console,
            expand=True,
        )
        self._task = self._progress.add_task(self.name, total=None)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def note(self, text: str) -> None:
        """Prints above the bar."""
        self.console.print(f"{self.name}{text}", markup=False, highlight=False, soft_wrap=True)

    def stepped(self, event: Stepped, text: str) -> None:
        """Moves the bar on."""
        self._progress.update(
            self._task, completed=event.step, total=event.steps, description=f"{self.name}{text}"
        )


@contextmanager
def watching(console: Console, name: str = "") -> Iterator[TrainingReporter]:
    """The reporter that suits the console."""
    with (TrainingBar if console.is_terminal else TrainingLog)(console, name) as reporter:
        yield reporter


def _loss(event: Stepped) -> str:
    return f"{event.loss:.4f}" + (f" (optimum {event.optimum:.4f})" if event.optimum else "")


def _evaluated(event: Evaluated) -> str:
    result = event.result
    if isinstance(result, CrossEntropy):
        choice = "" if result.choice is None else f", {result.choice:.4f} of it for choosing brackets"
        return (
            f"step {event.step}: n = {result.n}: cross-entropy {result.mean:.4f}, {result.excess:.4f} above the "
            f"optimum{choice}"
        )
    return f"step {event.step}: n = {result.n}: accuracy {result.accuracy:.3f}, margin {result.margin:.3g}"
