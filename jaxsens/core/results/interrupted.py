"""An interrupted measurement; and a list of texts as the argument of `flip_sensitivity`: each is measured by itself."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from typing import Any

from jaxsens.core.base.errors import InputError, Problems
from jaxsens.core.engines.request import Request
from jaxsens.core.models.adapters import Model, as_inputs
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


def check_texts(texts: Sequence[Any], model: Model, request: Request, problems: Problems) -> None:
    """Rejects texts, given as ids, of which one cannot be measured, before the others are."""
    request = request.read(problems)
    for k, ids in enumerate(texts if not problems else ()):
        own = Problems()
        _, selection, *_ = request.validated(model, as_inputs(model, ids, own, one=True), own)
        if not own:
            try:
                selection.flips()
            except InputError as error:
                own.include(error.problems)
        problems.include((one.renamed({"tokens": ()}) for one in own), ("tokens", k))
    problems.raise_if_any()


def each_text(measure: Callable[[str], FlipSensitivity], texts: Sequence[str]) -> list[FlipSensitivity]:
    """Returns the results of texts, one after another.

    Raises:
        MeasurementInterrupted: with what is finished. Between two texts, the last result stands for the partial one.
    """
    results: list[FlipSensitivity] = []
    try:
        for text in texts:
            results.append(measure(text))
    except MeasurementInterrupted as stop:
        raise MeasurementInterrupted(stop.partial, stop.signal, results) from None
    except KeyboardInterrupt as stop:
        if not results:
            raise
        raise MeasurementInterrupted(
            results[-1], getattr(stop, "signal", signal.SIGINT), results[:-1]
        ) from None
    return results
