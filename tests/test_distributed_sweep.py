"""`jaxsens sweep` in a job of several processes: the same numbers, and one writer."""

from __future__ import annotations

import math
import random
import subprocess

import pytest

from jaxsens.cli import main
from tools.distributed_stress import Stress, start, table, write_config


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
