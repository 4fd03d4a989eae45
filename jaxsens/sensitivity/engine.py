"""What an engine is: a way to compute the output's change under a block of flips. It knows nothing of devices."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from jaxtyping import Array, Float, Int

from jaxsens.errors import no_rule
from jaxsens.models.config import TransformerConfig
from jaxsens.models.positions import PositionTerm
from jaxsens.models.weighting import Weighting
from jaxsens.sensitivity.norms import norm_of


@dataclass(frozen=True)
class EngineChoice:
    """Which engine ran, and why.

    Attributes:
        name: the engine's.
        why: the reason for it.
        elsewhere: how many flips it left to each fallback, which `Engine.how` names.
        flips: how many flips there were in all.
    """

    name: str
    why: str
    elsewhere: tuple[tuple[str, int], ...] = ()
    flips: int = 0

    @property
    def reason(self) -> str:
        """Why this engine was taken, and which fallbacks measured the flips that it left."""
        told = (
            f"{'all' if count == self.flips else f'{count} of {self.flips}'} flips by {how}"
            for how, count in self.elsewhere
        )
        return "; ".join([self.why, *told])

    def after(self, elsewhere: Mapping[str, int], flips: int) -> EngineChoice:
        """The choice, once it is known how many more flips each fallback measured."""
        counts = dict(self.elsewhere)
        for how, count in elsewhere.items():
            counts[how] = counts.get(how, 0) + count
        return replace(self, elsewhere=tuple(counts.items()), flips=flips if counts else 0)

    def as_json(self) -> dict[str, Any]:
        """A JSON object that `from_json` reads."""
        return asdict(self)

    @classmethod
    def from_json(cls, table: Mapping[str, Any]) -> EngineChoice:
        """The choice that `as_json` wrote."""
        return cls(**{**table, "elsewhere": tuple((how, count) for how, count in table["elsewhere"])})

    def __str__(self) -> str:
        return f"{self.name} ({self.reason})"


@dataclass(frozen=True)
class Served:
    """The kinds of parts that an engine has rules for. It refuses a config with any other.

    Weightings and position terms are classes; a class that is derived from one of them is another kind. The others are
    names, as in the config.
    """

    weightings: tuple[type[Weighting], ...]
    position_terms: tuple[type[PositionTerm], ...]
    masks: tuple[str, ...]
    scores: tuple[str, ...]
    layer_norms: tuple[str, ...]
    activations: tuple[str, ...]

    def refusal(self, engine: str, config: TransformerConfig) -> str | None:
        """Why the engine cannot serve a config, naming the first kind that it has no rule for; None if it can."""
        layers = [config.layer(k) for k in range(config.layers)]
        used: tuple[tuple[str, Sequence[type | str], Sequence[type | str]], ...] = (
            ("weighting", [type(layer.weighting) for layer in layers], self.weightings),
            ("position term", [type(term) for term in config.position_terms], self.position_terms),
            ("mask", [layer.mask for layer in layers], self.masks),
            ("score", [layer.scores for layer in layers], self.scores),
            ("layer normalisation", [layer.layer_norm for layer in layers], self.layer_norms),
            ("activation", [layer.activation for layer in layers if layer.feed_forward], self.activations),
        )
        for family, kinds, known in used:
            for kind in kinds:
                if kind not in known:
                    return str(no_rule(engine, family, kind, known))
        return None


@dataclass(frozen=True)
class EngineCost:
    """What an engine's work on one input costs.

    Attributes:
        prepare: floating-point operations once an input.
        per_flip: floating-point operations a flip.
        block_bytes: bytes of temporary memory for a block of flips.
        efficiency: the share of a large matrix product's rate that such work was measured to reach on CPU.
    """

    prepare: float
    per_flip: float
    block_bytes: int
    efficiency: float


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

    @property
    def prepares_in_float64(self) -> bool:
        """Whether `prepare` runs in float64 and its arrays are rounded once, where the model is in float32."""
        return False

    @property
    def widened(self) -> bool:
        """Whether flips of a float32 model are measured in float64: parameters and what is prepared are float64 too."""
        return False

    @property
    def widens(self) -> bool:
        """Whether flips that float32 cannot resolve are measured in float64, here or by a fallback."""
        return self.widened or (self.fallback is not None and self.fallback.widens)

    @property
    def fallback(self) -> Engine | None:
        """The engine for what this one declines, or None if it never does.

        It declines all flips of an input that it does not `resolve`, and single flips, whose norm it gives as NaN.
        """
        return None

    def resolves(self, prepared: Any) -> bool:
        """Whether it keeps the digits of flips of the prepared input. One that does not must have a `fallback`."""
        del prepared
        return True

    @property
    def for_few_flips(self) -> Engine:
        """The engine for a handful of flips of an input, for which a long preparation does not pay."""
        return self

    @property
    def how(self) -> str:
        """How it measures, in a few words; results say so of flips that another engine declined."""
        return type(self).__name__

    @abc.abstractmethod
    def preferred_batch(self, n: int, platform: str) -> int:
        """How many flips a block should hold for speed on "cpu", "gpu" or "tpu", memory aside."""

    @abc.abstractmethod
    def cost(self, parameters: Any, tokens: Any, platform: str) -> EngineCost:
        """What measuring flips of `tokens` (an abstract value will do) costs."""

    def norms(
        self, parameters: Any, prepared: Any, positions: Int[Array, " flips"], symbols: Int[Array, " flips"]
    ) -> Float[Array, " flips"]:
        """The norm of `changes` over the chosen outputs."""
        return norm_of(self.chosen_changes(parameters, prepared, positions, symbols), self.norm)

    def chosen_changes(
        self, parameters: Any, prepared: Any, positions: Int[Array, " flips"], symbols: Int[Array, " flips"]
    ) -> Float[Array, "flips chosen"]:
        """`changes` of the chosen outputs."""
        change = self.changes(parameters, prepared, positions, symbols)
        return change if self.outputs is None else change[:, list(self.outputs)]
