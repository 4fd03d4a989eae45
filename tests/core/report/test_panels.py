"""Panels and figures: what is drawn, and that the largest change of a sample is drawn as a lower bound."""

from __future__ import annotations

import subprocess
import sys

import matplotlib
import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.path import Path

from jaxsens.core.report.data import Spread, inexact
from jaxsens.core.report.figures import sensitivity_figure
from jaxsens.core.report.fits import fit_exponents, summary_sentence
from jaxsens.core.report.panels import (
    ARROWS,
    Line,
    Panel,
    draw_panels,
    figure_bytes,
    variant_styles,
)
from tests.core.report.drawn import clashes, y_labels
from tests.core.report.synthetic import points, power


def draw() -> Figure:
    table = points({"a": {"mean": power(-1)}, "b": {"mean": power(0, 0.0)}})
    return sensitivity_figure(table, fit_exponents(table), variant_styles("ab"), statistics=["mean"]).figure


def test_variants_differ_in_marker_and_dashes_so_that_black_and_white_suffices():
    styles = list(variant_styles([f"v{k}" for k in range(8)]).values())
    assert len({style.marker for style in styles}) == 8
    assert len({style.dashes for style in styles}) == len({style.colour for style in styles}) == 8
    many = list(variant_styles([f"v{k}" for k in range(60)]).values())
    assert len(set(many)) == 60


def test_the_same_figure_is_the_same_svg():
    first, second = figure_bytes(draw(), "svg"), figure_bytes(draw(), "svg")
    assert first == second
    assert b"<dc:date>" not in first


def test_drawing_leaves_matplotlibs_global_state_alone():
    with matplotlib.rc_context({"font.size": 31.0, "axes.facecolor": "black", "svg.hashsalt": "mine"}):
        before = dict(matplotlib.rcParams)
        figure = draw()
        for format in ("png", "svg", "pdf"):
            figure_bytes(figure, format)
        assert dict(matplotlib.rcParams) == before


@pytest.mark.long
def test_drawing_needs_no_pyplot_and_so_leaves_the_choice_of_a_backend_to_the_user():
    code = (
        "import sys\nfrom jaxsens.core.report import figures, panels\n"
        "figure = panels.Figure()\npanels.figure_bytes(figure, 'png')\npanels.figure_bytes(figure, 'svg')\n"
        "print('matplotlib.pyplot' in sys.modules)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True
    )
    assert ran.stdout.strip() == "False"


def test_a_users_settings_do_not_change_the_figure():
    plain = figure_bytes(draw(), "svg")
    with matplotlib.rc_context({"font.size": 31.0, "axes.facecolor": "black", "lines.linewidth": 9}):
        assert figure_bytes(draw(), "svg") == plain


def axes_from(low: float, high: float, lengths: list[int] | None = None) -> Axes:
    """Axes of a panel whose vertical axis extends from `low` to `high`, over these lengths."""
    steps = np.geomspace(low * 1.25, high / 1.25, 9)  # no gap that would put the lowest out of sight
    values = {
        n: Spread(at, at, at, 1)
        for n, at in zip(np.geomspace(1, 10, 9).tolist(), steps.tolist(), strict=True)
    }
    line = Line("a", variant_styles(["a"])["a"], values)
    return draw_panels([Panel("title", "y", [line], lengths or [1, 10])]).axes[0]


@pytest.mark.parametrize(("low", "high"), [(2e-4, 0.5), (0.02, 0.3), (0.31, 0.54)])
def test_a_logarithmic_axis_has_marks_however_short_or_long_it_is(low, high):
    axes = axes_from(low, high)
    assert axes.get_ylim() == pytest.approx((low, high))
    assert 3 <= len(y_labels(axes)) <= 9


def test_values_1e15_times_smaller_than_the_largest_lie_in_the_strip():
    values = {float(n): Spread(at, at / 2, at, 3) for n, at in ((8, 3.0), (16, 2.0), (32, 1e-17))}
    line = Line("a", variant_styles(["a"])["a"], values)
    axes = draw_panels([Panel("title", "y", [line], [8, 64])]).axes[0]
    low, high = axes.get_ylim()
    assert (-low, high) == pytest.approx((0.8, 3.75))  # of 2.0's spread down to 1.0, and of 3.0
    assert "below 0.8" in y_labels(axes)


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
