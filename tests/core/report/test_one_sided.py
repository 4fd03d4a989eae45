"""The largest change of a sample of flips is a lower bound: it is drawn as one, and no fit uses it."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.path import Path

from jaxsens.core.report.data import inexact
from jaxsens.core.report.figures import fitted_power, sensitivity_figure
from jaxsens.core.report.fits import fit_exponents, summary_sentence
from jaxsens.core.report.panels import ARROWS, variant_styles
from tests.core.report.drawn import clashes
from tests.core.report.synthetic import points, power

STYLES = variant_styles(["a"])


def sampled_from(length: int) -> pd.DataFrame:
    """Powers of n, of which flips are sampled from a length on: the maxima found there are a tenth of the true ones."""
    table = points({"a": {"mean": power(-1), "max": power(-0.5), "min": power(-1)}}, seeds=2)
    long = table["n"] >= length
    table["max"] = np.where(long, table["max"] / 10, table["max"])
    table["min"] = np.where(long, table["min"] * 10, table["min"])
    for name, kind in (("mean", "estimated"), ("max", "lower bound"), ("min", "upper bound")):
        table[f"{name}_is"] = np.where(long, kind, "exact")
    return table


TABLE = sampled_from(128)


def test_bounds_do_not_enter_a_fit_which_says_how_many_there_were():
    mean, largest, smallest = fit_exponents(TABLE)
    assert (round(mean.exponent, 6), mean.bounds, mean.points) == (-1, 0, 10)
    assert [one.high for one in largest.local] == [32, 64]
    assert (round(largest.exponent, 6), largest.bounds, largest.points, largest.values) == (-0.5, 4, 6, 10)
    assert (round(smallest.exponent, 6), smallest.bounds) == (-1, 4)
    assert largest.note == "4 bounds left out of 10 values"
    assert str(largest).endswith("; 4 bounds left out of 10 values)")
    assert "4 bounds left out of 10 values" in summary_sentence(fit_exponents(TABLE), "max")


def test_without_enough_exact_values_there_is_no_exponent():
    fits = {fit.statistic: fit for fit in fit_exponents(sampled_from(16))}
    assert fits["max"].note == "no seed has 3 values for a slope; 10 bounds left out of 10 values"
    assert np.isnan(fits["max"].exponent)
    assert "too few values" in fitted_power(fits["max"])
    few = {fit.statistic: fit for fit in fit_exponents(sampled_from(64))}["max"]
    assert np.isnan(few.exponent)
    assert few.bounds == 6


def test_zeros_are_not_called_exact_zeros_everywhere_where_some_values_are_bounds():
    table = TABLE.assign(max=0.0)
    fit = {fit.statistic: fit for fit in fit_exponents(table)}["max"]
    assert not fit.always_zero


def test_bounds_are_drawn_hollow_with_an_arrow_and_explained():
    fits = fit_exponents(TABLE)
    assert inexact(TABLE, "a", "max")["bounds"] == {128: "lower bound", 256: "lower bound"}
    figure = sensitivity_figure(TABLE, fits, STYLES, statistics=["mean", "max", "min"])
    for text in ("arrow up is a lower bound", "a random sample of the flips", "do not enter the fits"):
        assert text in figure.caption
    assert "Strokes with caps" not in figure.caption

    def arrows(axes):
        lines = [line for line in axes.lines if isinstance(line.get_marker(), Path)]
        return [(line.get_marker() is ARROWS["lower bound"], len(line.get_xdata())) for line in lines]

    mean, largest, smallest = figure.figure.axes[:3]
    assert (arrows(mean), arrows(largest), arrows(smallest)) == ([], [(True, 2)], [(False, 2)])
    assert clashes(figure.figure) == []
    exact = points({"a": {"max": power(-0.5)}})
    assert "arrow" not in sensitivity_figure(exact, fit_exponents(exact), STYLES, statistics=["max"]).caption
