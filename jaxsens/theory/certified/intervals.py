"""Interval arithmetic with outward margins: balls, affine maps, activations, layer normalisation.

The rounding rule, in one place. All is float64, unit roundoff u = 2^-53. A sum of k products computed in any order,
with or without fused multiply-adds, is off by at most gamma_k = k u / (1 - k u) times the sum of the products'
magnitudes (Higham, *Accuracy and Stability of Numerical Algorithms*, chapter 3). Every quantity here that is a sum
of at most `TERMS` = 2^16 products is therefore widened by `MARGIN` = 2^-36 times that sum of magnitudes, which
leaves a factor of 2 for the few roundings made after it. Elementary functions (exp, tanh, sqrt) are off by a few u
and get the same margin. Singular values come from LAPACK, which is backward stable: wrong by a small multiple of u
times the largest one.

Underflow: compiled code takes numbers below the normal range for 0, and so may a product. Exponentials are therefore
at least `FLOOR` where an upper bound is wanted; results below 1e-150 in absolute value, whose squares
underflow, are outside the rule. Overflow
gives infinities and NaN, which stand for "no bound" and must reach the result as such.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

MARGIN = 2.0**-36
"""Relative outward margin of every sum of at most `TERMS` products; see the module's text."""

TERMS = 2**16
"""The longest sum that `MARGIN` covers."""

FLOOR = 1e-150
"""Stands for smaller exponentials where an upper bound is wanted: products with it are still normal numbers."""

_CURVATURE = {"relu": 0.0, "gelu": 1.2, "silu": 0.6, "tanh": 0.8}
_SLOPES = {"relu": (0.0, 1.0), "gelu": (-0.14, 1.14), "silu": (-0.11, 1.11), "tanh": (0.0, 1.0)}
_LEAST = {"relu": 0.0, "gelu": -0.171, "silu": -0.279, "tanh": -1.0}
"""Bounds, rounded outward, of |f''|, of f' and of f from below, for each activation; tests check them on a grid."""

_GRID = 9


class Ball(NamedTuple):
    """The interval [mid - rad, mid + rad], entry by entry."""

    mid: Any
    rad: Any

    @property
    def lo(self) -> Any:
        """The lower end, rounded down."""
        return self.mid - self.rad - MARGIN * (abs(self.mid) + self.rad)

    @property
    def hi(self) -> Any:
        """The upper end, rounded up."""
        return self.mid + self.rad + MARGIN * (abs(self.mid) + self.rad)

    @property
    def size(self) -> Any:
        """The largest absolute value in it, rounded up."""
        return (abs(self.mid) + self.rad) * (1 + MARGIN)

    def __getitem__(self, index: Any) -> Ball:  # type: ignore[override]
        """The same part of middle and radius."""
        return Ball(self.mid[index], self.rad[index])


def ball(lo: Any, hi: Any) -> Ball:
    """The interval [lo, hi] as a ball."""
    return Ball((lo + hi) / 2, (hi - lo) / 2 + MARGIN * (abs(lo) + abs(hi)))


def exact(x: Any) -> Ball:
    """Numbers known up to their own rounding."""
    return Ball(x, MARGIN * abs(x))


def times(x: Ball, matrix: np.ndarray) -> Ball:
    """x @ matrix for every x in the ball."""
    size = abs(matrix)
    return Ball(x.mid @ matrix, x.rad @ size + MARGIN * ((abs(x.mid) + x.rad) @ size))


def plus(*terms: Ball) -> Ball:
    """The sum of balls."""
    mid = sum(term.mid for term in terms)
    return Ball(mid, sum(term.rad + MARGIN * (abs(term.mid) + term.rad) for term in terms))


def scaled(x: Ball, factor: Any) -> Ball:
    """Times numbers, entry by entry."""
    return Ball(x.mid * factor, (x.rad + MARGIN * (abs(x.mid) + x.rad)) * abs(factor))


