"""Reports mark estimates and values below what the arithmetic resolves, and fits use neither."""

from __future__ import annotations

import dataclasses
import math
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
from matplotlib.collections import LineCollection
from matplotlib.path import Path

from jaxsens.core.report.data import FlipTables
from jaxsens.core.report.fits import fit_exponents, statistic_columns
from jaxsens.core.report.page import measured_line, sensitivity_figure, sensitivity_panel
from jaxsens.core.report.panels import variant_styles
from jaxsens.core.report.report import about_unresolved, build_report
from jaxsens.core.sweeps.points import Measurement
from tests.core.report.synthetic import clashes, points, power, sweep_data
from tools.fit_coverage import LEAST, OFF, SKEWED, UNRESOLVED, row_of

EXACT = points({"a": {"mean": power(-1), "max": power(-0.5)}}, seeds=2)
STYLES = variant_styles(["a"])


def estimated() -> pd.DataFrame:
    """The table with estimates for inputs of 128 symbols and longer ones."""
    table, long = EXACT.copy(), EXACT["n"] >= 128
    known = {"measured": 64.0, "median_error": 0.07, "rank_correlation": 0.9, "exceeding": 0.09}
    for name, value in known.items():
        table[name] = np.where(long, value, np.nan)
    table["mean_is"] = table["max_is"] = np.where(long, "estimated", "exact")
    table["mean_low"] = np.where(long, table["mean"] * (0.9 - 0.1 * table["seed"]), np.nan)
    table["mean_high"] = np.where(long, table["mean"] * (1.1 + 0.1 * table["seed"]), np.nan)
    return table


TABLE = estimated()


def test_what_is_known_of_estimates_is_no_statistic():
    assert statistic_columns(TABLE) == ("mean", "max")
    assert fit_exponents(TABLE) == fit_exponents(EXACT)


def test_estimated_points_are_hollow_and_their_means_have_error_bars():
    fits = fit_exponents(TABLE)
    for statistic, intervals in (("mean", {128, 256}), ("max", set())):
        (line,) = sensitivity_panel(TABLE, {"a": "a"}, statistic=statistic).lines
        assert (line.hollow, set(line.intervals)) == ({128, 256}, intervals)
    figure = sensitivity_figure(TABLE, fits, statistics=["mean", "max"])
    assert "Hollow markers are estimates" in figure.caption
    axes = figure.figure.axes[0]
    bars = [one for one in axes.collections if isinstance(one, LineCollection)][1]  # after the spread
    ends = sorted(np.asarray(stroke)[:, 1].tolist() for stroke in bars.get_segments())
    np.testing.assert_allclose(ends, [(0.8 / 256, 1.2 / 256), (0.8 / 128, 1.2 / 128)])
    assert sum(one.get_marker() == "_" for one in axes.lines) == 2
    without = sensitivity_figure(EXACT, fits, statistics=["mean"])
    assert "Hollow" not in without.caption


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
    # Of verify = 1 flip there is no correlation, and there are no largest estimates.
    alone = known | {"largest_error": math.nan, "rank_correlation": math.nan}
    for without in (range(1), range(3, 4), range(4)):
        each = [alone if k in without else known for k in range(4)]
        some = [dataclasses.replace(data.estimated[k], estimated=one) for k, one in enumerate(each)]
        (caveat,) = build_report(dataclasses.replace(data, metadata=tuple(some))).sections[0].paragraphs
        assert "nan" not in caveat
        assert (" 0.11 at most" in caveat, " 0.93 at least" in caveat) == (len(without) < 4,) * 2


FLOOR = 2e-3


def blurred() -> pd.DataFrame:
    """Powers of n, which from 128 on are only known to be at most a floor."""
    table = points({"a": {"mean": power(-2), "max": power(-1)}}, seeds=2)
    long = table["n"] >= 128
    return table.assign(
        mean=np.where(long, FLOOR, table["mean"]), mean_is=np.where(long, "at most", "exact"), max_is="exact"
    )


FLOORED = blurred()


@pytest.mark.parametrize(("kind", "value"), [("at most", FLOOR), ("lower bound", 0.0)])
def test_zeros_beside_values_that_are_not_exact_are_not_called_exact_zeros_everywhere(kind, value):
    exact = FLOORED["mean_is"] == "exact"
    table = FLOORED.assign(mean=np.where(exact, 0.0, value), mean_is=np.where(exact, "exact", kind))
    assert not fit_exponents(table)[0].always_zero


