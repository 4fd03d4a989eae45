"""The interface of engines, which compute the output's change under a block of flips, independently of devices."""

from __future__ import annotations

import abc
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple, TypeAlias, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jaxsens.core.base.errors import no_rule
from jaxsens.core.base.programs import Platform
from jaxsens.core.measures import Measure
from jaxsens.core.models.parts.masks import TypedMask, kind_of_mask
from jaxsens.core.models.parts.positions import PositionTerm
from jaxsens.core.models.parts.weighting import Weighting
from jaxsens.core.models.transformer.config import TransformerConfig
from jaxsens.core.models.transformer.parameters import TransformerParameters, shape_of, with_tables


@dataclass(frozen=True)
class EngineChoice:
    """Which engine ran, and why.

    Attributes:
        name: the engine's name.
        why: the reason for the choice.
        elsewhere: the number of flips measured by each fallback, named by `Engine.how`.
        flips: the number of all flips.
    """

    name: str
    why: str
    elsewhere: tuple[tuple[str, int], ...] = ()
    flips: int = 0

    @property
    def reason(self) -> str:
        """The reason for this engine, and the fallbacks that measured the flips it declined."""
        notes = (
            f"{'all' if count == self.flips else f'{count} of {self.flips}'} flips by {how}"
            for how, count in self.elsewhere
        )
        return "; ".join([self.why, *notes])

    def after(self, fallbacks: Mapping[str, int], flips: int) -> EngineChoice:
        """Returns the choice with the counts of flips that each fallback measured added."""
        counts = dict(self.elsewhere)
        for how, count in fallbacks.items():
            counts[how] = counts.get(how, 0) + count
        return replace(self, elsewhere=tuple(counts.items()), flips=flips if counts else 0)

    def __str__(self) -> str:
        return f"{self.name} ({self.reason})"


@dataclass(frozen=True)
class Served:
    """The kinds of parts that an engine has rules for. It rejects configs with any other kind.

    Weightings, position terms and masks with parameters are given as classes; a derived class is a different kind. The
    others are names, as in the config.
    """

    weightings: tuple[type[Weighting], ...]
    position_terms: tuple[type[PositionTerm], ...]
    masks: tuple[str | type[TypedMask], ...]
    scores: tuple[str, ...]
    layer_norms: tuple[str, ...]
    activations: tuple[str, ...]
    output_gates: tuple[str, ...] = ("none",)

    def refusal(self, engine: str, config: TransformerConfig) -> str | None:
        """Returns why the engine does not support a config, naming the first kind without a rule; None if it does."""
        layers = [config.layer(k) for k in range(config.layers)]
        used: tuple[tuple[str, Sequence[type | str], Sequence[type | str]], ...] = (
            ("weighting", [type(layer.weighting) for layer in layers], self.weightings),
            ("position term", [type(term) for term in config.position_terms], self.position_terms),
            ("mask", [kind_of_mask(layer.mask) for layer in layers], self.masks),
            ("score", [layer.scores for layer in layers], self.scores),
            ("layer normalisation", [layer.layer_norm for layer in layers], self.layer_norms),
            ("activation", [layer.activation for layer in layers if layer.feed_forward], self.activations),
            ("output gate", [layer.output_gate for layer in layers], self.output_gates),
        )
        for family, kinds, rules in used:
            for kind in kinds:
                if kind not in rules:
                    return str(no_rule(engine, family, kind, rules))
        return None


LARGEST_PASS = 1e11
"""The floating-point operations up to which a pass in float64 bounds the rounding of an output: some seconds. Beyond,
a few roundings are assumed."""

PASSES = 5
"""The passes that bound it: one, and those with moved parameters."""

PASS_EFFICIENCY = 0.4
"""The share of the host's rate in float64 that a forward pass reaches alone."""


