"""How long a vector can be whose parts may each go either way: less than its coordinates' sizes say.

docs/bounds.md, "The norm of what may go either way", has the bound and its sources.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from jaxsens.core.models.transformer.parameters import needed
from jaxsens.theory.certified.intervals import MARGIN, Ball, ball, joined, norm_bound, spectral, up

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
