"""Real processes, real measurements: killed twice, or two at once, a sweep ends with the data of an undisturbed one."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from jaxsens.core.sweeps.config import load_sweep_config
from jaxsens.core.sweeps.points import select
from jaxsens.core.sweeps.sweep import run_sweep
from tests.core.sweeps.tiny import TINY, quiet

ROOT = Path(__file__).resolve().parents[3]
CONFIG = TINY.replace("seeds = 2", "seeds = 5")

RUN = """
import sys
from pathlib import Path
from rich.console import Console
from jaxsens.core.sweeps.sweep import run_sweep
from jaxsens.core.sweeps.points import select
from jaxsens.core.sweeps.config import load_sweep_config

sweep = load_sweep_config(sys.argv[1])
sys.exit(run_sweep(sweep, Path(sys.argv[2]), select(sweep.points), Console(stderr=True)).exit_code)
"""


def start(config: Path, out: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", RUN, str(config), str(out)], cwd=ROOT, stderr=subprocess.PIPE, text=True
    )


def finished_points(out: Path) -> int:
    return len(list(out.glob("points/*/*/[!.]*.parquet")))


def finish(config: Path, out: Path) -> bytes:
    """Runs what is missing, in this process, and returns points.csv."""
    sweep = load_sweep_config(config)
    assert run_sweep(sweep, out, select(sweep.points), quiet()).finished == len(sweep.points)
    return (out / "points.csv").read_bytes()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    config = folder / "sweep.toml"
    config.write_text(CONFIG)
    return config, finish(config, folder / "out")


@pytest.mark.slow
def test_killed_twice_at_different_moments_and_run_again_the_data_are_the_same(undisturbed, tmp_path):
    config, expected = undisturbed
    done = 0
    for more in (1, 9):
        process = start(config, tmp_path)
        deadline = time.monotonic() + 120
        while finished_points(tmp_path) < done + more and process.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.002)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert process.returncode == -signal.SIGKILL, "the sweep ended before it could be killed"
        done = finished_points(tmp_path)
        assert 0 < done < 20
    assert finish(config, tmp_path) == expected


@pytest.mark.long
def test_two_sweeps_of_one_directory_at_once_do_no_harm_and_share_the_work(undisturbed, tmp_path):
    config, expected = undisturbed
    processes = [start(config, tmp_path) for _ in range(2)]
    for process in processes:
        _, log = process.communicate(timeout=300)
        assert process.returncode == 0, log
    assert (tmp_path / "points.csv").read_bytes() == expected
    assert finished_points(tmp_path) == 20
    assert not [path for path in tmp_path.rglob(".*") if path.is_file()]
