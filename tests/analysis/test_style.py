from __future__ import annotations

import subprocess
import sys

import matplotlib
import pytest
from matplotlib.figure import Figure

from jaxsens.analysis.axis_marks import log_marks, power_label, thinned
from jaxsens.analysis.figures import sensitivity_figure
from jaxsens.analysis.fits import fit_exponents
from jaxsens.analysis.style import figure_settings, png_bytes, svg_bytes, variant_styles
from tests.analysis.synthetic import points, power


def draw() -> Figure:
    table = points({"a": {"mean": power(-1)}, "b": {"mean": power(0, 0.0)}})
    return sensitivity_figure(table, fit_exponents(table), variant_styles("ab"), statistics=["mean"]).figure


def test_variants_differ_in_marker_and_dashes_so_that_black_and_white_suffices():
    styles = list(variant_styles([f"v{k}" for k in range(8)]).values())
    assert len({style.marker for style in styles}) == 8
    assert len({style.dashes for style in styles}) == 8
    many = list(variant_styles([f"v{k}" for k in range(60)]).values())
    assert len(set(many)) == 60


def test_a_variant_looks_the_same_in_every_figure_of_one_order():
    assert variant_styles(["a", "b", "c"])["b"] == variant_styles(["a", "b"])["b"]


def test_the_same_figure_is_the_same_svg():
    first, second = svg_bytes(draw()), svg_bytes(draw())
    assert first == second
    assert b"<dc:date>" not in first


def test_drawing_leaves_matplotlibs_global_state_alone():
    with matplotlib.rc_context({"font.size": 31.0, "axes.facecolor": "black", "svg.hashsalt": "mine"}):
        before = dict(matplotlib.rcParams)
        figure = draw()
        png_bytes(figure)
        svg_bytes(figure)
        assert dict(matplotlib.rcParams) == before


def test_drawing_needs_no_pyplot_and_so_leaves_the_choice_of_a_backend_to_the_user():
    code = (
        "import sys\nfrom jaxsens.analysis import figures, heat_maps, panels, style\n"
        "figure = panels.Figure()\nstyle.png_bytes(figure)\nstyle.svg_bytes(figure)\n"
        "print('matplotlib.pyplot' in sys.modules)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True
    )
    assert ran.stdout.strip() == "False"


def test_a_users_settings_do_not_change_the_figure():
    plain = svg_bytes(draw())
    with matplotlib.rc_context({"font.size": 31.0, "axes.facecolor": "black", "lines.linewidth": 9}):
        assert svg_bytes(draw()) == plain


def test_settings_are_given_back_after_an_error():
    before = dict(matplotlib.rcParams)
    with pytest.raises(ZeroDivisionError), figure_settings():
        raise ZeroDivisionError
    assert dict(matplotlib.rcParams) == before


@pytest.mark.parametrize(
    ("low", "high", "marks"),
    [
        (2e-4, 0.5, [1e-3, 1e-2, 1e-1]),
        (0.02, 0.3, [0.02, 0.05, 0.1, 0.2]),
        (0.31, 0.34, [0.31, 0.32, 0.33, 0.34]),
    ],
)
def test_a_logarithmic_axis_has_marks_however_short_it_is(low, high, marks):
    assert log_marks(low, high) == pytest.approx(marks)


@pytest.mark.parametrize(
    ("value", "label"),
    [(0.001, "0.001"), (20.0, "20"), (1e-7, "$10^{-7}$"), (5e-4, r"$5\times10^{-4}$"), (1e5, "$10^{5}$")],
)
def test_marks_are_plain_numbers_near_1_and_powers_of_ten_elsewhere(value, label):
    assert power_label(value) == label


def test_crowded_lengths_are_thinned_and_few_are_all_marked():
    assert thinned([16, 32, 64, 128]) == [16, 32, 64, 128]
    assert thinned(range(10, 100)) == [10, 14, 19, 26, 35, 47, 63, 84]
    assert thinned([64]) == [64]
