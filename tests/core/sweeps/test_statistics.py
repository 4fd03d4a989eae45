"""Statistics have their names' meaning, in float64."""

from __future__ import annotations

import numpy as np
import pytest

from jaxsens.core.sweeps.points import compute, is_statistic


def test_each_statistic_is_what_its_name_says():
    norms = np.array([4.0, 1.0, 3.0, 2.0, 10.0], np.float32)
    expected = {
        "mean": 4.0,
        "max": 10.0,
        "min": 1.0,
        "median": 3.0,
        "q0": 1.0,
        "q25": 2.0,
        "q90": 7.6,
        "q99.9": 9.976,
    }
    assert all(map(is_statistic, expected))
    assert {name: compute(name, norms) for name in expected} == pytest.approx(expected, abs=1e-12)


def test_the_mean_of_many_float32_is_summed_in_float64():
    assert compute("mean", np.full(3_000_001, 0.1, np.float32)) == pytest.approx(np.float32(0.1), rel=1e-12)


@pytest.mark.parametrize("name", ["q101", "q-1", "q", "q5e1", "Mean", "average", "sum", "__class__", ""])
def test_other_names_are_no_statistics(name):
    assert not is_statistic(name)
    with pytest.raises(ValueError, match="statistic"):
        compute(name, np.ones(3))
