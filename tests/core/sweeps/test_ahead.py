"""The programs of the next (variant, n) are compiled in another thread while points are measured, and nothing else."""

from __future__ import annotations

import os
import signal
import threading
import time

import jax.monitoring
import numpy as np
import pytest

import jaxsens
from jaxsens.core.base import stopping
from jaxsens.core.flip_sensitivity import compile_ahead
from jaxsens.core.sweeps import points as sweep_points
from jaxsens.core.sweeps.config import parse_sweep_config
from jaxsens.core.sweeps.sweep import run_sweep
from tests.core.sweeps.tiny import fake_flip_sensitivity, measured_by, printed, quiet, tiny_text

AHEAD = "jaxsens ahead"


def sweep_of(lengths, variants=("softmax",), after=""):
    """A sweep of one variant, of a width that no other test has."""
    return parse_sweep_config(tiny_text(after, lengths=lengths, variants=variants, width=6), allow_code=True)


def made(n, seed):
    """What a user's function makes."""
    return jaxsens.Transformer(jaxsens.TransformerConfig(2, width=4, heads=1, feed_forward=4), seed=seed)


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


@pytest.fixture
def on_compilation(request):
    """Calls a function for each program that is compiled, in the thread that compiles it."""

    def of(call):
        def note(event, duration_secs, **about):
            del duration_secs, about
            if "backend_compile" in event:
                call()

        jax.monitoring.register_event_duration_secs_listener(note)
        request.addfinalizer(lambda: jax.monitoring.unregister_event_duration_listener(note))

    return of


def test_the_thread_that_measures_compiles_for_the_first_length_alone(in_turn, tmp_path, on_compilation):
    (compiled, measured), events = in_turn(later=2), set()
    on_compilation(lambda: events.add((threading.current_thread().name.startswith(AHEAD), len(measured))))
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


@pytest.mark.parametrize(
    ("lengths", "after", "processors"),
    [
        ([4, 1025], "", 2),
        ([4, 6], "[placement]\nmemory_budget = 1_000_000_000\n", 2),
        ([4, 6], "", 1),
        ([4, 6], '[[variant]]\nname = "own"\nmodel = { python = "tests.core.sweeps.test_ahead:made" }\n', 2),
    ],
    ids=["a long point", "a budget", "one core", "code of others"],
)
def test_nothing_is_compiled_ahead_for(monkeypatch, tmp_path, lengths, after, processors):
    compiled = []
    measured_by(monkeypatch)
    monkeypatch.setattr(sweep_points, "compile_ahead", lambda model, *_, **__: compiled.append(model))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(processors))
    outcome, _ = ran(sweep_of(lengths, () if "python" in after else ("softmax",), after), tmp_path)
    assert (outcome.failures, compiled) == ((), [])


@pytest.mark.usefixtures("interruptible")
def test_after_a_signal_a_thread_compiles_no_flips(on_compilation):
    compiles = []
    on_compilation(lambda: compiles.append(threading.current_thread()))

    def compiled_in_a_thread(n):
        asked = jaxsens.Substitute(2), jaxsens.L2(), jaxsens.Vmap(), jaxsens.Placement()
        thread = threading.Thread(target=compile_ahead, args=(made(n, 0), np.zeros((1, n), int), *asked))
        thread.start()
        thread.join()
        return compiles.count(thread)

    before = compiled_in_a_thread(6)
    with stopping.noting(signal.SIGTERM) as asked_for:
        os.kill(os.getpid(), signal.SIGTERM)
        after = compiled_in_a_thread(7)
        assert asked_for.answer() == signal.SIGTERM
    assert after == before - 1


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
