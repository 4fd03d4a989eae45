"""Progress: a bar where it is wanted, on standard error, once."""

from __future__ import annotations

import io
import sys
import threading
import time

import jax
import jax.numpy as jnp
import pytest

import jaxsens
from jaxsens.cli import measure as command
from jaxsens.cli.measuring import OutputOptions
from jaxsens.cli.models import InputOptions
from jaxsens.core.placement import progress
from jaxsens.core.placement.progress import Bar, progress_of
from tests.refusals import refusal, refused
from tests.small_models import small


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


def test_true_is_a_bar_on_standard_error(monkeypatch, capsys):
    errors = a_terminal(monkeypatch)
    with progress_of(True) as told:
        assert isinstance(told, Bar)
        told(1, 7)
        wait_for(lambda: "1/7" in errors.getvalue())
        told(7, 7)
    assert "7/7" in errors.getvalue()
    assert "flips" in errors.getvalue()
    assert capsys.readouterr().out == ""


def test_the_bar_says_which_program_is_compiled_in_its_thread(monkeypatch):
    errors = a_terminal(monkeypatch)
    said = []

    def compile_one(name, factor):
        def program(x):
            return jnp.sin(x) * factor

        program.__name__ = name
        jax.jit(program)(1.0).block_until_ready()

    original = Bar._text
    monkeypatch.setattr(Bar, "_text", lambda bar: said.append(original(bar)) or said[-1])
    with progress_of(True) as told:
        assert told is not None
        wait_for(lambda: "starting" in errors.getvalue())
        assert "0/?" not in errors.getvalue()
        del said[:]
        compile_one("_prepared", 0.751)
        other = threading.Thread(target=compile_one, args=("elsewhere", 0.752))
        other.start()
        other.join()
        told(3, 7)
        compile_one("of_the_user", 0.753)
        wait_for(lambda: "3/7 flips" in errors.getvalue())
    assert said == [
        "compiling program 1: what the flips share",
        "program 1 compiled",
        "3/7 flips",
        "3/7 flips, compiling program 2: of_the_user",
        "3/7 flips",
    ]
    compile_one("after", 0.754)  # nobody listens any more
    assert "after" not in errors.getvalue()


def test_a_measurement_says_what_it_compiles_from_its_first_program_on(monkeypatch):
    a_terminal(monkeypatch)
    said, original = [], Bar._text
    monkeypatch.setattr(Bar, "_text", lambda bar: said.append(original(bar)) or said[-1])
    monkeypatch.setattr(Bar, "_update", lambda bar: bar._text())
    transformer = jaxsens.Transformer(small(alphabet_size=2, layers=1, dtype="float32"), seed=0)
    assert transformer.parameters
    jax.clear_caches()
    jaxsens.flip_sensitivity(transformer, [0, 1] * 6, engine="vmap", progress=True)
    parts = ["what the flips share", "the model in float64, for its rounding", "the flips"]
    compiling = [f"compiling program {k}: {part}" for k, part in enumerate(parts, 1)]
    assert [text for text in said if text.startswith("compiling")] == compiling
    assert said[-1] == "11/11 flips"


def test_by_default_a_bar_comes_on_a_terminal_after_a_while(monkeypatch):
    errors = a_terminal(monkeypatch)
    monkeypatch.setattr(progress, "PATIENCE", 1000.0)
    with progress_of(None) as told:
        assert told is not None
        told(7, 7)
    assert errors.getvalue() == ""
    monkeypatch.setattr(progress, "PATIENCE", 0.05)
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
    a_terminal(monkeypatch)
    assert len(measure(progress=True)) == 7
    assert len(measure(progress=False)) == 7
    seen = []
    measure(progress=lambda *told: seen.append(told))
    assert seen[-1] == (7, 7)


@pytest.mark.parametrize("wrong", ["bar", 1, lambda done: None, object()])
def test_what_is_no_progress_is_refused_before_anything_is_measured(wrong):
    refused("progress", measure, progress=wrong)
    if not callable(wrong):
        with refusal("progress"):
            jaxsens.theory.worst_input(model, 4, 2, progress=wrong)


@pytest.mark.parametrize("quiet", [True, False])
def test_the_command_has_the_same_bar_unless_it_is_to_be_quiet(quiet, monkeypatch, tmp_path):
    errors = a_terminal(monkeypatch)
    monkeypatch.setattr(progress, "PATIENCE", 0.0)
    model = ("alphabet_size=2", "width=4", "heads=1", "layers=1", "feed_forward=4")
    output = OutputOptions(quiet=quiet, save=tmp_path / "flips.parquet")
    command.measure(InputOptions(n=4, model=model), output=output)
    assert ("3/3 flips" in errors.getvalue()) is not quiet
