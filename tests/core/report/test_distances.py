"""Change against the distance to the row that is read: means by loops, powers found, and what the report shows."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest

from jaxsens.core.report.data import DISTANCE_COLUMNS, FlipTables
from jaxsens.core.report.distances import (
    READ_AT,
    DistanceLaw,
    Distances,
    distance_figure,
    distance_sections,
    write_distances,
)
from jaxsens.core.report.report import build_report, distances_of
from jaxsens.core.sweep import load_sweep
from jaxsens.core.sweeps.sweep import run_sweep
from tests.core.report.drawn import clashes
from tests.core.sweeps.tiny import quiet, tiny_sweep

START = [1, 2, 3, 4, 6, 8, 12, 16, 23, 32, 46, 64, 91, 128]


@pytest.mark.parametrize("readout", ["last", 3])
def test_means_are_those_of_loops_over_flips(readout):
    rng = np.random.default_rng(0)
    n, positions, norms = 40, rng.integers(0, 40, 500), rng.random(500)
    tables = FlipTables()
    tables.add("a", n, 7, positions, norms, readout=readout)
    row = 39 if readout == "last" else 3
    cells: dict[int, list[tuple[int, float]]] = {}
    for position, norm in zip(positions, norms, strict=True):
        apart = abs(int(position) - row)
        cells.setdefault(sum(start <= apart for start in START), []).append((apart, float(norm)))
    table = tables.distances.sort_values("distance")
    assert tuple(table.columns) == DISTANCE_COLUMNS
    for found, cell in zip(table.to_dict("records"), sorted(cells), strict=True):
        pairs = cells[cell]
        logarithms = [math.log(apart) for apart, _ in pairs if apart]
        distance = math.exp(sum(logarithms) / len(pairs)) if logarithms else 0.0
        assert found["distance"] == pytest.approx(distance)
        assert found["mean"] == pytest.approx(sum(norm for _, norm in pairs) / len(pairs))
        assert (found["flips"], found["seed"], found["n"]) == (len(pairs), 7, n)


def test_a_model_that_reads_no_single_row_has_no_distances():
    tables = FlipTables()
    for readout in ("mean", None):
        tables.add("a", 8, 0, [0, 1], [1.0, 2.0], readout=readout)
    assert tables.distances.empty


def decaying(**laws):
    """Distances of variants whose change at distance d is law(d, seed), and 5 where the row that is read is flipped."""
    tables = FlipTables()
    for variant, law in laws.items():
        for n in (64, 256, 1024):
            for seed in range(4):
                apart = np.array([0, *(2**k for k in range(n.bit_length() - 1))])
                norms = [5.0, *(law(d, seed) for d in apart[1:])]
                tables.add(variant, n, seed, n - 1 - apart, norms, readout="last")
    return Distances(tables.distances, tuple(laws), "l2")


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
    assert section.bullets[0] == (
        "power, n = 1024: the mean change follows a power of the distance (exponent −0.77 [−0.81, −0.73]; a "
        "power explains 1.00 of the variance of its logarithm, an exponential 0.64)"
    )
    assert "follows an exponential of the distance (a power explains 0.6" in section.bullets[1]
    assert "settled" not in section.bullets[1]  # nothing is said of an exponent that is not shown
    assert section.bullets[2] == "zero, n = 1024: the mean change is exactly 0 at every distance"
    axes = distance_figure(three).figure.axes
    assert [one.get_title(loc="left") for one in axes[:3]] == ["power", "exponential", "zero"]
    assert [axes[0].xaxis.get_major_formatter()(x, 0) for x in (READ_AT, 1, 64)] == ["0", "1", "64"]
    write_distances(tmp_path, three)
    written = pd.read_csv(tmp_path / "distance_exponents.csv")
    assert written["exponent"].iloc[0] == three.fits[0].fit.exponent
    assert len(pd.read_csv(tmp_path / "distances.csv")) == len(three.table)


def noise(d: int, seed: int) -> float:
    return float(np.exp(np.random.default_rng([d, seed]).normal(0, 1)))


VERDICTS = {
    "equal": (lambda d, seed: 1.0, DistanceLaw.FLAT),
    "nearly equal": (lambda d, seed: 1 + seed + 1e-3 * math.sin(d), DistanceLaw.FLAT),
    "noise": (noise, DistanceLaw.FLAT),
    "seeds that differ": (lambda d, seed: d ** (0.5 * seed - 0.7), DistanceLaw.NEITHER),
    "zero": (lambda d, seed: 0.0, DistanceLaw.ZERO),
    "zero from 128 on": (lambda d, seed: 1 / d if d < 128 else 0.0, DistanceLaw.NEITHER),
    "zero from 32 on": (lambda d, seed: 1 / d if d < 32 else 0.0, DistanceLaw.NONE),
    "zero but at the nearest": (lambda d, seed: float(d == 1), DistanceLaw.NONE),
    "beyond float64": (lambda d, seed: 10.0 ** (-30 + 5 * math.log2(d)), DistanceLaw.NONE),
    "hump": (lambda d, seed: math.exp(-((math.log(d / 20)) ** 2)), DistanceLaw.NEITHER),
    "power": (lambda d, seed: (1 + seed) * d**-0.5, DistanceLaw.POWER),
    "faint power": (lambda d, seed: (1 + seed) * d**-0.06, DistanceLaw.POWER),
    "rising": (lambda d, seed: (1 + seed) * d**1.5, DistanceLaw.POWER),
    "exponential": (lambda d, seed: math.exp(-d / 50), DistanceLaw.EXPONENTIAL),
    "fast exponential": (lambda d, seed: math.exp(-d / 3), DistanceLaw.EXPONENTIAL),
}


@pytest.mark.parametrize("case", VERDICTS)
def test_a_law_of_the_distance_is_stated_only_where_it_explains_something(case):
    law, verdict = VERDICTS[case]
    distances = decaying(a=law)
    last = distances.fits[-1]
    assert last.verdict is verdict
    (section,) = distance_sections(distances)
    (bullet,) = section.bullets
    assert bullet.startswith(f"a, n = 1024: the mean change {verdict.value}")
    assert "nan" not in bullet
    assert ("explains" in bullet) == (
        verdict in (DistanceLaw.POWER, DistanceLaw.EXPONENTIAL, DistanceLaw.NEITHER)
    )
    (figure,) = section.figures
    assert clashes(figure.figure) == []
    stated = verdict in (DistanceLaw.FLAT, DistanceLaw.POWER)
    assert ("exponent " in bullet) == stated
    assert stated or "slopes" not in bullet
    assert ("no seed has 3 values" in bullet) == (last.fit.seeds == 0 and verdict is not DistanceLaw.ZERO)
    assert last.row["verdict"] == verdict.value


def test_a_sweep_whose_flips_have_distances_reports_them(tmp_path):
    sweep = tiny_sweep("lengths = [4, 6]", "lengths = [12, 16]")
    assert run_sweep(sweep, tmp_path, sweep.points[:4], quiet()).exit_code == 0
    data = load_sweep(tmp_path)
    distances = distances_of(data)
    assert distances is not None
    softmax = distances.table.query("n == 12 and seed == 1")
    cells = [1, 2, 3, math.sqrt(20), math.sqrt(42), (8 * 9 * 10 * 11) ** 0.25]
    np.testing.assert_allclose(softmax["distance"], cells)
    report = build_report(data)
    assert "Distance to the row that is read" in [section.heading for section in report.sections]
    data.flips.add("softmax", 12, 0, [11], [1.0], readout="last")  # the symbol that is read
    for one, unflipped in ((report, True), (build_report(data), False)):
        assert ("The symbol at that position is not flipped" in one.introduction[0]) == unflipped
