"""The parameters of a transformer as plain pytrees, and their random initialisation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxsens.core.base.errors import rule_for
from jaxsens.core.base.programs import numerics
from jaxsens.core.models.networks.given import on_device
from jaxsens.core.models.parts import initialisation
from jaxsens.core.models.parts.choices import OUTPUT_GATES, SCORES
from jaxsens.core.models.parts.positions import Learned
from jaxsens.core.models.parts.weighting import learns_sink
from jaxsens.core.models.transformer.config import TransformerConfig


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
    """Numbers of a config for inputs of one length, as arrays that a program takes (`transformer.tables`).

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


Part = TypeVar("Part")


def needed(parameter: Part | None, name: str) -> Part:
    """Returns a parameter, or a part's parameters, that the config requires. Raises TypeError if they are missing."""
    if parameter is None:
        raise TypeError(f"the config needs the parameter {name!r}, which these parameters lack")
    return parameter


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
