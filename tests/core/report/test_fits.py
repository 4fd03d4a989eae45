"""Fits to powers of n: exponents, intervals, local slopes, the words for them, and their tables."""

from __future__ import annotations

import csv
import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from jaxsens.core.report.fits import (
    CONFIDENCE,
    Growth,
    fit_exponent,
    fit_exponents,
    signed,
    statistic_name,
    summary_sentence,
)
from jaxsens.core.report.page import write_fits
from tests.core.report.synthetic import points, power, six_variants
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
        np.tile(N, 4), values.ravel(), np.repeat([7, 3, 5, 1], N.size), variant="v", statistic="mean"
    )
    lines: list[Any] = [stats.linregress(np.log(N), np.log(row)) for row in values]
    slopes = [line.slope for line in lines]
    low, high = stats.t.interval(CONFIDENCE, df=3, loc=np.mean(slopes), scale=stats.sem(slopes))
    np.testing.assert_allclose(
        [fit.exponent, fit.ci_low, fit.ci_high], [np.mean(slopes), low, high], rtol=1e-10
    )
    assert (fit.variant, fit.statistic, fit.points, fit.seeds) == ("v", "mean", 4 * N.size, 4)


def test_a_table_is_fitted_from_length_1_on_in_its_own_order_unless_told_otherwise():
    laws = {"b": {"mean": power(-0.5), "max": power(-2)}, "a": {"mean": power(-1), "max": power(0)}}
    table = points(laws, lengths=(1, 2, 4, 8), seeds=2)
    fits = fit_exponents(table)
    found = [(fit.variant, fit.statistic, round(fit.exponent, 9) + 0.0) for fit in fits]
    assert found == [("b", "mean", -0.5), ("b", "max", -2), ("a", "mean", -1), ("a", "max", 0)]
    assert {(fit.points, fit.values) for fit in fits} == {(8, 8)}
    assert fit_exponent(N / 16, 1 / N, np.zeros(N.size)).points == N.size
    later = fit_exponents(table, minimum_length=2)
    assert {(fit.points, fit.values) for fit in later} == {(6, 6)}


@pytest.mark.parametrize("value", [-1.0, math.inf])
def test_a_value_that_no_norm_can_take_is_refused(value):
    refused("points", fit_exponents, points({"a": {"mean": power(-1)}}).assign(mean=value))


def test_summary_csv_has_exactly_the_columns_promised_and_every_digit(tmp_path):
    fits = fit_exponents(six_variants())
    write_fits(tmp_path, fits)
    lines = (tmp_path / "summary.csv").read_text().splitlines()
    assert (
        lines[0]
        == "variant,statistic,exponent,ci_low,ci_high,points,seeds,values,zeros,bounds,unresolved,settled"
    )
    for row, fit in zip(csv.DictReader(lines), fits, strict=True):
        assert (row["variant"], row["statistic"]) == (fit.variant, fit.statistic)
        assert (int(row["points"]), int(row["seeds"])) == (fit.points, fit.seeds)
        for column in ("exponent", "ci_low", "ci_high"):
            expected = getattr(fit, column)
            assert float(row[column]) == expected or (math.isnan(expected) and row[column] == "nan")
    assert np.sum(np.isnan(pd.read_csv(tmp_path / "summary.csv")["exponent"].to_numpy())) == 2
    assert {file.name for file in tmp_path.iterdir()} == {"summary.csv", "local_slopes.csv"}


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
    write_fits(tmp_path, fits)
    found = pd.read_csv(tmp_path / "local_slopes.csv")
    assert [*found.columns] == ["variant", "statistic", "low", "high", "slope", "ci_low", "ci_high", "seeds"]
    own = found[(found["variant"] == "a") & (found["statistic"] == "max")]
    np.testing.assert_allclose(own["slope"], [-0.2, -0.4, -0.6, -0.8])


FOUR = np.array([16.0, 32, 64, 128])


def fitted_to(slopes, variant="softmax", statistic="mean"):
    """A fit to seeds that have exactly these slopes."""
    values = np.concatenate([FOUR**slope for slope in slopes])
    seeds = np.repeat(np.arange(len(slopes)), FOUR.size)
    return fit_exponent(np.tile(FOUR, len(slopes)), values, seeds, variant=variant, statistic=statistic)


IN_WORDS = {
    # The last two of these both read -0.90.
    Growth.INVERSE: ([-1.02, -1.0, -0.98], [-0.91, -0.9, -0.89], [-0.8985, -0.8985], [-0.9015, -0.9015]),
    Growth.FALLS: ([-0.81, -0.8, -0.79], [-1.51, -1.5, -1.49], [-1.0, -0.8, -0.6], [-0.5]),
    Growth.FLAT: ([-0.02, 0.0, 0.02],),
    Growth.GROWS: ([0.48, 0.5, 0.52], [0.35, 0.55, 0.8], [0.5]),
    Growth.UNCLEAR: ([0.2, 0.5, 0.8], [-2.0, -0.2, 1.0], [-1.4, -0.6, -0.4], [-2.5, 0.02, 2.5], [-2.5, -1.02, 0.5]),
}  # fmt: skip


@pytest.mark.parametrize("expected", IN_WORDS)
def test_a_fit_is_put_in_words_that_its_interval_supports(expected):
    for slopes in IN_WORDS[expected]:
        assert fitted_to(slopes).growth is expected, slopes


def test_the_summary_names_variants_that_behave_alike_together():
    table = points({"a": {"max": power(-1)}, "b": {"max": power(0)}, "c": {"max": power(-1)}})
    assert summary_sentence(fit_exponents(table), "max") == (
        "As n grows, the largest change over all flips (exponent of n in brackets) falls about as 1/n for "
        "a (\N{MINUS SIGN}1.00) and c (\N{MINUS SIGN}1.00); stays about constant for b (0.00)."
    )


@pytest.mark.parametrize(
    ("value", "text"), [(-0.001, "0.00"), (-1.0, "\N{MINUS SIGN}1.00"), (0.126, "0.13"), (math.nan, "nan")]
)
def test_numbers_have_a_true_minus_and_no_negative_zero(value, text):
    assert signed(value) == text


def test_quantiles_are_named_in_words():
    assert statistic_name("q99.5") == "99.5 % quantile of the change over all flips"
    assert statistic_name("mean") == "mean change over all flips"
