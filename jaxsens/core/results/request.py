"""What a measurement was asked, as its result keeps it: what `joined` compares, and what files hold."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import PlainValidator

from jaxsens.core.base.errors import collecting
from jaxsens.core.base.value import read
from jaxsens.core.engines.options import AskedEngine
from jaxsens.core.flips.flips import Flips
from jaxsens.core.measures import Forgotten, Measure


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
