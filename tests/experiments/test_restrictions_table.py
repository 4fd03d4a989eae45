"""The table of random hard-attention models under restrictions."""

from __future__ import annotations

from jaxsens.experiments.restrictions_table import restriction_rows, table


def test_the_table_measures_what_it_says():
    rows = restriction_rows(numbers=(5,), lengths=(16, 32), completions=2, variations=4)
    assert [(row.depth, row.n) for row in rows] == [(1, 16), (1, 32), (2, 16), (2, 32)]
    for row in rows:
        assert row.accepted
        assert row.c <= 1
        assert row.largest_change == 0
        assert row.words == 8
        assert row.free_fraction >= 0.5
        assert row.pairs == ("parity", "dyck-1")
    lines = table(rows).splitlines()
    assert len(lines) == 4
    assert "| 2/2 | 0 | 4/4 |" in lines[2]
