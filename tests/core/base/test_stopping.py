"""Signals: noted, never lost, said at once, and the handlers that stood before put back."""

# ruff: noqa: PT012 - what is between the signal and the exception is what these tests are about

from __future__ import annotations

import gc
import os
import signal
import threading

import pytest

from jaxsens.core.base import stopping
from jaxsens.core.base.stopping import Stopped, check, noting

pytestmark = pytest.mark.usefixtures("interruptible")


def send(number: int) -> None:
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", stopping.ENDING)
def test_a_signal_is_noted_and_raised_where_it_is_tested(number):
    passed = False
    with pytest.raises(Stopped) as caught, noting(*stopping.ENDING) as request:
        check()
        send(number)
        passed = True
        assert request.number == number
        check()
    assert passed
    assert caught.value.signal == number
    assert isinstance(caught.value, KeyboardInterrupt)


def test_a_signal_is_raised_once_at_the_end_of_the_block_at_the_latest():
    with pytest.raises(KeyboardInterrupt), noting(signal.SIGINT):
        send(signal.SIGINT)
    check()  # Outside a block nothing is left of it.
    with noting(signal.SIGINT):
        check()
    with noting(signal.SIGINT, signal.SIGTERM):
        send(signal.SIGTERM)
        with pytest.raises(Stopped):
            check()
    check()


def test_in_nested_blocks_one_request_is_seen_by_all():
    with pytest.raises(Stopped) as caught, noting(signal.SIGINT, signal.SIGTERM):
        with noting(signal.SIGINT):
            send(signal.SIGTERM)
        check()
    assert caught.value.signal == signal.SIGTERM


def test_a_second_signal_does_what_it_would_do_without_and_an_echo_of_the_first_does_not(monkeypatch):
    with pytest.raises(KeyboardInterrupt) as caught, noting(signal.SIGINT):
        send(signal.SIGINT)
        send(signal.SIGINT)
        monkeypatch.setattr(stopping, "SAME_SECONDS", 0.0)
        send(signal.SIGINT)
        pytest.fail("a second Ctrl-C did not raise")
    assert not isinstance(caught.value, Stopped)


def test_a_handler_of_ones_own_and_an_ignored_signal_are_left_alone():
    heard = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with noting(signal.SIGINT, signal.SIGTERM) as request:
            send(signal.SIGTERM)
            send(signal.SIGINT)
            check()
            assert request.number is None
        assert heard == [signal.SIGTERM]
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, before)
        signal.signal(signal.SIGINT, signal.default_int_handler)


def test_other_threads_install_nothing_and_are_not_stopped():
    found = []

    def work():
        with noting(signal.SIGINT) as request:
            check()
            found.append((request.number, signal.getsignal(signal.SIGINT)))

    def run():
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()

    run()
    with pytest.raises(Stopped), noting(signal.SIGINT):
        send(signal.SIGINT)
        run()
        check()
    assert found[0] == (None, signal.default_int_handler)
    assert found[1][0] is None
    assert len(found) == 2


def test_a_measurement_ends_with_what_is_finished_wherever_the_signal_comes(monkeypatch):
    """In the garbage collector's callback too, where what a handler raised would be dropped."""
    import numpy as np

    import jaxsens

    model = jaxsens.Transformer(jaxsens.TransformerConfig(alphabet_size=2, width=4, heads=1, layers=1))
    tokens = np.zeros((3, 12), int)
    sent = []

    def during(phase, info):
        if not sent:
            sent.append(phase)
            send(signal.SIGINT)

    def progress(done, total):
        if not sent:
            gc.callbacks.append(during)
            gc.collect()
            gc.callbacks.remove(during)

    with pytest.raises(jaxsens.MeasurementInterrupted) as caught:
        jaxsens.flip_sensitivity(model, tokens, progress=progress, placement=jaxsens.Placement(batch_size=2))
    assert sent
    assert 0 < len(caught.value.partial) < caught.value.partial.population
