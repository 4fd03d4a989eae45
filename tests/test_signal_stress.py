"""A few signals at random moments to real commands; `python -m tests.signal_stress` sends as many as are asked for."""

from __future__ import annotations

import pytest

from tests.signal_stress import KINDS, shrunk, stress


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_no_signal_is_lost_and_nothing_that_was_done(kind, tmp_path):
    tally = stress([kind], 3, 0, tmp_path, kills=1)
    assert tally.sent.total() == 4
    assert tally.wrong == []


def test_the_stress_sees_a_table_that_loses_rows():
    before = {"points.csv": b"a\n1\n2\n", "models/lstm/metrics.csv": b"a\n1\n"}
    assert shrunk(before, {"points.csv": b"a\n1\n2\n3\n"}) == []
    assert shrunk(before, {"points.csv": b"a\n2\n"}) == ["points.csv lost 1 of 3 lines"]
    assert shrunk(before, {}) == ["points.csv lost 3 of 3 lines"]
