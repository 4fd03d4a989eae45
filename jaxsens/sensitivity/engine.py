"""What an engine is: a way to the change of the output under a block of flips. It knows no chunks and no devices."""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import Any

from jaxtyping import Array, Float, Int

from jaxsens.sensitivity.norms import norm_of


@dataclass(frozen=True)
class EngineChoice:
    """Which engine ran, and why."""

    name: str
    reason: str

    def __str__(self) -> str:
        return f"{self.name} ({self.reason})"


@dataclass(frozen=True)
class Engine(abc.ABC):
    """Measures flips of one input at a time: `prepare` once an input, then `norms` a block of flips.

    Engines are frozen and hashable: they are static arguments of compiled functions.

    Attributes:
        norm: "l2", "l1" or "linf".
        outputs: the output coordinates that enter the norm; None for all.
    """

    norm: str
    outputs: tuple[int, ...] | None

    @abc.abstractmethod
    def prepare(self, parameters: Any, tokens: Int[Array, " n"]) -> Any:
        """What all flips of `tokens` share, as a pytree of arrays."""

    @abc.abstractmethod
    def changes(
        self, parameters: Any, prepared: Any, positions: Int[Array, " flips"], symbols: Int[Array, " flips"]
    ) -> Float[Array, "flips outputs"]:
        """The output's change under each flip of a block."""

    @abc.abstractmethod
    def preferred_batch(self, n: int, platform: str) -> int:
        """How many flips a block should hold for speed on "cpu", "gpu" or "tpu", memory aside."""

    def norms(
        self, parameters: Any, prepared: Any, positions: Int[Array, " flips"], symbols: Int[Array, " flips"]
    ) -> Float[Array, " flips"]:
        """The norm of `changes` over the chosen outputs."""
        change = self.changes(parameters, prepared, positions, symbols)
        if self.outputs is not None:
            change = change[:, list(self.outputs)]
        return norm_of(change, self.norm)
