"""What was asked of a measurement, kept in its result: what a partial result needs to be completed."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jaxsens.sensitivity.flips import Sample


@dataclass(frozen=True)
class Asked:
    """The arguments that the other fields of a result do not hold.

    Attributes:
        model: SHA-256 of the model's parameters and its function, see `jaxsens.sensitivity.fingerprint`.
        engine: "auto", or an engine by name.
        symbols: given as `symbols`; None where all of an alphabet were put in.
        positions: given as `positions`; None for the default.
        sample: given as `positions`; None for all flips.
        flips: how many flips of each input were asked for.
    """

    model: str
    engine: str
    symbols: tuple[int, ...] | None
    positions: tuple[int, ...] | None
    sample: Sample | None
    flips: tuple[int, ...]

    def of_input(self, k: int) -> Asked:
        """What was asked of input k."""
        return dataclasses.replace(self, flips=self.flips[k : k + 1])

    def as_json(self) -> dict[str, Any]:
        """As `from_json` takes it."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Asked:
        """What `as_json` gave, through JSON and back."""
        drawn = fields["sample"]
        return cls(
            model=fields["model"],
            engine=fields["engine"],
            symbols=_whole(fields["symbols"]),
            positions=_whole(fields["positions"]),
            sample=None if drawn is None else Sample(**{**drawn, "positions": _whole(drawn["positions"])}),
            flips=tuple(fields["flips"]),
        )


def _whole(values: list[int] | None) -> tuple[int, ...] | None:
    return None if values is None else tuple(values)
