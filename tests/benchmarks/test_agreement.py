"""Nothing is timed unless the numbers agree."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.agreement import disagreement, largest_relative_error

EXACT = np.array([0.5, 0.1, 0.02])


def test_rounding_of_float32_is_no_disagreement():
    assert disagreement("m", (EXACT * (1 + 1e-5)).astype(np.float32), EXACT) is None


@pytest.mark.parametrize(
    ("norms", "says"),
    [
        (EXACT * [1, 1.01, 1], "1 of 3 norms differ from float64, first at position 1"),
        (EXACT * [1, 1, np.nan], "first at position 2"),
        (EXACT[:2], "2 flips, where the reference has 3"),
    ],
)
def test_a_wrong_norm_a_nan_and_a_missing_flip_are_found(norms, says):
    assert says in (disagreement("m", norms, EXACT) or "")


def test_the_largest_relative_error_is_relative_to_each_norm():
    assert largest_relative_error(EXACT + np.array([0, 0, 0.01]), EXACT) == pytest.approx(0.5)
    assert largest_relative_error(np.array([0.0, 1.0]), np.array([0.0, 1.0])) == 0
    assert largest_relative_error(np.array([1e-9]), np.array([0.0])) == np.inf
