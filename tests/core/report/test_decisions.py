"""Decisions of a sweep: what is kept of them, against a loop over points, and how the report shows it."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import jaxsens
from jaxsens import flip_sensitivity
from jaxsens.core.report.data import FlipTables, text
from jaxsens.core.report.distances import decision_sections, input_figure, model_figure, model_table
from jaxsens.core.report.figures import sensitivity_panel, slopes_of
from jaxsens.core.report.fits import statistic_name
from jaxsens.core.report.page import DASH
from jaxsens.core.report.report import build_report
from jaxsens.core.sweep import load_sweep
from jaxsens.core.sweeps.config import parse_sweep_config
from jaxsens.core.sweeps.points import AVERAGE_SENSITIVITY, OF_DECISIONS, PER_POSITION
from jaxsens.core.sweeps.sweep import read_points, run_sweep
from tests.core.report.synthetic import points, power
from tests.core.sweeps.tiny import quiet

SWEEP = """
lengths = [3, 4, 5]
seeds = 3
variants = ["softmax"]
statistics = ["average-sensitivity", "average-sensitivity-per-position"]
[model]
alphabet_size = 2
width = 4
heads = 1
layers = 1
feed_forward = 0
logits = 1
[inputs]
kind = "all"
[measure]
measure = { kind = "decision", threshold = "median" }
engine = "vmap"
"""


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
