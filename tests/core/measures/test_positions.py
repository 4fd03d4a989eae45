"""The entries of `positions`: what they stand for at every length."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxsens.core.flips.fields import positions_at
from tests.refusals import refused


@pytest.mark.parametrize(
    ("entries", "n", "read", "expected"),
    [
        ([0, 3], 5, None, (0, 3)),
        ([3, 0, 3], 5, None, (0, 3)),
        ([0.5, 0.29], 100, None, (29, 50)),  # 0.29 * 100 is 28.999... in binary
        (["readout"], 7, 6, (6,)),
        (["readout", "powers"], 7, 2, (0, 1, 2, 3, 4, 6)),
        (["powers"], 9, 8, (0, 4, 6, 7)),
        ([":"], 4, None, (0, 1, 2, 3)),
        (["1:3", "-2:"], 6, None, (1, 2, 4, 5)),
        (["0:16"], 4, None, (0, 1, 2, 3)),
        (["0.25:0.75"], 8, None, (2, 3, 4, 5)),
        ([".5:1.0"], 5, None, (2, 3, 4)),
        (["::3"], 7, None, (0, 3, 6)),
    ],
)
def test_what_entries_stand_for(entries, n, read, expected):
    assert positions_at(entries, n, read) == expected


@given(n=st.integers(1, 300), hundredths=st.integers(0, 99), row=st.integers(0, 299))
def test_fractions_and_powers_by_their_definitions(n, hundredths, row):
    assert positions_at([hundredths / 100], n, None) == (math.floor(Fraction(hundredths, 100) * n),)
    row %= n
    apart = [i for i in range(n) if bin(abs(i - row)).count("1") == 1]
    if apart:
        assert positions_at(["powers"], n, row) == tuple(apart)


@pytest.mark.parametrize(("entries", "read"), [([0, 4], 3), (["readout"], None), (["9:12"], 3)])
def test_what_no_input_has_is_refused_at_its_length(entries, read):
    refused("positions", positions_at, entries, 4, read)
