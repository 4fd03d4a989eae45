"""How many competitors a row's maximal score has, and the inverse temperature at which it wins half of the weight.

Scores s_1, ..., s_n with the maximum s* have the gap-counting function N(g) = #{j : s* - s_j <= g}. The critical
inverse temperature beta* is that at which the maximum has half of the weight: sum_j exp(-beta* (s* - s_j)) = 2.
docs/attention.md has its bounds by N, and the source.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int
from numpy.typing import ArrayLike

from jaxsens.core.base.errors import Problems, collecting
from jaxsens.core.base.programs import compiled, numerics

MOST_STEPS = 200
"""Newton's method ends far earlier: each step but the first and last few adds about 1/gap of the competitors that are
on their way out."""


def gap_counts(
    scores: ArrayLike, gaps: ArrayLike, visible: ArrayLike | None = None
) -> Int[np.ndarray, "*rows gaps"]:
    """Returns N(g), the number of keys of each row whose score is at most g below the row's maximum, itself counted.

    O(rows n gaps) operations and memory.

    Args:
        scores: (..., n); a score of -inf is that of no key.
        gaps: (gaps,), at least 0.
        visible: which keys count, broadcast to the scores; all if None. A row without keys has counts of 0.

    Raises:
        InputError: for scores or gaps that are not numbers.
    """
    with collecting("gap_counts") as problems:
        s, seen = _checked(scores, visible, problems)
        g = checked_gaps(gaps, problems)
    with numerics("float64"):
        return np.asarray(counts_of_rows(jnp.asarray(s), jnp.asarray(seen), g))


def critical_inverse_temperature(
    scores: ArrayLike, visible: ArrayLike | None = None
) -> Float[np.ndarray, "*rows"]:
    """Returns the inverse temperature of each row at which softmax gives its maximal score half of the weight.

    It is shift-invariant, and divided by c if scores are multiplied by c > 0. docs/attention.md has the definition, its
    bounds by the gap-counting function, and the source. In float64, O(rows n) operations a step, some 10 to 40 steps.

    Args:
        scores: (..., n); a score of -inf is that of no key.
        visible: which keys count, broadcast to the scores; all if None.

    Returns:
        (...); inf if several keys have the maximum, as they keep sharing it, also those within the smallest normal
        number of it; 0 if a row has one key, or two that
        differ, where the maximum has half of the weight at any temperature; NaN for a row without keys.

    Raises:
        InputError: for scores that are NaN or inf, or an unusable `visible`.
    """
    with collecting("critical_inverse_temperature") as problems:
        s, seen = _checked(scores, visible, problems)
    with numerics("float64"):
        return np.asarray(_critical(jnp.asarray(s), jnp.asarray(seen)))


def checked_gaps(gaps: ArrayLike, problems: Problems) -> tuple[float, ...]:
    """Returns the gaps, or adds an error."""
    try:
        found = np.asarray(gaps, np.float64)
    except (TypeError, ValueError, OverflowError):
        found = np.zeros(())
    if found.ndim != 1 or not (found >= 0).all():
        problems.add("gaps", gaps, "a list of numbers of at least 0")
        return ()
    return tuple(float(gap) for gap in found)


def _checked(
    scores: ArrayLike, visible: ArrayLike | None, problems: Problems
) -> tuple[Float[np.ndarray, "*rows n"], Bool[np.ndarray, "*rows n"]]:
    try:
        s = np.asarray(scores, np.float64)
        seen = np.broadcast_to(True if visible is None else np.asarray(visible, bool), s.shape)
    except (TypeError, ValueError, OverflowError):
        problems.add("scores", scores, "numbers (..., n), and visible of a shape that broadcasts to theirs")
        return np.zeros(1), np.ones(1, bool)
    if not s.ndim or not s.shape[-1] or np.isnan(s).any() or np.isposinf(s).any():
        problems.add("scores", scores, "numbers (..., n) with n of at least 1, finite or -inf")
    return s, seen


def _gaps(
    scores: Float[Array, "*rows n"], visible: Bool[Array, "*rows n"]
) -> tuple[Float[Array, "*rows n"], Bool[Array, "*rows n"]]:
    """Returns how far each key is below the row's maximum, 0 where nothing counts, and which keys count."""
    counted = visible & (scores != -jnp.inf)
    best = jnp.max(jnp.where(counted, scores, -jnp.inf), axis=-1, keepdims=True)
    return jnp.where(counted, best - scores, 0), counted


