"""Progress of a measurement: a bar on a terminal, the caller's function, or nothing."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

from jaxsens.core.placement.run import Progress

PROGRESS = "(flips done, flips in all), True for a bar, or False for nothing"
"""What `progress` may be, in words."""

PATIENCE = 2.0
"""Seconds before the default bar appears: shorter measurements need none."""


@contextmanager
def progress_of(progress: Callable[[int, int], object] | bool | None) -> Iterator[Progress | None]:
    """Yields a function of (flips done, flips in all): a bar for True, and for None a late bar on a terminal."""
    if callable(progress):
        yield progress  # pyright: ignore[reportReturnType] - what it returns is ignored
    elif progress or (progress is None and sys.stderr is not None and sys.stderr.isatty()):
        with Bar(0.0 if progress else PATIENCE) as bar:
            yield bar
    else:
        yield None


class Bar:
    """A bar on standard error that appears after `patience` seconds, even while a program is still being compiled.

    In a notebook the bar appears below the cell.
    """

    def __init__(self, patience: float) -> None:
        self._timer = threading.Timer(patience, self._show)
        self._timer.daemon = True
        self._lock = threading.Lock()
        self._done, self._total = 0, None
        self._bar: Any = None
        self._closed = False

    def __enter__(self) -> Self:
        self._timer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timer.cancel()
        with self._lock:
            self._closed = True
            if self._bar is not None:
                self._bar.stop()

    def __call__(self, done: int, total: int) -> None:
        """Shows that `done` of `total` flips are done."""
        with self._lock:
            self._done, self._total = done, total
            self._update()

    def _update(self) -> None:
        if self._bar is not None:
            flips = f"{self._done}/{self._total} flips" if self._total else "preparing and compiling"
            left = "left:" if self._total else ""
            self._bar.update(0, completed=self._done, total=self._total, description=flips, left=left)

    def _show(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
        from rich.progress import Progress as RichProgress

        with self._lock:
            if self._closed:
                return
            description, left = TextColumn("{task.description}"), TextColumn("{task.fields[left]}")
            columns = BarColumn(bar_width=20), description, TimeElapsedColumn(), left, TimeRemainingColumn()
            self._bar = RichProgress(*columns, console=Console(stderr=True))
            self._bar.add_task("", total=None, left="")
            self._update()
            self._bar.start()
