from __future__ import annotations

import subprocess
import sys

import matplotlib
import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from jaxsens.core.report.data import Spread
from jaxsens.core.report.figures import sensitivity_figure
from jaxsens.core.report.fits import fit_exponents
from jaxsens.core.report.panels import (
    Line,
    Panel,
    draw_panels,
    figure_bytes,
    variant_styles,
)
from tests.core.report.drawn import y_labels
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


@pytest.mark.parametrize(
    ("value", "label"),
    [
        (0.001, "0.001"),
        (20.0, "20"),
        (5e-4, "0.0005"),
        (1e-7, "10^{-7}"),
        (1e5, "10^{5}"),
    ],
)
def test_marks_are_plain_numbers_near_1_and_powers_of_ten_elsewhere(value, label):
    labels = y_labels(axes_from(value / 3, value * 3))
    assert labels[f"$\\mathdefault{{{label}}}$"] == pytest.approx(value)


@pytest.mark.parametrize("lengths", [[16, 32, 64, 128], [*range(10, 100)], [64]])
def test_crowded_lengths_are_thinned_and_few_are_all_marked(lengths):
    marked = [n for n in axes_from(0.1, 1, lengths).get_xticks() if n in lengths]
    assert len(marked) == len(lengths) if len(lengths) < 8 else 4 <= len(marked) <= 9


def test_values_1e15_times_smaller_than_the_largest_lie_in_the_strip():
    values = {float(n): Spread(at, at / 2, at, 3) for n, at in ((8, 3.0), (16, 2.0), (32, 1e-17))}
    line = Line("a", variant_styles(["a"])["a"], values)
    axes = draw_panels([Panel("title", "y", [line], [8, 64])]).axes[0]
    low, high = axes.get_ylim()
    assert (-low, high) == pytest.approx((0.8, 3.75))  # of 2.0's spread down to 1.0, and of 3.0
    assert "below 0.8" in y_labels(axes)
