"""A fit says when the slopes between successive lengths do not bear its exponent out."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest

from jaxsens.core.report.fits import Growth, fit_exponent, fit_exponents, summary_sentence
from jaxsens.core.report.page import exponent_table, write_local_slopes
from tests.core.report.synthetic import points, power

MINUS = "\N{MINUS SIGN}"


def fitted(law, seeds=3, lengths=(16, 32, 64, 128, 256)):
    return fit_exponents(points({"a": {"max": law}}, lengths, seeds))[0]


def falling_ever_faster(n, seed):
    """The local slope is -0.2 between 16 and 32, and 0.2 less with every doubling."""
    k = math.log2(n / 16)
    return 2 ** (-0.1 * k * (k + 1)) * (1 + 0.01 * seed)


def test_slopes_that_move_on_are_told_in_the_sentence_itself():
    fit = fitted(falling_ever_faster)
    assert not fit.settled
    told = f"not settled: local slopes from {MINUS}0.20 to {MINUS}0.80"
    assert fit.unsettled == told
    assert str(fit).endswith(f"; {told})")
    assert told in summary_sentence([fit], "max")
    assert told in exponent_table([fit]).rows[0][3]
    assert fit.drift[0] <= fit.drift[1] < 0


def test_the_extremes_come_in_the_order_of_n():
    laws = {16: 1.0, 32: 0.5, 64: 0.5, 128: 0.4}
    fit = fitted(lambda n, seed: laws[n], lengths=[*laws])
    assert fit.unsettled == f"not settled: local slopes from {MINUS}1.00 to 0.00"


def test_noise_around_a_law_is_no_drift_but_noise_around_nothing_is_not_settled():
    def zigzag(n, seed):
        k = math.log2(n / 16)
        return 1.1 ** ((-1) ** k) * 1.2 ** ((-1) ** seed * k * (k - 4))

    level = fitted(zigzag, 10)
    assert level.growth is Growth.FLAT
    assert any(abs(one.slope) > 0.1 for one in level.local)
    assert level.settled
    between = fitted(lambda n, seed: zigzag(n, seed) * n**-0.5, 10)
    assert between.growth is Growth.FALLS
    assert not between.settled


@pytest.mark.parametrize("way", [1, -1])
def test_a_level_exponent_with_a_drift_is_not_settled(way):
    def bent(n, seed):
        return 2 ** (way * 0.1 * (math.log2(n / 16) - 2) ** 2) * (1 + 0.01 * seed * math.log2(n))

    fit = fitted(bent)
    assert fit.growth is Growth.FLAT
    assert min(way * end for end in fit.drift) > 0
    assert not fit.settled


@pytest.mark.parametrize(("lengths", "seeds"), [((16, 32), 3), ((16,), 1)])
def test_without_an_exponent_nothing_is_called_unsettled(lengths, seeds):
    fit = fitted(power(-1), seeds, lengths)
    assert math.isnan(fit.exponent)
    assert (fit.settled, fit.unsettled) == (False, "")
    assert [round(one.slope, 9) for one in fitted(power(-0.73)).local] == [-0.73] * 4


def test_one_seed_has_local_slopes_without_intervals():
    fit = fitted(falling_ever_faster, 1)
    assert not fit.settled
    assert all(math.isnan(one.ci_low) for one in fit.local)


def test_a_seed_without_a_value_has_no_slope_there():
    n = np.array([16, 32, 64, 128] * 2)
    value = np.where(np.arange(8) == 5, 0, 1 / n)
    fit = fit_exponent(n, value, np.repeat([0, 1], 4))
    assert [one.seeds for one in fit.local] == [1, 1, 2]


def test_the_file_holds_every_local_slope_with_its_interval(tmp_path):
    fits = fit_exponents(
        points({"a": {"mean": power(-1), "max": falling_ever_faster}, "b": {"mean": power(0)}})
    )
    write_local_slopes(tmp_path / "local_slopes.csv", fits)
    found = pd.read_csv(tmp_path / "local_slopes.csv")
    assert [*found.columns] == ["variant", "statistic", "low", "high", "slope", "ci_low", "ci_high", "seeds"]
    own = found[(found["variant"] == "a") & (found["statistic"] == "max")]
    np.testing.assert_allclose(own["slope"], [-0.2, -0.4, -0.6, -0.8])
