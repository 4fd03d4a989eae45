"""Figures of a sweep: lines, spreads and guides over n, and heat maps of positions."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import LogNorm

from jaxsens.core.report.data import BINS, FlipTables
from jaxsens.core.report.figures import DECADES, local_slope_figure, profile_figure, sensitivity_figure
from jaxsens.core.report.fits import fit_exponents
from jaxsens.core.report.panels import ZERO_LABEL, variant_styles
from tests.core.report.drawn import axes_titled, clashes, y_labels
from tests.core.report.synthetic import LENGTHS, six_variants

TABLE = six_variants()
FITS = fit_exponents(TABLE)
STYLES = variant_styles(list(dict.fromkeys(TABLE["variant"])))


@pytest.fixture(scope="module")
def six():
    return sensitivity_figure(TABLE, FITS, STYLES, statistics=["mean", "max"])


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
    slopes = local_slope_figure(FITS, STYLES, statistics=["mean", "max"], lengths=LENGTHS)
    assert clashes(slopes.figure) == []


def test_local_slopes_have_a_panel_a_variant_and_a_line_a_statistic():
    figure = local_slope_figure(FITS, STYLES, statistics=["mean", "max"], lengths=LENGTHS).figure
    assert [axes.get_title(loc="left") for axes in figure.axes] == list(STYLES)
    slopes = [one.slope for one in FITS[1].local]
    assert (FITS[1].variant, FITS[1].statistic) == ("softmax", "max")
    drawn = [np.asarray(line.get_ydata()) for line in figure.axes[0].lines]
    assert any(len(y) == len(slopes) and np.allclose(y, slopes) for y in drawn)


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


def colour_scales(figure) -> list[LogNorm]:
    return [mesh.norm for axes in figure.axes for mesh in axes.collections if isinstance(mesh.norm, LogNorm)]


def test_all_panels_share_one_colour_scale():
    profiles = {("a", 4): np.array([1.0, 2.0]), ("b", 8): np.array([0.2, 0.5])}
    figure = profile_figure(profiles, ["b", "a"]).figure
    scales = colour_scales(figure)
    assert {(scale.vmin, scale.vmax) for scale in scales} == {(0.2, 2.0)}
    assert [axes.get_title(loc="left") for axes in figure.axes[:2]] == ["b", "a"]


def test_rounding_noise_does_not_stretch_the_colour_scale():
    many = {("a", 4): np.array([1e-17] * 4), ("b", 4): np.array([1.0] * 4)}
    (scale, *_) = colour_scales(profile_figure(many, ["a", "b"]).figure)
    assert (scale.vmin, scale.vmax) == (10.0**-DECADES, 1.0)


def test_exact_zeros_are_hatched_and_positions_without_a_flip_left_blank():
    means = np.array([0.5, 0.0, 0.0, np.nan])
    axes = axes_titled(profile_figure({("a", 4): means}, ["a"]).figure, "a")
    mesh, zeros = axes.collections
    coloured = np.ma.masked_array(mesh.get_array())
    np.testing.assert_array_equal(np.ma.getmaskarray(coloured).ravel(), [False, True, True, True])
    assert zeros.get_hatch()
    left_edges = [path.get_extents().x0 for path in zeros.get_paths()]
    assert left_edges == [0.25, 0.5]


@pytest.mark.parametrize("count", [1, 2, 6])
def test_no_label_of_the_heat_maps_overlaps_or_is_cut_off(count):
    names = [f"variant-{k}" for k in range(count)]
    profiles = {(name, n): np.full(8, 1 / n) for name in names for n in (16, 128, 1024)}
    assert clashes(profile_figure(profiles, names).figure) == []


def test_a_sweep_of_zeros_only_is_drawn():
    figure = profile_figure({("a", 4): np.zeros(4)}, ["a"]).figure
    assert clashes(figure) == []
