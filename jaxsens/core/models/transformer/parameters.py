"""The parameters of a transformer as plain pytrees: their random initialisation, and the forms that programs take.

A program takes the numbers of a config as arrays: temperatures, and what positions add to embeddings. Models that
differ in these numbers alone, such as the variants of a sweep over temperatures, then share their programs: `shape_of`
is what they have in common, and `with_tables` adds the numbers of one of them to its parameters.

Equal layers are stacked: a program traces one of them and loops over the others, so its size, and the time to trace and
compile it, do not grow with the depth. The first and the last layer stand alone: engines treat them in ways of their
own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import groupby
from typing import Any, Literal, TypeAlias, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from jaxsens.core.base.errors import no_rule, rule_for
from jaxsens.core.base.programs import cached, numerics
from jaxsens.core.base.strict import with_fields
from jaxsens.core.models.parts import initialisation
from jaxsens.core.models.parts.choices import OUTPUT_GATES, SCORES
from jaxsens.core.models.parts.initialisation import FAN_IN
from jaxsens.core.models.parts.positions import AddedTerm, CoordinateTerm, Learned, PositionTerm, ScoreTerm
from jaxsens.core.models.parts.schedules import Schedule, TabledSchedule
from jaxsens.core.models.parts.weighting import WEIGHTING_TYPES, Softmax, Tempered, learns_sink
from jaxsens.core.models.transformer.config import LayerConfig, TransformerConfig


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class NormParameters:
    """Scale and bias of one layer normalisation."""

    scale: Float[Array, " width"]
    bias: Float[Array, " width"]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class LayerParameters:
    """Parameters of one layer. Parts that the config lacks are None."""

    query: Float[Array, "heads width head_width"]
    key: Float[Array, "heads width head_width"]
    value: Float[Array, "heads width head_width"]
    output: Float[Array, "heads head_width width"]
    additive: Float[Array, "heads head_width"] | None
    w1: Float[Array, "width feed_forward"] | None
    b1: Float[Array, " feed_forward"] | None
    w2: Float[Array, "feed_forward width"] | None
    b2: Float[Array, " width"] | None
    attention_norm: NormParameters | None
    feed_forward_norm: NormParameters | None
    relative_bias: Float[Array, "heads buckets"] | None = None
    gate: Float[Array, "heads width gates"] | None = None
    sink: Float[Array, " heads"] | None = None


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Tables:
    """Numbers of a config for inputs of one length, as arrays that a program takes.

    Attributes:
        positions: what is added to symbols' embeddings.
        inverse_temperatures: each 1/tau, once: a number, or one for each query.
    """

    positions: Float[Any, "n width"]
    inverse_temperatures: tuple[Float[Any, "*n"], ...]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class TransformerParameters:
    """All parameters. `components` has a row for each coordinate term of the position embedding, in order. `layers` is
    a tuple or, where programs loop over the layers, a `Stack`. With `tables`, positions and temperatures are there."""

    embedding: Float[Array, "vocabulary width"]
    components: Float[Array, "components width"] | None
    learned: Float[Array, "max_length width"] | None
    layers: Sequence[LayerParameters]
    head: Float[Array, "width logits"] | None
    head_bias: Float[Array, " logits"] | None
    tables: Tables | None = None

    def layer(self, config: TransformerConfig, k: int) -> LayerConfig:
        """Returns `config.layer(k)`, with the temperature that the tables hold if the config is a `shape_of`."""
        layer = config.layer(k)
        weighting = layer.weighting
        if self.tables is None or not isinstance(weighting, Tempered):
            return layer
        schedule = weighting.inverse_temperature
        if not isinstance(schedule, TabledSchedule):
            return layer
        tabled = replace(schedule, values=self.tables.inverse_temperatures[schedule.number])
        return with_fields(layer, weighting=with_fields(weighting, inverse_temperature=tabled))

    def position_embedding(self, config: TransformerConfig, n: int) -> Float[Any, "n width"]:
        """Returns the position embedding that is added to the symbols' embeddings, for inputs of length n.

        It is a NumPy array if the parameters are, and otherwise may be one of JAX.
        """
        if self.tables is not None:
            return self.tables.positions
        return sum(position_parts(config, self, n), np.zeros((n, config.width), config.dtype))


Part = TypeVar("Part")
Carry = TypeVar("Carry")


def needed(parameter: Part | None, name: str) -> Part:
    """Returns a parameter, or a part's parameters, that the config requires. Raises TypeError if they are missing."""
    if parameter is None:
        raise TypeError(f"the config needs the parameter {name!r}, which these parameters lack")
    return parameter


