"""Operations of the layers of a model whose attention is visible: of a jaxsens transformer by its config, of others by
lowering their row maps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from jaxsens.core.base.programs import cached
from jaxsens.core.models.transformer.layered import Layered, groups_of
from jaxsens.core.models.transformer.layers import LayeredTransformer, PairwiseTransformer, layer_operations

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
    return [layer_costs(model, parameters, group.first) for group in groups for _ in group.reads]


def outputs_of_row(model: Layered, parameters: Any) -> int:
    """Returns the number of outputs of a row. `parameters` may be abstract, and nothing is computed."""
    row = jax.eval_shape(model.embed, parameters, _HERE, _HERE)
    return jax.eval_shape(model.read, parameters, row).size


def _operations(function: Callable[..., Any], *arguments: Any) -> float:
    return float((jax.jit(function).lower(*arguments).cost_analysis() or {}).get("flops", 0))
