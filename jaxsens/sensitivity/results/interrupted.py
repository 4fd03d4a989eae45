"""What is left of an interrupted measurement, and who keeps it."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from jaxsens.sensitivity.results.result import FlipSensitivity


class MeasurementInterrupted(KeyboardInterrupt):
    """Raised on Ctrl-C during `flip_sensitivity`. `partial` is the result on the finished flips, which are not a random
    sample; `partial.remaining` are the others. Of a list of texts, `finished` are the results before that one. `signal`
    is the number of the signal."""

    def __init__(
        self, partial: FlipSensitivity, number: int = signal.SIGINT, finished: Sequence[FlipSensitivity] = ()
    ) -> None:
        super().__init__(f"interrupted after {len(partial)} of {partial.population} flips; see .partial")
        self.partial, self.signal, self.finished = partial, number, [*finished]


_keepers: list[Callable[[FlipSensitivity], object]] = []


@contextmanager
def keeping(keep: Callable[[FlipSensitivity], object]) -> Iterator[None]:
    """While the block runs, a command that gives its step up in `flip_sensitivity` first calls `keep`, in another
    thread, with the partial result."""
    _keepers.append(keep)
    try:
        yield
    finally:
        _keepers.remove(keep)


def hand_over(partial: FlipSensitivity) -> None:
    """Gives a partial result to those who are `keeping` it."""
    for keep in tuple(_keepers):
        keep(partial)
