"""What a measurement was asked, as its result keeps it: what `joined` compares, and what files hold."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from jaxtyping import Int
from pydantic import PlainValidator

from jaxsens.core.base.errors import collecting
from jaxsens.core.base.registry import read
from jaxsens.core.checks.functions import checked_function
from jaxsens.core.engines.options import AskedEngine
from jaxsens.core.flips.flip_table import FlipTable
from jaxsens.core.flips.flips import Flips
from jaxsens.core.measures import Forgotten, Measure
from jaxsens.core.models.adapters import Model
from jaxsens.core.results.fingerprint import fingerprint, weights_of


def _from_file(base: Any) -> PlainValidator:
    """Returns the validator of a field that files hold as an answer's `table`."""

    def answer(value: Any) -> Any:
        if isinstance(value, Mapping) and "program" in value:
            return base.kinds[value["kind"]](Forgotten(value["program"]))
        with collecting("asked") as problems:
            return read(base, value, problems, file=True)

    return PlainValidator(answer)


@dataclass(frozen=True)
class Request:
    """What a measurement was asked. The inputs are in its result.

    Attributes:
        flips: what is flipped.
        measure: what is measured of the change in the output; a threshold is a number.
        engine: as asked for.
        readout: where the model reads its output: a 0-based position, "last" or "mean"; None if unspecified.
        outputs: the output coordinates that were measured; None for all.
        model: SHA-256 of the model's parameters and its function (`jaxsens.core.results.fingerprint`).
        weights: SHA-256 of the parameters alone, whatever the inputs' length.
        counts: the number of flips requested for each input.
    """

    flips: Annotated[Flips, _from_file(Flips)]
    measure: Annotated[Measure, _from_file(Measure)]
    engine: Annotated[AskedEngine, _from_file(AskedEngine)]
    readout: int | str | None
    outputs: tuple[int, ...] | None
    model: str
    weights: str
    counts: tuple[int, ...]

    @property
    def program(self) -> str | None:
        """SHA-256 of the program of the measure's function; None for another measure."""
        return self.measure.program

    def of_input(self, k: int) -> Request:
        """Returns the request for input k."""
        return dataclasses.replace(self, counts=self.counts[k : k + 1])

    def compared(self) -> dict[str, Any]:
        """Returns what two measurements have in common if the results of one complete the other, by name."""
        return {
            "flips": self.flips,
            "measure": self.measure.without_function(""),
            "outputs": self.outputs,
            "engine": self.engine,
            "readout": self.readout,
        }


def requested(
    model: Model,
    words: Int[np.ndarray, "batch n"],
    table: FlipTable,
    options: tuple[Flips, Measure, AskedEngine],
    output: tuple[tuple[int, ...], str],
) -> Request:
    """Returns the request of a call, from its flips, measure and engine. `output` has the shape and dtype of the
    model's output.

    Raises:
        InputError: for a measure's function that does not return one number.
    """
    (flips, measure, engine), weights = options, weights_of(model)
    if measure.function is not None:
        measure = measure.without_function(checked_function(measure, *output))
    return Request(
        flips=flips,
        measure=measure,
        engine=engine,
        readout=model.readout,
        outputs=measure.coordinates(model.outputs),
        model=fingerprint(model, words.shape[1], weights),
        weights=weights,
        counts=tuple(np.bincount(table.inputs, minlength=len(words)).tolist()),
    )
