"""Lemma 7: no look-up errs more than is said, and the worst one as much; counts add up to within a quarter."""

from __future__ import annotations

import math

import numpy as np
import pytest

from jaxsens.formal.constructions.conditions import KAPPA, lookup_sharpness, lookup_value_error


def looked_up(n: int, sharpness: float) -> tuple[float, float]:
    """Of a table of n rows: the largest error of the row number, and half of the weights' distance from one-hot."""
    off = np.arange(n) - np.arange(n)[:, None]
    weights = np.exp(-sharpness * off**2.0)
    weights /= weights.sum(axis=1, keepdims=True)
    return abs((weights * off).sum(axis=1)).max(), (weights * (off != 0)).sum(axis=1).max()


@pytest.mark.parametrize("sharpness", [0.5, 0.8, 1.0, 2.0, KAPPA, 6.0, 20.0])
def test_lemma_7_bounds_every_row_of_every_table_and_is_attained(sharpness):
    worst = max(looked_up(n, sharpness)[1] for n in (*range(1, 40), 100, 500))
    assert worst == pytest.approx(lookup_value_error(sharpness), rel=1e-9)


@pytest.mark.parametrize("weight", [1, 2, 5, 40])
def test_counts_looked_up_add_up_to_within_a_quarter(weight):
    assert lookup_sharpness(weight) == math.log(12 * weight)
    assert weight * max(looked_up(n, lookup_sharpness(weight))[0] for n in (1, 2, 9, 300)) <= 1 / 4
