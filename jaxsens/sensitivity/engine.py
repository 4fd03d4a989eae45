"""The interface of engines, which compute the output's change under a block of flips, independently of devices."""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxsens.errors import no_rule
from jaxsens.models.config import TransformerConfig
from jaxsens.models.masks import TypedMask, kind_of_mask
from jaxsens.models.positions import PositionTerm
from jaxsens.models.weighting import Weighting
from jaxsens.sensitivity.change_of import change_of
from jaxsens.sensitivity.measures import measure_of, where_finite

Scalar = Callable[[Float[Array, " outputs"]], Array]
"""A function from an output to one floating-point number."""

ChangeFunction = Callable[[Float[Array, " outputs"], Float[Array, " outputs"]], Array]
"""A function from the output of an input and that of a flipped one to one floating-point number."""


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
        told = (
            f"{'all' if count == self.flips else f'{count} of {self.flips}'} flips by {how}"
            for how, count in self.elsewhere
        )
        return "; ".join([self.why, *told])

    def after(self, elsewhere: Mapping[str, int], flips: int) -> EngineChoice:
        """Returns the choice with the counts of flips that each fallback measured added."""
        counts = dict(self.elsewhere)
        for how, count in elsewhere.items():
            counts[how] = counts.get(how, 0) + count
        return replace(self, elsewhere=tuple(counts.items()), flips=flips if counts else 0)

    def as_json(self) -> dict[str, Any]:
        """Returns a JSON object for `from_json`."""
        return asdict(self)

    @classmethod
    def from_json(cls, table: Mapping[str, Any]) -> EngineChoice:
        """Returns the choice from a JSON object made by `as_json`."""
        return cls(**{**table, "elsewhere": tuple((how, count) for how, count in table["elsewhere"])})

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
        for family, kinds, known in used:
            for kind in kinds:
                if kind not in known:
                    return str(no_rule(engine, family, kind, known))
        return None


@dataclass(frozen=True)
class EngineCost:
    """The cost of an engine's work on one input.

    Attributes:
        prepare: floating-point operations per input.
        per_flip: floating-point operations per flip.
        block_bytes: bytes of temporary memory for a block of flips.
        efficiency: the measured rate of such work on CPU, as a share of the rate of a large matrix product.
    """

    prepare: float
    per_flip: float
    block_bytes: int
    efficiency: float


@dataclass(frozen=True)
class Engine(abc.ABC):
    """Measures flips of one input at a time: `prepare` once per input, then `measured` for each block of flips.

    Engines are frozen and hashable, because they are static arguments of compiled functions.

    Attributes:
        norm: a measure of `jaxsens.inputs.MEASURES`.
        outputs: the output coordinates that are measured; None for all.
        scalar: a function f of the whole output. If given, flips are measured by f's change, and not by `norm`.
        change: a function f of the whole output and that of the flipped input. If given, it is what is measured.
        threshold: of the decision of a single output.
    """

    norm: str
    outputs: tuple[int, ...] | None
    scalar: Scalar | None = field(default=None, kw_only=True)
    change: ChangeFunction | None = field(default=None, kw_only=True)
    threshold: float = field(default=0.0, kw_only=True)

    @abc.abstractmethod
    def prepare(self, parameters: Any, tokens: Int[Array, " n"]) -> Any:
        """Returns the values shared by all flips of `tokens`, as a pytree of arrays."""

    @abc.abstractmethod
    def changes(
        self, parameters: Any, prepared: Any, positions: Int[Array, " flips"], symbols: Int[Array, " flips"]
    ) -> Float[Array, "flips outputs"]:
        """Returns the output's change under each flip of a block."""

    @abc.abstractmethod
    def output(self, parameters: Any, prepared: Any) -> Float[Array, " outputs"]:
        """Returns the output on the unflipped input."""

    @property
    def prepares_in_float64(self) -> bool:
        """Whether, for a float32 model, `prepare` runs in float64 and its arrays are then rounded once."""
        return False

    @property
    def widened(self) -> bool:
        """Whether flips of a float32 model are measured in float64, with parameters and prepared values in float64."""
        return False

    @property
    def widens(self) -> bool:
        """Whether flips that float32 cannot resolve are measured in float64, here or by a fallback."""
        return self.widened or (self.fallback is not None and self.fallback.widens)

    @property
    def fallback(self) -> Engine | None:
        """The engine for flips that this one declines, or None if it declines none.

        An engine declines all flips of an input that it does not `resolve`, and single flips, by returning NaN.
        """
        return None

    def resolves(self, prepared: Any) -> bool:
        """Returns whether flips of the prepared input are accurate. If they may not be, there must be a `fallback`."""
        del prepared
        return True

    @property
    def for_few_flips(self) -> Engine:
        """The engine for a few flips of an input, for which a long preparation is not worthwhile."""
        return self

    @property
    def how(self) -> str:
        """The method in a few words; results use it for flips that another engine declined."""
        return type(self).__name__

    @abc.abstractmethod
    def preferred_batch(self, n: int, platform: str) -> int:
        """Returns the fastest number of flips per block on "cpu", "gpu" or "tpu", ignoring memory."""

    @abc.abstractmethod
    def cost(self, parameters: Any, tokens: Any, platform: str) -> EngineCost:
        """Returns the cost of measuring flips of `tokens`, which may be an abstract value."""

    def measured(
        self, parameters: Any, prepared: Any, positions: Int[Array, " flips"], symbols: Int[Array, " flips"]
    ) -> Float[Array, " flips"]:
        """Returns the number that is measured for each flip: f's signed change or value, or `norms` without an f."""
        if self.scalar is not None:
            return self.scalar_changes(self.scalar, parameters, prepared, positions, symbols)
        if self.change is not None:
            return self.change_values(self.change, parameters, prepared, positions, symbols)
        return self.norms(parameters, prepared, positions, symbols)

    def scalar_changes(
        self,
        scalar: Scalar,
        parameters: Any,
        prepared: Any,
        positions: Int[Array, " flips"],
        symbols: Int[Array, " flips"],
    ) -> Float[Array, " flips"]:
        """Returns f(y + dy) - f(y) with the digits of dy (`change_of`); NaN for flips that the engine declines."""
        y = self.output(parameters, prepared)
        changes = self.changes(parameters, prepared, positions, symbols)
        found = jax.vmap(lambda dy: change_of(lambda at: value_of(scalar, at), y, dy))(changes)
        return where_finite(changes, found)

    def change_values(
        self,
        change: ChangeFunction,
        parameters: Any,
        prepared: Any,
        positions: Int[Array, " flips"],
        symbols: Int[Array, " flips"],
    ) -> Float[Array, " flips"]:
        """Returns f(y, y + dy), with the digits of dy where f is smooth; NaN for flips that the engine declines."""
        changes = self.changes(parameters, prepared, positions, symbols)
        return values_of_change(change, self.output(parameters, prepared), changes)

    def norms(
        self, parameters: Any, prepared: Any, positions: Int[Array, " flips"], symbols: Int[Array, " flips"]
    ) -> Float[Array, " flips"]:
        """Returns the measure called `norm` of the chosen outputs and their `changes`."""
        changes = self.chosen_changes(parameters, prepared, positions, symbols)
        y = self.chosen(self.output(parameters, prepared))
        return measure_of(self.norm, y, changes, self.threshold)

    def chosen(self, values: Float[Array, "*batch outputs"]) -> Float[Array, "*batch chosen"]:
        """Returns the values of the chosen outputs."""
        return values if self.outputs is None else values[..., list(self.outputs)]

    def chosen_changes(
        self, parameters: Any, prepared: Any, positions: Int[Array, " flips"], symbols: Int[Array, " flips"]
    ) -> Float[Array, "flips chosen"]:
        """Returns `changes` of the chosen outputs."""
        return self.chosen(self.changes(parameters, prepared, positions, symbols))


