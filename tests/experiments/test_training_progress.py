"""What a training says: timed lines off a terminal, few of them, and no note lost."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from jaxsens.experiments import training_progress
from jaxsens.experiments.training_progress import TrainingBar, TrainingLog, watching
from jaxsens.training.evaluation import CrossEntropy, Recognition
from jaxsens.training.events import Evaluated, Note, Saved, Stepped
from tests.experiments.tiny import printed, quiet


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still until it is set."""
    now = [100.0]
    monkeypatch.setattr(training_progress.time, "monotonic", lambda: now[0])
    return now


def stepped(step: int) -> Stepped:
    return Stepped(step=step, steps=100, length=16, loss=0.9, optimum=0.8)


def test_lines_come_first_every_five_seconds_and_last_with_the_time_left(clock):
    console = quiet()
    with TrainingLog(console, "lstm") as watcher:
        for step, now in ((10, 100), (20, 104), (30, 106), (40, 108), (100, 110)):
            clock[0] = float(now)
            watcher(stepped(step))
    assert printed(console).splitlines() == [
        "[     0.0 s]  lstm: 10/100  loss 0.9000 (optimum 0.8000), n = 16",
        "[     6.0 s]  lstm: 30/100  loss 0.9000 (optimum 0.8000), n = 16; about 21 s left",
        "[    10.0 s]  lstm: 100/100  loss 0.9000 (optimum 0.8000), n = 16; about 0 s left",
    ]


def test_notes_and_evaluations_are_printed_at_once_and_checkpoints_are_not(clock):
    console = quiet()
    with watching(console) as watcher:
        assert isinstance(watcher, TrainingLog)
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


def test_a_terminal_gets_a_bar_with_notes_above_it():
    console = Console(file=io.StringIO(), force_terminal=True, width=120)
    with watching(console, "lstm") as watcher:
        assert isinstance(watcher, TrainingBar)
        watcher(stepped(40))
        watcher(Note("goes on"))
        watcher(stepped(100))
    text = printed(console)
    assert "100/100" in text
    assert "lstm: goes on" in text
    assert "loss 0.9000" in text
