"""Figures of a sweep: lines, spreads, guides, bounds, heat maps; and that they leave matplotlib's settings alone."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.path import Path

from jaxsens.core.report.data import BINS, FlipTables
from jaxsens.core.report.fits import fit_exponents, summary_sentence
from jaxsens.core.report.page import fitted_power, local_slope_figure, profile_figure, sensitivity_figure
from jaxsens.core.report.panels import ARROWS, SHAPES, ZERO_LABEL, figure_bytes, variant_styles
from tests.core.report.synthetic import LENGTHS, axes_titled, clashes, points, power, six_variants, y_labels

TABLE = six_variants()
FITS = fit_exponents(TABLE)
STYLES = variant_styles(list(dict.fromkeys(TABLE["variant"])))


@pytest.fixture(scope="module")
def six():
    return sensitivity_figure(TABLE, FITS, statistics=["mean", "max"])


def lines_of(axes: Axes, colour: str) -> list[np.ndarray]:
    """x and y of what is drawn in this colour: a variant's line, then its marks."""
    drawn = [np.asarray(line.get_xydata()).T for line in axes.lines if line.get_color() == colour]
    return [line for line in drawn if line.shape[1] > 2]


def test_each_variant_is_a_line_through_its_medians(six):
    axes = axes_titled(six.figure, "Mean change over all flips")
    rows = TABLE[TABLE["variant"] == "softmax"]
    (line, marks) = lines_of(axes, STYLES["softmax"].colour)
    np.testing.assert_allclose(line[0], LENGTHS, rtol=0.1)
    np.testing.assert_allclose(line[1], [np.median(rows["mean"][rows["n"] == n]) for n in LENGTHS])
    np.testing.assert_array_equal(marks, line)


def test_the_spread_over_seeds_is_drawn_from_the_smallest_to_the_largest(six):
    axes = axes_titled(six.figure, "Mean change over all flips")
    rows = TABLE[TABLE["variant"] == "softmax"]
    values = [np.asarray(rows["mean"][rows["n"] == n]) for n in LENGTHS]
    strokes = axes.collections[0]
    assert isinstance(strokes, LineCollection)
    ends = [np.asarray(stroke)[:, 1] for stroke in strokes.get_segments()]
    np.testing.assert_allclose(ends, [(value.min(), value.max()) for value in values])


def test_exact_zeros_are_drawn_in_a_labelled_strip_below_every_positive_value(six):
    axes = axes_titled(six.figure, "Largest change over all flips")
    zero = y_labels(axes)[ZERO_LABEL]
    positive = TABLE["max"][TABLE["max"] > 0].min()
    assert axes.get_ylim()[0] < zero < positive
    (line, _) = lines_of(axes, STYLES["average-hard"].colour)
    np.testing.assert_allclose(line[1], zero)


def test_the_legend_gives_each_variants_exponent_and_interval(six):
    legend = axes_titled(six.figure, "Mean change over all flips").get_legend()
    assert legend is not None
    texts = [text.get_text() for text in legend.get_texts()]
    fit = FITS[0]
    assert len(texts) == 6
    assert texts[0].startswith(f"softmax:  $n^{{{fit.exponent:.2f}}}$  [\N{MINUS SIGN}")
    assert texts[5] == "average-hard:  no power of n  (exactly 0)"
    assert "95 % interval over seeds" in six.caption


def test_no_label_overlaps_another_or_is_cut_off(six):
    assert clashes(six.figure) == []
    slopes = local_slope_figure(FITS, statistics=["mean", "max"], lengths=LENGTHS)
    assert clashes(slopes.figure) == []


