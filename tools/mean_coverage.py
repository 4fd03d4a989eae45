"""`python -m tools.mean_coverage` counts how often intervals of means cover the truth, over 1,000 seeds.

A seed draws a population of flips, in two cases also their estimates, and what is measured of them. Every row must say
at least 0.93 for a nominal 0.95, or give no interval; the exit code is 1 otherwise. "two-sided" is the share of seeds
whose interval has a finite upper end: where no value is known that no flip exceeds, there is none, and the lower end
alone has the confidence. "lower" and "upper" are medians of the ends, in means of the population.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from jaxsens.core.results.result import FlipSensitivity
from jaxsens.core.results.statistics import ESTIMATED, Estimated
from jaxsens.first_order.estimate import strata
from tests.made_results import made

SEEDS, NOMINAL, LEAST = 1000, 0.95, 0.93


class Drawn(NamedTuple):
    """A result, and the mean of its population."""

    result: FlipSensitivity
    truth: float


class Row(NamedTuple):
    """What the intervals of many seeds did."""

    covered: float
    two_sided: float
    lower: float
    upper: float


def sampled(values: Float[np.ndarray, " flips"], m: int, rng: np.random.Generator, **changes: Any) -> Drawn:
    """A sample of m of these flips, in their order."""
    chosen = np.sort(rng.choice(len(values), m, replace=False))
    return Drawn(made(values[chosen], populations=[len(values)], **changes), float(values.mean()))


def verified(
    values: Float[np.ndarray, " flips"],
    estimates: Float[np.ndarray, " flips"],
    seed: int,
    m: int | None = None,
    verify: int = 64,
    **changes: Any,
) -> Drawn:
    """An estimated result of all these flips, or of a sample of m."""
    rng = np.random.default_rng([seed, 1])
    kept = np.sort(rng.choice(len(values), m or len(values), replace=False))
    stratum = strata(estimates[kept], verify, seed)
    measured, exact = stratum != ESTIMATED, values[kept]
    estimated = Estimated(estimates[kept], stratum, np.where(measured, exact, np.nan))
    norms = np.where(measured, exact, np.abs(estimates[kept]))
    result = made(norms, populations=[len(values)], estimated=estimated, **changes)
    return Drawn(result, float(values.mean()))


def skewed(rng: np.random.Generator, flips: int = 1000) -> Float[np.ndarray, " flips"]:
    """Log-normal values, that are larger at later positions, as those of recent tokens are."""
    return np.sort(np.exp(rng.normal(size=flips)))


def _of(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


def _noisy(values: Float[np.ndarray, " flips"], seed: int) -> Float[np.ndarray, " flips"]:
    return values * np.exp(0.2 * np.random.default_rng([seed, 2]).normal(size=len(values)))


def _blind(seed: int) -> Drawn:
    estimates = skewed(_of(seed))
    larger = _of(seed).permutation(len(estimates)) < len(estimates) // 50
    return verified(np.where(larger, 30 * estimates, estimates), estimates, seed)


def _two_phases(seed: int, measure: str = "l2") -> Drawn:
    values = np.minimum(skewed(_of(seed), 3000), 20) / (10 if measure == "cosine" else 1)
    return verified(values, _noisy(values, seed), seed, 600, measure=measure)


DECISION = {"measure": "decision"}
POPULATIONS: dict[str, Callable[[int], Drawn]] = {
    "decisions, 3 of 64, 15 drawn": lambda k: sampled(np.eye(64)[[5, 20, 40]].sum(0), 15, _of(k), **DECISION),
    "decisions, 1 % of 2000, 64 drawn": lambda k: sampled(
        np.arange(2000) % 100 // 99.0, 64, _of(k), **DECISION
    ),
    "decisions, 40 % of 500, 50 drawn": lambda k: sampled(
        (np.arange(500) % 5 < 2) * 1.0, 50, _of(k), **DECISION
    ),
    "equal but for 3 of 64, 15 drawn": lambda k: sampled(1 + 30 * np.eye(64)[[5, 20, 40]].sum(0), 15, _of(k)),
    "KL, 64 of 2000": lambda k: sampled(skewed(_of(k), 2000) ** 2, 64, _of(k), measure="kl"),
    "cosine, 64 of 2000": lambda k: sampled(_of(k).beta(0.2, 2, 2000) * 2, 64, _of(k), measure="cosine"),
    "most drawn, 180 of 200": lambda k: sampled(skewed(_of(k), 200), 180, _of(k)),
    "estimates good": lambda k: verified(v := skewed(_of(k)), _noisy(v, k), k),
    "estimates useless": lambda k: verified(v := skewed(_of(k)), _of(k).permutation(v), k),
    "estimates 30 times too small for 2 %": _blind,
    "estimates all 0": lambda k: verified(v := skewed(_of(k)) ** 2, np.zeros_like(v), k),
    "estimates of a sample": _two_phases,
    "estimates of a sample, cosine": lambda k: _two_phases(k, "cosine"),
    "estimates, cosine": lambda k: verified(
        v := _of(k).beta(0.2, 2, 1000) * 2, _noisy(v, k), k, measure="cosine"
    ),
    "heavy tails, 64 of 1000": lambda k: sampled(np.sort(_of(k).pareto(1.1, 1000)), 64, _of(k)),
}


def row_of(name: str, seeds: int = SEEDS) -> Row:
    """What the intervals of a population did."""
    ends, truths = [], []
    for seed in range(seeds):
        result, truth = POPULATIONS[name](seed)
        ends.append(result.mean_interval(NOMINAL))
        truths.append(truth)
    (low, high), truth = np.array(ends).T, np.array(truths)
    slack = 1e-12 * truth
    covered = float(np.mean((low <= truth + slack) & (truth <= high + slack)))
    return Row(
        covered, float(np.mean(np.isfinite(high))), *(float(np.median(end / truth)) for end in (low, high))
    )


def main(seeds: int = SEEDS) -> bool:
    """Prints the table; returns whether every row covers."""
    print(f"{'population':38}{'covered':>9}{'two-sided':>11}{'lower':>8}{'upper':>8}")
    held = True
    for name in POPULATIONS:
        row = row_of(name, seeds)
        held = held and row.covered >= LEAST
        print(f"{name:38}{row.covered:9.3f}{row.two_sided:11.2f}{row.lower:8.2f}{row.upper:8.2f}", flush=True)
    return held


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
