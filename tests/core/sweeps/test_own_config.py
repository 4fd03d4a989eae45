"""A sweep's directory is of one config, which may grow, and its report is never another one's."""

from __future__ import annotations

import pytest

from jaxsens.core.base.errors import InputError
from jaxsens.core.sweep import load_sweep
from jaxsens.core.sweeps import points as sweep_points
from jaxsens.core.sweeps.jobs.job import Outcome
from jaxsens.core.sweeps.sweep import Sweep, run_sweep
from tests.core.sweeps.tiny import fake_flip_sensitivity, printed, quiet, tiny_sweep


@pytest.fixture(autouse=True)
def faked(monkeypatch):
    monkeypatch.setattr(sweep_points, "flip_sensitivity", fake_flip_sensitivity)


def run(sweep: Sweep, directory) -> tuple[Outcome, str]:
    console = quiet()
    return run_sweep(sweep, directory, sweep.points, console), printed(console)


@pytest.mark.parametrize(
    ("before", "after", "more"),
    [
        ("lengths = [4, 6]", "lengths = [2, 4, 6]", 4),
        ("seeds = 2", "seeds = 3", 4),
        ('"leftmost-hard"]', '"leftmost-hard", "unbounded"]', 4),
        ('title = "tiny"', 'title = "still tiny"', 0),
    ],
)
def test_a_sweep_that_grows_keeps_its_points_and_never_stands_beside_the_report_of_the_smaller_one(
    tmp_path, before, after, more
):
    run(tiny_sweep(), tmp_path)
    for name in ("report.html", "summary.csv"):
        (tmp_path / name).write_text("of the smaller one")
    run(tiny_sweep(), tmp_path)
    assert (tmp_path / "report.html").exists()
    larger = tiny_sweep(before, after)
    outcome, log = run(larger, tmp_path)
    assert (outcome.computed, outcome.finished) == (more, 8 + more)
    assert "the report of the one before is removed" in log
    assert not list(tmp_path.glob("report.html")) + list(tmp_path.glob("summary.csv"))
    assert (tmp_path / "sweep.toml").read_text() == larger.text
    assert len(load_sweep(tmp_path).points) == 8 + more


@pytest.mark.parametrize(
    ("before", "after", "difference"),
    [
        ("width = 4", "width = 8", "model.width: 4 there, 8 here"),
        ("lengths = [4, 6]", "lengths = [6, 8]", "lengths: 4 there only"),
        ("seeds = 2", "seeds = 1", "seeds: 1 there only"),
        ('variants = ["softmax", ', "variants = [", 'variant "softmax" there only'),
        (
            "[model]",
            'measure = {measure = "l1"}\n[model]',
            "measure.measure: {'kind': 'l2'} there, {'kind': 'l1'} here",
        ),
        ("[model]", "inputs = {count = 2}\n[model]", "what its inputs are"),
    ],
)
def test_another_config_is_refused_in_a_directory_with_points_and_changes_nothing(
    tmp_path, before, after, difference
):
    run(tiny_sweep(), tmp_path)
    files = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(InputError, match="Name another directory") as refused:
        run(tiny_sweep(before, after), tmp_path)
    assert f"differ: {difference}. " in str(refused.value)
    assert files == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}


def test_a_config_without_points_and_points_without_a_plan_may_be_replaced(tmp_path):
    wider = tiny_sweep("width = 4", "width = 8")
    tiny_sweep().plan.write(tmp_path / "sweep.json")
    assert run(wider, tmp_path)[0].computed == 8
    (tmp_path / "sweep.json").unlink()
    assert run(tiny_sweep(), tmp_path)[0].computed == 8