@pytest.mark.parametrize("width", ["one", "two"])
def test_in_the_columns_of_a_paper_no_legend_is_cut_off_or_takes_the_width_of_the_axes(width):
    table, statistics = TABLE.assign(median=TABLE["mean"]), ["mean", "median", "max"]
    slopes = local_slope_figure(fit_exponents(table), statistics=statistics, lengths=LENGTHS)
    named = table.assign(variant=TABLE["variant"].replace("softmax", "a-long-name " * 4))
    drawn = sensitivity_figure(named, fit_exponents(named), statistics=statistics).draw(SHAPES[width])
    assert clashes(drawn) == clashes(slopes.draw(SHAPES[width])) == []
    widths = [axes.get_position().width * drawn.get_figwidth() for axes in drawn.axes if axes.get_visible()]
    assert len(widths) == 3
    assert min(widths) > 1.8


def test_a_short_input_has_a_cell_a_position_and_none_for_what_was_not_flipped():
    tables = FlipTables()
    tables.add("a", 4, 0, [0, 1, 2, 0], [1.0, 2.0, 0.0, 3.0])
    (profile,) = tables.profiles.values()
    np.testing.assert_array_equal(profile, [2.0, 2.0, 0.0, np.nan])


def test_cells_are_means_over_all_flips_in_them_however_they_came_in():
    rng = np.random.default_rng(0)
    n = 100
    positions, norms = rng.integers(0, n, 5000), rng.random(5000)
    tables = FlipTables()
    for part in np.array_split(np.arange(5000), 7):
        tables.add("a", n, 0, positions[part], norms[part])
    (profile,) = tables.profiles.values()
    assert profile.size == BINS
    expected = [norms[np.floor(positions * BINS / n) == cell].mean() for cell in range(BINS)]
    np.testing.assert_allclose(profile, expected)


def test_all_panels_share_one_colour_scale():
    profiles = {("a", 4): np.array([1.0, 2.0]), ("b", 8): np.array([0.2, 0.5])}
    figure = profile_figure(profiles, ["b", "a"]).figure
    meshes = [mesh.norm for axes in figure.axes for mesh in axes.collections]
    scales = [norm for norm in meshes if isinstance(norm, LogNorm)]
    assert {(scale.vmin, scale.vmax) for scale in scales} == {(0.2, 2.0)}
    assert [axes.get_title(loc="left") for axes in figure.axes[:2]] == ["b", "a"]


def test_exact_zeros_are_hatched_and_positions_without_a_flip_left_blank():
    means = np.array([0.5, 0.0, 0.0, np.nan])
    axes = axes_titled(profile_figure({("a", 4): means}, ["a"]).figure, "a")
    mesh, zeros = axes.collections
    coloured = np.ma.masked_array(mesh.get_array())
    np.testing.assert_array_equal(np.ma.getmaskarray(coloured).ravel(), [False, True, True, True])
    assert zeros.get_hatch()
    left_edges = [path.get_extents().x0 for path in zeros.get_paths()]
    assert left_edges == [0.25, 0.5]


@pytest.mark.quick(1)
@pytest.mark.parametrize("count", [1, 2, 6])
def test_no_label_of_the_heat_maps_overlaps_or_is_cut_off(count):
    names = [f"variant-{k}" for k in range(count)]
    profiles = {(name, n): np.full(8, 1 / n) for name in names for n in (16, 128, 1024)}
    assert clashes(profile_figure(profiles, names).figure) == []
    assert clashes(profile_figure({("a", 4): np.zeros(4)}, ["a"]).figure) == []  # a sweep of zeros only


def draw() -> Figure:
    table = points({"a": {"mean": power(-1)}, "b": {"mean": power(0, 0.0)}})
    return sensitivity_figure(table, fit_exponents(table), statistics=["mean"]).figure


def test_variants_differ_in_marker_and_dashes_so_that_black_and_white_suffices():
    styles = list(variant_styles([f"v{k}" for k in range(8)]).values())
    assert len({style.marker for style in styles}) == 8
    assert len({style.linestyle for style in styles}) == len({style.colour for style in styles}) == 8
    many = list(variant_styles([f"v{k}" for k in range(60)]).values())
    assert len(set(many)) == 60


