"""Ranges at any depth: a direction of a layer's output is followed back to the first layer before it is bounded.

This is the linear relaxation that verifiers of transformers propagate backwards (Shi, Zhang, Chang, Huang and Hsieh,
"Robustness verification for transformers", 2020). Terms of several layers cancel within a direction; boxes and norms
lose that. Each formula of docs/bounds.md, "Three layers or more", is the function of its name.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
from jaxtyping import Float

from jaxsens.core.base import stopping
from jaxsens.theory.certified.first_layer import FirstLayer, relaxed_map
from jaxsens.theory.certified.intervals import (
    MARGIN,
    Ball,
    OutputRange,
    ball,
    by_symbol,
    exact,
    plus,
    times,
    up,
)
from jaxsens.theory.certified.setting import Setting

MOST_DIRECTIONS = 4096
"""Directions of the first layer up to which more of them are followed back than a layer has coordinates. Beyond, the
box of a layer between stands."""


class Outputs:
    """The outputs of a layer over all words of a class.

    Args:
        setting: the model, without normalisation.
        k: the layer.
        first: the first layer at all positions.
    """

    def __init__(self, setting: Setting, k: int, first: FirstLayer) -> None:
        self.setting, self.k, self.first = setting, k, first
        self.below = None if k == 0 else Outputs(setting, k - 1, first)

    @cached_property
    def box(self) -> Float[Ball, "n kinds width"]:
        """The range of every coordinate."""
        return self.first.y if self.below is None else self.range(np.eye(self.setting.config.width))

    @cached_property
    def reach(self) -> Float[np.ndarray, " width"]:
        """At least |y_j| with all that is added up in it, of every row."""
        return np.max(self.box.size, axis=(0, 1), where=self.setting.allowed[..., None], initial=0.0)

    @cached_property
    def hidden(self) -> Float[Ball, "n kinds feed_forward"]:
        """The pre-activations of every row."""
        w1, b1 = self.setting.matrices(self.k, "w1", "b1")
        return plus(self.attended(w1, abs(w1)), exact(b1))

    def range(self, f: Float[np.ndarray, "width p"]) -> Float[Ball, "n kinds p"]:
        """The range of f.y_j of every row j and symbol there, by lines that are the same for all rows."""
        stopping.check()
        if self.below is None:
            return self.first.output_range(f)
        heads = self.setting.config.layer(self.k).heads
        if f.shape[1] > len(f) and f.shape[1] * (1 + heads) ** self.k > MOST_DIRECTIONS:
            return times(self.box, f)
        line = relaxed_map(self.setting, self.k, self.hull(self.hidden), f)
        return _known(self.hidden, plus(self.attended(line.g, line.sizes), line.rest))

    def attended(
        self, g: Float[np.ndarray, "width p"], sizes: Float[np.ndarray, "width p"]
    ) -> Float[Ball, "n kinds p"]:
        """The range of g.c_j of every row; `sizes` is at least |g| and all that is added up in it."""
        below, p = self.below, g.shape[1]
        if below is None:
            raise ValueError("the first layer has no outputs below it")
        value, output = self.setting.matrices(self.k, "value", "output")
        carried = [v @ o @ g for v, o in zip(value, output, strict=True)]
        every = below.range(np.concatenate([g, *carried], axis=1))
        averages = [self.hull(every[..., p * h : p * (h + 1)]) for h in range(1, len(carried) + 1)]
        found = plus(every[..., :p], *averages)
        # The rounding of the directions, by the sizes of all that is added up in them.
        size = below.reach + sum(below.reach @ (abs(v) @ abs(o)) for v, o in zip(value, output, strict=True))
        return Ball(found.mid, up(found.rad + 64 * MARGIN * (up(size) @ sizes)))

    def hull(self, x: Float[Ball, "n kinds p"]) -> Float[Ball, " p"]:
        """The range over all positions and the symbols that may stand there."""
        possible = self.setting.allowed[..., None]
        low = np.min(x.lo, axis=(0, 1), where=possible, initial=np.inf)
        return ball(low, np.max(x.hi, axis=(0, 1), where=possible, initial=-np.inf))

    def readout_range(self, kind: int) -> OutputRange:
        """The range of the outputs that enter the norm where the readout holds `kind`: by lines of its row alone."""
        r = int(self.setting.readout or 0)
        line = relaxed_map(self.setting, self.k, self.hidden[r, kind], self.setting.out)
        attended = self.attended(line.g, line.sizes)[r, kind]
        return line.outputs(_known(self.hidden[r, kind], attended))


def _known(hidden: Ball, found: Ball) -> Ball:
    """The range, if the pre-activations are bounded: lines over what overflowed would say something of nothing."""
    if all(np.isfinite(part).all() for part in hidden):
        return found
    return found.map(lambda part: np.full_like(part, np.nan))


def readout_ranges(last: Outputs) -> OutputRange:
    """The range of the model's outputs for each symbol that the readout may hold; one row for the mean of positions.

    O(n^2 kinds^2) for each direction of the first layer; those are (1 + heads)^(layers - 1) for each output, hidden
    unit and coordinate of a layer.
    """
    setting, r = last.setting, last.setting.readout
    if r is not None:
        return by_symbol([last.readout_range(int(kind)) for kind in np.flatnonzero(setting.allowed[r])])
    return OutputRange(mean_range(*ends(setting, last.range(setting.out)))[None])


def ends(
    setting: Setting, x: Float[Ball, "n kinds p"]
) -> tuple[Float[np.ndarray, "n p"], Float[np.ndarray, "n p"]]:
    """The ends of each position's range over the symbols that may stand there."""
    possible = setting.allowed[..., None]
    low = np.where(possible, x.lo, np.inf).min(axis=1)
    return low, np.where(possible, x.hi, -np.inf).max(axis=1)


def mean_range(low: Float[np.ndarray, "n p"], high: Float[np.ndarray, "n p"]) -> Float[Ball, " p"]:
    """The range of the mean over positions, from the ends of each position's."""
    rad = up(((high - low) / 2).mean(axis=0)) + MARGIN * (abs(low) + abs(high)).mean(axis=0)
    return Ball(((low + high) / 2).mean(axis=0), rad)
