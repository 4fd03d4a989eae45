"""The formulas of what is measured: of an output y and its change dy under a flip, a norm of dy, or a distance of
y' = y + dy from y.

The distances are computed from y and dy, never from y' - y: their digits are those of dy, however small it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Shaped

_LARGE = 50.0
"""A divergence above half of this is taken as the logarithm of a sum of exponentials, which does not overflow."""

_TERMS = {"float32": 9, "float64": 17}
"""The number of terms of the series of e^t - 1 - t for |t| <= 1: the next is below a rounding of the sum."""

ROUNDINGS = 4.0
"""A distance is taken to be off by this many of its roundings, beside what the error of its change does."""


def each(
    distance: Callable[..., Array],
    y: Float[Array, " outputs"],
    changes: Float[Array, "flips outputs"],
    **options: Any,
) -> Float[Array, " flips"]:
    """Returns a distance of each change; NaN where a change is not finite."""
    found = jax.vmap(lambda dy: distance(y, dy, **options))(changes)
    return where_finite(changes, found)


def resolution_of_each(
    resolution: Callable[..., Array],
    y: Float[Array, " outputs"],
    changes: Float[Array, "flips outputs"],
    error: Float[Array, " flips"],
    **options: Any,
) -> Float[Array, " flips"]:
    """Returns how far the distance of each change may be off."""
    u = float(ROUNDINGS * jnp.finfo(changes.dtype).eps)
    return jax.vmap(lambda dy, e: resolution(y, dy, e, u, **options))(changes, error)


def l1(change: Float[Array, "*batch outputs"]) -> Float[Array, "*batch"]:
    """The l1 norm over the last axis."""
    return jnp.sum(jnp.abs(change), axis=-1)


def linf(change: Float[Array, "*batch outputs"]) -> Float[Array, "*batch"]:
    """The l-infinity norm over the last axis."""
    return jnp.max(jnp.abs(change), axis=-1, initial=0)


def l2(change: Float[Array, "*batch outputs"]) -> Float[Array, "*batch"]:
    """The l2 norm over the last axis.

    It scales by the largest entry first: squares of changes below 1e-19 would underflow in float32.
    """
    size = jnp.abs(change)
    largest = jnp.max(size, axis=-1, initial=0)
    scale = jnp.where(largest > 0, largest, 1)
    return largest * jnp.sqrt(jnp.sum((size / scale[..., None]) ** 2, axis=-1))


def cosine_resolution(y: Array, dy: Array, error: Array, u: float) -> Array:
    """The slope of 1 - cos is sin / |y'|; it bends by no more than 1 / |y'|^2. Besides, it is rounded."""
    value = cosine_distance(y, dy)
    step = error / jnp.maximum(l2(y + dy), jnp.finfo(y.dtype).tiny)
    return step * (jnp.sqrt(jnp.maximum(value * (2 - value), 0)) + step) + u * value


def kl_resolution(y: Array, dy: Array, error: Array, u: float) -> Array:
    """The slope is softmax(y') - softmax(y) = p (e^(t - KL) - 1), and bends by at most 1/2. The rounding of y changes p
    by a part eps |y|."""
    log_p = jax.nn.log_softmax(y)
    p, value = jnp.exp(log_p), kl_divergence(y, dy)
    t = dy - jnp.sum(p * dy) - value
    slope = jnp.where(t < 1, p * jnp.expm1(jnp.minimum(t, 1)), jnp.exp(jnp.minimum(log_p + t, 0)) - p)
    return error * l2(slope) + error**2 / 4 + u * (1 + jnp.max(jnp.abs(y))) * value


def decision_resolution(y: Array, dy: Array, error: Array, u: float, threshold: float) -> Array:
    """1 where another decision is within the error and the rounding of y, otherwise 0."""
    error = error + u * jnp.max(jnp.abs(y))
    if y.shape[0] == 1:
        return (jnp.abs(y[0] - threshold + dy[0]) <= error).astype(y.dtype)
    k = jnp.argmax(y)
    ahead = jnp.where(jnp.arange(y.shape[0]) == k, -jnp.inf, (y - y[k]) + (dy - dy[k]))
    return (jnp.abs(jnp.max(ahead)) <= 2 * error).astype(y.dtype)


def where_finite(
    rows: Float[Array, "flips outputs"], found: Float[Array, " flips"]
) -> Float[Array, " flips"]:
    """Returns what was found from each row, NaN where the row is not finite.

    A function may turn NaN into a number: it may not read all outputs, or compare them.
    """
    return jnp.where(jnp.all(jnp.isfinite(rows), axis=-1), found, jnp.nan)


def cosine_distance(y: Float[Array, " outputs"], dy: Float[Array, " outputs"]) -> Float[Array, ""]:
    """Returns 1 - cos(y, y') for y' = y + dy, from 0 to 2; NaN if y or y' is 0, which has no direction.

    With u = y / |y|, p = u dy and e = dy - p u, y' has the part |y| + p along y and e across it. So the angle is
    atan2(|e|, |y| + p), and the distance is 2 sin^2 of its half. Nothing is subtracted from 1.
    """
    size = l2(y)
    u = y / jnp.where(size > 0, size, 1)
    along = jnp.dot(u, dy)
    across, forward = l2(dy - along * u), size + along
    distance = 2 * jnp.sin(jnp.arctan2(across, forward) / 2) ** 2
    return jnp.where((size > 0) & ((across > 0) | (forward != 0)), distance, jnp.nan)


def kl_divergence(y: Float[Array, " outputs"], dy: Float[Array, " outputs"]) -> Float[Array, ""]:
    """Returns KL(softmax(y) || softmax(y + dy)) in nats, at least 0.

    With p = softmax(y), the mean m of dy under p, and t = dy - m, whose mean is 0,

        KL = log(sum p e^t) = log(1 + sum p (e^t - 1 - t)) .

    No term of the sum is negative, so nothing cancels, and each is as accurate as t: see `excess`. For a small dy it is
    half the variance of dy under p. An error in m shifts both sides of the second equation alike and drops out.
    """
    log_p = jax.nn.log_softmax(y)
    p = jnp.exp(log_p)
    t = dy - jnp.sum(p * dy)
    # Where t is large, p may be 0 in this dtype and e^t infinite, while their product is neither.
    grown = jnp.exp(jnp.minimum(log_p + t, _LARGE)) - p * (1 + t)
    near = jnp.log1p(jnp.sum(jnp.where(t <= 1, p * excess(jnp.minimum(t, 1)), grown)))
    far = jax.nn.logsumexp(log_p + t)
    return jnp.where(jnp.max(log_p + t) > _LARGE / 2, far, near)


def excess(t: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Returns e^t - 1 - t, which is at least 0, with all digits of t: for |t| <= 1 by its series."""
    small, series = jnp.clip(t, -1, 1), jnp.ones_like(t)
    for k in range(_TERMS[str(t.dtype)] + 2, 2, -1):
        series = 1 + small / k * series
    return jnp.where(jnp.abs(t) <= 1, small * small / 2 * series, jnp.exp(t) - 1 - t)


def decision_of(y: Shaped[Array, " outputs"], threshold: float = 0.0) -> Array:
    """Returns the number of the largest output, the first of several that are equal; of a single output, whether it is
    above the threshold."""
    return (y[0] > threshold).astype(int) if y.shape[0] == 1 else jnp.argmax(y)


def decided_otherwise(
    old: Shaped[Array, "*shape"], new: Shaped[Array, "flips *shape"], threshold: float
) -> Bool[Array, " flips"]:
    """Returns which outputs, as the model returns them, decide otherwise. Integers are compared exactly, and with an
    integer."""
    limit: Any = threshold
    if is_whole(old) and old.dtype.itemsize >= 4:
        bounds = jnp.iinfo(old.dtype)
        limit = min(max(math.floor(threshold), int(bounds.min)), int(bounds.max))
    return jax.vmap(lambda y: decision_of(y, limit))(new) != decision_of(old, limit)


def decision_changes(
    y: Float[Array, " outputs"], dy: Float[Array, " outputs"], threshold: float = 0.0
) -> Float[Array, ""]:
    """Returns 1 if the decision of y + dy is another than that of y, otherwise 0.

    The decision is that of `decision_of`. Two outputs are compared by (y_j - y_k) + (dy_j - dy_k): those that tie in y
    are told apart by dy. A single output is compared with the threshold t by (y - t) + dy.
    """
    if y.shape[0] == 1:
        above = y[0] - threshold
        changed = (above > 0) != (above + dy[0] > 0)
    else:
        k = jnp.argmax(y)
        ahead = (y - y[k]) + (dy - dy[k])
        changed = jnp.any((ahead > 0) | ((ahead == 0) & (jnp.arange(y.shape[0]) < k)))
    return changed.astype(y.dtype)


def as_vector(output: ArrayLike) -> Float[Array, "*shape"]:
    """Returns a model's output as engines measure it: with an axis, in float32 at least."""
    output = jnp.asarray(output)
    # Not by `jnp.atleast_1d`, which is a program even where it does nothing.
    output = output if output.ndim else output[None]
    return output.astype(jnp.promote_types(output.dtype, jnp.float32))


def is_whole(output: Array | np.ndarray) -> bool:
    """Returns whether an output is of integers or booleans."""
    return jnp.issubdtype(output.dtype, jnp.integer) or output.dtype == np.bool_


def difference(new: Array, old: Array) -> Float[Array, "*shape"]:
    """Returns new - old, in float32 at least, of outputs as a model returns them.

    Integers beyond 2^24 are not all float32 numbers, and a difference may be beyond their dtype. So the upper and the
    lower halves of their bits are subtracted, and only the sum is rounded, once.
    """
    if not is_whole(old):
        return as_vector(new) - as_vector(old)
    if old.dtype == jnp.bool_ or jnp.iinfo(old.dtype).bits < 32:
        new, old = new.astype(jnp.int32), old.astype(jnp.int32)
    half = jnp.iinfo(old.dtype).bits // 2
    whole = jnp.int32 if half == 16 else jnp.int64
    real = jnp.promote_types(old.dtype, jnp.float32) if half == 16 else jnp.float64
    upper = (new >> half).astype(whole) - (old >> half).astype(whole)
    lower = (new & (2**half - 1)).astype(whole) - (old & (2**half - 1)).astype(whole)
    return upper.astype(real) * 2.0**half + lower.astype(real)


def as_exact_vector(output: Array) -> Float[Array, "*shape"]:
    """Returns `as_vector` of an output for functions of it: NaN for integers that have no float of that dtype."""
    floats = as_vector(output)
    if not is_whole(output):
        return floats
    largest = 2 ** (jnp.finfo(floats.dtype).nmant + 1)
    if output.dtype == jnp.bool_ or jnp.iinfo(output.dtype).max <= largest:
        return floats
    within = output <= largest
    if jnp.iinfo(output.dtype).min < 0:
        within = within & (output >= -largest)
    return jnp.where(within, floats, jnp.nan)


def value_of(f: Callable[[Array], Array], output: Float[Array, " outputs"]) -> Float[Array, ""]:
    """Returns f of an output, in the output's dtype or a wider one."""
    value = jnp.asarray(f(output))
    return value.astype(jnp.promote_types(value.dtype, output.dtype))