def parameters_from_numpy(tree: Part, dtype: str) -> Part:
    """Returns the parameters as JAX arrays of `dtype`. Call it inside `numerics(dtype)`."""
    with np.errstate(over="ignore"):  # infinite where the type has no such number
        return jax.tree.map(lambda leaf: on_device(np.asarray(leaf).astype(dtype)), tree)


def on_device(array: ArrayLike) -> jax.Array:
    """Converts an array to JAX like `jnp.asarray`, which would compile a program for each new shape and dtype."""
    return array if isinstance(array, jax.Array) else jax.device_put(np.asarray(array))


Maker = Callable[[str, tuple[int, ...], float], Array]
"""Makes a parameter from its name, shape and variance."""


def build(config: TransformerConfig, normal: Maker) -> TransformerParameters:
    """Returns the parameter tree of `config`, with each random parameter made by `normal(name, shape, variance)`.

    Biases are always 0, normalisation scales 1, and learned sinks at the logit of their weighting.
    """
    d = config.width
    learned = [term for term in config.position_terms if isinstance(term, Learned)]
    rows = [normal(f"component:{term.label}", (d,), 1.0) for term in config.coordinate_terms]
    return TransformerParameters(
        embedding=normal("embedding", (config.vocabulary_size, d), 1.0),
        components=jnp.stack(rows) if rows else None,
        learned=normal("learned", (learned[0].max_length, d), 1.0) if learned else None,
        layers=tuple(_layer(config, k, normal) for k in range(config.layers)),
        head=None if config.logits is None else normal("head", (d, config.logits), 1 / d),
        head_bias=None if config.logits is None else on_device(np.zeros(config.logits, config.dtype)),
    )


def _layer(config: TransformerConfig, k: int, normal: Maker) -> LayerParameters:
    layer, d, dtype = config.layer(k), config.width, config.dtype
    heads, dk, hidden = layer.heads, layer.head_width, layer.feed_forward
    vector = rule_for("initialise", "score", layer.scores, SCORES).vector
    normalised = layer.norm.before or layer.norm.after
    buckets = sum(term.entries for term in layer.position_scores)
    gate = rule_for("initialise", "output gate", layer.output_gate, OUTPUT_GATES)

    def norm(present: bool) -> NormParameters | None:
        return (
            NormParameters(on_device(np.ones(d, dtype)), on_device(np.zeros(d, dtype))) if present else None
        )

    return LayerParameters(
        query=normal(f"layer{k}.query", (heads, d, dk), 1 / d),
        key=normal(f"layer{k}.key", (heads, d, dk), 1 / d),
        value=normal(f"layer{k}.value", (heads, d, dk), 1 / d),
        output=normal(f"layer{k}.output", (heads, dk, d), 1 / (heads * dk)),
        additive=normal(f"layer{k}.additive", (heads, dk), 1.0) if vector else None,
        w1=normal(f"layer{k}.w1", (d, hidden), 2 / d) if hidden else None,
        b1=on_device(np.zeros(hidden, dtype)) if hidden else None,
        w2=normal(f"layer{k}.w2", (hidden, d), 1 / hidden) if hidden else None,
        b2=on_device(np.zeros(d, dtype)) if hidden else None,
        attention_norm=norm(normalised),
        feed_forward_norm=norm(normalised and hidden > 0),
        relative_bias=normal(f"layer{k}.relative_bias", (heads, buckets), 1.0) if buckets else None,
        gate=normal(f"layer{k}.gate", (heads, d, gate.width(dk)), 1 / d) if gate else None,
        sink=on_device(np.full(heads, layer.weighting.logit, dtype))
        if learns_sink(layer.weighting)
        else None,
    )


