"""Reports mark estimated points and draw how well their means are known."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection

from jaxsens.core.report.data import Spread, inexact, statistic_columns
from jaxsens.core.report.figures import sensitivity_figure, sensitivity_panel
from jaxsens.core.report.fits import fit_exponents
from jaxsens.core.report.panels import Line, Panel, draw_panels, variant_styles
from jaxsens.core.report.report import build_report
from jaxsens.core.sweeps.points import Measurement
from tests.core.report.synthetic import points, power, sweep_data

EXACT = points({"a": {"mean": power(-1), "max": power(-0.5)}}, seeds=2)
STYLES = variant_styles(["a"])


def estimated_from(length: int) -> pd.DataFrame:
    """The table with estimates for inputs of this length and longer ones."""
    table, long = EXACT.copy(), EXACT["n"] >= length
    for name, value in (
        ("measured", 64.0),
        ("median_error", 0.07),
        ("rank_correlation", 0.9),
        ("exceeding", 0.09),
    ):
        table[name] = np.where(long, value, np.nan)
    table["mean_is"] = table["max_is"] = np.where(long, "estimated", "exact")
    table["mean_low"] = np.where(long, table["mean"] * (0.9 - 0.1 * table["seed"]), np.nan)
    table["mean_high"] = np.where(long, table["mean"] * (1.1 + 0.1 * table["seed"]), np.nan)
    return table


TABLE = estimated_from(128)


def strokes_of(axes: Axes, k: int) -> list[tuple[float, float]]:
    """The ends of the k-th set of vertical strokes: 0 for the spread of the first line, 1 for its error bars."""
    drawn = [one for one in axes.collections if isinstance(one, LineCollection)][k]
    return [(float(low), float(high)) for (_, low), (_, high) in map(np.asarray, drawn.get_segments())]


def test_intervals_reach_from_the_lowest_end_over_seeds_to_the_highest():
    found = inexact(TABLE, "a", "mean")
    assert found["hollow"] == {128, 256}
    assert found["intervals"][128] == pytest.approx((0.8 / 128, 1.2 / 128))
    assert inexact(TABLE, "a", "max") == {"hollow": {128, 256}, "bounds": {}}
    assert inexact(EXACT, "a", "mean") == {}


def test_what_is_known_of_estimates_is_no_statistic():
    assert statistic_columns(TABLE) == ("mean", "max")
    assert fit_exponents(TABLE) == fit_exponents(EXACT)


def test_estimated_points_are_hollow_and_their_means_have_error_bars():
    fits = fit_exponents(TABLE)
    (line,) = sensitivity_panel(TABLE, {"a": "a"}, STYLES, statistic="mean").lines
    assert line.hollow == {128, 256}
    assert set(line.intervals) == {128, 256}
    (line,) = sensitivity_panel(TABLE, {"a": "a"}, STYLES, statistic="max").lines
    assert line.hollow == {128, 256}
    assert not line.intervals
    figure = sensitivity_figure(TABLE, fits, STYLES, statistics=["mean", "max"])
    assert "Hollow markers are estimates" in figure.caption
    axes = figure.figure.axes[0]
    ends = sorted(strokes_of(axes, 1))
    np.testing.assert_allclose(ends, [(0.8 / 256, 1.2 / 256), (0.8 / 128, 1.2 / 128)])
    assert sum(one.get_marker() == "_" for one in axes.lines) == 2
    without = sensitivity_figure(EXACT, fits, STYLES, statistics=["mean"])
    assert "Hollow" not in without.caption


def test_an_interval_without_ends_is_drawn_to_the_edges():
    values = {10.0: Spread(1, 1, 1, 1), 20.0: Spread(0.5, 0.5, 0.5, 1)}
    bars = {20.0: (-math.inf, math.inf)}
    line = Line("a", STYLES["a"], values, frozenset({20.0}), bars)
    for log in (True, False):
        axes = draw_panels([Panel("title", "y", [line], [10, 20], log=log)]).axes[0]
        low, high = axes.get_ylim()
        assert 0 < high < 10
        if log:
            assert low > 0
            (stroke,) = strokes_of(axes, 1)
            assert stroke == pytest.approx((low, high))


def test_the_report_says_how_good_the_estimates_are():
    data = sweep_data(EXACT)
    known = {
        "measured": 64,
        "mean_low": 0.1,
        "mean_high": 0.2,
        "count": 32,
        "median_error": 0.07,
        "error_90": 0.2,
        "largest_error": 0.11,
        "rank_correlation": 0.93,
        "slope": 1.0,
        "sketch_error": None,
        "exceeding": 0.09,
        "exceeding_count": 5,
    }
    metadata = [
        dataclasses.replace(point, estimated=known if point.n >= 128 else None) for point in data.metadata
    ]
    plan = dataclasses.replace(data.plan, measure=Measurement(exact_up_to=64).table())
    data = dataclasses.replace(data, plan=plan, metadata=tuple(metadata))
    report = build_report(data)
    assert "every flip, in part by estimates, on networks" in report.introduction[0]
    (caveat,) = report.sections[0].paragraphs
    assert caveat.startswith(
        "4 of 10 points are estimates to first order: of their 764 flips, 256 were measured"
    )
    assert (
        "error of an estimate is 0.07 at most, and the rank correlation with the exact values 0.93" in caveat
    )
    assert tuple(data.points.columns[-7:]) == (
        "measured",
        "mean_low",
        "mean_high",
        "median_error",
        "largest_error",
        "rank_correlation",
        "exceeding",
    )
    assert data.points.iloc[0, -7:].isna().all()
    assert data.points.iloc[-1, -7:].tolist() == [64, 0.1, 0.2, 0.07, 0.11, 0.93, 0.09]
    assert "of the largest estimates of a point, all of which were measured, is 0.11 at most" in caveat
