"""A command that is stopped says so at once, comes to its end, and ends at once at a second signal."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from jaxsens.core.base import stopping

ROOT = Path(__file__).resolve().parents[3]

COMMAND = """
import ctypes, signal, sys, time
from jaxsens.cli import of_a_command
from jaxsens.core.base import stopping

kind, ignored = sys.argv[1:]
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_IGN if ignored == "ignored" else signal.SIG_DFL)
with of_a_command(own_process=True):
    print("ready", flush=True)
    if kind == "compiled":
        ctypes.CDLL(None).usleep(30_000_000)  # Python runs no handler meanwhile.
    while True:
        time.sleep(0.01)
        if kind == "tests":
            stopping.check()
"""


def start(kind: str, hangup: str = "heard") -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", COMMAND, kind, hangup],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    time.sleep(0.05)
    return process


@pytest.mark.parametrize("number", stopping.ENDING)
def test_a_command_says_at_once_that_it_stops_and_comes_to_its_end(number):
    process = start("tests")
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    assert said.count("stopping after this step; again to stop now") == 1
    assert f"Stopped: stopped by {number.name}" in said


def test_nohup_is_respected():
    process = start("tests", hangup="ignored")
    process.send_signal(signal.SIGHUP)
    time.sleep(0.2)
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=20)
    assert "stopped by SIGTERM" in said


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
