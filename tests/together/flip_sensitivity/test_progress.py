"""Progress: a bar where it is wanted, on standard error, once."""

from __future__ import annotations

import io
import sys
import threading
import time

import jax.numpy as jnp
import pytest

import jaxsens
from jaxsens.cli import measure as command
from jaxsens.cli.measure import InputOptions, OutputOptions
from jaxsens.core.placement import run
from jaxsens.core.placement.run import progress_of
from tests.refusals import refused


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
