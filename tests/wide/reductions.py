"""Rules of reductions, cumulative sums, sorting and products of matrices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from tests.wide.elementwise import narrowed
from tests.wide.numbers import NUMPY, Array, Equation, Rule, is_float, is_nan, ranks


def _last(x: Array, axes: Sequence[int]) -> Array:
    """Returns x with `axes` last, as one axis."""
    kept = [axis for axis in range(x.ndim) if axis not in axes]
    count = math.prod(x.shape[axis] for axis in axes)
    return x.transpose(*kept, *axes).reshape(*(x.shape[axis] for axis in kept), count)


def _empty_value(step: Equation, name: str) -> Any:
    """Returns the value of a reduction of nothing."""
    dtype = np.dtype(step.operands[0].dtype)
    if name in ("add", "mul"):
        return int(name == "mul")
    if is_float(dtype):
        return -math.inf if name == "max" else math.inf
    if dtype.kind == "b":
        return name == "min"
    return np.iinfo(dtype).min if name == "max" else np.iinfo(dtype).max


def _folded(step: Equation, name: str) -> Any:
    """Returns the ufunc that combines two values; sums and products of MPFR numbers use their operators."""
    return step.function(name) if step.floating else NUMPY[name]


def _reduce(name: str, step: Equation, x: Array) -> Array:
    rows = _last(x, step.params["axes"])
    if not rows.shape[-1]:
        empty = np.full(rows.shape[:-1], _empty_value(step, name))
        return step.arithmetic.lift(empty) if step.floating else empty
    if step.floating or name in ("max", "min"):
        return _folded(step, name).reduce(rows, axis=-1)
    return NUMPY[name].reduce(rows, axis=-1, dtype=rows.dtype)


def _reduce_bits(ufunc: np.ufunc, step: Equation, x: Array) -> Array:
    return ufunc.reduce(_last(x, step.params["axes"]), axis=-1)


def _extreme(largest: bool, step: Equation, x: Array) -> Array:
    """The first index of the largest or smallest entry; the first NaN if there is one."""
    rows = _last(x, step.params["axes"])
    if rows.dtype != object:
        return (np.argmax if largest else np.argmin)(rows, axis=-1)
    order = ranks(rows)
    order = np.where(is_nan(rows), order.max(initial=0) + 1, order if largest else -order)
    return np.argmax(order, axis=-1)


def _cumulative(name: str, step: Equation, x: Array) -> Array:
    axis, reverse = step.params["axis"], step.params["reverse"]
    if not x.size:
        return x
    turned = np.flip(x, axis) if reverse else x
    result = _folded(step, name).accumulate(turned, axis=axis, dtype=x.dtype)
    return np.flip(result, axis) if reverse else result


def _sort(step: Equation, *values: Array) -> list[Array]:
    """Sorts all operands by the first `num_keys`; stable, NaN last, -0 and 0 are equal."""
    axis, keys = step.params["dimension"], step.params["num_keys"]
    order = np.lexsort([ranks(key) for key in reversed(values[:keys])], axis=axis)
    return [np.take_along_axis(value, order, axis) for value in values]


def _top_k(step: Equation, x: Array) -> list[Array]:
    """The k largest and their indices, NaN first; of equal ones the first."""
    k, axis = step.params["k"], step.params.get("axis", x.ndim - 1)
    order = np.argsort(-ranks(x).astype(np.int64), axis=axis, kind="stable").take(range(k), axis)
    return [np.take_along_axis(x, order, axis), order]


def _dot(step: Equation, x: Array, y: Array) -> Array:
    """Any `dot_general`, as products of matrices (batch, m, k) (batch, k, n)."""
    (x_summed, y_summed), (x_batch, y_batch) = step.params["dimension_numbers"]
    operands, out = [step.operands[0].dtype, step.operands[1].dtype], step.results[0].dtype
    if is_float(out):
        x, y = (
            value if is_float(dtype) else step.arithmetic.lift(value)
            for value, dtype in zip((x, y), operands, strict=True)
        )
    else:
        x, y = x.astype(out), y.astype(out)
    x_own = [axis for axis in range(x.ndim) if axis not in (*x_summed, *x_batch)]
    y_own = [axis for axis in range(y.ndim) if axis not in (*y_summed, *y_batch)]
    batch = [x.shape[axis] for axis in x_batch]
    left = [x.shape[axis] for axis in x_own]
    right = [y.shape[axis] for axis in y_own]
    count = math.prod(x.shape[axis] for axis in x_summed)
    shape = (*batch, *left, *right)
    if not count or not math.prod(shape):
        return step.arithmetic.lift(np.zeros(shape)) if is_float(out) else np.zeros(shape, out)
    rows = x.transpose(*x_batch, *x_own, *x_summed).reshape(math.prod(batch), math.prod(left), count)
    columns = y.transpose(*y_batch, *y_summed, *y_own).reshape(math.prod(batch), count, math.prod(right))
    result = np.matmul(rows, columns).reshape(shape)
    floats = [dtype for dtype in operands if is_float(dtype)]
    return narrowed(step, result, floats[0], out) if floats and is_float(out) else result


REDUCTIONS: dict[str, Rule] = {
    "reduce_sum": partial(_reduce, "add"),
    "reduce_prod": partial(_reduce, "mul"),
    "reduce_max": partial(_reduce, "max"),
    "reduce_min": partial(_reduce, "min"),
    "reduce_and": partial(_reduce_bits, np.bitwise_and),
    "reduce_or": partial(_reduce_bits, np.bitwise_or),
    "reduce_xor": partial(_reduce_bits, np.bitwise_xor),
    "argmax": partial(_extreme, True),
    "argmin": partial(_extreme, False),
    "cumsum": partial(_cumulative, "add"),
    "cumprod": partial(_cumulative, "mul"),
    "cummax": partial(_cumulative, "max"),
    "cummin": partial(_cumulative, "min"),
    "cumlogsumexp": partial(_cumulative, "logaddexp"),
    "sort": _sort,
    "top_k": _top_k,
    "dot_general": _dot,
}