def initialise(config: TransformerConfig, seed: int) -> TransformerParameters:
    """Returns random parameters of `config`, in its dtype.

    Every matrix W with fan-in m has independent N(0, 1/m) entries (N(0, 2/m) for W1, before the activation). Symbol
    embeddings, learned position embeddings, relative biases, component vectors and the additive score's vector have
    N(0, 1) entries. With another `config.initialisation` all of these are drawn from the same distribution. Biases are
    0, normalisation scales 1, learned sinks at their logit. See `initialisation` for what models with the same seed
    share.
    """

    def normal(name: str, shape: tuple[int, ...], variance: float) -> Array:
        return on_device(
            initialisation.draw(config.initialisation, seed, name, shape, variance, config.dtype)
        )

    with numerics(config.dtype):
        return build(config, normal)


@lru_cache(maxsize=256)
def shapes(config: TransformerConfig) -> TransformerParameters:
    """Returns the tree of `initialise` with `jax.ShapeDtypeStruct` leaves, without drawing parameters."""

    def make() -> TransformerParameters:
        return build(config, lambda name, shape, variance: jnp.zeros(shape, config.dtype))

    with numerics(config.dtype):
        return jax.eval_shape(make)


Formula: TypeAlias = tuple[Schedule, Literal["length", "query"]]
"""An inverse temperature, and what it depends on."""


def position_parts(
    config: TransformerConfig, parameters: TransformerParameters, n: int
) -> Iterator[Float[Any, "n width"]]:
    """Yields what each position term adds to the symbols' embeddings: constants rounded to the config's dtype, times or
    beside what the parameters hold, in theirs."""
    row = 0
    for term in config.position_terms:
        match term:
            case CoordinateTerm():
                vector = needed(parameters.components, "components")[row]
                yield term.values(n).astype(config.dtype)[:, None] * vector
                row += 1
            case AddedTerm():
                yield term.values(n, config.width).astype(config.dtype)
            case Learned():
                yield needed(parameters.learned, "learned")[:n]
            case ScoreTerm():
                pass  # it affects the scores, not the embedding
            case _:
                rules = AddedTerm, CoordinateTerm, Learned, ScoreTerm
                raise no_rule("the position embedding", "position term", term, rules)


def positions_in(dtype: str, parameters: TransformerParameters) -> TransformerParameters:
    """Returns the parameters with those of positions as NumPy arrays of a dtype."""
    components, learned = parameters.components, parameters.learned
    return replace(
        parameters,
        components=None if components is None else np.asarray(components, dtype),
        learned=None if learned is None else np.asarray(learned, dtype),
    )


@cached
def shape_of(config: TransformerConfig) -> TransformerConfig:
    """Returns what a config shares with those of other temperatures and other added positions.

    Its inverse temperatures are numbers of tables, and of its positions only those are left that affect scores.
    """
    each = _formulas(config)
    numbers = {formula: TabledSchedule(k) for k, formula in enumerate(dict.fromkeys(filter(None, each)))}
    weightings = [config.layer(k).weighting for k in range(config.layers)]
    shaped = [
        with_fields(one, inverse_temperature=numbers[formula]) if formula else one
        for one, formula in zip(weightings, each, strict=True)
    ]
    positions = cast("tuple[PositionTerm, ...]", config.positions)
    return with_fields(
        config,
        weighting=tuple(shaped) or Softmax(),
        positions=tuple(term for term in positions if isinstance(term, ScoreTerm)),
        initialisation=FAN_IN,
    )


def with_tables(
    config: TransformerConfig, parameters: TransformerParameters, n: int, dtype: str
) -> TransformerParameters:
    """Returns the parameters for `shape_of(config)` and inputs of length n, with tables in NumPy arrays: positions in
    `dtype`, float64 or the config's. O(n width)."""
    own = positions_in(dtype, parameters)
    with np.errstate(over="ignore", invalid="ignore"):  # the output is what is checked
        positions = own.position_embedding(with_fields(config, dtype=dtype), n)
    formulas = dict.fromkeys(filter(None, _formulas(config)))
    inverse = tuple(schedule(n if by == "length" else np.arange(1, n + 1)) for schedule, by in formulas)
    return replace(parameters, components=None, learned=None, tables=Tables(positions, inverse))


