"""Several processes share one mesh: the same numbers as one, and all of them stop and fail together. A sweep too."""

from __future__ import annotations

import math
import random
import re
import subprocess
from pathlib import Path

import pytest

from jaxsens.cli import main
from tests.several_processes import Ended, run
from tools.distributed_stress import Stress, start, table, write_config

WORKER = "tests.together.flip_sensitivity.shared_checks"
CHECKS = re.findall(
    r"^def (check_\w+)", Path(__file__).with_name("shared_checks.py").read_text(), re.MULTILINE
)


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> list[Ended]:
    return run(WORKER, 2, str(tmp_path_factory.mktemp("two")))


@pytest.mark.long
@pytest.mark.parametrize("name", CHECKS)
def test_two_processes(two, name):
    for process in two:
        assert f"ok {name}\n" in process.log, process.log[-3000:]


@pytest.mark.slow
def test_three_processes_of_two_devices_each_and_a_mesh_of_two_of_them(tmp_path):
    names = ["check_numbers", "check_part_of_the_processes", "check_work_is_shared", "check_signal_to_one"]
    for process in run(WORKER, 3, str(tmp_path), *names, devices=2):
        assert all(f"ok {name}\n" in process.log for name in names), process.log[-3000:]


def ended(processes: list[subprocess.Popen[str]]) -> list[str]:
    """Waits for the processes, all of which end well; returns what they printed."""
    try:
        logs = [process.communicate(timeout=120)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert [process.returncode for process in processes] == [0] * len(processes), "\n".join(logs)
    return logs


@pytest.mark.long
def test_points_are_shared_or_dealt_and_the_numbers_are_those_of_one_process(tmp_path):
    config = write_config(tmp_path, lengths=(4, 9), seeds=2)
    logs = ended(start(config, tmp_path / "out", 2, "--share-above", "0", "--only", "n=9"))
    assert all("2 long points are shared by 2 processes" in log for log in logs)
    files = {path: path.read_bytes() for path in (tmp_path / "out" / "points").rglob("*.parquet")}
    assert len(files) == 2
    logs = ended(start(config, tmp_path / "out", 2))
    assert {path: path.read_bytes() for path in files} == files  # What is done is not measured again.
    assert (tmp_path / "out" / "report.html").exists()
    assert not [path for path in (tmp_path / "out").rglob(".*") if path.is_file()]
    assert main(["sweep", str(config), "--out", str(tmp_path / "alone"), "--quiet"]) == 0
    rows = [table(tmp_path / name) for name in ("out", "alone")]
    assert len(rows[0]) == len(rows[1]) == 4
    for one, other in zip(*rows, strict=True):
        assert {**one, "mean": 0, "max": 0} == {**other, "mean": 0, "max": 0}
        assert all(math.isclose(float(one[key]), float(other[key]), rel_tol=1e-5) for key in ("mean", "max"))


@pytest.mark.slow
def test_a_process_is_killed_in_the_middle_and_the_sweep_finished(tmp_path):
    config = write_config(tmp_path, (8, 12, 16, 20), 4)
    stress = Stress(config, tmp_path, 2, random.Random(0))
    for k in range(2):
        stress.once(k)
    assert stress.wrong == []
