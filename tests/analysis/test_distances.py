"""Change against the distance to the row that is read: means by loops, powers found, and what the report shows."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest

from jaxsens.experiments.report.data import DISTANCE_COLUMNS, DistanceBuilder, half_octave, load_sweep
from jaxsens.experiments.report.distances import (
    READ_AT,
    Distances,
    distance_figure,
    distance_sections,
    distance_table,
    write_distances,
)
from jaxsens.experiments.report.fits import fit_exponents
from jaxsens.experiments.report.report import build_report, distances_of
from jaxsens.experiments.sweep.sweep import run_sweep
from tests.experiments.tiny import quiet, tiny_sweep

START = [1, 2, 3, 4, 6, 8, 12, 16, 23, 32, 46, 64, 91, 128]


def test_cells_begin_at_powers_of_the_root_of_two_rounded_up():
    for distance in range(128):
        expected = sum(start <= distance for start in START)
        assert half_octave(np.array([distance]))[0] == expected
    assert [math.ceil(2 ** (k / 2)) for k in (0, 2, *range(3, 15))] == START


@pytest.mark.parametrize("readout", ["last", 3])
def test_means_are_those_of_loops_over_flips(readout):
    rng = np.random.default_rng(0)
    n, positions, norms = 40, rng.integers(0, 40, 500), rng.random(500)
    builder = DistanceBuilder()
    builder.add("a", n, 7, readout, positions, norms)
    row = 39 if readout == "last" else 3
    cells: dict[int, list[tuple[int, float]]] = {}
    for position, norm in zip(positions, norms, strict=True):
        apart = abs(int(position) - row)
        cells.setdefault(sum(start <= apart for start in START), []).append((apart, float(norm)))
    table = builder.table().sort_values("distance")
    assert tuple(table.columns) == DISTANCE_COLUMNS
    for found, cell in zip(table.to_dict("records"), sorted(cells), strict=True):
        pairs = cells[cell]
        logarithms = [math.log(apart) for apart, _ in pairs if apart]
        distance = math.exp(sum(logarithms) / len(pairs)) if logarithms else 0.0
        assert found["distance"] == pytest.approx(distance)
        assert found["mean"] == pytest.approx(sum(norm for _, norm in pairs) / len(pairs))
        assert (found["flips"], found["seed"], found["n"]) == (len(pairs), 7, n)


def test_a_model_that_reads_no_single_row_has_no_distances():
    builder = DistanceBuilder()
    for readout in ("mean", None):
        builder.add("a", 8, 0, readout, [0, 1], [1.0, 2.0])
    assert builder.table().empty


def decaying(**laws):
    """Distances of variants whose change at distance d is law(d, seed), and 5 where the row that is read is flipped."""
    builder = DistanceBuilder()
    for variant, law in laws.items():
        for n in (64, 256, 1024):
            for seed in range(4):
                apart = np.array([0, *(2**k for k in range(n.bit_length() - 1))])
                norms = [5.0, *(law(d, seed) for d in apart[1:])]
                builder.add(variant, n, seed, "last", n - 1 - apart, norms)
    return Distances(builder.table(), tuple(laws), "l2")


@pytest.fixture(scope="module")
def three():
    return decaying(
        power=lambda d, seed: (1 + 0.1 * seed) * d**-0.8 * 2.0 ** (0.02 * seed * math.log2(d)),
        exponential=lambda d, seed: math.exp(-d / 30),
        zero=lambda d, seed: 0.0,
    )


def test_cells_that_are_not_resolved_have_no_part_in_the_fit():
    clean = decaying(a=lambda d, seed: (1 + 0.1 * seed) * d**-0.8)
    floored = decaying(a=lambda d, seed: max((1 + 0.1 * seed) * d**-0.8, 0.05))
    far = floored.table["distance"] >= 32
    assert bool(np.any(far))
    table = floored.table.assign(mean_is=np.where(far, "at most", "exact"))
    for found, one in zip(Distances(table, ("a",), "l2").fits, clean.fits, strict=True):
        assert found.fit.exponent == pytest.approx(one.fit.exponent) == pytest.approx(-0.8)
    assert Distances(floored.table, ("a",), "l2").fits[-1].fit.exponent > -0.75


def test_a_power_is_found_with_its_interval_and_told_from_an_exponential(three):
    fits = {(one.variant, one.n): one for one in three.fits}
    power = fits["power", 1024]
    assert power.fit.exponent == pytest.approx(-0.8 + 0.03)  # the mean of -0.80, -0.78, -0.76 and -0.74
    assert power.fit.ci_low < -0.8 + 0.03 < power.fit.ci_high
    assert power.fit.settled
    assert power.power_r2 == pytest.approx(1)
    assert power.exponential_r2 < 0.9
    other = fits["exponential", 1024]
    assert other.exponential_r2 == pytest.approx(1)
    assert not other.fit.settled
    assert math.isnan(fits["zero", 64].fit.exponent)
    assert math.isnan(fits["zero", 64].power_r2)
    assert len(three.fits) == 9


def test_the_report_tells_draws_and_lists_it(three, tmp_path):
    (section,) = distance_sections(three)
    assert section.bullets[0].startswith(
        "power, n = 1024: the mean change goes with the distance to the power −0.77"
    )
    assert section.bullets[0].endswith("so the power fits better")
    assert "not settled" in section.bullets[1]
    assert section.bullets[1].endswith("so the exponential fits better")
    assert "no power of the distance (exactly 0 at every length: no exponent)" in section.bullets[2]
    rows = distance_table(three.fits).rows
    assert rows[2][:4] == ("power", "—", "1024", "−0.770")
    axes = distance_figure(three).figure.axes
    assert [one.get_title(loc="left").split(" [")[0] for one in axes[:3]] == [
        "distance to the power −0.77",
        axes[1].get_title(loc="left").split(" [")[0],
        "no power of the distance",
    ]
    assert [axes[0].xaxis.get_major_formatter()(x, 0) for x in (READ_AT, 1, 64)] == ["0", "1", "64"]
    write_distances(tmp_path, three)
    written = pd.read_csv(tmp_path / "distance_exponents.csv")
    assert written["exponent"].iloc[0] == three.fits[0].fit.exponent
    assert len(pd.read_csv(tmp_path / "distances.csv")) == len(three.table)


def test_a_sweep_whose_flips_have_distances_reports_them(tmp_path):
    sweep = tiny_sweep("lengths = [4, 6]", "lengths = [12, 16]")
    assert run_sweep(sweep, tmp_path, sweep.points[:4], quiet()).exit_code == 0
    data = load_sweep(tmp_path)
    distances = distances_of(data)
    assert distances is not None
    softmax = distances.table.query("n == 12 and seed == 1")
    cells = [1, 2, 3, math.sqrt(20), math.sqrt(42), (8 * 9 * 10 * 11) ** 0.25]
    np.testing.assert_allclose(softmax["distance"], cells)
    report = build_report(data, fit_exponents(data.points))
    assert "Distance to the row that is read" in [section.heading for section in report.sections]
