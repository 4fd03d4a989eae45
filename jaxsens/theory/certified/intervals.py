"""Interval arithmetic with outward margins: balls, affine maps, activations, layer normalisation; and how long a
vector can be whose parts may each go either way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from jaxsens.core.base.errors import no_rule, rule_for
from jaxsens.core.base.inputs import NORMS
from jaxsens.core.models.transformer.parameters import needed

MARGIN = 2.0**-36
"""Relative outward margin of every sum of at most `TERMS` products; see the module's docstring."""

TERMS = 2**16
"""The longest sum that `MARGIN` covers."""

FLOOR = 1e-150
"""Takes the place of smaller exponentials in upper bounds: products with it are still normal numbers."""

_GRID = 9
"""Points at which the slopes of a smooth activation are evaluated over an interval."""


class Ball(NamedTuple):
    """The interval [mid - rad, mid + rad], entry by entry."""

    mid: Any
    rad: Any

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the entries. With `dtype` it lets jaxtyping check a ball as it does an array: Float[Ball, "n kinds"]."""
        return np.shape(self.mid)

    @property
    def dtype(self) -> np.dtype:
        """Of the entries."""
        return self.mid.dtype

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
        return Ball(self.mid[index], self.rad[index])

    def map(self, rearranged: Callable[[Any], Any]) -> Ball:
        """Middle and radius rearranged in the same way."""
        return Ball(rearranged(self.mid), rearranged(self.rad))


def ball(lo: Any, hi: Any) -> Ball:
    """The interval [lo, hi] as a ball."""
    return Ball((lo + hi) / 2, (hi - lo) / 2 + MARGIN * (abs(lo) + abs(hi)))


def overlap(x: Ball, other: Ball) -> Ball:
    """What two balls that hold the same numbers have in common. NaN is no bound; balls that hold nothing stay as x."""
    low, high = np.fmax(x.lo, other.lo), np.fmin(x.hi, other.hi)
    found, apart = ball(low, high), ~(low <= high)
    return Ball(*(np.where(apart, one, both) for one, both in zip(x, found, strict=True)))


def stacked(balls: Iterable[Ball]) -> Ball:
    """Balls of one shape along a new first axis."""
    return Ball(*map(np.stack, zip(*balls, strict=True)))


def joined(balls: Iterable[Ball], axis: int = 0) -> Ball:
    """Balls one after the other along an axis."""
    return Ball(*(np.concatenate(part, axis=axis) for part in zip(*balls, strict=True)))


def exact(x: Any) -> Ball:
    """Numbers known up to their own rounding."""
    return Ball(x, MARGIN * abs(x))


def times(
    x: Float[Ball, "*rows width"], matrix: Float[np.ndarray, "width made"]
) -> Float[Ball, "*rows made"]:
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
    match norm:
        case "l1":
            return up(np.sum(size, axis=-1))
        case "linf":
            return np.max(size, axis=-1)
        case "l2":
            scale = np.max(size, axis=-1, keepdims=True)
            scale = np.where(scale > 0, scale, 1.0)
            return up(up(np.sqrt(np.sum((size / scale) ** 2, axis=-1))) * scale[..., 0])
        case _:
            raise no_rule("certified_bound", "norm", norm, NORMS)


def gain(out: Float[np.ndarray, "width outputs"], norm: str) -> float:
    """The largest norm of dy @ out for ||dy||_2 = 1."""
    columns = norm_bound(abs(out).T, "l2")
    match norm:
        case "linf":
            return float(up(columns.max()))
        case "l2":
            return float(spectral(out))
        case "l1":
            return float(up(min(float(spectral(out)) * np.sqrt(out.shape[1]), columns.sum())))
        case _:
            raise no_rule("certified_bound", "norm", norm, NORMS)


@dataclass(frozen=True)
class Activation:
    """An activation f, and what intervals need to know of it. The bounds are rounded outward; tests check them.

    Attributes:
        function, derivative: f and f' at points; the derivative of ReLU at 0 is 1.
        slopes: the least and the largest value of f'.
        curvature: a bound on |f''|; 0 for ReLU, whose slope is piecewise constant.
        least: a lower bound on f.
        turn: f rises to the right of this number, which is -inf where f falls nowhere.
    """

    function: Callable[[np.ndarray], np.ndarray]
    derivative: Callable[[np.ndarray], np.ndarray]
    slopes: tuple[float, float]
    curvature: float
    least: float
    turn: float = -np.inf


def _gelu_slope(h: Float[np.ndarray, "*shape"]) -> Float[np.ndarray, "*shape"]:
    root = np.sqrt(2 / np.pi)
    t = np.tanh(root * (h + 0.044715 * h**3))
    # Far from 0, 1 - t^2 is 0, and the other factor may overflow.
    inner = np.where(abs(h) < 1e3, root * (1 + 3 * 0.044715 * h**2) * h, 0.0)
    return (1 + t) / 2 + inner * (1 - t**2) / 2


def _silu_slope(h: Float[np.ndarray, "*shape"]) -> Float[np.ndarray, "*shape"]:
    s = (1 + np.tanh(h / 2)) / 2
    return s + np.where(abs(h) < 1e3, h, 0.0) * s * (1 - s)


ACTIVATIONS: dict[str, Activation] = {
    "relu": Activation(
        lambda h: np.maximum(h, 0), lambda h: np.where(h >= 0, 1.0, 0.0), (0.0, 1.0), 0.0, 0.0
    ),
    "tanh": Activation(np.tanh, lambda h: 1 - np.tanh(h) ** 2, (0.0, 1.0), 0.8, -1.0),
    "gelu": Activation(
        lambda h: h * (1 + np.tanh(np.sqrt(2 / np.pi) * (h + 0.044715 * h**3))) / 2,
        _gelu_slope,
        (-0.14, 1.14),
        1.2,
        -0.171,
        turn=-0.7,
    ),
    "silu": Activation(
        lambda h: h * (1 + np.tanh(h / 2)) / 2, _silu_slope, (-0.11, 1.11), 0.6, -0.279, turn=-0.7
    ),
}


def activation(name: str) -> Activation:
    """The activation of a name; an `InputError` for one that has no entry in `ACTIVATIONS`."""
    return rule_for("certified_bound", "activation", name, ACTIVATIONS)


def slopes(name: str, h: Float[Ball, "*shape"]) -> Float[Ball, "*shape"]:
    """All values of the derivative over [h.lo, h.hi].

    For a smooth activation: its values on a grid of 9 points, widened by what the second derivative allows between
    them, and cut off at its range over all numbers.
    """
    lo, hi, f = h.lo, h.hi, activation(name)
    least, most = f.slopes
    if name == "relu":
        return ball(np.where(lo > 0, 1.0, 0.0), np.where(hi < 0, 0.0, 1.0))
    points = np.linspace(0, 1, _GRID).reshape(-1, *([1] * lo.ndim))
    values = f.derivative(lo + points * (hi - lo))
    between = f.curvature * (hi - lo) / (2 * (_GRID - 1)) + 8 * MARGIN
    lowest, highest = values.min(axis=0) - between, values.max(axis=0) + between
    return ball(np.clip(lowest, least, most), np.clip(highest, least, most))


def relaxed(name: str, h: Float[Ball, "*shape"]) -> tuple[Float[np.ndarray, "*shape"], Float[Ball, "*shape"]]:
    """A slope s and a ball c with f(t) in s t + c for all t in [h.lo, h.hi].

    ReLU across 0 lies between its chord and the chord's parallel through 0. Other activations get their middle slope.
    """
    lo, hi = h.lo, h.hi
    if name == "relu":
        across = (lo < 0) & (hi > 0)
        chord = hi / np.where(across, hi - lo, 1.0)
        s = np.where(across, np.clip(chord, 0, 1), np.where(hi <= 0, 0.0, 1.0))
        # f(t) - s t is convex, 0 at 0, and at the ends -s lo and (1 - s) hi.
        most = np.where(across, np.maximum(-s * lo, (1 - s) * hi), 0.0)
        return s, ball(np.zeros_like(most), up(most))
    values, range_ = activation(name).function(h.mid), slopes(name, h)
    at = values - range_.mid * h.mid
    size = abs(values) + abs(range_.mid * h.mid)
    rad = range_.rad * (h.rad + MARGIN * (abs(h.mid) + h.rad))
    return range_.mid, Ball(at, up(rad) + MARGIN * size)


def activated(name: str, h: Float[Ball, "*shape"]) -> Float[Ball, "*shape"]:
    """The activation's values over [h.lo, h.hi]."""
    f = activation(name)
    ends = f.function(h.lo), f.function(h.hi)
    if f.turn == -np.inf:
        return ball(*(end + MARGIN * abs(end) * sign for end, sign in zip(ends, (-1, 1), strict=True)))
    # f falls, then rises: its largest value is at an end, its least at an end or at the minimum between them.
    low = np.where(h.lo > f.turn, np.minimum(*ends), f.least)
    low = np.maximum(low - MARGIN * abs(low), f.least)
    high = np.maximum(*ends)
    return ball(low, np.maximum(high + MARGIN * abs(high), low))


