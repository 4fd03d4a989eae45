"""Estimated sensitivities: which flips were measured besides, and what the estimates are compared with there."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int8

ESTIMATED, TOP, RANDOM = 0, 1, 2
"""The strata: flips with an estimate only, the largest estimates, and a random sample of the rest."""


@dataclass(frozen=True, eq=False)
class Estimated:
    """The estimates of a result, one entry per flip in the result's order.

    Attributes:
        estimates: of every flip's norm or, for a scalar function, of its signed change; float64.
        stratum: 0 if the flip was only estimated; 1 if it was measured as one of the largest estimates, all of which
            were; 2 if it was drawn at random from the rest and measured. int8.
        compared: what was measured and is compared with the estimate, float64: the exact norm, the norm in the
            combinations of a sketch, or the signed change; NaN where the stratum is 0.
        sketch: the number of random combinations of the outputs in which norms were estimated; None for all outputs.
    """

    estimates: Float[np.ndarray, " flips"]
    stratum: Int8[np.ndarray, " flips"]
    compared: Float[np.ndarray, " flips"]
    sketch: int | None = None

    @property
    def measured(self) -> Bool[np.ndarray, " flips"]:
        """Which flips were measured exactly."""
        return self.stratum != ESTIMATED

    def part(self, kept: Bool[np.ndarray, " flips"] | slice) -> Estimated:
        """Returns the estimates of some flips. Within them, the flips of stratum 2 are still a random sample."""
        return Estimated(self.estimates[kept], self.stratum[kept], self.compared[kept], self.sketch)


def strata(estimates: Float[np.ndarray, " flips"], verify: int, seed: int) -> Int8[np.ndarray, " flips"]:
    """Returns the stratum of every flip, of which `verify` are to be measured exactly.

    Half of them, rounded down, have the largest sizes among the estimates, earlier flips first if sizes are equal. The
    others are drawn from the remaining flips, uniformly without replacement, by `numpy.random.default_rng(seed)`. If
    there are no more flips than `verify`, all are measured.

    Args:
        estimates: finite numbers; their signs do not matter.
        verify: the number of flips to measure.
        seed: of the draw.
    """
    flips = len(estimates)
    verify = min(verify, flips)
    order = np.argsort(-np.abs(estimates), kind="stable")
    found = np.full(flips, ESTIMATED, np.int8)
    found[order[: verify // 2]] = TOP
    rest = np.sort(order[verify // 2 :])
    found[np.random.default_rng(seed).choice(rest, verify - verify // 2, replace=False)] = RANDOM
    return found