def product(a: Ball, b: Ball) -> Ball:
    """Entry by entry: |xy - ab| <= |a| r_b + r_a |b| + r_a r_b."""
    sizes = abs(a.mid) + a.rad, abs(b.mid) + b.rad
    return Ball(a.mid * b.mid, abs(a.mid) * b.rad + a.rad * sizes[1] + MARGIN * sizes[0] * sizes[1])


def meet(a: Ball, b: Ball) -> Ball:
    """What two enclosures of the same numbers have in common."""
    return ball(np.maximum(a.lo, b.lo), np.minimum(a.hi, b.hi))


def narrowed(a: Ball, b: Ball) -> Ball:
    """`meet`, but a where b overflowed; a point where nothing is in common, as where no word is meant."""
    both = meet(a, b)
    known = np.isfinite(both.mid) & np.isfinite(both.rad)
    return Ball(np.where(known, both.mid, a.mid), np.where(known, np.maximum(both.rad, 0.0), a.rad))


def up(x: Any) -> Any:
    """A number rounded up by the margin."""
    return x + MARGIN * abs(x)


def spectral(matrix: Float[np.ndarray, "*stack m k"]) -> Any:
    """An upper bound on the largest singular value of each matrix; inf where entries overflowed."""
    finite: Any = np.isfinite(matrix).all(axis=(-2, -1))
    usable = np.where(finite[..., None, None], matrix, 0.0)
    return np.where(finite, up(np.linalg.norm(usable, 2, axis=(-2, -1))) + np.finfo(float).tiny, np.inf)


def norm_bound(size: Any, norm: str) -> Any:
    """The norm, over the last axis, of vectors whose entries are at most `size` in absolute value."""
    if norm == "l1":
        return up(np.sum(size, axis=-1))
    if norm == "linf":
        return np.max(size, axis=-1)
    scale = np.max(size, axis=-1, keepdims=True)
    scale = np.where(scale > 0, scale, 1.0)
    return up(up(np.sqrt(np.sum((size / scale) ** 2, axis=-1))) * scale[..., 0])


def gain(out: Float[np.ndarray, "width outputs"], norm: str) -> float:
    """The largest norm of dy @ out for ||dy||_2 = 1."""
    columns = norm_bound(abs(out).T, "l2")
    if norm == "linf":
        return float(up(columns.max()))
    whole = float(spectral(out))
    return whole if norm == "l2" else float(up(min(whole * np.sqrt(out.shape[1]), columns.sum())))


def apply(name: str, h: np.ndarray) -> np.ndarray:
    """The activation at points."""
    if name == "relu":
        return np.maximum(h, 0)
    if name == "gelu":
        return h * (1 + np.tanh(np.sqrt(2 / np.pi) * (h + 0.044715 * h**3))) / 2
    if name == "silu":
        return h * (1 + np.tanh(h / 2)) / 2
    return np.tanh(h)


def derivative(name: str, h: np.ndarray) -> np.ndarray:
    """The activation's derivative at points; of relu at 0, 1."""
    if name == "relu":
        return np.where(h >= 0, 1.0, 0.0)
    if name == "gelu":
        root = np.sqrt(2 / np.pi)
        t = np.tanh(root * (h + 0.044715 * h**3))
        inner = np.where(abs(h) < 1e3, root * (1 + 3 * 0.044715 * h**2) * h, 0.0)
        return (1 + t) / 2 + inner * (1 - t**2) / 2
    if name == "silu":
        s = (1 + np.tanh(h / 2)) / 2
        return s + np.where(abs(h) < 1e3, h, 0.0) * s * (1 - s)
    return 1 - np.tanh(h) ** 2


def slopes(name: str, h: Ball) -> Ball:
    """All values of the derivative over [h.lo, h.hi].

    Smooth ones: the values on a grid of 9 points, a bound on the second derivative for what lies between, and the
    derivative's range over all numbers.
    """
    lo, hi = h.lo, h.hi
    least, most = _SLOPES[name]
    if name == "relu":
        return ball(np.where(lo > 0, 1.0, 0.0), np.where(hi < 0, 0.0, 1.0))
    points = np.linspace(0, 1, _GRID).reshape(-1, *([1] * lo.ndim))
    values = derivative(name, lo + points * (hi - lo))
    between = _CURVATURE[name] * (hi - lo) / (2 * (_GRID - 1)) + 8 * MARGIN
    return ball(
        np.clip(values.min(axis=0) - between, least, most), np.clip(values.max(axis=0) + between, least, most)
    )


