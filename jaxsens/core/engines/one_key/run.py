"""The unflipped run: what every flip shares, layer by layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxsens.core.base.errors import no_rule
from jaxsens.core.engines.one_key.blocks import TILE
from jaxsens.core.models.parts.weighting import SOFTMAXES, Sigmoid, Weighting, sink_score
from jaxsens.core.models.transformer.layered import (
    EqualLayers,
    Index,
    Keys,
    Layered,
    ModelLayer,
    Places,
    Queries,
    Stack,
    embedded_rows,
    layer_of,
)
from jaxsens.core.models.transformer.trace import in_blocks

ONE_MOVED_KEY: tuple[type[Weighting], ...] = (*SOFTMAXES, Sigmoid)
"""The weightings for which one moved key has a closed form, in this engine and the incremental one."""


def weighting_refusal(engine: str, model: Layered) -> str | None:
    """Returns why an engine does not support a model's weightings, or where its parameters are, or None if it does."""
    if model.mesh is not None:
        return f"{engine} keeps a copy of what layers read, and the model's parameters are split over devices"
    for k in range(model.layers):
        weighting = model.attention(k).weighting
        if type(weighting) not in ONE_MOVED_KEY:
            return str(no_rule(engine, "weighting", weighting, ONE_MOVED_KEY))
    return None


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class LayerRun:
    """One layer of the unflipped run. Keys and values are repeated for the query heads that share them.

    Attributes:
        x: the layer's input rows.
        queries, keys, values: of every head and row.
        b: what each head's row attended to.
        normaliser: each row's log of the sum of exponentiated scores, with the sink's; 0 if there is none of them.
        others_normaliser: the same without the row's best key; -inf if there is no other.
        others: the weighted mean of values without the best key; 0 if there is no other. A sink's value is 0.

    In sigmoid attention no key enters the weight of another: normalisers and rest are 0.
    """

    x: Float[Array, "n width"]
    queries: Float[Array, "heads n head_width"]
    keys: Float[Array, "heads n head_width"]
    values: Float[Array, "heads n value_width"]
    b: Float[Array, "heads n value_width"]
    normaliser: Float[Array, "heads n"]
    others_normaliser: Float[Array, "heads n"]
    others: Float[Array, "heads n value_width"]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Run:
    """The tokens, every layer, and the last layer's output rows.

    If one row is read, the last layer attends only there: b, normalisers and others of other rows, and their y, are 0.

    Attributes:
        tokens: the input.
        stacks: what the layers of each group read of the parameters.
        groups: the runs of each group's layers, one after another along the first axis of every array.
        last: the last layer, if one row is read; it is in no group.
        y: the last layer's output.
    """

    tokens: Int[Array, " n"]
    stacks: tuple[Stack, ...]
    groups: tuple[LayerRun, ...]
    last: LayerRun | None
    y: Float[Array, "n width"]


def run(
    model: Layered,
    parameters: Any,
    tokens: Int[Array, " n"],
    groups: tuple[EqualLayers, ...],
    row: int | None,
) -> Run:
    """Returns the unflipped run, in O(layers n^2 width) operations and O(layers n width) memory.

    `groups` are those of all layers or, if a single `row` is read, of all but the last.
    """
    n = tokens.shape[0]
    x = embedded_rows(model, parameters, tokens, jnp.arange(n))
    stacks, runs, last = tuple(group.stacked(parameters) for group in groups), [], None
    for group, stack in zip(groups, stacks, strict=True):

        def layer(x: Array, own: Stack, group: EqualLayers = group) -> tuple[Array, LayerRun]:
            trace, y = layer_run(group.layer(model, parameters, n, own), x)
            return y.astype(x.dtype), trace

        x, layers = jax.lax.scan(layer, x, stack)
        runs.append(layers)
    if row is not None and model.layers:
        last, x = layer_run(layer_of(model, parameters, model.layers - 1, n), x, row)
    return Run(tokens, stacks, tuple(runs), last, x)


def layer_run(
    layer: ModelLayer, x: Float[Array, "n width"], only: int | None = None
) -> tuple[LayerRun, Float[Array, "n width"]]:
    """Returns one layer's run and its output rows; with `only`, of that row alone, and 0 elsewhere."""
    n = layer.n
    queries, keys, values = layer.projected(x, jnp.arange(n))

    def one_head(arrays: tuple[Array, ...]) -> tuple[Array, ...]:
        head, q, k, v = arrays

        def rows(block: Places) -> tuple[Array, ...]:
            return attended(layer, head, q[block], k, v, block)

        if only is not None:
            return tuple(_at(only, n, part) for part in rows(jnp.asarray([only])))
        return in_blocks(rows, n, max(8, TILE // n), axis=0)

    heads = jnp.arange(layer.attention.heads)
    b, normaliser, others_normaliser, others = jax.lax.map(one_head, (heads, queries, keys, values))
    trace = LayerRun(x, queries, keys, values, b, normaliser, others_normaliser, others)
    if only is not None:
        here = jnp.asarray([only])
        return trace, _at(only, n, layer.merged(x[here], b[:, here].swapaxes(0, 1)))
    return trace, layer.merged(x, b.swapaxes(0, 1))


def _at(row: int, n: int, part: Float[Array, "1 ..."]) -> Float[Array, "n ..."]:
    """Returns n rows, all 0 except one."""
    return jnp.zeros((n, *part.shape[1:]), part.dtype).at[row].set(part[0])


def attended(
    layer: ModelLayer, head: Index, q: Queries, k: Keys, v: Float[Array, "n value_width"], rows: Places
) -> tuple[Array, Array, Array, Array]:
    """Returns b, the log-normaliser, and both without the best key, for some rows of one head.

    Exponentials of a softmax are taken relative to the second-best score. The best key may be far ahead of all others:
    relative to it, they would underflow, and what remains if it is flipped would be lost.
    """
    n, attention, weighting = layer.n, layer.attention, layer.weighting(head)
    columns = jnp.arange(n)
    s = layer.scores(head, q, k, rows, columns)
    seen = attention.sees(rows[:, None], columns[None, :])
    if isinstance(weighting, Sigmoid):
        b = weighting.shares(s, seen)[0] @ v
        return b, jnp.zeros_like(s[:, 0]), jnp.zeros_like(s[:, 0]), jnp.zeros_like(b)
    s = jnp.where(seen, s, -jnp.inf)
    best = jnp.max(s, axis=-1, keepdims=True)
    where = jnp.min(jnp.where(s == best, columns, n - 1), axis=-1)
    others = jnp.where(columns == where[:, None], -jnp.inf, s)
    sink = sink_score("the forward pass of one moved key", weighting)
    second = jnp.maximum(jnp.max(others, axis=-1, keepdims=True), sink)
    base = jnp.where(second == -jnp.inf, 0, second)
    powers = jnp.exp(others - base)
    total = jnp.sum(powers, axis=-1) + jnp.exp(sink - base[:, 0])
    others_normaliser = base[:, 0] + jnp.log(total)
    mean_of_others = (powers @ v) / jnp.where(total > 0, total, 1)[:, None]
    normaliser = jnp.logaddexp(best[:, 0], others_normaliser)
    normaliser = jnp.where(normaliser == -jnp.inf, 0, normaliser)
    of_best, of_others = (jnp.exp(part - normaliser)[:, None] for part in (best[:, 0], others_normaliser))
    return of_best * v[where] + of_others * mean_of_others, normaliser, others_normaliser, mean_of_others
