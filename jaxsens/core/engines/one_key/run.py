"""The unflipped run that all flips share, layer by layer; loops over tiles of scores, which stay in a core's cache,
so that nothing is n x n; and the operations of layers whose attention is visible.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxsens.core.base.errors import no_rule
from jaxsens.core.base.programs import cached
from jaxsens.core.models.parts.masks import AnyMask, Span, mask_of
from jaxsens.core.models.parts.weighting import SOFTMAXES, Sigmoid, Weighting, sink_score
from jaxsens.core.models.transformer.layered import (
    Attention,
    EqualLayers,
    Index,
    Keys,
    Layered,
    ModelLayer,
    Places,
    Queries,
    Stack,
    embedded_rows,
    groups_of,
    layer_of,
)
from jaxsens.core.models.transformer.layers import LayeredTransformer, PairwiseTransformer, layer_operations
from jaxsens.core.models.transformer.trace import in_blocks, placed

TILE = 2**17
"""The scores of one tile: half a megabyte in float32, which fits in a core's second-level cache."""

MASKED_BLOCKS = 8
"""The number of blocks into which rows are divided where a mask leaves some of them unchanged."""

Reach: TypeAlias = Span
"""The rows that can change."""

Carry = TypeVar("Carry")


def rows_of_tile(attention: Attention, n: int, columns: int) -> int:
    """Returns how many of n rows make a tile with `columns` columns, fewer if a mask may leave blocks of rows out."""
    rows = max(8, TILE // columns)
    return min(rows, max(64, -(-n // MASKED_BLOCKS))) if attention.one_sided else rows


def summed_over_blocks(
    work: Callable[[Int[Array, " m"], Array, Carry], Carry],
    n: int,
    size: int,
    start: Carry,
    span: Span | None = None,
) -> Carry:
    """Folds `work(rows, new, carry)` over blocks of n rows; `new` marks the rows that no earlier block had: the last
    block ends at n, and may overlap the one before it.

    Blocks without rows of `span` are left out, if it is given.
    """
    size = max(1, min(size, n))
    first, stop = (0, -(-n // size)) if span is None else (span[0] // size, -(-span[1] // size))

    def block(k: Array, carry: Carry) -> Carry:
        rows = jnp.minimum(k * size, n - size) + jnp.arange(size)
        return work(rows, rows >= k * size, carry)

    return jax.lax.fori_loop(first, stop, block, start)


def changed_rows(mask: AnyMask, reach: Reach, n: int) -> Reach:
    """Returns the rows of a layer's output that can change if the rows `reach` of its input do."""
    return mask_of("the rows that change", mask).rows_that_see(reach, n)


def as_carry(reach: Reach) -> tuple[Array, Array]:
    """Returns the rows as a loop over layers carries them. Bounds that a mask tells anew in each layer stay static."""
    return jnp.asarray(reach[0], jnp.int32), jnp.asarray(reach[1], jnp.int32)


def is_static(reach: Reach) -> bool:
    """Returns whether the rows are known when compiling: those of masks that hide neither side."""
    return all(isinstance(bound, int) for bound in reach)


def over_changed_rows(
    rows: Callable[[Int[Array, " m"]], Carry], unchanged: Carry, reach: Reach, most: int, axis: int
) -> Carry:
    """Returns `rows(positions)` for the rows `reach`, in blocks of at most `most` rows, and `unchanged` in the other
    rows; rows lie along an axis of every array."""
    n, (first, stop) = jax.tree.leaves(unchanged)[0].shape[axis], reach
    size = rows_of_block(n, most, is_static(reach))

    def block(k: Array, so_far: Carry) -> Carry:
        # The last block overlaps the one before it, so that all blocks have the same size.
        places = jnp.minimum(k * size, n - size) + jnp.arange(size)
        # Not slices updated in place: with them XLA makes `difference` a fifth slower at three layers.
        at = (*[slice(None)] * axis, places)
        return jax.tree.map(lambda whole, part: whole.at[at].set(part), so_far, rows(places))

    return jax.lax.fori_loop(first // size, -(-stop // size), block, unchanged)


def rows_computed(reach: Reach, n: int, most: int) -> Reach:
    """Returns the rows that `over_changed_rows` computes for the rows `reach`, in blocks of at most `most`: what their
    function reads has to be right there, too."""
    if is_static(reach):
        return reach
    size = rows_of_block(n, most, False)
    return jnp.minimum(reach[0] // size * size, n - size), jnp.minimum(n, -(-reach[1] // size) * size)


def rows_of_block(n: int, most: int, everything: bool) -> int:
    """Returns the number of rows per block, at most `most`: fewer if not `everything` needs computing."""
    size = min(most, n)
    return size if everything else max(1, min(size, -(-n // MASKED_BLOCKS)))


_HERE = jax.ShapeDtypeStruct((), jnp.int32)


@dataclass(frozen=True)
class LayerCosts:
    """Floating-point operations of one layer, and its sizes.

    Attributes:
        pair: of attention, for each pair of rows.
        row: of the row maps, for each row.
        keys: of keys and values alone, for each row.
        width: the numbers of a row.
        queries: the numbers of a row's queries.
        attended: the numbers of what a row's heads attend to.
    """

    pair: float
    row: float
    keys: float
    width: int
    queries: int
    attended: int


def layer_costs(model: Layered, parameters: Any, layer: int) -> LayerCosts:
    """Returns a layer's costs. `parameters` may be abstract. Nothing is compiled; a second call is free."""
    known = LayeredTransformer, PairwiseTransformer
    if isinstance(model, known) and type(model) in known:  # a user's derived class may compute something else
        config = model.config
        width, heads = config.width, config.layer(layer).heads * config.layer(layer).head_width
        once, twice = (layer_operations(config, layer, n) for n in (1, 2))
        pair = (twice - 2 * once) / 2
        return LayerCosts(pair, once - pair, 4 * width * heads, width, heads, heads)
    leaves, structure = jax.tree.flatten(parameters)
    shapes = tuple(jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in leaves)
    return _costs(model, structure, shapes, layer, jnp.result_type(float) == jnp.float64)


@cached
def _costs(model: Layered, structure: Any, shapes: tuple[Any, ...], layer: int, wide: bool) -> LayerCosts:
    """Counts. `wide` (64-bit types are on) is part of the cache key."""
    parameters = jax.tree.unflatten(structure, shapes)
    row = jax.eval_shape(model.embed, parameters, _HERE, _HERE)

    def project(own: Any, x: Array, i: Array) -> tuple[Array, ...]:
        return model.project(own, layer, x, i)

    q, _, v = jax.eval_shape(project, parameters, row, _HERE)
    attended = jax.ShapeDtypeStruct((q.shape[0], v.shape[1]), v.dtype)
    row_cost = _operations(project, parameters, row, _HERE)
    row_cost += _operations(lambda own, x, b: model.merge(own, layer, x, b), parameters, row, attended)
    pair = 2.0 * (q.size + q.shape[0] * v.shape[1])
    of_keys = _operations(lambda own, x, i: project(own, x, i)[1:], parameters, row, _HERE)
    return LayerCosts(pair, row_cost, of_keys, row.size, q.size, q.shape[0] * v.shape[1])


def costs_of_layers(model: Layered, parameters: Any, n: int) -> list[LayerCosts]:
    """Returns the costs of all layers of a model, which may be abstract, for inputs of length n."""
    parameters = jax.eval_shape(model.apart, parameters)
    groups = groups_of(model, parameters, n, range(model.layers))
    return [layer_costs(model, parameters, group.start) for group in groups for _ in group.layers]


def outputs_of_row(model: Layered, parameters: Any) -> int:
    """Returns the number of outputs of a row. `parameters` may be abstract, and nothing is computed."""
    row = jax.eval_shape(model.embed, parameters, _HERE, _HERE)
    return jax.eval_shape(model.read, parameters, row).size


def _operations(function: Callable[..., Any], *arguments: Any) -> float:
    return float((jax.jit(function).lower(*arguments).cost_analysis() or {}).get("flops", 0))


ONE_MOVED_KEY: tuple[type[Weighting], ...] = (*SOFTMAXES, Sigmoid)
"""The weightings for which one moved key has a closed form, in this engine and the incremental one."""


def weighting_refusal(engine: str, model: Layered) -> str | None:
    """Returns why an engine does not support a model's weightings, or None if it does."""
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

        def layer(
            x: Array, k: Index, group: EqualLayers = group, stack: Stack = stack
        ) -> tuple[Array, LayerRun]:
            trace, y = layer_run(group.layer(model, parameters, n, stack, k), x)
            return y.astype(x.dtype), trace

        x, layers = jax.lax.scan(layer, x, group.numbers)
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

        return in_blocks(rows, n, max(8, TILE // n), axis=0, only=only)

    heads = jnp.arange(layer.attention.heads)
    b, normaliser, others_normaliser, others = jax.lax.map(one_head, (heads, queries, keys, values))
    trace = LayerRun(x, queries, keys, values, b, normaliser, others_normaliser, others)
    if only is not None:
        here = jnp.asarray([only])
        return trace, placed(layer.merged(x[here], b[:, here].swapaxes(0, 1)), only, n, axis=0)
    return trace, layer.merged(x, b.swapaxes(0, 1))


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
