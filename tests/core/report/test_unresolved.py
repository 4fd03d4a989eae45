"""Values below what the arithmetic resolves are drawn at what they are at most, and no fit uses them."""

from __future__ import annotations

import dataclasses
import math
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
from matplotlib.path import Path

from jaxsens.core.report.data import FlipTables, inexact
from jaxsens.core.report.figures import measured_line, sensitivity_figure
from jaxsens.core.report.fits import fit_exponents
from jaxsens.core.report.panels import variant_styles
from jaxsens.core.report.report import about_unresolved
from tests.core.report.drawn import clashes
from tests.core.report.synthetic import points, power, sweep_data
from tools.fit_coverage import LEAST, OFF, SKEWED, UNRESOLVED, row_of

STYLES = variant_styles(["a"])
FLOOR = 2e-3


def blurred_from(length: int) -> pd.DataFrame:
    """Powers of n, which from a length on are only known to be at most a floor."""
    table = points({"a": {"mean": power(-2), "max": power(-1)}}, seeds=2)
    long = table["n"] >= length
    return table.assign(
        mean=np.where(long, FLOOR, table["mean"]), mean_is=np.where(long, "at most", "exact"), max_is="exact"
    )


TABLE = blurred_from(128)


def test_zeros_beside_unresolved_values_are_not_called_exact_zeros_everywhere():
    table = TABLE.assign(mean=np.where(TABLE["mean_is"] == "exact", 0.0, FLOOR))
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


@pytest.mark.long
@pytest.mark.parametrize("name", UNRESOLVED)
def test_with_single_unresolved_values_an_exponent_is_right_and_its_interval_covers(name):
    row = row_of(*UNRESOLVED[name], sweeps=1000)
    assert row.covered >= LEAST
    assert abs(row.off) <= OFF


@pytest.mark.long
def test_over_skewed_slopes_an_interval_covers_as_often_as_the_documentation_says():
    for seeds, low, high in ((5, 0.80, 0.90), (10, 0.83, 0.93)):
        for slopes in ("exponential", "log-normal"):
            assert low < row_of(-1, seeds, 0.1, math.nan, SKEWED[slopes], 1000).covered < high


def test_a_floor_is_drawn_hollow_with_an_arrow_down_and_off_the_line():
    figure = sensitivity_figure(TABLE, fit_exponents(TABLE), STYLES, statistics=["mean", "max"])
    assert "is what the value is at most" in figure.caption
    for other in ("Hollow markers are estimates", "arrow up is a lower bound"):
        assert other not in figure.caption
    assert inexact(TABLE, "a", "mean")["bounds"] == {128: "at most", 256: "at most"}
    mean, largest = figure.figure.axes[:2]

    def arrows(axes):
        return [line for line in axes.lines if isinstance(line.get_marker(), Path)]

    assert [np.size(line.get_xdata()) for line in arrows(mean)] == [2]
    assert arrows(largest) == []
    joined = next(line for line in mean.lines if line.get_linewidth() == 1.6)
    assert np.isnan(joined.get_ydata()).tolist() == [False] * 3 + [True] * 2
    assert clashes(figure.figure) == []
    line = measured_line(TABLE, "a", "mean", "a", STYLES["a"])
    assert line.hollow == {128, 256}


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
