"""A fit says when the slopes between successive lengths do not bear its exponent out."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest

from jaxsens.core.report.fits import Growth, fit_exponents
from jaxsens.core.report.page import write_local_slopes
from tests.core.report.synthetic import points, power

MINUS = "\N{MINUS SIGN}"


def fitted(law, seeds=3, lengths=(16, 32, 64, 128, 256)):
    return fit_exponents(points({"a": {"max": law}}, lengths, seeds))[0]


def falling_ever_faster(n, seed):
    """The local slope is -0.2 between 16 and 32, and 0.2 less with every doubling."""
    k = math.log2(n / 16)
    return 2 ** (-0.1 * k * (k + 1)) * (1 + 0.01 * seed)


@pytest.mark.parametrize("way", [1, -1])
def test_a_level_exponent_with_a_drift_is_not_settled(way):
    def bent(n, seed):
        return 2 ** (way * 0.1 * (math.log2(n / 16) - 2) ** 2) * (1 + 0.01 * seed * math.log2(n))

    fit = fitted(bent)
    assert fit.growth is Growth.FLAT
    assert min(way * end for end in fit.drift) > 0
    assert not fit.settled


def test_the_file_holds_every_local_slope_with_its_interval(tmp_path):
    fits = fit_exponents(
        points({"a": {"mean": power(-1), "max": falling_ever_faster}, "b": {"mean": power(0)}})
    )
    write_local_slopes(tmp_path / "local_slopes.csv", fits)
    found = pd.read_csv(tmp_path / "local_slopes.csv")
    assert [*found.columns] == ["variant", "statistic", "low", "high", "slope", "ci_low", "ci_high", "seeds"]
    own = found[(found["variant"] == "a") & (found["statistic"] == "max")]
    np.testing.assert_allclose(own["slope"], [-0.2, -0.4, -0.6, -0.8])
