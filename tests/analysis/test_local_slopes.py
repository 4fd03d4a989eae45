from __future__ import annotations

import math

import numpy as np
import pytest

from jaxsens.analysis.local_slopes import local_slopes
from tests.analysis.synthetic import points, power


def test_local_slopes_of_a_power_law_are_its_exponent_everywhere():
    slopes = local_slopes(points({"a": {"mean": power(-0.9, 3.0)}}, lengths=(10, 20, 70)))
    assert [(slope.n_low, slope.n_high) for slope in slopes] == [(10, 20), (20, 70)]
    for slope in slopes:
        assert slope.slopes == pytest.approx([-0.9] * 3)
    assert slopes[0].middle == pytest.approx(math.sqrt(200))


def test_local_slopes_tell_a_logarithm_from_a_power():
    slopes = local_slopes(
        points({"a": {"mean": lambda n, seed: math.log(n) / n}}, lengths=[2**k for k in range(4, 13)])
    )
    found = [slope.spread.median for slope in slopes]
    assert np.all(np.diff(found) < 0)
    assert found[0] > -0.70
    assert found[-1] < -0.86


def test_a_slope_needs_positive_values_at_both_lengths_and_the_same_seed():
    table = points(
        {"a": {"mean": lambda n, seed: 0.0 if (n, seed) == (20, 0) else 1 / n}}, lengths=(10, 20, 40)
    )
    table = table.loc[~((table["n"] == 40) & (table["seed"] == 1)), :]
    first, second = local_slopes(table)
    assert first.slopes == pytest.approx([-1, -1])
    assert second.slopes == pytest.approx([-1])
    assert second.spread.seeds == 1


def test_without_any_slope_the_spread_is_nan():
    (slope,) = local_slopes(points({"a": {"mean": power(0, 0.0)}}, lengths=(10, 20)))
    assert slope.slopes == ()
    assert math.isnan(slope.spread.median)


def test_the_spread_is_over_seeds():
    (slope,) = local_slopes(points({"a": {"mean": lambda n, seed: n ** -(1.0 + seed)}}, lengths=(10, 20)))
    assert (slope.spread.low, slope.spread.median, slope.spread.high) == pytest.approx((-3, -2, -1))
