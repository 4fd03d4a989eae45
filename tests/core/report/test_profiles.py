from __future__ import annotations

import numpy as np
import pytest
from matplotlib.colors import LogNorm

from jaxsens.core.report.data import BINS, FlipTables
from jaxsens.core.report.figures import DECADES, profile_figure
from tests.core.report.drawn import axes_titled, clashes


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
