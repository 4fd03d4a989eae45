"""Signals: noted, never lost, said at once, and the handlers that stood before put back."""

# ruff: noqa: PT012 - what is between the signal and the exception is what these tests are about

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from jaxsens.base import stopping
from jaxsens.base.stopping import Stopped, check, noting
from jaxsens.cli import supervise

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(autouse=True)
def handlers():
    """Python's own handlers, also where the tests were started in the background and inherit that Ctrl-C is ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    hung_up = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    was = signal.getsignal(signal.SIGTERM)
    yield
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler, "the handler was not put back"
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_DFL, "the handler was not put back"
    assert signal.getsignal(signal.SIGTERM) is was, "the handler was not put back"
    assert stopping._request.previous == {}
    signal.signal(signal.SIGINT, before)
    signal.signal(signal.SIGHUP, hung_up)


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


def test_a_signal_during_a_callback_of_the_garbage_collector_is_not_lost():
    sent = []

    def during(phase, info):
        if not sent:
            sent.append(phase)
            send(signal.SIGINT)

    gc.callbacks.append(during)
    try:
        with pytest.raises(Stopped), noting(signal.SIGINT):
            gc.collect()
            check()
    finally:
        gc.callbacks.remove(during)
    assert sent


def test_a_signal_after_the_last_test_is_raised_at_the_end_of_the_block():
    with pytest.raises(KeyboardInterrupt), noting(signal.SIGINT):
        send(signal.SIGINT)
    check()  # Outside a block nothing is left of it.
    with noting(signal.SIGINT):
        check()


def test_one_that_was_answered_is_not_raised_again():
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


COMMAND = """
import ctypes, fcntl, signal, sys, termios, time
from pathlib import Path
from jaxsens.base import files, stopping

kind, seconds, ignored = sys.argv[1], float(sys.argv[2]), sys.argv[3]
stopping.DEADLINE_SECONDS = seconds
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_IGN if ignored == "ignored" else signal.SIG_DFL)
if kind == "prints":
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
with stopping.of_a_command(own_process=True) as request:
    print("ready", flush=True)
    if kind == "compiled":
        ctypes.CDLL(None).usleep(30_000_000)  # Python runs no handler meanwhile.
    if kind == "writing":
        with stopping.handing_over(lambda: files.write_text("finished", "so far")):
            with files.atomic_path("long") as temporary:
                with stopping.handing_over(lambda: 1 / 0):
                    time.sleep(3 * seconds)
                    temporary.write_text("whole")
            time.sleep(30)
    while True:
        time.sleep(0.01)
        if kind == "tests":
            stopping.check()
        if kind == "prints":
            print("and on" if request.number is None else "and its end", flush=True)
            if request.number is not None:
                Path("ended").touch()
                sys.exit(128 + request.answer())
"""


def start(
    kind: str, folder: Path = ROOT, seconds: float = 60.0, hangup: str = "heard"
) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", COMMAND, kind, str(seconds), hangup],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    time.sleep(0.05)
    return process


def test_a_command_says_at_once_that_it_stops_and_comes_to_its_end():
    process = start("tests")
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=60)
    assert said.count("stopping after this step, or without it in 7 s; again to stop now") == 1
    assert "Stopped: stopped by SIGTERM" in said


@pytest.mark.quick(2)
@pytest.mark.parametrize("kind", ["compiled", "python"])
@pytest.mark.parametrize("number", stopping.ENDING)
def test_a_command_gives_a_long_step_up_after_a_single_signal(kind, number):
    """A scheduler sends no second one: a model that was built for 17 minutes was killed."""
    process = start(kind, seconds=0.3)
    began = time.monotonic()
    process.send_signal(number)
    _, said = process.communicate(timeout=20)
    assert process.returncode == 128 + number
    assert 0.3 <= time.monotonic() - began < 5
    assert "stopped in the middle of a step" in said
    assert "Traceback" not in said


def test_the_deadline_is_within_the_ten_seconds_that_are_promised():
    assert 5 <= stopping.DEADLINE_SECONDS <= 9


def test_before_a_step_is_given_up_what_is_finished_is_handed_over_and_files_are_written_to_their_end(
    tmp_path,
):
    process = start("writing", tmp_path, seconds=0.5)
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=20)
    assert process.returncode == 143
    assert (tmp_path / "finished").read_text() == "so far"
    assert (tmp_path / "long").read_text() == "whole"
    assert {path.name for path in tmp_path.iterdir()} == {"finished", "long"}
    assert "Traceback" not in said


def test_nohup_is_respected():
    process = start("tests", hangup="ignored")
    process.send_signal(signal.SIGHUP)
    time.sleep(0.2)
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=20)
    assert "stopped by SIGTERM" in said


def test_a_command_whose_terminal_is_closed_comes_to_its_end_although_it_cannot_print(tmp_path):
    ours, its = os.openpty()

    process = subprocess.Popen(
        [sys.executable, "-c", COMMAND, "prints", "60", "heard"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=its,
        stdout=its,
        stderr=its,
        start_new_session=True,
    )
    os.close(its)
    assert os.read(ours, 5) == b"ready"
    time.sleep(0.1)
    os.close(ours)  # The kernel sends SIGHUP.
    assert process.wait(20) == 128 + signal.SIGHUP
    assert (tmp_path / "ended").exists()


@pytest.mark.quick(2)
@pytest.mark.parametrize("kind", ["compiled", "python"])
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_second_signal_ends_a_command_at_once_also_in_compiled_code(kind, number, code):
    process = start(kind)
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    assert "stopping after this step" in process.stderr.readline()
    assert process.poll() is None
    time.sleep(0.2)
    process.send_signal(number)
    _, said = process.communicate(timeout=20)
    assert process.returncode == code
    assert "Traceback" not in said


@pytest.mark.parametrize("seconds", ["0.2", "30"])
def test_the_parent_of_a_job_awaits_its_child_and_ends_one_that_does_not_end(monkeypatch, seconds):
    monkeypatch.setattr(supervise, "_LATE", 0.3)
    monkeypatch.setattr(stopping, "WRITING_SECONDS", 0.3)
    child = subprocess.Popen(["sleep", seconds])
    began = time.monotonic()
    supervise._awaited(child)
    assert 0.3 < time.monotonic() - began < 5
    assert child.wait(5) == (0 if seconds == "0.2" else -signal.SIGKILL)


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