@pytest.mark.parametrize(
    ("exponent", "blurred", "kept"),
    [
        (-1, {(128, 0)}, (16, 32, 64)),  # one seed, one length: what lies beyond goes, too
        (-1, {(256, 1)}, (16, 32, 64, 128)),
        (
            1,
            {(16, 0), (32, 1)},
            (64, 128, 256),
        ),  # a statistic that grows is not resolved at the shortest inputs
        (-1, {(32, 0), (256, 0), (256, 1)}, (64, 128)),
    ],
)
def test_a_length_with_a_single_unresolved_value_goes_for_every_seed(exponent, blurred, kept):
    """The others of that length are the larger ones: seed 0 lies above seed 1 by a factor that grows with n."""
    table = points({"a": {"mean": lambda n, seed: (1 + 0.1 * seed) * float(n) ** exponent}}, seeds=2)
    at = [(n, seed) in blurred for n, seed in zip(table["n"], table["seed"], strict=True)]
    table = table.assign(mean=np.where(at, FLOOR, table["mean"]), mean_is=np.where(at, "at most", "exact"))
    (fit,) = fit_exponents(table)
    assert (fit.unresolved, fit.values) == (len(blurred), 10)
    if len(kept) > 2:
        assert (fit.points, round(fit.exponent, 9)) == (2 * len(kept), exponent)
        assert f"{10 - len(blurred) - 2 * len(kept)} other" in str(fit)
        assert str(fit).endswith("left out of 10 values)")
        assert [(one.low, one.high) for one in fit.local] == [*pairwise(kept)]
        assert len(fit.without) == 5 - len(kept)
    else:
        assert math.isnan(fit.exponent)


@pytest.mark.quick(0, 6)
@pytest.mark.parametrize("name", UNRESOLVED)
def test_with_single_unresolved_values_an_exponent_is_right_and_its_interval_covers(name):
    row = row_of(*UNRESOLVED[name], sweeps=1000)
    assert row.covered >= LEAST
    assert abs(row.off) <= OFF


@pytest.mark.slow
def test_over_skewed_slopes_an_interval_covers_as_often_as_the_documentation_says():
    for seeds, low, high in ((5, 0.80, 0.90), (10, 0.83, 0.93)):
        for slopes in ("exponential", "log-normal"):
            assert low < row_of(-1, seeds, 0.1, math.nan, SKEWED[slopes], 1000).covered < high


def test_a_floor_is_drawn_hollow_with_an_arrow_down_and_off_the_line():
    figure = sensitivity_figure(FLOORED, fit_exponents(FLOORED), statistics=["mean", "max"])
    assert "is what the value is at most" in figure.caption
    for other in ("Hollow markers are estimates", "arrow up is a lower bound"):
        assert other not in figure.caption
    mean, largest = figure.figure.axes[:2]

    def arrows(axes):
        return [line for line in axes.lines if isinstance(line.get_marker(), Path)]

    assert [np.size(line.get_xdata()) for line in arrows(mean)] == [2]
    assert arrows(largest) == []
    joined = next(line for line in mean.lines if line.get_linewidth() == 1.6)
    assert np.isnan(joined.get_ydata()).tolist() == [False] * 3 + [True] * 2
    assert clashes(figure.figure) == []
    assert measured_line(FLOORED, "a", "mean", "a", STYLES["a"]).hollow == {128, 256}


def test_the_report_names_the_lengths_that_a_dtype_does_not_resolve():
    data = sweep_data(points({"a": {"mean": power(-2)}}, seeds=1))
    blurred = tuple(
        dataclasses.replace(point, unresolved=3, at_most={"mean": FLOOR}) if point.n >= 128 else point
        for point in data.metadata
    )
    assert about_unresolved(data) == []
    data = dataclasses.replace(data, metadata=blurred)
    assert about_unresolved(data) == [
        "a, mean: at 2 of 5 lengths values are below what float32 resolves: n = 128, 256. Fits leave these lengths out "
        "for every seed, and those beyond them. Figures show what such values are at most."
    ]
    assert data.points["mean"].tolist()[-1] == FLOOR
    assert data.points["unresolved"].tolist() == [0, 0, 0, 3, 3]


def test_cells_of_profiles_and_distances_that_rounding_decides_are_no_values():
    positions, norms = np.arange(8), np.array([0.0] * 4 + [1.0] * 4)
    resolution = np.full(8, 1e-7)
    tables = FlipTables()
    tables.add("a", 8, 0, positions, norms, resolution, "last")
    assert np.isnan(tables.profiles["a", 8]).tolist() == [True] * 4 + [False] * 4
    table = tables.distances
    blurred = table["distance"].to_numpy() > 3.5
    assert table["mean_is"].tolist() == ["at most" if far else "exact" for far in blurred]
    assert table["mean"][blurred].tolist() == pytest.approx([1e-7] * int(np.sum(blurred)))