def centred(x: Float[Ball, "*rows d"]) -> Float[Ball, "*rows d"]:
    """x minus its mean over the last axis."""
    d = x.mid.shape[-1]
    return times(x, np.eye(d) - 1 / d)


def inverse_deviation(x: Float[Ball, "*rows d"], epsilon: float) -> Float[Ball, "*rows 1"]:
    """1 / sqrt(variance + epsilon) over the last axis, which is kept; infinite where both may be 0."""
    c = centred(x)
    least = np.mean(np.maximum(abs(c.mid) - c.rad, 0) ** 2, axis=-1, keepdims=True)
    most = np.mean(c.size**2, axis=-1, keepdims=True)
    # The inverse of an overflow is no upper bound.
    least = np.where(np.isfinite(least), least, np.nan)
    with np.errstate(divide="ignore"):
        low = 1 / np.sqrt(up(up(most) + epsilon)) * (1 - 4 * MARGIN)
        return ball(low, up(up(1 / np.sqrt(least * (1 - 2 * MARGIN) + epsilon * (1 - 2 * MARGIN)))))


def layer_normed(
    x: Float[Ball, "*rows d"], epsilon: float, scale: Float[np.ndarray, " d"], bias: Float[np.ndarray, " d"]
) -> Float[Ball, "*rows d"]:
    """(x - mean) / sqrt(variance + epsilon) * scale + bias; a normalised entry is at most sqrt(d - 1)."""
    largest = np.sqrt(max(x.mid.shape[-1] - 1, 0)) * (1 + MARGIN)
    unit = product(centred(x), inverse_deviation(x, epsilon))
    unit = ball(np.clip(unit.lo, -largest, largest), np.clip(unit.hi, -largest, largest))
    return plus(scaled(unit, scale), exact(bias))


