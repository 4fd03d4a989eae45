from __future__ import annotations

import math

import numpy as np
import pytest

from jaxsens.core.report.fits import (
    Growth,
    fit_exponent,
    fit_exponents,
    signed,
    statistic_name,
    summary_sentence,
)
from tests.core.report.synthetic import points, power

N = np.array([16.0, 32, 64, 128])


def fitted(slopes, variant="softmax", statistic="mean"):
    """A fit to seeds that have exactly these slopes."""
    values = np.concatenate([N**slope for slope in slopes])
    seeds = np.repeat(np.arange(len(slopes)), N.size)
    return fit_exponent(np.tile(N, len(slopes)), values, seeds, variant=variant, statistic=statistic)


@pytest.mark.parametrize(
    ("slopes", "expected"),
    [
        ([-1.02, -1.0, -0.98], Growth.INVERSE),
        ([-0.91, -0.9, -0.89], Growth.INVERSE),
        ([-0.81, -0.8, -0.79], Growth.FALLS),
        ([-1.51, -1.5, -1.49], Growth.FALLS),
        ([-0.02, 0.0, 0.02], Growth.FLAT),
        ([0.48, 0.5, 0.52], Growth.GROWS),
        ([0.2, 0.5, 0.8], Growth.UNCLEAR),
        ([0.35, 0.55, 0.8], Growth.GROWS),
        ([0.5], Growth.GROWS),
        ([-2.0, -0.2, 1.0], Growth.UNCLEAR),
        ([-1.4, -0.6, -0.4], Growth.UNCLEAR),
        ([-1.0, -0.8, -0.6], Growth.FALLS),
        ([-2.5, 0.02, 2.5], Growth.UNCLEAR),
        ([-2.5, -1.02, 0.5], Growth.UNCLEAR),
        ([-0.5], Growth.FALLS),
    ],
)
def test_a_fit_is_put_in_words_that_its_interval_supports(slopes, expected):
    assert fitted(slopes).growth is expected


def test_exponents_that_read_alike_are_called_alike():
    assert fitted([-0.8985, -0.8985]).growth is fitted([-0.9015, -0.9015]).growth is Growth.INVERSE


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
