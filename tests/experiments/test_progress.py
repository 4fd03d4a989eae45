"""The time left is a fair guess or is not given; a terminal gets a bar, everything else gets lines."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from jaxsens.experiments import progress
from jaxsens.experiments.cost import Cost, CostModel
from jaxsens.experiments.progress import BarReporter, LogReporter, duration, left_text, reporting
from tests.experiments.tiny import printed, quiet


def cost(variant: str, n: int, first: bool) -> float:
    per_flip = {"soft": 1e-6, "hard": 2e-5}[variant]
    return 0.02 + per_flip * n**2 + 2e-9 * n**3 + (1.3 if first else 0.0)


def model_of(lengths, seeds=2):
    model = CostModel()
    for n in lengths:
        for seed in range(seeds):
            for variant in ("soft", "hard"):
                model.add(Cost(variant, n, seed == 0, cost(variant, n, seed == 0)))
    return model


def test_the_time_left_follows_the_cost_of_longer_inputs():
    rest = [
        (variant, n, first) for n in (256, 512) for variant in ("soft", "hard") for first in (True, False)
    ]
    truth = sum(cost(*point) for point in rest)
    assert model_of([32, 64, 128]).left(rest) == pytest.approx(truth, rel=0.2)


def test_a_count_of_points_would_be_far_off_where_the_model_is_not():
    rest = [("hard", 1024, False)] * 4
    truth = 4 * cost("hard", 1024, False)
    by_count = 4 * cost("hard", 64, False)
    assert by_count < truth / 50
    assert model_of([32, 64]).left(rest) == pytest.approx(truth, rel=0.3)


def test_nothing_is_said_where_it_would_be_a_guess():
    assert CostModel().left([("soft", 8, True)]) is None
    assert model_of([32]).left([("soft", 64, False)]) is None
    assert model_of([32]).left([("soft", 32, False)]) == pytest.approx(cost("soft", 32, False), rel=0.5)
    assert model_of([32]).left([]) == 0.0


def test_a_single_seed_whose_every_point_compiles_is_estimated_too():
    rest = [("soft", 128, True)]
    assert model_of([32, 64], seeds=1).left(rest) == pytest.approx(cost("soft", 128, True), rel=0.3)


@pytest.mark.parametrize(("seconds", "text"), [(3.2, "3 s"), (99, "99 s"), (150, "2 min"), (9000, "2.5 h")])
def test_durations_are_in_a_unit_that_suits_them(seconds, text):
    assert duration(seconds) == text
    assert left_text(seconds) == f"; about {text} left"
    assert left_text(None) == ""


def test_lines_are_timed_and_rare(monkeypatch):
    now = 0.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    console = quiet()
    with LogReporter(console, 4, 0) as reporter:
        now = 0.1
        reporter.finished("a", None)  # too soon after the start
        reporter.inside("b", 1, 9)  # too soon
        now = 2.0
        reporter.finished("b", 5.0)
        reporter.note("careful")  # always
        now = 40.0
        reporter.inside("c", 3, 9)
        now = 40.5
        reporter.finished("c", None)  # too soon
    assert printed(console).splitlines() == [
        "[     2.0 s]  2/4  b; about 5 s left",
        "[     2.0 s]  careful",
        "[    40.0 s]  2/4  c: 3 of 9 flips",
    ]


def test_the_last_point_is_always_reported():
    console = quiet()
    with reporting(console, 2, 0) as reporter:
        assert isinstance(reporter, LogReporter)
        reporter.finished("a", None)
        reporter.finished("b [n]", 0.0)
    assert "2/2  b [n]; about 0 s left" in printed(console)


def test_a_terminal_gets_a_bar_that_moves():
    console = Console(file=io.StringIO(), force_terminal=True, width=150)
    with reporting(console, 3, 1) as reporter:
        assert isinstance(reporter, BarReporter)
        reporter.inside("softmax n=4", 2, 3)
        reporter.note("careful [n]")
        reporter.finished("softmax n=4", 12.0)
        assert reporter.done == 2
    text = printed(console)
    assert "careful [n]" in text
    assert "2/3" in text
    assert "about 12 s left" in text
