"""How far estimates are from exact values, judged by the flips that were drawn at random and measured."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from jaxsens.core.results.estimated import ESTIMATED, RANDOM, TOP, Estimated

CONFIDENCE = 0.95
"""Of the bound on the flips that exceed the largest measured one."""


@dataclass(frozen=True)
class Accuracy:
    """The accuracy of estimates, from the random sample of flips outside the largest estimates; and of these.

    A flip's error is |estimate - exact| / |exact|: 0 if both are 0, infinite if only the exact value is. With a sketch,
    exact is the norm in its combinations. A statistic for which the sample is too small, or has no two different
    values, is NaN: no flip for the errors, fewer than three for correlation and slope.

    Attributes:
        count: the number of flips in the sample.
        median_error: the median error.
        error_90: an error that 90 % of the flips outside the largest estimates keep below, on average over samples: the
            ceil(0.9 (count + 1))-th smallest of the sample. NaN for fewer than 9 flips.
        rank_correlation: Spearman's, between estimates and exact values.
        slope: of the least-squares line of the exact values on the estimates, with intercept: 1 for unbiased estimates.
        sketch_error: the median of |norm in the sketch - norm| / norm; None without a sketch.
        exceeding: an upper bound at 95 % confidence, by Clopper and Pearson (1934), on the share of flips outside the
            largest estimates whose norm exceeds the largest norm among those: 0.089 if none of 32 did. It is
            conservative, because the sample was drawn without replacement. NaN if none of the largest was measured.
        exceeding_count: the bound as a number of flips, of those that were not measured; None if `exceeding` is NaN.
        largest_count: the number of the largest estimates, all of which were measured.
        largest_error: the median of their error.
        largest_error_90: the 90 % quantile of their error.
    """

    count: int
    median_error: float
    error_90: float
    rank_correlation: float
    slope: float
    sketch_error: float | None
    exceeding: float
    exceeding_count: int | None
    largest_count: int
    largest_error: float
    largest_error_90: float

    def __str__(self) -> str:
        drawn = f"{self.count} random flip{'' if self.count == 1 else 's'}"
        if not self.count:
            return "estimates not compared with any random flip"
        tenth = "" if math.isnan(self.error_90) else f", {self.error_90:.2g} (90%)"
        told = (
            f"estimates against {drawn} measured: error {self.median_error:.2g} (median){tenth}, "
            f"rank correlation {self.rank_correlation:.3g}, slope {self.slope:.3g}"
        )
        if self.largest_count:
            told += (
                f"; against the {self.largest_count} largest, all measured: error {self.largest_error:.2g} (median), "
                f"{self.largest_error_90:.2g} (90%)"
            )
        return told + ("" if self.sketch_error is None else f"; the sketch itself {self.sketch_error:.2g}")

    @property
    def exceeding_told(self) -> str:
        """The bound on the flips that exceed the largest measured one, in words."""
        if self.exceeding_count is None:
            return "any of them may exceed the largest measured"
        if not self.exceeding_count:
            return "none of them exceeds the largest measured"
        return (
            f"at most {self.exceeding_count} of these ({self.exceeding:.1%}) exceed the largest measured, with 95% "
            "confidence"
        )


def accuracy_of(estimated: Estimated, norms: Float[np.ndarray, " flips"]) -> Accuracy:
    """Returns the accuracy of estimates.

    Args:
        estimated: the estimates.
        norms: a result's, exact where flips were measured.
    """
    drawn = estimated.stratum == RANDOM
    estimates, compared = estimated.estimates[drawn], estimated.compared[drawn]
    errors, top = _relative(estimates, compared), estimated.stratum == TOP
    largest = _relative(estimated.estimates[top], estimated.compared[top])
    covering = math.ceil(0.9 * (len(errors) + 1))  # of one more flip, 90 % are at most so large
    sketch = None
    if estimated.sketch is not None:
        sketch = _quantile(_relative(compared, np.asarray(norms[drawn], np.float64)), 0.5)
    share, number = _exceeding(estimated.stratum, norms)
    return Accuracy(
        count=len(estimates),
        median_error=_quantile(errors, 0.5),
        error_90=float(np.sort(errors)[covering - 1]) if covering <= len(errors) else math.nan,
        rank_correlation=_rank_correlation(estimates, compared),
        slope=_slope(estimates, compared),
        sketch_error=sketch,
        exceeding=share,
        exceeding_count=number,
        largest_count=int(top.sum()),
        largest_error=_quantile(largest, 0.5),
        largest_error_90=_quantile(largest, 0.9),
    )


def _relative(found: np.ndarray, exact: np.ndarray) -> np.ndarray:
    difference, size = np.abs(found - exact), np.abs(exact)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(difference == 0, 0, difference / size)


def _quantile(errors: np.ndarray, q: float) -> float:
    if not len(errors):
        return math.nan
    finite = bool(np.all(np.isfinite(errors)))  # between two infinite errors nothing can be interpolated
    return float(np.quantile(errors, q, method="linear" if finite else "higher"))


def _rank_correlation(estimates: np.ndarray, compared: np.ndarray) -> float:
    from scipy import stats

    if len(estimates) < 3 or not np.ptp(estimates) or not np.ptp(compared):
        return math.nan
    return float(stats.spearmanr(estimates, compared).statistic)  # pyright: ignore[reportAttributeAccessIssue]


def _slope(estimates: np.ndarray, compared: np.ndarray) -> float:
    if len(estimates) < 3 or not np.ptp(estimates):
        return math.nan
    centred = (estimates - estimates.mean()) / np.ptp(estimates)
    return float(centred @ compared / (centred @ centred) / np.ptp(estimates))


def _exceeding(stratum: np.ndarray, norms: np.ndarray) -> tuple[float, int | None]:
    """Returns the bounds on the share and the number of the flips outside the largest estimates."""
    from scipy import stats

    top, drawn = stratum == TOP, stratum == RANDOM
    if not top.any():
        return math.nan, None
    unmeasured = int((stratum == ESTIMATED).sum())
    m, k = int(drawn.sum()), int((norms[drawn] > norms[top].max()).sum())
    if not unmeasured:
        return k / m if m else 0.0, 0
    share = float(stats.beta.ppf(CONFIDENCE, k + 1, m - k)) if k < m else 1.0
    return share, min(unmeasured, math.floor(share * (unmeasured + m)) - k)
