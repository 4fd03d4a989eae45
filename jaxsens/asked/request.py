"""What a measurement was asked, as its result keeps it: what `resume` compares, and what files hold."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jaxsens.asked.engines import AskedEngine
from jaxsens.asked.flips import Flips
from jaxsens.asked.measures import Comparison, Function, Measure
from jaxsens.asked.value import read
from jaxsens.base.errors import InputError, Problems


@dataclass(frozen=True)
class Forgotten:
    """A function of a saved result: its program's SHA-256 is known, and nothing can be computed."""

    program: str

    def __call__(self, *outputs: Any) -> Any:
        """Raises an InputError: files hold no functions."""
        raise InputError("measure: the function of a saved result is not kept; give it again")


def without_function(measure: Measure, program: str | None) -> Measure:
    """Returns the measure for a result, which holds no function of the user's: programs go with their functions."""
    if program is not None and isinstance(measure, Function | Comparison):
        return type(measure)(Forgotten(program))
    return measure


@dataclass(frozen=True)
class Request:
    """What a measurement was asked. The inputs are in its result.

    Attributes:
        flips: what is flipped.
        measure: what is measured of the change in the output; a threshold is a number.
        engine: as asked for.
        readout: where the model reads its output: a 0-based position, "last" or "mean"; None if unspecified.
        outputs: the output coordinates that were measured; None for all.
        model: SHA-256 of the model's parameters and its function (`jaxsens.sensitivity.results.resuming.fingerprint`).
        weights: SHA-256 of the parameters alone, whatever the inputs' length.
        program: SHA-256 of the program of the measure's function; None for another measure.
        counts: the number of flips requested for each input.
    """

    flips: Flips
    measure: Measure
    engine: AskedEngine
    readout: int | str | None
    outputs: tuple[int, ...] | None
    model: str
    weights: str
    program: str | None
    counts: tuple[int, ...]

    def of_input(self, k: int) -> Request:
        """Returns the request for input k."""
        return dataclasses.replace(self, counts=self.counts[k : k + 1])

    def compared(self) -> dict[str, Any]:
        """Returns what two measurements have in common if the results of one complete the other, by name."""
        measure: Any = self.measure.kind if isinstance(self.measure, Function | Comparison) else self.measure
        return {
            "flips": self.flips,
            "measure": measure,
            "outputs": self.outputs,
            "engine": self.engine,
            "readout": self.readout,
        }

    def as_json(self) -> dict[str, Any]:
        """Returns a JSON object for `from_json`."""
        return {
            **{field.name: getattr(self, field.name) for field in dataclasses.fields(self)},
            "flips": self.flips.table(),
            "measure": self.measure.table(),
            "engine": self.engine.table(),
        }

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Request:
        """Returns the request from a JSON object made by `as_json`.

        Raises:
            InputError: for anything else.
        """
        problems = Problems("asked")
        measure = dict(fields["measure"])
        known = Measure.kinds.get(measure.get("kind", ""))
        if known is Function or known is Comparison:
            made: Any = known(Forgotten(fields["program"]))
        else:
            made = read(Measure, measure, problems, file=True)
        flips = read(Flips, fields["flips"], problems, file=True)
        engine = read(AskedEngine, fields["engine"], problems, file=True)
        problems.raise_if_any()
        outputs = fields["outputs"]
        return cls(
            **{
                **fields,
                "flips": flips,
                "measure": made,
                "engine": engine,
                "outputs": None if outputs is None else tuple(outputs),
                "counts": tuple(fields["counts"]),
            }
        )
