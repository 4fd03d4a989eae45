from __future__ import annotations

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection

from jaxsens.core.report.figures import local_slope_figure, sensitivity_figure
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
