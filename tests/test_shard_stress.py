"""A few shards, killed and started again; `python -m tests.shard_stress` takes as many as are asked for."""

from __future__ import annotations

import pytest

from tests.shard_stress import main


@pytest.mark.slow
def test_shards_that_are_killed_and_started_again_end_in_one_table_and_a_report(capsys):
    assert main(["--shards", "4", "--points", "8", "--seed", "1"]) == 0, capsys.readouterr().out