def as_vector(output: Array) -> Float[Array, " outputs"]:
    """Returns a model's output as engines measure it: a vector, in float32 at least."""
    output = jnp.atleast_1d(output)
    return output.astype(jnp.promote_types(output.dtype, jnp.float32))


def is_whole(output: Array | np.ndarray) -> bool:
    """Returns whether an output is of integers or booleans."""
    return jnp.issubdtype(output.dtype, jnp.integer) or output.dtype == np.bool_


def difference(new: Array, old: Array) -> Float[Array, "*shape"]:
    """Returns new - old, in float32 at least, of outputs as a model returns them.

    Integers beyond 2^24 are not all float32 numbers, and a difference may be beyond their dtype. So the upper and the
    lower halves of their bits are subtracted, and only the sum is rounded, once.
    """
    if not is_whole(old):
        return as_vector(new) - as_vector(old)
    if old.dtype == jnp.bool_ or jnp.iinfo(old.dtype).bits < 32:
        new, old = new.astype(jnp.int32), old.astype(jnp.int32)
    half = jnp.iinfo(old.dtype).bits // 2
    whole = jnp.int32 if half == 16 else jnp.int64
    real = jnp.promote_types(old.dtype, jnp.float32) if half == 16 else jnp.float64
    upper = (new >> half).astype(whole) - (old >> half).astype(whole)
    lower = (new & (2**half - 1)).astype(whole) - (old & (2**half - 1)).astype(whole)
    return upper.astype(real) * 2.0**half + lower.astype(real)


def resolved(output: Array) -> Float[Array, "*shape"]:
    """Returns `as_vector` of an output for functions of it: NaN for integers that have no float of that dtype."""
    floats = as_vector(output)
    if not is_whole(output):
        return floats
    largest = 2 ** (jnp.finfo(floats.dtype).nmant + 1)
    if output.dtype == jnp.bool_ or jnp.iinfo(output.dtype).max <= largest:
        return floats
    within = output <= largest
    if jnp.iinfo(output.dtype).min < 0:
        within = within & (output >= -largest)
    return jnp.where(within, floats, jnp.nan)


def values_of_change(
    change: ChangeFunction, y: Float[Array, " outputs"], changes: Float[Array, "flips outputs"]
) -> Float[Array, " flips"]:
    """Returns f(y, y + dy) for each change dy, with its digits where f is smooth (`change_of`); NaN where dy is not
    finite."""

    def of_new(at: Float[Array, " outputs"]) -> Array:
        return value_of(lambda new: change(y, new), at)

    same = of_new(y)
    return where_finite(changes, jax.vmap(lambda dy: same + change_of(of_new, y, dy))(changes))


def value_of(scalar: Scalar, output: Float[Array, " outputs"]) -> Float[Array, ""]:
    """Returns f of an output, in the output's dtype or a wider one."""
    value = jnp.asarray(scalar(output))
    return value.astype(jnp.promote_types(value.dtype, output.dtype))