def relaxed(name: str, h: Ball) -> tuple[np.ndarray, Ball]:
    """A slope s and a ball c with f(t) in s t + c for all t in [h.lo, h.hi].

    ReLU across 0: the chord's slope, between the chord and its parallel through 0. Others: the middle slope.
    """
    lo, hi = h.lo, h.hi
    if name == "relu":
        across = (lo < 0) & (hi > 0)
        chord = hi / np.where(across, hi - lo, 1.0)
        s = np.where(across, np.clip(chord, 0, 1), np.where(hi <= 0, 0.0, 1.0))
        # f(t) - s t is convex, 0 at 0, and at the ends -s lo and (1 - s) hi.
        most = np.where(across, np.maximum(-s * lo, (1 - s) * hi), 0.0)
        return s, ball(np.zeros_like(most), up(most))
    range_ = slopes(name, h)
    at = apply(name, h.mid) - range_.mid * h.mid
    size = abs(apply(name, h.mid)) + abs(range_.mid * h.mid)
    rad = range_.rad * (h.rad + MARGIN * (abs(h.mid) + h.rad))
    return range_.mid, Ball(at, up(rad) + MARGIN * size)


def activated(name: str, h: Ball) -> Ball:
    """The activation's values over [h.lo, h.hi]."""
    ends = apply(name, h.lo), apply(name, h.hi)
    if name in ("relu", "tanh"):
        return ball(*(end + MARGIN * abs(end) * sign for end, sign in zip(ends, (-1, 1), strict=True)))
    # gelu and silu fall to their least value, then rise: the largest value is at an end, the least inside or at one.
    rises = h.lo > -0.7
    low = np.where(rises, np.minimum(*ends), _LEAST[name])
    low = np.maximum(low - MARGIN * abs(low), _LEAST[name])
    high = np.maximum(*ends)
    return ball(low, np.maximum(high + MARGIN * abs(high), low))


def centred(x: Ball) -> Ball:
    """x minus its mean over the last axis."""
    d = x.mid.shape[-1]
    return times(x, np.eye(d) - 1 / d)


def inverse_deviation(x: Ball, epsilon: float) -> Ball:
    """1 / sqrt(variance + epsilon) over the last axis, kept; infinite where the variance may be 0 and epsilon is 0."""
    c = centred(x)
    least = np.mean(np.maximum(abs(c.mid) - c.rad, 0) ** 2, axis=-1, keepdims=True)
    most = np.mean(c.size**2, axis=-1, keepdims=True)
    # The inverse of an overflow is no upper bound.
    least = np.where(np.isfinite(least), least, np.nan)
    with np.errstate(divide="ignore"):
        return ball(1 / np.sqrt(up(up(most) + epsilon)) * (1 - 4 * MARGIN), _inverse_root(least, epsilon))


def _inverse_root(least: np.ndarray, epsilon: float) -> np.ndarray:
    return up(up(1 / np.sqrt(least * (1 - 2 * MARGIN) + epsilon * (1 - 2 * MARGIN))))


def layer_normed(x: Ball, epsilon: float, scale: np.ndarray, bias: np.ndarray) -> Ball:
    """(x - mean) / sqrt(variance + epsilon) * scale + bias; a normalised entry is at most sqrt(d - 1)."""
    largest = np.sqrt(max(x.mid.shape[-1] - 1, 0)) * (1 + MARGIN)
    unit = product(centred(x), inverse_deviation(x, epsilon))
    unit = ball(np.clip(unit.lo, -largest, largest), np.clip(unit.hi, -largest, largest))
    return plus(scaled(unit, scale), exact(bias))
