from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from jaxsens.core.report.fits import CONFIDENCE, fit_exponent, fit_exponents
from tests.core.report.synthetic import LENGTHS, points, power
from tests.refusals import refused

N = np.array([16, 32, 64, 128, 256, 512], dtype=float)


@given(
    exponent=st.floats(-3, 2),
    log_constants=st.lists(st.floats(-20, 5), min_size=2, max_size=5),
    lengths=st.lists(st.integers(2, 10**6), min_size=3, max_size=9, unique=True),
)
def test_an_exact_power_law_is_recovered_whatever_its_constants_and_lengths(exponent, log_constants, lengths):
    n = np.array(sorted(lengths), dtype=float)
    values = np.concatenate([np.exp(constant) * n**exponent for constant in log_constants])
    seeds = np.repeat(np.arange(len(log_constants)), n.size)
    fit = fit_exponent(np.tile(n, len(log_constants)), values, seeds)
    # Lengths close together leave few digits of a slope.
    tolerance = 1e-9 + 1e-12 / np.var(np.log(n)) ** 0.5
    assert abs(fit.exponent - exponent) < tolerance
    assert abs(fit.ci_low - exponent) < 20 * tolerance
    assert abs(fit.ci_high - exponent) < 20 * tolerance
    assert (fit.points, fit.seeds) == (values.size, len(log_constants))
    assert fit.note == ""


def test_slopes_and_interval_agree_with_scipys_regression_and_t_distribution():
    rng = np.random.default_rng(0)
    values = N**-0.7 * np.exp(rng.normal(0, 0.3, (4, N.size)))
    fit = fit_exponent(
        np.tile(N, 4),
        values.ravel(),
        np.repeat([7, 3, 5, 1], N.size),
        variant="v",
        statistic="mean",
    )
    lines: list[Any] = [stats.linregress(np.log(N), np.log(row)) for row in values]
    slopes = [line.slope for line in lines]
    low, high = stats.t.interval(CONFIDENCE, df=3, loc=np.mean(slopes), scale=stats.sem(slopes))
    np.testing.assert_allclose(
        [fit.exponent, fit.ci_low, fit.ci_high], [np.mean(slopes), low, high], rtol=1e-10
    )
    assert (fit.variant, fit.statistic, fit.points, fit.seeds) == ("v", "mean", 4 * N.size, 4)


def test_every_statistic_of_every_variant_is_fitted_in_the_order_asked_for():
    table = points(
        {
            "a": {"mean": power(-1), "max": power(0)},
            "b": {"mean": power(-0.5), "max": power(-2)},
        }
    )
    fits = fit_exponents(table.sort_values("variant", ascending=False))
    found = {(fit.variant, fit.statistic): round(fit.exponent, 9) + 0.0 for fit in fits}
    assert found == {("b", "max"): -2, ("b", "mean"): -0.5, ("a", "max"): 0, ("a", "mean"): -1}
    assert list(found) == [("b", "mean"), ("b", "max"), ("a", "mean"), ("a", "max")]
    assert [fit.points for fit in fits] == [3 * len(LENGTHS)] * 4


def test_a_table_is_fitted_from_length_1_on_in_its_own_order_unless_told_otherwise():
    laws = {"mean": power(-1), "max": power(0)}
    table = points({"b": laws, "a": laws}, lengths=(1, 2, 4, 8), seeds=2)
    fits = fit_exponents(table)
    assert [(fit.variant, fit.statistic) for fit in fits] == [
        (variant, statistic) for variant in "ba" for statistic in ("mean", "max")
    ]
    assert {(fit.points, fit.values) for fit in fits} == {(8, 8)}
    assert fit_exponent(N / 16, 1 / N, np.zeros(N.size)).points == N.size
    later = fit_exponents(table, minimum_length=2)
    assert {(fit.points, fit.values) for fit in later} == {(6, 6)}


@pytest.mark.parametrize("value", [-1.0, math.inf])
def test_a_value_that_no_norm_can_take_is_refused(value):
    refused("points", fit_exponents, points({"a": {"mean": power(-1)}}).assign(mean=value))
