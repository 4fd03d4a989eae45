"""Rules of gather and scatter, with XLA's treatment of indices out of range."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.lax import GatherScatterMode
from jaxtyping import Bool, Int

from tests.wide.numbers import NUMPY, Array, Equation, Rule, is_float


def _windows(
    shape: Sequence[int],
    indices: Array,
    mapped: Sequence[int],
    batched: tuple[Sequence[int], Sequence[int]],
    sizes: Sequence[int],
    dropped: Sequence[int],
) -> tuple[tuple[Int[np.ndarray, "..."], ...], Bool[np.ndarray, "..."]]:
    """Returns an index array per axis of an operand, of the shape (batch..., window...), and which windows fit.

    Args:
        shape: the operand's.
        indices: (batch..., k) starts of windows.
        mapped: the operand's axis of each of the k coordinates.
        batched: axes of the operand, and the axes of `indices` that they go along with.
        sizes: of the window along each axis of the operand.
        dropped: axes of size 1 that the window does not have.
    """
    batch = indices.shape[:-1]
    kept = [axis for axis in range(len(shape)) if axis not in dropped]
    starts: list[Any] = [np.zeros(batch, np.int64) for _ in shape]
    for k, axis in enumerate(mapped):
        starts[axis] = indices[..., k].astype(np.int64)
    for axis, along in zip(*batched, strict=True):
        own = [1] * len(batch)
        own[along] = batch[along]
        starts[axis] = np.broadcast_to(np.arange(batch[along]).reshape(own), batch)
    fits = np.ones(batch, bool)
    found = []
    for axis, start in enumerate(starts):
        last = shape[axis] - sizes[axis]
        fits &= (start >= 0) & (start <= last)
        within = np.clip(start, 0, last).reshape(*batch, *[1] * len(kept))
        if axis in kept:
            own = [1] * len(kept)
            own[kept.index(axis)] = sizes[axis]
            within = within + np.arange(sizes[axis]).reshape(own)
        found.append(within)
    return tuple(found), fits


def _interleaved(rank: int, window: Sequence[int]) -> list[int]:
    """Returns where each axis of (batch..., window...) goes in an array whose window axes are `window`."""
    return [axis for axis in range(rank) if axis not in window] + list(window)


def _fill_value(step: Equation) -> Any:
    given, dtype = step.params["fill_value"], np.dtype(step.operands[0].dtype)
    if is_float(dtype):
        return step.arithmetic.lift(np.nan if given is None else given)
    if given is not None:
        return given
    if dtype.kind == "b":
        return True
    return np.iinfo(dtype).min if jnp.issubdtype(dtype, np.signedinteger) else np.iinfo(dtype).max


def _gather(step: Equation, x: Array, indices: Array) -> Array:
    numbers = step.params["dimension_numbers"]
    sizes = step.params["slice_sizes"]
    dropped = (*numbers.collapsed_slice_dims, *numbers.operand_batching_dims)
    batched = (numbers.operand_batching_dims, numbers.start_indices_batching_dims)
    places, fits = _windows(x.shape, indices, numbers.start_index_map, batched, sizes, dropped)
    window = [size for axis, size in enumerate(sizes) if axis not in dropped]
    shape = (*fits.shape, *window)
    if fits.any() or step.params["mode"] != GatherScatterMode.FILL_OR_DROP:
        taken = np.broadcast_to(np.asarray(x[places], x.dtype), shape)
    else:
        taken = np.broadcast_to(np.zeros((), x.dtype), shape)  # also where an axis of x is empty
    if step.params["mode"] == GatherScatterMode.FILL_OR_DROP:
        taken = np.where(fits.reshape(*fits.shape, *[1] * len(window)), taken, _fill_value(step))
    order = _interleaved(len(shape), numbers.offset_dims)
    return taken.transpose(np.argsort(order))


def _scatter(put: Callable[[Equation, Array, Any, Array], None], step: Equation, *values: Array) -> Array:
    x, indices, updates = values
    numbers = step.params["dimension_numbers"]
    dropped = (*numbers.inserted_window_dims, *numbers.operand_batching_dims)
    batched = (numbers.operand_batching_dims, numbers.scatter_indices_batching_dims)
    given = iter(numbers.update_window_dims)
    sizes = [1 if axis in dropped else updates.shape[next(given)] for axis in range(x.ndim)]
    places, fits = _windows(x.shape, indices, numbers.scatter_dims_to_operand_dims, batched, sizes, dropped)
    ordered = updates.transpose(_interleaved(updates.ndim, numbers.update_window_dims))
    if step.params["mode"] == GatherScatterMode.CLIP:
        fits = np.ones_like(fits)
    result = x.copy()
    if not fits.any():
        return result
    whole = tuple(np.broadcast_to(place, ordered.shape)[fits] for place in places)
    put(step, result, whole, ordered[fits])
    return result


def _assign(_: Equation, result: Array, places: Any, updates: Array) -> None:
    result[places] = updates


def _combine(name: str, step: Equation, result: Array, places: Any, updates: Array) -> None:
    ordered = name in ("max", "min") and result.dtype == object
    ufunc: Any = step.function(name) if ordered else NUMPY[name]
    ufunc.at(result, places, updates)


INDEXING: dict[str, Rule] = {
    "gather": _gather,
    "scatter": partial(_scatter, _assign),
    **{
        f"scatter_{name}": partial(_scatter, partial(_combine, name)) for name in ("add", "mul", "max", "min")
    },
}
