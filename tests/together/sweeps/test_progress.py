"""Progress and status of a sweep: fair guesses of the time left, lines or a bar, and what a directory alone says.

Of a measurement a bar, where it is wanted, on standard error, once.
"""

from __future__ import annotations

import io
import json
import sys
import threading
import time
from pathlib import Path

import jax.numpy as jnp
import pytest
from rich.console import Console

import jaxsens
from jaxsens.cli import main
from jaxsens.cli import measure as command
from jaxsens.cli.measure import InputOptions, OutputOptions
from jaxsens.cli.status import sweep_status
from jaxsens.cli.trained import watching
from jaxsens.core.base.text import duration
from jaxsens.core.placement import run
from jaxsens.core.placement.run import progress_of
from jaxsens.core.sweeps import points as sweep_points
from jaxsens.core.sweeps import progress
from jaxsens.core.sweeps.points import select
from jaxsens.core.sweeps.progress import BarReporter, TimeLeft, left_text, reporting
from jaxsens.core.sweeps.sweep import run_sweep
from jaxsens.training.evaluation import CrossEntropy, Recognition
from jaxsens.training.loop import Evaluated, Note, Saved, Stepped
from tests.core.sweeps.tiny import fake_flip_sensitivity, printed, quiet, tiny_sweep
from tests.refusals import refused


def estimator(**costs: list[tuple[int, float]]) -> TimeLeft:
    left = TimeLeft()
    for name, pairs in costs.items():
        for n, seconds in pairs:
            left.add(name, n, seconds)
    return left


def test_the_time_left_is_that_of_points_of_the_same_program():
    left = estimator(soft=[(32, 9.0), (32, 1.0), (64, 9.0), (64, 2.0)], hard=[(32, 9.0), (32, 3.0)])
    assert left.of({("soft", 32): 2, ("soft", 64): 3}) == 2 * 1.0 + 3 * 2.0
    assert left.of({}) == 0.0


