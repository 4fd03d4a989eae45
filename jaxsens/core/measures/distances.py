"""Distances of the flipped output y' = y + dy from y: `Cosine`, `KL` and `Decision`, whether the largest output is
another one.

They are computed from y and dy, never from y' - y: their digits are those of dy, however small it is.
"""

from __future__ import annotations

import abc
import dataclasses
import math
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeAlias

import numpy as np

from jaxsens.core.base import inputs
from jaxsens.core.base.errors import InputError, Problems
from jaxsens.core.base.registry import kind_of
from jaxsens.core.base.strict import checked_by
from jaxsens.core.measures.measure import Estimate, Measure, Outputs, formulas, jax, jnp

if TYPE_CHECKING:
    from jaxtyping import Array, Float

    Vector: TypeAlias = Float[Array, " outputs"]
    Scalar: TypeAlias = Float[Array, ""]
    from jaxtyping import Float


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
    """The cosine distance 1 - cos(y, y'), from 0 to 2; NaN if y or y' is 0, which has no direction.

    >>> import jaxsens
    >>> import jax
    >>> round(jaxsens.flip_sensitivity(lambda tokens: jax.nn.one_hot(tokens[0], 2), [0, 1], 2, Cosine()).max, 3)
    1.0
    """

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
    """The divergence KL(softmax(y) || softmax(y')) in nats.

    >>> import jaxsens
    >>> import jax
    >>> round(jaxsens.flip_sensitivity(lambda tokens: jax.nn.one_hot(tokens[0], 2), [0, 1], 2, KL()).max, 3)
    0.462
    """

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


MEDIAN = "median"
"""The threshold that makes a decision balanced."""

SAME_OUTPUT = 256
"""Outputs are the same to `balancing_threshold` if they differ by no more than this many roundings of the largest."""


def _threshold(name: str, value: Any, problems: Problems) -> float | str:
    if isinstance(value, str) and value == MEDIAN:
        return value
    if not inputs.is_real(value) or not math.isfinite(float(value)):
        problems.add(name, value, f'a finite number, or "{MEDIAN}"')
        return 0.0
    return float(value)


@kind_of(Measure, "decision")
class Decision(Distance):
    """1 if the largest output is another one (the first of equals), otherwise 0.

    Its sum over the flips of an input is the Boolean sensitivity (`FlipSensitivity.sensitive_flips`). No first-order
    estimate is possible: it jumps.

    Args:
        threshold: of a single output, the decision is whether it is above this. "median" is that of the outputs on the
            inputs, for which the decision is as balanced as it can be (`balancing_threshold`).
        outputs: as for every measure (`Measure`).

    >>> import jaxsens
    >>> jaxsens.flip_sensitivity(lambda tokens: tokens.sum() - 1.5, [0, 1, 1], 2, Decision()).sensitive_flips
    array([1.])
    """

    symbol: ClassVar[str] = "change of decision"
    label: ClassVar[str] = "share of flips that change{}the decision"
    unit: ClassVar[str] = "1 if the largest output y is another one, otherwise 0"
    indicator: ClassVar[bool] = True
    largest: ClassVar[float] = 1.0
    estimate: ClassVar[Estimate] = None
    of_scores: ClassVar[bool] = True
    threshold: Annotated[float | Literal["median"], checked_by(_threshold)] = 0.0
    outputs: Outputs = None

    def check(self, size: int, designated: tuple[int, ...] | None) -> None:
        """Rejects also a threshold for several outputs."""
        super().check(size, designated)
        coordinates = self.coordinates(designated)
        measured = size if coordinates is None else len(coordinates)
        if self.threshold and measured > 1:
            raise InputError.of(
                "measure.threshold",
                self.threshold,
                f"the decision of {measured} outputs is the largest of them; choose one, as outputs=[0]",
            )

    def prepared(self, outputs: Any, designated: tuple[int, ...] | None, eps: float) -> Measure:
        """Replaces a median by its value."""
        if not isinstance(self.threshold, str):
            return self
        rows = outputs()
        self.check(rows.shape[1], designated)
        k = (self.coordinates(designated) or (0,))[0]
        return dataclasses.replace(self, threshold=balancing_threshold(rows[:, k], eps))

    def distance(self, y: Any, dy: Any, error: Any, u: float) -> tuple[Any, Any]:
        """Two outputs are compared by (y_j - y_k) + (dy_j - dy_k): those that tie in y are told apart by dy. A single
        output is compared with the threshold t by (y - t) + dy. The bound is 1 where another decision is within the
        error and the rounding of y, otherwise 0."""
        error = error + u * jnp.max(jnp.abs(y))
        if y.shape[0] == 1:
            above = y[0] - self.threshold
            changed, close = (above > 0) != (above + dy[0] > 0), jnp.abs(above + dy[0]) <= error
        else:
            k, numbers = jnp.argmax(y), jnp.arange(y.shape[0])
            ahead = (y - y[k]) + (dy - dy[k])
            changed = jnp.any((ahead > 0) | ((ahead == 0) & (numbers < k)))
            close = jnp.abs(jnp.max(jnp.where(numbers == k, -jnp.inf, ahead))) <= 2 * error
        return changed.astype(y.dtype), close.astype(y.dtype)

    def of_outputs(self, old: Any, new: Any, dy: Any, error: Any) -> tuple[Any, Any]:
        """The decisions of the outputs themselves: y + (y' - y) may be an ulp off y', and not tie with what y' ties
        with. Integers are compared exactly, and with an integer."""
        limit: Any = self.threshold
        if formulas.is_whole(old) and old.dtype.itemsize >= 4:
            bounds = jnp.iinfo(old.dtype)
            limit = min(max(math.floor(limit), int(bounds.min)), int(bounds.max))

        def decision(y: Any) -> Any:
            return (y[0] > limit).astype(int) if y.shape[0] == 1 else jnp.argmax(y)

        changed = (jax.vmap(decision)(new) != decision(old)).astype(dy.dtype)
        values = formulas.where_finite(formulas.as_vector(new), changed)
        if formulas.is_whole(old):
            return values, 0 * changed
        return values, self.of_changes(formulas.as_vector(old).astype(dy.dtype), dy, error)[1]


def balancing_threshold(outputs: Float[np.ndarray, " inputs"], eps: float) -> float:
    """Returns the threshold between two outputs that as nearly as possible half of them exceed: their median, where no
    two tie.

    Outputs that differ by rounding alone (`eps` is that of their dtype) are not told apart. If all are the same, it is
    above them by more than rounding: the decision is constant, and no flip of vanishing effect changes it.
    """
    ordered = np.sort(outputs)
    same = SAME_OUTPUT * eps * (float(np.abs(ordered).max()) or 1.0)
    gaps = np.flatnonzero(np.diff(ordered) > same)
    if not gaps.size:
        return float(ordered[-1]) + same
    middle = gaps[np.argmin(np.abs(2 * (gaps + 1) - len(ordered)))]
    return float(ordered[middle : middle + 2].mean())