@dataclass(frozen=True)
class Cost:
    """What an engine does with inputs of one length. `auto`, `explain`, `plan`, the warning before a long measurement
    and the estimates of a sweep read it.

    Attributes:
        prepare: floating-point operations for each input; a multiply-add counts as two.
        per_flip: floating-point operations for each flip.
        block_bytes: bytes of temporary memory for a block of flips.
        efficiency: the rate of such work, as a share of the platform's rate of a large matrix product.
        compiling: seconds to trace and compile on the reference machine.
        wide: whether the operations are in float64.
        forward: operations of a forward pass, of which `PASSES` in float64 bound the rounding of the output of each
            input; 0 if nothing needs them.
        least: seconds that each flip takes at least, whatever it computes.
        then: the cost of the engine that measures the flips again, if this one resolves few of them.
    """

    prepare: float
    per_flip: float
    block_bytes: int
    efficiency: float
    compiling: float
    wide: bool = False
    forward: float = 0.0
    least: float = 0.0
    then: Cost | None = None

    def operations(self, inputs: int, flips: int) -> float:
        """Returns the floating-point operations of all flips of the inputs, before any is measured again."""
        return inputs * self.prepare + flips * self.per_flip

    def compilation(self, platform: Platform) -> float:
        """Returns the seconds in which all programs are compiled."""
        return platform.compiling * self.compiling + (self.then.compilation(platform) if self.then else 0.0)

    def rounding(self, platform: Platform, inputs: int) -> float:
        """Returns the seconds in which the host bounds the rounding of outputs."""
        passes = PASSES * self.forward if self.forward <= LARGEST_PASS else 0.0
        return inputs * passes / (platform.host_rate * PASS_EFFICIENCY)

    def seconds(self, platform: Platform, inputs: int, flips: int, calls: float = math.inf) -> float:
        """Returns the seconds of a call, within a factor of about three.

        Args:
            platform: where; its rates may be those of this machine or of a device.
            inputs: their number.
            flips: the number of flips, of all inputs together.
            calls: how many such calls share the compilation.
        """
        rate = (platform.wide_rate if self.wide else platform.rate) * self.efficiency
        own = max(self.operations(inputs, flips) / rate, flips * self.least) + self.rounding(platform, inputs)
        again = self.then.seconds(platform, inputs, flips) if self.then else 0.0
        return own + again + self.compilation(platform) / calls


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class PreparedPass:
    """An input, its output as the model returns it, a bound of the rounding of each entry's change, and the largest
    |log-normaliser| of each layer of a jaxsens transformer."""

    tokens: Int[Array, " n"]
    output: Array
    error_bound: Float[Array, " outputs"]
    sizes: Float[Array, " layers"]


class FlipBlock(NamedTuple):
    """Flips of one input that are measured together.

    Attributes:
        places: the positions of each flip.
        symbols: what is put there.
    """

    places: Int[Any, "flips *k"]
    symbols: Int[Any, "flips *k"]

    @property
    def single(self) -> FlipBlock:
        """Flips that replace one symbol each, without the axis of their positions."""
        return FlipBlock(self.places[:, 0], self.symbols[:, 0])


Changed: TypeAlias = tuple[Float[Array, "flips outputs"], Float[Array, " flips"]]
"""The output's change under each flip of a block, and a bound of the l2 norm of its rounding."""

Values: TypeAlias = tuple[Float[Array, " flips"], Float[Array, " flips"]]
"""What is measured of each flip, and a bound of its rounding."""


