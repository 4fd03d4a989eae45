"""Rules of primitives that only move values: shapes, slices and padding."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.wide.numbers import Array, Equation, Rule


def _same(_: Equation, x: Array) -> Array:
    return x


def _broadcast(step: Equation, x: Array) -> Array:
    shape, places = step.results[0].shape, step.params["broadcast_dimensions"]
    own = [1] * len(shape)
    for axis, place in enumerate(places):
        own[place] = x.shape[axis]
    return np.broadcast_to(x.reshape(own), shape)


def _reshape(step: Equation, x: Array) -> Array:
    order = step.params.get("dimensions")
    return (x if order is None else x.transpose(order)).reshape(step.results[0].shape)


def _own_shape(step: Equation, x: Array) -> Array:
    return x.reshape(step.results[0].shape)


def _iota(step: Equation) -> Array:
    out, axis = step.results[0], step.params["dimension"]
    own = [1] * len(out.shape)
    own[axis] = out.shape[axis]
    return np.broadcast_to(np.arange(out.shape[axis]).reshape(own), out.shape)


def _pad(step: Equation, x: Array, value: Array) -> Array:
    result = np.full(step.results[0].shape, value[()], x.dtype)
    there, kept = [], []
    for axis, (low, _, between) in enumerate(step.params["padding_config"]):
        place = low + np.arange(x.shape[axis]) * (between + 1)
        inside = (place >= 0) & (place < result.shape[axis])  # negative padding cuts off
        there.append(place[inside])
        kept.append(np.flatnonzero(inside))
    result[np.ix_(*there)] = x[np.ix_(*kept)]
    return result


def _slice(step: Equation, x: Array) -> Array:
    first, last = step.params["start_indices"], step.params["limit_indices"]
    strides = step.params["strides"] or (1,) * x.ndim
    return x[tuple(slice(*one) for one in zip(first, last, strides, strict=True))]


def _window(shape: tuple[int, ...], sizes: tuple[int, ...], starts: tuple[Array, ...]) -> tuple[slice, ...]:
    """Returns the window at `starts`, which are moved so far that it lies within the array."""
    first = [max(0, min(int(s), n - size)) for n, size, s in zip(shape, sizes, starts, strict=True)]
    return tuple(slice(k, k + size) for k, size in zip(first, sizes, strict=True))


def _dynamic_slice(step: Equation, x: Array, *starts: Array) -> Array:
    return x[_window(x.shape, step.results[0].shape, starts)]


def _dynamic_update_slice(_: Equation, x: Array, update: Array, *starts: Array) -> Array:
    result = x.copy()
    result[_window(x.shape, update.shape, starts)] = update
    return result


def _split(step: Equation, x: Array) -> list[Array]:
    return np.split(x, np.cumsum(step.params["sizes"])[:-1], axis=step.params["axis"])


def _unstack(step: Equation, x: Array) -> list[Array]:
    return list(np.moveaxis(x, step.params["axis"], 0))


def _several(_: Equation, *values: Array) -> Any:
    return list(values)


STRUCTURE: dict[str, Rule] = {
    **dict.fromkeys(("copy", "copy_p", "stop_gradient", "name", "sharding_constraint"), _same),
    "optimization_barrier": _several,
    "device_put": _several,
    "broadcast_in_dim": _broadcast,
    "reshape": _reshape,
    "expand_dims": _own_shape,
    "squeeze": _own_shape,
    "transpose": lambda step, x: x.transpose(step.params["permutation"]),
    "rev": lambda step, x: np.flip(x, step.params["dimensions"]),
    "concatenate": lambda step, *values: np.concatenate(values, step.params["dimension"]),
    "stack": lambda step, *values: np.stack(values, step.params["axis"]),
    "unstack": _unstack,
    "split": _split,
    "tile": lambda step, x: np.tile(x, step.params["reps"]),
    "iota": _iota,
    "pad": _pad,
    "slice": _slice,
    "dynamic_slice": _dynamic_slice,
    "dynamic_update_slice": _dynamic_update_slice,
}
