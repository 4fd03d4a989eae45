"""What the arithmetic does not resolve is at most its value plus its resolution, and is not shown as a value."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

import jaxsens
from jaxsens.cli.single import at_most_of, summary_of_words
from jaxsens.core.results.pictures.picture import page
from jaxsens.core.results.pictures.plot import draw_profile
from jaxsens.core.results.result import FlipSensitivity, load_result
from jaxsens.first_order import run
from tests.core.flip_sensitivity.made import made as result_of
from tests.refusals import refused


def made(norms, resolution, **fields) -> FlipSensitivity:
    """A result of one input with a flip a position, and one more position."""
    tokens = np.zeros((1, len(norms) + 1), int)
    return result_of(norms, resolution=resolution, tokens=tokens, readout="last", dtype="float32", **fields)


RESOLVED = made([1.0, 0.5, 0.25], [1e-7, 1e-7, 1e-7])
FLOOR = made([1e-8, 3e-8, 0.0], [1e-7, 1e-7, 1e-7])
MIXED = made([1.0, 1e-8, 0.0], [1e-7, 1e-7, 1e-7])


def test_resolved_flips_leave_every_statistic_a_value():
    assert (RESOLVED.unresolved, at_most_of(RESOLVED, {"q10": 0.1, "q50": 0.5})) == (0, {})
    assert "at most" not in repr(RESOLVED) + page(RESOLVED.view())
    assert "resolved" not in repr(RESOLVED)


def test_a_floor_of_rounding_is_said_at_most_everywhere():
    assert FLOOR.unresolved == 3
    assert FLOOR.at_most("max") == pytest.approx(1.3e-7)
    assert FLOOR.at_most("mean") == pytest.approx(4e-8 / 3 + 1e-7)
    assert FLOOR.at_most(0.5) == pytest.approx(1.1e-7)
    assert "mean=at most 1.133e-07, max=at most 1.3e-07 at position 1, 3 flips not resolved" in repr(FLOOR)
    shown = page(FLOOR.view())
    assert "largest: at most 1.1e-07" in shown
    assert "no change is resolved" in shown
    assert "3 flips are not resolved" in shown
    assert "3e-08" not in shown


def test_flips_that_cannot_decide_a_statistic_leave_it_a_value():
    assert MIXED.unresolved == 2
    assert (MIXED.at_most("max"), MIXED.at_most("mean")) == (None, None)
    assert MIXED.at_most(0.5) == pytest.approx(1.1e-7)
    assert set(at_most_of(MIXED, {"q10": 0.1, "q50": 0.5})) == {"q10", "q50"}
    assert "max=1 at position 0, 2 flips not resolved" in repr(MIXED)


def test_a_value_that_rounding_may_lower_is_not_resolved_either():
    # The flip of 1.1 may as well have 0.6: then the median is less.
    result = made([1.1, 1.0, 0.1], [0.5, 0.0, 0.0])
    assert result.at_most(0.5) == 1.0


def test_a_decision_within_rounding_counts_once_at_most():
    result = made([1.0, 0.0, 0.0], [1.0, 1.0, 0.0], measure="decision")
    assert (result.at_most("max"), result.at_most("mean")) == (1.0, pytest.approx(2 / 3))


def test_what_is_below_the_least_double_is_zero_and_not_at_most():
    assert made([0.0, 0.0], [1e-310, 0.0]).at_most("max") is None


def test_another_statistic_is_refused():
    for unusable in ("median", 1.5, None):
        refused("statistic", FLOOR.at_most, unusable)  # type: ignore[arg-type]


def test_the_resolution_is_saved_and_read_with_the_flips(tmp_path):
    MIXED.save(tmp_path / "result.parquet")
    assert load_result(tmp_path / "result.parquet").at_most(0.5) == MIXED.at_most(0.5)


def drawn(result: FlipSensitivity) -> dict[str, tuple[list[float], str]]:
    from matplotlib.figure import Figure

    axes = Figure().subplots()
    draw_profile(result.view(), [axes])
    return {
        str(line.get_label()): (np.asarray(line.get_ydata()).tolist(), str(line.get_markerfacecolor()))
        for line in axes.lines
        if not str(line.get_label()).startswith("_")
    }


def test_a_profile_draws_unresolved_flips_as_hollow_triangles_at_what_they_are_at_most():
    found = drawn(MIXED)
    assert found["largest"][0] == [1.0]
    values, face = found["below resolution: at most"]
    assert (face, values) == ("none", [pytest.approx(1.1e-7), pytest.approx(1e-7)])
    assert "below resolution: at most" not in drawn(RESOLVED)


def test_the_commands_summary_says_at_most_and_its_json_too(capsys):
    from jaxsens.cli.single import model_source

    source = model_source(None, None, {"alphabet_size": 2})
    run = dataclasses.replace(FLOOR.run, versions={"device": "cpu"})
    summary = summary_of_words(dataclasses.replace(FLOOR, run=run), source, 2)
    assert json.loads(json.dumps(summary.values))["at_most"]["max"] == pytest.approx(1.3e-7)
    assert summary.values["unresolved"] == 3
    summary.print()
    text = capsys.readouterr().out
    for said in ("mean l2", "at most 1.13333e-07", "at most 1.3e-07", "not resolved"):
        assert said in text
    assert "3e-08" not in text.replace("1.3e-07", "")


def test_an_overflowing_estimate_of_a_finite_model_is_told_as_such(monkeypatch):
    def overflowing(given, words, flips, *rest):
        return np.full(len(flips), np.inf)

    monkeypatch.setattr(run, "estimated", overflowing)
    model = jaxsens.Transformer(
        jaxsens.TransformerConfig(alphabet_size=2, width=4, heads=1, layers=1, feed_forward=0), seed=0
    )
    refused("engine", jaxsens.flip_sensitivity, model, np.zeros(4, int), engine=jaxsens.FirstOrder(verify=2))
