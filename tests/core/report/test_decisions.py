"""Decisions of a sweep, and change against the distance to the row that is read: against loops, and in the report."""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

import jaxsens
from jaxsens import flip_sensitivity, load_sweep
from jaxsens.core.report.data import DISTANCE_COLUMNS, FlipTables, text
from jaxsens.core.report.distances import (
    READ_AT,
    DistanceLaw,
    Distances,
    decision_sections,
    distance_figure,
    distance_sections,
    input_figure,
    model_figure,
    model_table,
    write_distances,
)
from jaxsens.core.report.fits import statistic_name
from jaxsens.core.report.page import DASH, sensitivity_panel, slopes_of
from jaxsens.core.report.report import build_report, distances_of
from jaxsens.core.sweeps.config import parse_sweep_config
from jaxsens.core.sweeps.points import AVERAGE_SENSITIVITY, OF_DECISIONS, PER_POSITION
from jaxsens.core.sweeps.sweep import read_points, run_sweep
from tests.core.report.synthetic import clashes, points, power
from tests.core.sweeps.tiny import quiet, tiny_sweep, tiny_text

DECIDED = """logits = 1
[inputs]
kind = "all"
[measure]
measure = { kind = "decision", threshold = "median" }
engine = "vmap"
"""
COUNTED = [AVERAGE_SENSITIVITY, PER_POSITION]
SWEEP = tiny_text(DECIDED, lengths=[3, 4, 5], seeds=3, variants=["softmax"], statistics=COUNTED)


@pytest.fixture(scope="module")
def measured(tmp_path_factory) -> tuple[Any, Any]:
    """The results of a sweep's points, and what a report is made from."""
    sweep, folder = parse_sweep_config(SWEEP), tmp_path_factory.mktemp("sweep")
    run_sweep(sweep, folder, sweep.points, quiet())
    data = load_sweep(folder)
    results = [result for _, result in read_points(folder, data.plan)]
    return dict(zip([(point.n, point.seed) for point in sweep.points], results, strict=True)), data


@pytest.mark.long
def test_what_is_kept_of_decisions_is_that_of_a_loop_over_points(measured):
    results, data = measured
    models = data.flips.models.set_index(["n", "seed"])
    assert set(models["variant"]) == {"softmax"}
    for key, result in results.items():
        flips = np.bincount(result.inputs, weights=result.norms)
        expected = [flips.mean(), flips.mean() / (key[0] - 1), flips.min(), flips.max()]
        found = models.loc[key][["average", "per_position", "smallest", "largest"]]
        np.testing.assert_allclose(found.to_numpy(float), expected, rtol=1e-12)
    for n in (3, 4, 5):
        each = [
            [(result.sensitive_flips == s).mean() for s in range(n)]
            for (m, _), result in results.items()
            if m == n
        ]
        np.testing.assert_allclose(data.flips.shares["softmax", n], np.mean(each, axis=0), rtol=1e-12)
    assert models["average"].max() > 0


@pytest.mark.long
def test_a_sample_of_flips_has_averages_only_and_other_norms_nothing(measured):
    results, _ = measured
    words = next(iter(results.values())).tokens
    tables = FlipTables()
    assert decision_sections(tables) == []
    drawn = flip_sensitivity(jnp.sum, words, jaxsens.Substitute(2, sample=5), "decision", readout=None)
    tables.add_decisions("drawn", 3, 0, drawn)
    kept: Any = tables
    assert not kept.shares
    assert kept.models[["smallest", "largest"]].isna().all(axis=None)
    assert kept.models["average"].tolist() == [drawn.average_sensitivity]
    headings = [section.heading for section in decision_sections(kept)]
    assert headings == ["The models of the seeds"]
    assert model_table(kept.models).rows[0][-2:] == (DASH, DASH)


@pytest.mark.long
def test_the_report_is_of_counts(measured):
    _, data = measured
    report = build_report(data)
    assert "above the median of its outputs" in report.introduction[0]
    assert report.introduction[1] == text("known-of-decisions")
    assert "‖" not in "".join(report.introduction)
    headings = [section.heading for section in report.sections]
    assert {"At how many flips an input is sensitive", "The models of the seeds"} <= {*headings}
    models = report.sections[headings.index("The models of the seeds")].tables[0]
    own = data.flips.models.query("n == 5")
    assert models.rows[-1][:4] == ("softmax", "5", "3", models.rows[-1][3])
    assert models.rows[-1][3].startswith(f"{own['average'].mean():.3g} [")
    assert models.rows[-1][5] == f"{100 * (own['average'] == 0).mean():.3g} %"
    assert [figure.name for figure in report.figures][-3:] == [
        "sensitivity-distribution",
        "sensitivity-models",
        "profiles",
    ]


def test_drawings_have_what_was_measured(measured):
    _, data = measured
    drawn: Any = input_figure(data.flips.shares).figure.axes
    (axes,) = drawn
    lines = {line.get_label(): line for line in axes.lines}
    assert [*lines] == ["n = 3", "n = 4", "n = 5"]
    for n in (3, 4, 5):
        shares = data.flips.shares["softmax", n]
        assert lines[f"n = {n}"].get_xdata().tolist() == np.flatnonzero(shares).tolist()
        np.testing.assert_array_equal(lines[f"n = {n}"].get_ydata(), shares[shares > 0])
    panels: Any = model_figure(data.flips.models).figure.axes
    assert [axes.get_title("left") for axes in panels if axes.get_visible()] == ["n = 3", "n = 4", "n = 5"]
    assert all(axes.patches[0].get_data().values.sum() == 3 for axes in panels[:3])


def test_counts_are_compared_with_n_and_its_square_root():
    laws = {AVERAGE_SENSITIVITY: power(0.5), PER_POSITION: power(-0.5)}
    table = points({"a": laws})
    assert {name: slopes_of(name) for name in ("mean", *laws)} == {
        "mean": {"constant": 0, "1/n": -1},
        AVERAGE_SENSITIVITY: {"constant": 0, "√n": 0.5, "n": 1},
        PER_POSITION: {"constant": 0, "1/√n": -0.5, "1/n": -1},
    }
    for statistic in (AVERAGE_SENSITIVITY, PER_POSITION):
        panel = sensitivity_panel(table, {"a": "a"}, statistic=statistic, norm="decision")
        top = 1.3 * max(value.high for value in panel.lines[0].values.values())
        assert max(y for guide in panel.guides for y in guide.y) == pytest.approx(top)
        assert len({guide.y[0] for guide in panel.guides}) == 1
        for guide, slope in zip(panel.guides, slopes_of(statistic).values(), strict=True):
            assert np.log(guide.y[1] / guide.y[0]) == pytest.approx(slope * np.log(16))
    assert len({statistic_name(name) for name in OF_DECISIONS}) == len(OF_DECISIONS)
    assert all(statistic_name(name) != name for name in OF_DECISIONS)


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


@pytest.mark.quick(1)
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


@pytest.mark.long
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