def test_a_figure_is_drawn_once_for_each_file_and_never_for_its_layout(monkeypatch):
    drawn, original = [], Figure.draw
    monkeypatch.setattr(Figure, "draw", lambda self, renderer: drawn.append(self) or original(self, renderer))
    figure = draw()
    for format in ("svg", "png", "pdf"):
        figure_bytes(figure, format)
    assert drawn == [figure] * 3


@pytest.mark.long
def test_a_users_settings_do_not_change_the_figure_and_are_left_alone():
    plain = figure_bytes(draw(), "svg")
    assert b"<dc:date>" not in plain
    own: Any = {"font.size": 31.0, "axes.facecolor": "black", "lines.linewidth": 9, "svg.hashsalt": "mine"}
    with matplotlib.rc_context(own):
        before = dict(matplotlib.rcParams)
        for format in ("png", "pdf"):
            figure_bytes(draw(), format)
        assert figure_bytes(draw(), "svg") == plain
        assert dict(matplotlib.rcParams) == before


@pytest.mark.long
def test_drawing_needs_no_pyplot_and_so_leaves_the_choice_of_a_backend_to_the_user():
    code = (
        "import sys\nfrom jaxsens.core.report import page, panels\n"
        "figure = panels.Figure()\npanels.figure_bytes(figure, 'png')\npanels.figure_bytes(figure, 'svg')\n"
        "print('matplotlib.pyplot' in sys.modules)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True
    )
    assert ran.stdout.strip() == "False"


def sampled() -> pd.DataFrame:
    """Powers of n, of which flips are sampled from 128 on: the maxima found there are a tenth of the true ones."""
    table = points({"a": {"mean": power(-1), "max": power(-0.5), "min": power(-1)}}, seeds=2)
    long = table["n"] >= 128
    table["max"] = np.where(long, table["max"] / 10, table["max"])
    table["min"] = np.where(long, table["min"] * 10, table["min"])
    for name, kind in (("mean", "estimated"), ("max", "lower bound"), ("min", "upper bound")):
        table[f"{name}_is"] = np.where(long, kind, "exact")
    return table


SAMPLED = sampled()


def test_bounds_do_not_enter_a_fit_which_says_how_many_there_were():
    mean, largest, smallest = fit_exponents(SAMPLED)
    assert (round(mean.exponent, 6), mean.bounds, mean.points) == (-1, 0, 10)
    assert [one.high for one in largest.local] == [32, 64]
    assert (round(largest.exponent, 6), largest.bounds, largest.points, largest.values) == (-0.5, 4, 6, 10)
    assert (round(smallest.exponent, 6), smallest.bounds) == (-1, 4)
    assert largest.note == "4 bounds left out of 10 values"
    assert str(largest).endswith("; 4 bounds left out of 10 values)")
    assert "4 bounds left out of 10 values" in summary_sentence(fit_exponents(SAMPLED), "max")


def test_what_is_a_bound_at_every_length_has_no_trend_which_is_said_once():
    fits = fit_exponents(SAMPLED, minimum_length=128)
    for statistic, kind in (("max", "a lower"), ("min", "an upper")):
        said = f"is {kind} bound at every length, as flips were sampled: no trend for a."
        assert summary_sentence(fits, statistic).endswith(said)
    assert [fitted_power(fit) for fit in fits[1:]] == [
        f"no power of n  ({kind} bounds)" for kind in ("lower", "upper")
    ]
    assert dataclasses.replace(fits[2], statistic="q0.0").growth is fits[2].growth


def test_a_legend_gives_no_exponent_that_may_be_zero():
    assert (
        fitted_power(dataclasses.replace(FITS[0], exponent=-1.0, ci_low=-2.5, ci_high=0.5))
        == "no clear trend"
    )


def test_bounds_are_drawn_hollow_with_an_arrow_and_explained():
    fits = fit_exponents(SAMPLED)
    figure = sensitivity_figure(SAMPLED, fits, statistics=["mean", "max", "min"])
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
    assert "arrow" not in sensitivity_figure(exact, fit_exponents(exact), statistics=["max"]).caption
