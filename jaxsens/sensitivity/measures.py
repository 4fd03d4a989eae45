"""What is measured of an output y and its change dy under a flip: a norm of dy, or a distance of y' = y + dy from y.

The distances are computed from y and dy, never from y' - y: their digits are those of dy, however small it is.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxsens.errors import no_rule
from jaxsens.inputs import NORMS
from jaxsens.sensitivity.norms import norm_of

DECISION = "decision"
"""The measure whose sum over the flips of an input is its Boolean sensitivity."""

BOUNDED = {DECISION: 1.0, "cosine": 2.0}
"""The largest value of each measure that has one, whatever the model."""

TWO_OUTPUTS: tuple[str, ...] = ("cosine", "kl")
"""The measures that say nothing of a single output."""

_LARGE = 50.0
"""A divergence above half of this is taken as the logarithm of a sum of exponentials, which does not overflow."""

_TERMS = {"float32": 9, "float64": 17}
"""The number of terms of the series of e^t - 1 - t for |t| <= 1: the next is below a rounding of the sum."""

ROUNDINGS = 4.0
"""A distance is taken to be off by this many of its roundings, beside what the error of its change does."""

_Distance = Callable[[Float[Array, " outputs"], Float[Array, " outputs"]], Float[Array, ""]]


def measure_of(
    measure: str,
    y: Float[Array, " outputs"],
    changes: Float[Array, "flips outputs"],
    threshold: float = 0.0,
) -> Float[Array, " flips"]:
    """Returns what `measure` names (`jaxsens.inputs.MEASURES`) of an output y and its changes. For measures other than
    norms, it is NaN where a change is not finite. `threshold` is that of the decision of a single output.

    Raises:
        InputError: for a name without a rule.
    """
    if measure in NORMS:
        return norm_of(changes, measure)
    if measure not in DISTANCES:
        raise no_rule("measure_of", "norm", measure, (*NORMS, *DISTANCES))
    of_one = partial(decision_changes, threshold=threshold) if measure == DECISION else DISTANCES[measure]
    found = jax.vmap(lambda dy: of_one(y, dy))(changes)
    return where_finite(changes, found)


def resolution_of(
    measure: str,
    y: Float[Array, " outputs"],
    changes: Float[Array, "flips outputs"],
    error: Float[Array, " flips"],
    threshold: float = 0.0,
) -> Float[Array, " flips"]:
    """Returns how far what `measure` names may be off if the changes are off by `error` in the l2 norm.

    Raises:
        InputError: for a name without a rule.
    """
    outputs = y.shape[-1]
    u = float(ROUNDINGS * jnp.finfo(changes.dtype).eps)
    match measure:
        case "l2" | "linf":
            return error
        case "l1":
            return error * outputs**0.5
        case "cosine":
            return jax.vmap(lambda dy, e: _cosine_resolution(y, dy, e, u))(changes, error)
        case "kl":
            return jax.vmap(lambda dy, e: _kl_resolution(y, dy, e, u))(changes, error)
        case "decision":
            own = u * jnp.max(jnp.abs(y))
            return jax.vmap(lambda dy, e: _decision_resolution(y, dy, e + own, threshold))(changes, error)
        case _:
            raise no_rule("resolution_of", "norm", measure, (*NORMS, *DISTANCES))


def _cosine_resolution(y: Array, dy: Array, error: Array, u: float) -> Array:
    """The slope of 1 - cos is sin / |y'|; it bends by no more than 1 / |y'|^2. Besides, it is rounded."""
    value = cosine_distance(y, dy)
    step = error / jnp.maximum(norm_of(y + dy, "l2"), jnp.finfo(y.dtype).tiny)
    return step * (jnp.sqrt(jnp.maximum(value * (2 - value), 0)) + step) + u * value


def _kl_resolution(y: Array, dy: Array, error: Array, u: float) -> Array:
    """The slope is softmax(y') - softmax(y) = p (e^(t - KL) - 1), and bends by at most 1/2. The rounding of y changes p
    by a part eps |y|."""
    log_p = jax.nn.log_softmax(y)
    p, value = jnp.exp(log_p), kl_divergence(y, dy)
    t = dy - jnp.sum(p * dy) - value
    slope = jnp.where(t < 1, p * jnp.expm1(jnp.minimum(t, 1)), jnp.exp(jnp.minimum(log_p + t, 0)) - p)
    return error * norm_of(slope, "l2") + error**2 / 4 + u * (1 + jnp.max(jnp.abs(y))) * value


def _decision_resolution(y: Array, dy: Array, error: Array, threshold: float) -> Array:
    """1 where another decision is within the error, otherwise 0."""
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
    size = norm_of(y, "l2")
    u = y / jnp.where(size > 0, size, 1)
    along = jnp.dot(u, dy)
    across, forward = norm_of(dy - along * u, "l2"), size + along
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


def decision_of(y: Float[Array, " outputs"], threshold: float = 0.0) -> Array:
    """Returns the number of the largest output, the first of several that are equal; of a single output, whether it is
    above the threshold."""
    return (y[0] > threshold).astype(int) if y.shape[0] == 1 else jnp.argmax(y)


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


DISTANCES: dict[str, _Distance] = {
    "cosine": cosine_distance,
    "kl": kl_divergence,
    DECISION: decision_changes,
}
"""The rule of each measure that is not a norm: from y and dy to a number of at least 0."""
