"""Layers that are the same program with other parameters: one trace, and one compilation, serves all in a row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from jaxsens.base.programs import kept
from jaxsens.models.transformer.layered import Layered, ModelLayer
from jaxsens.sensitivity.engines.one_key.layer_costs import LayerCosts, layer_costs

LARGEST_STACK = 2**24
"""The parameters of a group are copied. Layers with more numbers than this are groups of their own."""

Stack: TypeAlias = tuple[Array, ...]
"""What the layers of a group read of the parameters, layer after layer along the first axis of every array."""


@dataclass(frozen=True)
class Alike:
    """A group of consecutive layers that are alike.

    Attributes:
        first: the number of its first layer.
        reads: for each layer, the numbers of the leaves of the parameters that it reads, in the same order.
    """

    first: int
    reads: tuple[tuple[int, ...], ...]

    @property
    def numbers(self) -> Int[Array, " layers"]:
        """The numbers of its layers, from 0 in each group."""
        return jnp.arange(len(self.reads))

    def within(self, layers: range) -> tuple[Alike, ...]:
        """Returns the group of those of its layers that are among some consecutive ones, or nothing."""
        start, stop = max(self.first, layers.start), min(self.first + len(self.reads), layers.stop)
        return (Alike(start, self.reads[start - self.first : stop - self.first]),) if start < stop else ()

    def stacked(self, parameters: Any) -> Stack:
        """Returns what its layers read."""
        leaves = jax.tree.leaves(parameters)
        return tuple(jnp.stack([leaves[i] for i in same]) for same in zip(*self.reads, strict=True))

    def layer(self, model: Layered, parameters: Any, n: int, own: Stack) -> ModelLayer:
        """Returns the layer that reads `own`, a layer's part of the stack."""
        leaves, structure = jax.tree.flatten(parameters)
        for i, leaf in zip(self.reads[0], own, strict=True):
            leaves[i] = leaf
        return ModelLayer(model, jax.tree.unflatten(structure, leaves), self.first, n)


def alike(model: Layered, parameters: Any, n: int, layers: range) -> tuple[Alike, ...]:
    """Returns the groups of some layers of a model, for inputs of length n, from its parameters, which are `apart`.
    Nothing is compiled."""
    leaves, structure = jax.tree.flatten(parameters)
    shapes = tuple(jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in leaves)
    groups = _alike(model, structure, shapes, n, jnp.result_type(float) == jnp.float64)
    return tuple(part for group in groups for part in group.within(layers))


@kept
def _alike(model: Layered, structure: Any, shapes: tuple[Any, ...], n: int, wide: bool) -> tuple[Alike, ...]:
    """Compares the traces of layers. `wide` (64-bit types are on) is part of the cache key."""
    parameters, found = jax.tree.unflatten(structure, shapes), []
    for k in range(model.layers):
        reads, program = _traced(ModelLayer(model, parameters, k, n))
        kind, size = (model.attention(k), program), sum(shapes[i].size for i in reads)
        if found and found[-1][0] == kind and (1 + len(found[-1][2])) * size <= LARGEST_STACK:
            found[-1][2].append(reads)
        else:
            found.append((kind, k, [reads]))
    return tuple(Alike(first, tuple(reads)) for _, first, reads in found)


def costs_of_layers(model: Layered, parameters: Any, n: int) -> list[LayerCosts]:
    """Returns the costs of all layers of a model, which may be abstract, for inputs of length n."""
    parameters = jax.eval_shape(model.apart, parameters)
    groups = alike(model, parameters, n, range(model.layers))
    return [layer_costs(model, parameters, group.first) for group in groups for _ in group.reads]


def _traced(layer: ModelLayer) -> tuple[tuple[int, ...], Any]:
    """Returns the numbers of the leaves that a layer's maps of one row read, and the maps as text, with constants."""
    model, (leaves, structure) = layer.model, jax.tree.flatten(layer.parameters)
    here = jax.ShapeDtypeStruct((), jnp.int32)

    def maps(leaves: list[Any], x: Array, i: Array) -> Any:
        own = ModelLayer(model, jax.tree.unflatten(structure, leaves), layer.k, layer.n)
        q, key, value = own.projected(x[None], i[None])
        merged = own.merged(x[None], value.swapaxes(0, 1))
        return q, key, value, merged, own.scores(i, q[0], key[0], i[None], i[None])

    row = jax.eval_shape(model.embed, layer.parameters, here, here)
    trace = jax.make_jaxpr(maps)(leaves, row, here)
    program, arguments = trace.jaxpr, trace.jaxpr.invars
    used = {id(one) for equation in program.eqns for one in equation.invars} | set(map(id, program.outvars))
    reads = tuple(i for i in range(len(leaves)) if id(arguments[i]) in used)
    # Printing names the arguments in their order: those that layers differ in come last.
    first, others = {id(arguments[i]) for i in reads}, arguments[len(leaves) :]
    unread = [one for one in arguments[: len(leaves)] if id(one) not in first]
    named = program.replace(invars=[*(arguments[i] for i in reads), *others, *unread])
    return reads, (str(named), [np.asarray(constant).tobytes() for constant in trace.consts])