def counts_of_rows(
    scores: Float[Array, "*rows n"], visible: Bool[Array, "*rows n"], gaps: tuple[float, ...]
) -> Int[Array, "*rows gaps"]:
    """`gap_counts` within a program, in the dtype of the scores."""
    below, counted = _gaps(scores, visible)
    # A gap at a time: all at once would be as many times the memory of the scores.
    found = [jnp.sum(counted & (below <= gap), axis=-1) for gap in gaps]
    return jnp.stack(found, axis=-1) if found else jnp.zeros((*scores.shape[:-1], 0), int)


def critical_of_rows(
    scores: Float[Array, "*rows n"], visible: Bool[Array, "*rows n"]
) -> Float[Array, "*rows"]:
    """`critical_inverse_temperature` within a program, in the dtype of the scores; NaN scores give NaN.

    With g_1 the nearest key's gap, g_2 the next, and b = beta g_2, Newton's method on

        f(b) = log sum_(k >= 2) exp(-b g_k / g_2) - log(1 - exp(-b g_1 / g_2)),

    whose parts both keep their digits when g_1 is far below g_2. f is convex and falls, so from log 2, on the left of
    its zero since two keys are within g_2, every step goes towards the zero and none goes past it.
    """
    below, counted = _gaps(scores, visible)
    maximum = jnp.argmax(jnp.where(counted, scores, -jnp.inf), axis=-1, keepdims=True)
    others = counted & (jnp.arange(scores.shape[-1]) != maximum)
    nearest = jnp.argmin(jnp.where(others, below, jnp.inf), axis=-1, keepdims=True)
    rest = others & (jnp.arange(scores.shape[-1]) != nearest)
    first = jnp.take_along_axis(below, nearest, axis=-1)[..., 0]
    second = jnp.min(jnp.where(rest, below, jnp.inf), axis=-1)
    tied = jnp.any(others & (below == 0), axis=-1)
    searched = jnp.isfinite(second) & ~tied
    unit, close = jnp.where(searched, second, 1), jnp.where(searched, first, 1)
    numbers = jnp.finfo(scores.dtype)
    excess = jnp.minimum((below - unit[..., None]) / unit[..., None], numbers.max)
    log_close = jnp.log(close) - jnp.log(unit)  # the quotient itself may underflow

    def step(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        b, _, k = state
        shares = jnp.where(rest, jnp.exp(-b[..., None] * excess), 0)
        total = jnp.sum(shares, axis=-1)
        log_x = jnp.log(b) + log_close
        x = jnp.exp(log_x)
        small = x < numbers.eps  # where 1 - exp(-x) is x
        lost = jnp.where(small, log_x, jnp.log(-jnp.expm1(jnp.where(small, -1, -x))))
        f = jnp.log(total) - b - lost
        fall = 1 + jnp.sum(shares * excess, axis=-1) / total
        fall += jnp.where(small, 1, x / jnp.expm1(jnp.where(small, 1, x))) / b
        move = jnp.where(searched, f / fall, 0)
        return b + move, jnp.any(move > 4 * numbers.eps * b), k + 1

    def goes_on(state: tuple[Array, Array, Array]) -> Array:
        return state[1] & (state[2] < MOST_STEPS)

    start = jnp.full(scores.shape[:-1], jnp.log(2), scores.dtype), jnp.asarray(True), jnp.asarray(0)
    b, _, _ = jax.lax.while_loop(goes_on, step, start)
    beta = jnp.where(tied, jnp.inf, jnp.where(searched, b / unit, 0))
    unknown = ~jnp.any(counted, axis=-1) | jnp.any(jnp.isnan(below), axis=-1)
    return jnp.where(unknown, jnp.nan, beta)


@compiled(static=0)
def _critical(scores: Float[Array, "*rows n"], visible: Bool[Array, "*rows n"]) -> Float[Array, "*rows"]:
    return critical_of_rows(scores, visible)
