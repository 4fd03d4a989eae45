"""`[measure] positions`: which positions are flipped, at every length."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jaxsens
from jaxsens.errors import InputError
from jaxsens.experiments.positions import positions_at
from jaxsens.experiments.sweep_config import parse_sweep_config
from jaxsens.experiments.theorem6_config import parse_theorem6_config
from tests.experiments.test_sweep_config import problems_of
from tests.experiments.tiny import TINY, tiny_sweep


@pytest.mark.parametrize(
    ("entries", "n", "readout", "expected"),
    [
        ([0, 3], 5, "last", (0, 3)),
        ([3, 0, 3], 5, None, (0, 3)),
        ([0.5, 0.29], 100, "mean", (29, 50)),  # 0.29 * 100 is 28.999... in binary
        (["readout"], 7, "last", (6,)),
        (["readout", "powers"], 7, 2, (0, 1, 2, 3, 4, 6)),
        (["powers"], 9, "last", (0, 4, 6, 7)),
        ([":"], 4, "mean", (0, 1, 2, 3)),
        (["1:3", "-2:"], 6, "last", (1, 2, 4, 5)),
        (["0:16"], 4, "last", (0, 1, 2, 3)),
        (["0.25:0.75"], 8, "last", (2, 3, 4, 5)),
        ([".5:1.0"], 5, "last", (2, 3, 4)),
        (["::3"], 7, "last", (0, 3, 6)),
    ],
)
def test_what_entries_stand_for(entries, n, readout, expected):
    assert positions_at(entries, n, readout) == expected


@given(n=st.integers(1, 300), hundredths=st.integers(0, 99), row=st.integers(0, 299))
def test_fractions_and_powers_by_their_definitions(n, hundredths, row):
    assert positions_at([hundredths / 100], n, None) == (math.floor(Fraction(hundredths, 100) * n),)
    row %= n
    apart = [i for i in range(n) if bin(abs(i - row)).count("1") == 1]
    if apart:
        assert positions_at(["powers"], n, row) == tuple(apart)


def test_what_no_input_has_is_refused_at_its_length():
    with pytest.raises(InputError, match=r"positions = 4: an input of length 4 has the positions 0 to 3"):
        positions_at([0, 4], 4, "last")
    with pytest.raises(InputError, match="this model reads no single row"):
        positions_at(["readout"], 4, "mean")
    with pytest.raises(InputError, match="none of them is in an input of length 4"):
        positions_at(["9:12"], 4, "last")


def test_problems_are_told_with_the_others():
    measure = "\n[measure]\npositions = {}\n"
    for wrong in ('"all"', "[]", '["all"]', "[-1]", "[1.0]", '["0:4:0"]', '["1.5:"]', "[true]"):
        (problem,) = problems_of(TINY + measure.format(wrong))
        assert "measure.positions" in problem
        assert 'ranges such as "0:16"' in problem
    both = problems_of(TINY + measure.format("[5]"))
    assert len(both) == 2
    assert both[0] == (
        'measure.positions: variant "softmax": positions = 5: an input of length 4 has the positions 0 to 3'
    )
    (bounded,) = problems_of(TINY + measure.format("[1]") + "[bounds]\n")
    assert "the flips of all positions but the one that is read" in bounded
    trained = 'lengths = [4]\n[measure]\npositions = [1]\n[[model]]\nname = "a"\nlanguage = "parity"\n'
    with pytest.raises(InputError, match="this experiment flips every symbol of a word"):
        parse_theorem6_config(trained)


def test_a_point_flips_these_positions_and_no_others():
    sweep = tiny_sweep(after='\n[measure]\npositions = ["readout", "0.0:0.5"]\n')
    point = sweep.points[2]
    assert point.n == 6
    model = point.source.build(point.seed)
    result = point.measure.flip_sensitivity(model, point.tokens(), point.seed)
    assert set(result.positions) == {0, 1, 2, 5}
    own = jaxsens.flip_sensitivity(model, point.tokens(), positions=[0, 1, 2, 5])
    np.testing.assert_array_equal(result.norms, own.norms)
    assert point.expanded["measure"]["positions"] == ["readout", "0.0:0.5"]


def test_keys_of_points_without_positions_are_as_they_were():
    assert "positions" not in tiny_sweep().points[0].expanded["measure"]
    asked = tiny_sweep(after='\n[measure]\npositions = [":"]\n').points[0]
    assert asked.key != tiny_sweep().points[0].key


def test_a_sample_is_drawn_of_these_positions():
    sweep = parse_sweep_config(TINY + '\n[measure]\npositions = [":-1"]\nsample = 2\n')
    point = sweep.points[2]
    result = point.measure.flip_sensitivity(point.source.build(0), point.tokens(), point.seed)
    assert (len(result), result.population) == (2, 5)
