"""Distances of the flipped output y' = y + dy from y: `Cosine` and `KL`.

They are computed from y and dy, never from y' - y: their digits are those of dy, however small it is.
"""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from jaxsens.core.base.registry import kind_of
from jaxsens.core.measures.measure import Measure, Outputs, formulas, jax, jnp

if TYPE_CHECKING:
    from jaxtyping import Array, Float

    Vector: TypeAlias = Float[Array, " outputs"]
    Scalar: TypeAlias = Float[Array, ""]

ROUNDINGS = 4.0
"""A distance is taken to be off by this many of its roundings, beside what the error of its change does."""

_LARGE = 50.0
"""A divergence above half of this is taken as the logarithm of a sum of exponentials, which does not overflow."""

_TERMS = {"float32": 9, "float64": 17}
"""The number of terms of the series of e^t - 1 - t for |t| <= 1: the next is below a rounding of the sum."""


class Distance(Measure, abc.ABC):
    """A distance of y' from y, by the formulas of one change."""

    @abc.abstractmethod
    def distance(self, y: Vector, dy: Vector, error: Scalar, u: float) -> tuple[Scalar, Scalar]:
        """Returns the distance of y + dy from y, and how far it may be off if dy is off by `error` in the l2 norm, and
        what is rounded by a part u."""

    def of_changes(self, y: Any, dy: Any, error: Any) -> tuple[Any, Any]:
        u = float(ROUNDINGS * jnp.finfo(dy.dtype).eps)
        values, bounds = jax.vmap(lambda change, e: self.distance(y, change, e, u))(dy, error)
        return formulas.where_finite(dy, values), bounds


@kind_of(Measure, "cosine")
class Cosine(Distance):
    """The cosine distance 1 - cos(y, y'), from 0 to 2; NaN if y or y' is 0, which has no direction."""

    symbol: ClassVar[str] = "1 − cos(y(x), y(x′))"
    label: ClassVar[str] = "cosine distance of the outputs,{}1 − cos(y(x), y(x′))"
    unit: ClassVar[str] = "from 0 to 2"
    least_outputs: ClassVar[int] = 2
    largest: ClassVar[float] = 2.0
    finite: ClassVar[tuple[str, str]] = "the output, or its direction,", ". An output of 0 has no direction"
    outputs: Outputs = None

    def distance(self, y: Any, dy: Any, error: Any, u: float) -> tuple[Any, Any]:
        """With e = y / |y|, p = e dy and a = dy - p e, y' has the part |y| + p along y and a across it. So the angle is
        atan2(|a|, |y| + p), and the distance is 2 sin^2 of its half. Nothing is subtracted from 1.

        The slope of 1 - cos is sin / |y'|; it bends by no more than 1 / |y'|^2.
        """
        size = formulas.l2(y)
        e = y / jnp.where(size > 0, size, 1)
        along = jnp.dot(e, dy)
        across, forward = formulas.l2(dy - along * e), size + along
        value = 2 * jnp.sin(jnp.arctan2(across, forward) / 2) ** 2
        value = jnp.where((size > 0) & ((across > 0) | (forward != 0)), value, jnp.nan)
        step = error / jnp.maximum(formulas.l2(y + dy), jnp.finfo(y.dtype).tiny)
        return value, step * (jnp.sqrt(jnp.maximum(value * (2 - value), 0)) + step) + u * value


@kind_of(Measure, "kl")
class KL(Distance):
    """The divergence KL(softmax(y) || softmax(y')) in nats."""

    symbol: ClassVar[str] = "KL(softmax y(x) ‖ softmax y(x′))"
    label: ClassVar[str] = "divergence of the outputs (nats),{}KL(y(x) ‖ y(x′))"
    unit: ClassVar[str] = "in nats"
    least_outputs: ClassVar[int] = 2
    of_scores: ClassVar[bool] = True
    outputs: Outputs = None

    def distance(self, y: Any, dy: Any, error: Any, u: float) -> tuple[Any, Any]:
        """With p = softmax(y), the mean m of dy under p, and t = dy - m, whose mean is 0,

            KL = log(sum p e^t) = log(1 + sum p (e^t - 1 - t)) .

        No term of the sum is negative, so nothing cancels, and each is as accurate as t: see `excess`. For a small dy
        it is half the variance of dy under p. An error in m shifts both sides of the second equation alike and drops
        out.

        The slope is softmax(y') - softmax(y) = p (e^(t - KL) - 1), and bends by at most 1/2. The rounding of y changes
        p by a part eps |y|.
        """
        log_p = jax.nn.log_softmax(y)
        p = jnp.exp(log_p)
        t = dy - jnp.sum(p * dy)
        # Where t is large, p may be 0 in this dtype and e^t infinite, while their product is neither.
        grown = jnp.exp(jnp.minimum(log_p + t, _LARGE)) - p * (1 + t)
        near = jnp.log1p(jnp.sum(jnp.where(t <= 1, p * excess(jnp.minimum(t, 1)), grown)))
        far = jax.nn.logsumexp(log_p + t)
        value = jnp.where(jnp.max(log_p + t) > _LARGE / 2, far, near)
        s = t - value
        slope = jnp.where(s < 1, p * jnp.expm1(jnp.minimum(s, 1)), jnp.exp(jnp.minimum(log_p + s, 0)) - p)
        rounding = u * (1 + jnp.max(jnp.abs(y))) * value
        return value, error * formulas.l2(slope) + error**2 / 4 + rounding


def excess(t: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Returns e^t - 1 - t, which is at least 0, with all digits of t: for |t| <= 1 by its series."""
    small, series = jnp.clip(t, -1, 1), jnp.ones_like(t)
    for k in range(_TERMS[str(t.dtype)] + 2, 2, -1):
        series = 1 + small / k * series
    return jnp.where(jnp.abs(t) <= 1, small * small / 2 * series, jnp.exp(t) - 1 - t)
