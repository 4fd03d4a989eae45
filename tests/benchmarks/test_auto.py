"""The benchmark of `auto`: what it prints is what was measured, in the checkout that was asked for."""

from __future__ import annotations

import pytest

from benchmarks import auto
from benchmarks.auto import ROOT, Options, Timed
from jaxsens.core.base.errors import InputError

ROWS = [
    Timed("auto", 2, 1024, "difference", 4.0, 0.5, False),
    Timed("vmap", 2, 1024, "vmap", 8.0, 7.0, False),
    Timed("difference", 2, 1024, "difference", 5.0, 0.25, False),
    Timed("baseline vmap", 2, 1024, "vmap", 9.0, 8.0, False),
]


def test_ratios_are_to_the_best_of_both_engines_and_to_the_baseline():
    lines = auto.table(ROWS).splitlines()
    assert lines[0] == "| 2 | 1024 | auto | difference | 4 | 0.80 | 0.5 | 2.00 |"
    assert lines[3] == "| 2 | 1024 | baseline vmap | vmap | 9 | 1.80 | 8 | 32.00 |"
    assert "16.0 times as fast" in auto.speed_up(ROWS)
    assert auto.speed_up(ROWS[:3]) == ""


def test_options_that_cannot_be_used_are_named_before_anything_is_measured(tmp_path, capsys):
    assert auto.main(["--turns", "0", "--lengths", "1", "--baseline", str(tmp_path)]) == 2
    told = capsys.readouterr().err
    for name in ("--turns", "--lengths", "--baseline"):
        assert name in told


@pytest.mark.slow
def test_each_method_runs_in_its_checkout_and_the_first_call_compiles(monkeypatch, tmp_path):
    monkeypatch.setattr(auto, "BASELINE", (1, 8))
    said = []
    rows = auto.timed(Options(turns=1, baseline=ROOT), 1, 8, said.append)
    assert [row.method for row in rows] == ["auto", "vmap", "difference", "baseline vmap"]
    assert [row.engine for row in rows[1:]] == ["vmap", "difference", "vmap"]
    assert all(row.first > row.later > 0 for row in rows)
    assert len(said[0].splitlines()) == 4
    with auto.Process(tmp_path, "vmap", 1, 8) as process, pytest.raises(InputError, match="checkout"):
        process.measure(0)
