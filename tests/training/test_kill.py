"""Real processes, killed or terminated while they train: gone on with, they end with what an undisturbed one has."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from jaxsens.training.checkpoints import FOLDER
from jaxsens.training.config import TrainConfig
from jaxsens.training.loop import train
from tests.training.tiny import table

ROOT = Path(__file__).resolve().parents[2]
STEPS = 160
CONFIG = table(optimiser={"steps": STEPS}, checkpoint={"every": 4}, evaluation={"every": 80})

RUN = """
import json, sys
from jaxsens.training.config import TrainConfig
from jaxsens.training.loop import TrainingInterrupted
from jaxsens.training.loop import train

try:
    train(TrainConfig.from_table(json.loads(sys.argv[1])), sys.argv[2])
except TrainingInterrupted as stopped:
    print(stopped, file=sys.stderr)
    sys.exit(stopped.exit_code)
"""


def start(directory: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", RUN, json.dumps(CONFIG), str(directory)]
    return subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)


def newest(directory: Path) -> int:
    steps = [int(path.name[5:]) for path in (directory / FOLDER).glob("step_????????")]
    return max(steps, default=0)


def wait_for(process: subprocess.Popen[str], directory: Path, step: int) -> None:
    deadline = time.monotonic() + 120
    while newest(directory) < step:
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.002)


@pytest.mark.slow
def test_killed_twice_and_run_again_the_weights_and_files_are_the_same(tmp_path_factory, tmp_path):
    undisturbed, config = tmp_path_factory.mktemp("undisturbed"), TrainConfig.from_table(CONFIG)
    fingerprint, done = train(config, undisturbed).fingerprint, 0
    for more in (4, 40):
        process = start(tmp_path)
        wait_for(process, tmp_path, done + more)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert process.returncode == -signal.SIGKILL, "the training ended before it could be killed"
        assert done < newest(tmp_path) < STEPS
        done = newest(tmp_path)
    assert train(config, tmp_path).fingerprint == fingerprint
    for name in ("metrics.csv", "evaluation.csv"):
        assert (tmp_path / name).read_bytes() == (undisturbed / name).read_bytes()
    assert [path.name for path in tmp_path.rglob(".*")] == [".lock"]