def _formulas(config: TransformerConfig) -> list[Formula | None]:
    """Returns the inverse temperature of each layer as a formula; None of those that ask it at other lengths than the
    input's or every query's, or have none."""
    weightings = [config.layer(k).weighting for k in range(config.layers)]
    return [
        (one.inverse_temperature, one.by)
        if isinstance(one, Tempered) and type(one) in WEIGHTING_TYPES
        else None
        for one in weightings
    ]


@partial(jax.tree_util.register_dataclass, data_fields=["runs"], meta_fields=["lengths"])
@dataclass(frozen=True)
class Stack(Sequence[Part]):
    """A sequence with one pytree of arrays for each layer, such as its parameters or its trace.

    Attributes:
        runs: those of consecutive layers: as they are for a run of one layer, and otherwise with an axis in front of
            every array.
        lengths: the number of layers of each run.
    """

    runs: tuple[Part, ...]
    lengths: tuple[int, ...]

    @classmethod
    def of(cls, layers: Sequence[Part]) -> Stack[Part]:
        """Returns layers as a stack; those that are none become runs of one layer."""
        return layers if isinstance(layers, Stack) else cls(tuple(layers), (1,) * len(layers))

    def beside(self, other: Sequence[Any]) -> Stack[tuple[Part, Any]]:
        """Returns what each layer has in both; the other has the same runs."""
        pairs = zip(self.runs, Stack.of(other).runs, strict=True)
        return Stack(tuple(pairs), self.lengths)

    def __len__(self) -> int:
        return sum(self.lengths)

    def __getitem__(self, k: Any) -> Any:
        """Returns what layer k has: a slice, if it is in a run of several."""
        for run, length in zip(self.runs, self.lengths, strict=True):
            if 0 <= k < length:
                return run if length == 1 else jax.tree.map(lambda leaf, k=k: leaf[k], run)
            k -= length
        raise IndexError("layer index out of range")


def stacked(config: TransformerConfig, layers: Sequence[Part]) -> Sequence[Part]:
    """Returns the layers' arrays with equal layers stacked, on the device; as they are where no two are equal. The
    first and the last layer stand alone."""
    inner = [config.layer(k) for k in range(1, config.layers - 1)]
    middle = (len([*equal]) for _, equal in groupby(inner))
    lengths = (*[1] * min(1, config.layers), *middle, *[1] * (config.layers > 1))
    if isinstance(layers, Stack) or max(lengths, default=1) == 1:
        return layers
    leaves, structure = jax.tree.flatten(tuple(layers))
    return _stacked(lengths, structure, *leaves)


@cached
def _stacked(lengths: tuple[int, ...], structure: Any, *leaves: jax.Array) -> Stack[Any]:
    layers, runs, start = jax.tree.unflatten(structure, leaves), [], 0

    def joined(*leaves: Any) -> jax.Array:
        # By NumPy, because each shape would be a program of its own for JAX.
        return jax.device_put(np.stack([np.asarray(leaf) for leaf in leaves]))

    with jax.enable_x64(True):  # or JAX would make float32 of float64 on the way
        for length in lengths:
            some = layers[start : start + length]
            runs.append(some[0] if length == 1 else jax.tree.map(joined, *some))
            start += length
    return Stack(tuple(runs), lengths)


def over_layers(
    step: Callable[[int, Any, Carry], tuple[Carry, Part]],
    stack: Sequence[Any],
    start: Carry,
    layers: range,
) -> tuple[Carry, Stack[Part]]:
    """Folds `step(k, what layer k has, carry)` -> (carry, out) over some layers, whole runs of them.

    A run is one loop of the program. There k is the number of its first layer: a config holds for the whole run.

    Returns:
        The last carry, and the stack of the outs.
    """
    outs, lengths, k, carry = [], [], 0, start
    runs = (stack.runs, stack.lengths) if isinstance(stack, Stack) else (stack, [1] * len(stack))
    for run, length in zip(*runs, strict=True):
        if k in layers:
            if length == 1:
                carry, out = step(k, run, carry)
            else:
                carry, out = jax.lax.scan(lambda carry, one, k=k: step(k, one, carry), carry, run)
            outs.append(out)
            lengths.append(length)
        k += length
    return carry, Stack(tuple(outs), tuple(lengths))
