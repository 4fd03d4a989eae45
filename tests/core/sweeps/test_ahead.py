"""The programs of the next (variant, n) are compiled in another thread while points are measured, and nothing else."""

from __future__ import annotations

import os
import signal
import threading
import time

import jax.monitoring
import pytest

from jaxsens.core.sweeps import points as sweep_points
from jaxsens.core.sweeps.config import parse_sweep_config
from jaxsens.core.sweeps.sweep import run_sweep
from tests.core.sweeps.tiny import fake_flip_sensitivity, measured_by, printed, quiet, tiny_text

AHEAD = "jaxsens ahead"


def sweep_of(lengths, variants=("softmax",), after=""):
    """A sweep of one variant, of a width that no other test has."""
    return parse_sweep_config(tiny_text(after, lengths=lengths, variants=variants, width=6))


def ran(sweep, folder):
    console = quiet()
    outcome = run_sweep(sweep, folder, sweep.points, console)
    assert not [one for one in threading.enumerate() if one.name.startswith(AHEAD)], "a thread was left"
    return outcome, printed(console)


@pytest.fixture
def in_turn(monkeypatch):
    """Measures the first point when `later` lengths are compiled ahead, all of which may fail then. Gives both."""
    compiles, measures = sweep_points.compile_ahead, sweep_points.flip_sensitivity

    def of(later, fails=False):
        compiled, measured, done = [], [], threading.Semaphore(0)

        def ahead(model, tokens, **options):
            compiles(model, tokens, **options)
            compiled.append(tokens.shape[1])
            done.release()
            if fails:
                raise RuntimeError("no luck")

        def measuring(model, tokens, **options):
            for _ in range(0 if measured else later):
                assert done.acquire(timeout=20), "nothing was compiled ahead"
            measured.append(measures(model, tokens, **options))
            return measured[-1]

        monkeypatch.setattr(sweep_points, "compile_ahead", ahead)
        monkeypatch.setattr(sweep_points, "flip_sensitivity", measuring)
        return compiled, measured

    return of


def test_the_thread_that_measures_compiles_for_the_first_length_alone(in_turn, tmp_path, request):
    (compiled, measured), events = in_turn(later=2), set()

    def note(event, duration_secs, **about):
        del duration_secs, about
        if "backend_compile" in event:
            events.add((threading.current_thread().name.startswith(AHEAD), len(measured)))

    jax.monitoring.register_event_duration_secs_listener(note)
    request.addfinalizer(lambda: jax.monitoring.unregister_event_duration_listener(note))
    outcome, _ = ran(sweep_of([5, 7, 9]), tmp_path)
    assert (outcome.computed, outcome.failures, sorted(compiled)) == (6, (), [7, 9])
    assert events == {(True, 0), (False, 0)}


@pytest.mark.filterwarnings("always")
@pytest.mark.parametrize("fails", [False, True])
def test_what_is_compiled_ahead_warns_of_no_point_and_fails_none(in_turn, tmp_path, fails):
    compiled, _ = in_turn(1, fails)
    options = '[measure]\nflips = { kind = "substitute", positions = [0] }\nengine = "vmap"\n'
    cold = '[[variant]]\nname = "cold"\nmodel = { weighting = "temperature-cubic" }\n'
    outcome, log = ran(sweep_of([4, 1024], (), options + cold), tmp_path)
    assert (outcome.computed, outcome.failures, compiled) == (4, (), [1024])
    told = [line for line in log.splitlines() if "warning: " in line and "attention scores" in line]
    assert ["n=1024 seed=0: n = 1024: attention scores" in line for line in told] == [True], log


@pytest.mark.usefixtures("interruptible")
def test_a_signal_ends_the_run_when_what_is_being_compiled_ahead_is_done(monkeypatch, tmp_path):
    signalled, compiled = threading.Event(), []

    def ahead(model, tokens, **options):
        del model, options
        signalled.wait(60)
        time.sleep(0.5)
        compiled.append(tokens.shape[1])

    def stopped(model, tokens, **options):
        if not signalled.is_set():
            os.kill(os.getpid(), signal.SIGTERM)
            signalled.set()
        return fake_flip_sensitivity(model, tokens, **options)

    measured_by(monkeypatch, stopped)
    monkeypatch.setattr(sweep_points, "compile_ahead", ahead)
    sweep = sweep_of([5, 7, 9, 11, 13])
    outcome, _ = ran(sweep, tmp_path)
    assert (outcome.stopped_by, outcome.computed, sorted(compiled)) == (signal.SIGTERM, 1, [7, 9])
    outcome, _ = ran(sweep, tmp_path)
    assert (outcome.computed, outcome.finished) == (9, 10)