ROUNDS = 30
"""Steps towards the best delta. The bound holds after any number of them."""

LEAST = 1e-6
"""delta is at least this: the bound may suffer, but no number overflows."""

MOST_OUTPUTS = 256
"""Beyond, what coordinates are bounded by stands: O(outputs^2) operations for each unit would take too long."""


def zonotope_norm(
    t: Float[np.ndarray, "*batch units"], generators: Float[np.ndarray, "units outputs"]
) -> Float[np.ndarray, "*batch"]:
    """At least ||sum_u s_u t_u w_u||_2 for all |s_u| <= 1 and t >= 0; inf where numbers overflowed.

    One delta serves the batch, that of its mean. O(units outputs^2). Generators are unit vectors below, and t their
    lengths. delta t^2 is |t_u w_u.sum_k t_k w_k v_k|, with unit vectors v in place of signs, after steps that turn each
    of them towards the sum.
    """
    lengths = norm_bound(abs(generators), "l2")
    used = ~(lengths == 0)
    unit, t = generators[used] / lengths[used, None], t[..., used] * lengths[used]
    largest = np.max(t, axis=-1, initial=0.0)
    finite = np.isfinite(largest) & np.isfinite(unit).all()
    scaled = np.where(finite[..., None], t, 0.0) / np.where(finite & (largest > 0), largest, 1.0)[..., None]
    mean = np.maximum(scaled.mean(axis=tuple(range(t.ndim - 1))), 1e-50)[:, None]
    v, size = unit, np.ones_like(mean)
    for _ in range(ROUNDS):
        v = mean * unit @ (unit.T @ (mean * v))
        size = norm_bound(abs(v), "l2")[:, None]
        v = v / np.where(size > 0, size, 1.0)
    delta = np.maximum(size / mean**2, LEAST)[:, 0]
    stretch = spectral(unit / np.sqrt(delta)[:, None]) if used.any() else 0.0
    found = stretch * np.sqrt(np.sum(delta * scaled**2, axis=-1))
    return np.where(finite, up(up(up(found))) * np.where(finite, largest, 0.0), np.inf)