def test_nothing_is_said_where_it_would_be_a_guess():
    assert TimeLeft().of({("soft", 8): 1}) is None
    compiled = estimator(soft=[(32, 9.0)])
    assert compiled.of({("soft", 64): 1}) is None
    assert compiled.of({("soft", 32): 1}) is None  # the first point compiled
    assert estimator(soft=[(32, 9.0), (32, 1.0)]).of({("soft", 64): 1}) is None  # one length shows no growth
    far = estimator(soft=[(32, 9.0), (32, 1.0), (64, 9.0), (64, 2.0)])
    assert far.of({("soft", 2048): 1}) is None  # too far to tell


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (3.24e-5, "32.4 µs"),
        (0.0324, "0.032 s"),
        (3.24, "3.2 s"),
        (9.97, "10 s"),
        (99, "99 s"),
        (150, "2 min"),
        (9000, "2.5 h"),
    ],
)
def test_durations_are_in_a_unit_that_suits_them(seconds, text):
    assert duration(seconds) == text
    assert left_text(seconds) == f"; about {text} left"
    assert left_text(None) == ""


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still until it is set."""
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def test_lines_are_timed_and_rare(clock):
    console = quiet()
    with reporting(console, 4) as reporter:
        clock[0] += 0.1
        reporter.finished("a", None)  # too soon after the start
        reporter.inside("b", 1, 9)  # too soon
        clock[0] = 162.0
        reporter.finished("b", 5.0)
        reporter.note("careful")  # always
        clock[0] = 230.0
        reporter.inside("c", 3, 9)
        clock[0] = 280.5
        reporter.finished("c", None)  # too soon
    assert printed(console).splitlines() == [
        "[    62.0 s]  2/4  b; about 5 s left",
        "[    62.0 s]  careful",
        "[   130.0 s]  2/4, now c: 3 of 9 flips",
    ]


def test_a_log_has_one_failure_a_minute_and_counts_them_all(clock):
    console = quiet()
    with reporting(console, 100) as reporter:
        for k in range(70):
            clock[0] = 100.0 + k
            reporter.failed(f"failed: {k}")
            reporter.finished(f"{k}", None)
    assert printed(console).splitlines() == [
        "[     0.0 s]  failed: 0",
        "[    60.0 s]  failed: 60",
        "[    60.0 s]  61/100, 61 failed  60",
    ]


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


def stepped(step: int) -> Stepped:
    return Stepped(step=step, steps=100, length=16, loss=0.9, optimum=0.8)


def test_lines_come_first_every_minute_and_last_with_the_time_left(clock):
    console = quiet()
    with watching(console, 100, "lstm") as watcher:
        for step, now in ((10, 100), (20, 140), (30, 160), (40, 180), (100, 210)):
            clock[0] = float(now)
            watcher(stepped(step))
    assert printed(console).splitlines() == [
        "[     0.0 s]  lstm: 10/100  loss 0.9000 (optimum 0.8000), n = 16",
        "[    60.0 s]  lstm: 30/100  loss 0.9000 (optimum 0.8000), n = 16; about 4 min left",
        "[   110.0 s]  lstm: 100/100  loss 0.9000 (optimum 0.8000), n = 16; about 0 s left",
    ]


def test_notes_and_evaluations_are_printed_at_once_and_checkpoints_are_not(clock):
    console = quiet()
    with watching(console, 100) as watcher:
        watcher(Note("goes on from step 4"))
        watcher(Saved(4, Path("somewhere")))
        watcher(Evaluated(4, CrossEntropy(8, 4, 1.0, 0.25, 0.1)))
        watcher(Evaluated(4, CrossEntropy(8, 4, 1.0, 0.25, 0.1, 0.125, 0.1)))
        watcher(Evaluated(4, Recognition(8, 4, 0.75, 0.1, -1.5, 0.1)))
        watcher(Stepped(2, 100, 16, 0.5, 0.0))
    assert [line.partition("]  ")[2] for line in printed(console).splitlines()] == [
        "goes on from step 4",
        "step 4: n = 8: cross-entropy 1.0000, 0.2500 above the optimum",
        "step 4: n = 8: cross-entropy 1.0000, 0.2500 above the optimum, 0.1250 of it for choosing brackets",
        "step 4: n = 8: accuracy 0.750, margin -1.5",
        "2/100  loss 0.5000, n = 16",
    ]


@pytest.fixture
def sweep(faked):
    return tiny_sweep()


def ran(sweep, folder, **selection):
    return run_sweep(sweep, folder, select(sweep.points, **selection), quiet())


def test_a_sweep_that_was_stopped_finished_or_never_begun(sweep, tmp_path):
    refused("directory", sweep_status, tmp_path)
    ran(sweep, tmp_path, only=["n=4"])
    found = sweep_status(tmp_path)
    assert (found.state, found.points, found.of_points, found.report) == ("unfinished", 4, 8, False)
    ran(sweep, tmp_path)
    found = sweep_status(tmp_path)
    assert (found.state, found.points, found.failed) == ("finished", 8, ())
    assert found.compute_seconds_left == 0.0
    assert "jaxsens report" in found.lines()[-1]


def test_the_time_left(sweep, tmp_path):
    ran(sweep, tmp_path, only=["n=4", "variant=softmax"])
    ran(sweep, tmp_path, only=["n=6", "variant=softmax"])
    found = sweep_status(tmp_path)
    assert found.compute_seconds_left is not None
    assert any("of one process left" in line for line in found.lines())


def test_what_failed_is_said_until_it_is_computed(sweep, tmp_path, monkeypatch, capsys):
    def fails(model, tokens, **options):
        raise RuntimeError("no luck")

    monkeypatch.setattr(sweep_points, "flip_sensitivity", fails)
    ran(sweep, tmp_path, only=["n=6", "seed=1"])
    assert main(["status", str(tmp_path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["state"], found["points"]) == ("unfinished", 0)
    assert found["failed"][0] == {"item": "softmax n=6 seed=1", "message": "RuntimeError: no luck"}
    assert main(["status", str(tmp_path)]) == 0
    assert "failed: leftmost-hard n=6 seed=1: RuntimeError: no luck" in capsys.readouterr().out
    ran(sweep, tmp_path)
    assert sweep_status(tmp_path).state == "failed"
    monkeypatch.setattr(sweep_points, "flip_sensitivity", fake_flip_sensitivity)
    ran(sweep, tmp_path)
    assert sweep_status(tmp_path).failed == ()
    assert not list(tmp_path.rglob("*.failed"))


def test_looking_writes_nothing_outside_the_directory(sweep, tmp_path):
    out, outside = tmp_path / "out", tmp_path / "outside"
    ran(sweep, out)
    (out / "points").rename(outside)
    (out / "points").symlink_to(outside)
    (outside / "variant=softmax" / "n=4").chmod(0o755)
    before = (outside / "variant=softmax" / "n=4").stat().st_mtime_ns
    assert sweep_status(out).points == 8
    assert (outside / "variant=softmax" / "n=4").stat().st_mtime_ns == before


class Terminal(io.StringIO):
    def isatty(self):
        return True


def model(tokens):
    return jnp.sin(tokens * 1.0).sum()


def measure(**options):
    return jaxsens.flip_sensitivity(model, [0, 1] * 4, 2, **options)


def a_terminal(monkeypatch):
    """Standard error as a terminal. Not a fixture: pytest puts its own back between setup and test."""
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    return terminal


def wait_for(condition):
    until = time.monotonic() + 20
    while not condition() and time.monotonic() < until:
        time.sleep(0.01)
    assert condition()


def test_true_is_a_bar_on_standard_error_from_the_start(monkeypatch, capsys):
    errors = a_terminal(monkeypatch)
    with progress_of(True) as told:
        assert told is not None
        wait_for(lambda: "preparing and compiling" in errors.getvalue())
        assert "0/?" not in errors.getvalue()
        told(1, 7)
        wait_for(lambda: "1/7 flips" in errors.getvalue())
        told(7, 7)
    assert "7/7 flips" in errors.getvalue()
    assert capsys.readouterr().out == ""


def test_by_default_a_bar_comes_on_a_terminal_after_a_while(monkeypatch):
    errors = a_terminal(monkeypatch)
    monkeypatch.setattr(run, "PATIENCE", 1000.0)
    with progress_of(None) as told:
        assert told is not None
        told(7, 7)
    assert errors.getvalue() == ""
    monkeypatch.setattr(run, "PATIENCE", 0.05)
    with progress_of(None) as told:
        assert told is not None
        told(2, 7)
        wait_for(lambda: "2/7" in errors.getvalue())


@pytest.mark.parametrize("asked", [False, None])
def test_no_bar_without_a_terminal_or_where_it_is_refused(asked, monkeypatch):
    a_terminal(monkeypatch)
    if asked is None:
        monkeypatch.setattr(sys, "stderr", io.StringIO())
    with progress_of(asked) as told:
        assert told is None


def test_the_bar_ends_with_the_measurement_also_where_it_fails(monkeypatch):
    a_terminal(monkeypatch)
    before = threading.active_count()

    def fail():
        with progress_of(True):
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    wait_for(lambda: threading.active_count() <= before)


def test_a_measurement_tells_its_bar_of_every_flip(monkeypatch):
    errors = a_terminal(monkeypatch)
    assert len(measure(progress=True)) == 7
    assert "7/7 flips" in errors.getvalue()
    assert len(measure(progress=False)) == 7
    seen = []
    measure(progress=lambda *told: seen.append(told))
    assert seen[-1] == (7, 7)


@pytest.mark.parametrize("wrong", ["bar", 1, lambda done: None, object()])
def test_what_is_no_progress_is_refused_before_anything_is_measured(wrong):
    refused("progress", measure, progress=wrong)
    if not callable(wrong):
        refused("progress", jaxsens.theory.worst_input, model, 4, 2, progress=wrong)


@pytest.mark.parametrize("quiet", [True, False])
def test_the_command_has_the_same_bar_unless_it_is_to_be_quiet(quiet, monkeypatch, tmp_path):
    errors = a_terminal(monkeypatch)
    monkeypatch.setattr(run, "PATIENCE", 0.0)
    model = ("alphabet_size=2", "width=4", "heads=1", "layers=1", "feed_forward=4")
    output = OutputOptions(quiet=quiet, save=tmp_path / "flips.parquet")
    command.measure(InputOptions(n=4, model=model), output=output)
    assert ("3/3 flips" in errors.getvalue()) is not quiet
