"""The table of random hard-attention models under restrictions."""

from __future__ import annotations

import pytest

from jaxsens.core.sweeps.jobs.job import run
from jaxsens.theory.tables.restrictions import restrictions_job, table
from tests.core.sweeps.tiny import printed, quiet


@pytest.mark.long
def test_the_table_measures_what_it_says():
    console = quiet()
    outcome = run(restrictions_job(numbers=(5,), lengths=(16, 32), free_fraction=0.5), console)
    assert (outcome.finished, outcome.exit_code) == (4, 0)
    assert "4/4  5: none, rightmost-hard, depth 2, n = 32: " in printed(console)
    rows = outcome.records
    assert [(row.depth, row.n) for row in rows] == [(1, 16), (1, 32), (2, 16), (2, 32)]
    for row in rows:
        assert row.accepted
        assert row.c <= 1
        assert row.largest_change == 0
        assert row.words == 32
        assert row.free_fraction >= 0.5
        assert row.pairs == ("parity", "dyck-1")
    lines = table(rows).splitlines()
    assert len(lines) == 4
    assert "| 2/2 | 0 | 4/4 |" in lines[2]
