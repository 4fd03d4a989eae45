"""A few shards, killed and started again; `python -m tests.shard_stress` takes as many as are asked for."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.several_processes import ROOT, environment
from tests.shard_stress import counts


@pytest.mark.slow
def test_shards_that_are_killed_and_started_again_end_in_one_table_and_a_report():
    command = [sys.executable, "-m", "tests.shard_stress", "--shards", "8", "--points", "16", "--seed", "1"]
    # In a process of its own: shards are forked from it, which must not have used JAX.
    ended = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "16 points; " in ended.stdout
    assert "wrong: 0" in ended.stdout


def test_points_that_were_begun_and_finished_are_counted():
    begun, done = counts(["begun a n=4 seed=0", "begun b", "begun b", "done b", "done b"])
    assert (begun["a n=4 seed=0"], begun["b"]) == (1, 2)
    assert (done["a n=4 seed=0"], done["b"]) == (0, 2)
