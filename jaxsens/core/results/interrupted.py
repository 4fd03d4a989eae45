"""What is left of an interrupted measurement."""

from __future__ import annotations

import signal
from collections.abc import Sequence

from jaxsens.core.results.result import FlipSensitivity


class MeasurementInterrupted(KeyboardInterrupt):
    """Raised on Ctrl-C during `flip_sensitivity`. `partial` is the result on the finished flips, which are not a random
    sample; `partial.remaining` are the others. Of a list of texts, `finished` are the results before that one. `signal`
    is the number of the signal."""

    def __init__(
        self, partial: FlipSensitivity, number: int = signal.SIGINT, finished: Sequence[FlipSensitivity] = ()
    ) -> None:
        super().__init__(f"interrupted after {len(partial)} of {partial.requested} flips; see .partial")
        self.partial, self.signal, self.finished = partial, number, [*finished]
