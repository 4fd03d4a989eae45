"""Several processes share one mesh: the same numbers as one, and all of them stop and fail together."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.several_processes import Ended, run

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