def bent_norm(
    size: Float[np.ndarray, "*batch outputs"],
    bend: Float[np.ndarray, "*batch units"],
    onto: Float[Ball, "units outputs"],
    norm: str,
) -> Float[np.ndarray, "*batch"]:
    """At least the norm of x + sum_u s_u bend_u onto_u, for |x| <= size entry by entry and |s_u| <= 1."""
    found = norm_bound(up(size + bend @ onto.size), norm)
    if norm != "l2" or onto.shape[1] > MOST_OUTPUTS or not np.any(bend):
        return found
    t = np.concatenate([up(size + bend @ onto.rad), bend], axis=-1)
    return np.fmin(found, zonotope_norm(t, np.concatenate([np.eye(onto.shape[1]), onto.mid])))


@dataclass(frozen=True)
class Bent:
    """Vectors straight + sum_u s_u bend_u onto_u with |s_u| <= 1, for each symbol that the readout may hold."""

    straight: Float[Ball, "symbols outputs"]
    bend: Float[np.ndarray, "symbols units"]
    onto: Float[Ball, "units outputs"]


@dataclass(frozen=True)
class OutputRange:
    """The outputs over all words, for each symbol that the readout may hold.

    Attributes:
        box: their range.
        bent: what they lie in too; None if only the box is known.
    """

    box: Float[Ball, "symbols outputs"]
    bent: Bent | None = None

    def width(self, norm: str) -> float:
        """The largest distance between two outputs of one symbol at the readout; inf where numbers overflowed."""
        found = up(2 * norm_bound(self.box.rad * (1 + MARGIN), norm))
        if self.bent is not None:
            rad = self.bent.straight.rad * (1 + MARGIN)
            found = np.fmin(found, up(2 * bent_norm(rad, self.bent.bend, self.bent.onto, norm)))
        largest = float(np.max(found))
        return np.inf if np.isnan(largest) else largest


def by_symbol(ranges: list[OutputRange]) -> OutputRange:
    """The ranges of outputs for several symbols, one after the other; each has all that is known."""
    bent = [needed(x.bent, "bent") for x in ranges]
    straight, bend = joined(x.straight for x in bent), np.concatenate([x.bend for x in bent])
    return OutputRange(joined(x.box for x in ranges), Bent(straight, bend, bent[0].onto))


def hull(ranges: list[OutputRange]) -> OutputRange:
    """The range of the outputs of several classes of words, of one model."""
    box, bent = _hull([x.box for x in ranges]), [x.bent for x in ranges if x.bent is not None]
    if len(bent) < len(ranges):
        return OutputRange(box)
    largest = np.max([x.bend for x in bent], axis=0)
    return OutputRange(box, Bent(_hull([x.straight for x in bent]), largest, bent[0].onto))


def _hull(balls: list[Ball]) -> Ball:
    return ball(np.min([x.lo for x in balls], axis=0), np.max([x.hi for x in balls], axis=0))
