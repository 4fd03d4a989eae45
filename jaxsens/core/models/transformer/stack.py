"""What each layer has, with equal layers stacked: a program traces one of them and loops over the others.

So a program's size, and the time to trace and compile it, do not grow with the depth. The first and the last layer
stand alone: engines treat them in ways of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any, TypeVar

import jax
import numpy as np

from jaxsens.core.base.programs import cached
from jaxsens.core.models.transformer.config import TransformerConfig

Part = TypeVar("Part")
Carry = TypeVar("Carry")


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


def lengths_of_runs(config: TransformerConfig) -> tuple[int, ...]:
    """Returns how many layers there are in each run of equal ones; the first and the last layer stand alone."""
    inner = [config.layer(k) for k in range(1, config.layers - 1)]
    middle = (len([*equal]) for _, equal in groupby(inner))
    return (*[1] * min(1, config.layers), *middle, *[1] * (config.layers > 1))


def stacked(config: TransformerConfig, layers: Sequence[Part]) -> Sequence[Part]:
    """Returns the layers' arrays with equal layers stacked, on the device; as they are where no two are equal."""
    lengths = lengths_of_runs(config)
    if isinstance(layers, Stack) or max(lengths, default=1) == 1:
        return layers
    leaves, structure = jax.tree.flatten(tuple(layers))
    if not all(isinstance(leaf, jax.Array) for leaf in leaves):
        return _stacked(lengths, layers)
    return _stack_of(lengths, structure, *leaves)


@cached
def _stack_of(lengths: tuple[int, ...], structure: Any, *leaves: jax.Array) -> Stack[Any]:
    return _stacked(lengths, jax.tree.unflatten(structure, leaves))


def _stacked(lengths: tuple[int, ...], layers: Sequence[Part]) -> Stack[Part]:
    runs, start = [], 0

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
    stack: Stack[Any],
    start: Carry,
    layers: range,
) -> tuple[Carry, Stack[Part]]:
    """Folds `step(k, what layer k has, carry)` -> (carry, out) over some layers, whole runs of them.

    A run is one loop of the program. There k is the number of its first layer: a config holds for the whole run.

    Returns:
        The last carry, and the stack of the outs.
    """
    outs, lengths, k, carry = [], [], 0, start
    for run, length in zip(stack.runs, stack.lengths, strict=True):
        if k in layers:
            if length == 1:
                carry, out = step(k, run, carry)
            else:
                carry, out = jax.lax.scan(lambda carry, one, k=k: step(k, one, carry), carry, run)
            outs.append(out)
            lengths.append(length)
        k += length
    return carry, Stack(tuple(outs), tuple(lengths))