@dataclass(frozen=True)
class Engine(abc.ABC):
    """Measures flips of one input at a time: `prepare` once per input, then `measured` for each block of flips.

    Engines are frozen and hashable, because they are static arguments of compiled functions.

    Attributes:
        measure: what is measured of the change in the output.
        outputs: the output coordinates that are measured; None for all.
        wide: whether flips of a float32 model are measured in float64, with parameters and prepared values in float64.
        subtracts: whether changes are differences of two rounded outputs. The prepared values then have the `output`,
            and an `error_bound` of the rounding of each of its entries, for which a better one may be put.
        prepares_for_measure: whether what `prepare` returns depends on `measure` or `outputs`.
    """

    measure: Measure
    outputs: tuple[int, ...] | None
    wide: bool = field(default=False, kw_only=True)
    subtracts: ClassVar[bool] = False
    prepares_for_measure: ClassVar[bool] = False

    @abc.abstractmethod
    def prepare(self, parameters: Any, tokens: Int[Array, " n"]) -> Any:
        """Returns the values shared by all flips of `tokens`, as a pytree of arrays."""

    @abc.abstractmethod
    def changed(self, parameters: Any, prepared: Any, block: FlipBlock) -> Changed:
        """Returns the output's change under each flip of a block, and a bound of the l2 norm of its rounding."""

    def changes(self, parameters: Any, prepared: Any, block: FlipBlock) -> Float[Array, "flips chosen"]:
        """Returns the change of the chosen outputs under each flip of a block."""
        return self.chosen(self.changed(parameters, prepared, block)[0])

    @abc.abstractmethod
    def output(self, parameters: Any, prepared: Any) -> Float[Array, "*shape"]:
        """Returns the output on the unflipped input."""

    def sizes(self, prepared: Any) -> Float[Array, " layers"]:
        """Returns the largest |log-normaliser| of each layer in the unflipped run; none if it sees no scores."""
        del prepared
        return jnp.zeros(0)

    @property
    def own_config(self) -> TransformerConfig | None:
        """The config of the jaxsens transformer that it runs on inputs of the length it is given; None for others."""
        return None

    def for_config(self, config: TransformerConfig) -> Engine:
        """Returns this engine for another config, in place of its own."""
        return replace(cast(Any, self), config=config)

    @property
    def shared(self) -> Engine:
        """The engine that programs are compiled for: this one, for all models that differ in temperatures and added
        positions alone. Its parameters are `with_tables`."""
        return self if self.own_config is None else self.for_config(shape_of(self.own_config))

    def with_tables(self, parameters: Any, n: int) -> Any:
        """Returns the parameters that `shared` takes for inputs of length n."""
        config = self.own_config
        if config is None:
            return parameters
        wide = self.wide or self.prepares_in_float64

        parts, structure = jax.tree.flatten(parameters, lambda part: isinstance(part, TransformerParameters))
        for k, part in enumerate(parts):
            if isinstance(part, TransformerParameters):
                exact = wide or part.embedding.dtype == np.float64
                parts[k] = with_tables(config, part, n, "float64" if exact else config.dtype)
        return jax.tree.unflatten(structure, parts)

    @property
    def prepares_in_float64(self) -> bool:
        """Whether, for a float32 model, `prepare` runs in float64 and its arrays are then rounded once."""
        return False

    @property
    def widens(self) -> bool:
        """Whether scores that float32 cannot resolve are formed in float64, here or by a fallback."""
        return self.wide or (self.fallback is not None and self.fallback.widens)

    @property
    def fallback(self) -> Engine | None:
        """The engine for flips that this one declines, or None if it declines none.

        An engine declines all flips of an input that it does not `resolve`, and single flips, by returning NaN.
        """
        return None

    @property
    def wider(self) -> Engine | None:
        """The engine for flips whose change this one's arithmetic does not resolve; None if there is none."""
        return None

    def resolves(self, prepared: Any) -> Bool[Array, ""]:
        """Returns whether flips of the prepared input are accurate. If they may not be, there must be a `fallback`."""
        del prepared
        return jnp.asarray(True)

    @property
    def how(self) -> str:
        """The method in a few words; results use it for flips that another engine declined."""
        return type(self).__name__

    @abc.abstractmethod
    def preferred_batch(self, n: int, platform: Platform) -> int:
        """Returns the fastest number of flips per block on a platform, ignoring memory."""

    @abc.abstractmethod
    def cost(self, parameters: Any, tokens: Any, platform: Platform) -> Cost:
        """Returns the cost of measuring flips of `tokens`, which may be an abstract value, in the current arithmetic.

        `scripts/benchmark_auto.py` and `scripts/benchmark_first_call.py` check its constants."""

    def measured(self, parameters: Any, prepared: Any, block: FlipBlock) -> Values:
        """Returns the number that is measured for each flip, and its resolution: a bound of its rounding, below which
        it knows nothing. The numbers of flips that the engine declines are NaN."""
        (changes, error), y = self.changed(parameters, prepared, block), self.output(parameters, prepared)
        return self.measure.of_changes(self.chosen(y), self.chosen(changes), error)

    def chosen(self, values: Float[Array, "*batch outputs"]) -> Float[Array, "*batch chosen"]:
        """Returns the values of the chosen outputs."""
        return values if self.outputs is None else values[..., list(self.outputs)]


@dataclass(frozen=True)
class ConfigEngine(Engine):
    """An engine with rules of its own for the parts of a jaxsens transformer, whose config it has."""

    config: TransformerConfig

    @property
    def own_config(self) -> TransformerConfig:
        return self.config
