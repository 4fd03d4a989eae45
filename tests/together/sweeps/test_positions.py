"""`[measure] flips` with positions: which positions of a sweep are flipped, at every length."""

from __future__ import annotations

import numpy as np

import jaxsens
from jaxsens.core.sweeps.config import parse_sweep_config
from jaxsens.training.theorem6.run import parse_theorem6_config
from tests.core.sweeps.tiny import TINY, problems_of, tiny_sweep
from tests.refusals import refused


def test_problems_are_told_with_the_others():
    measure = "\n[measure]\nflips = {{ kind = 'substitute', positions = {} }}\n"
    for wrong in ('"all"', "[]", '["all"]', "[-1]", "[1.0]", '["0:4:0"]', '["1.5:"]', "[true]"):
        (problem,) = problems_of(TINY + measure.format(wrong))
        assert problem.startswith("measure.flips.positions = ")
        assert 'ranges such as "0:16"' in problem
    both = problems_of(TINY + measure.format("[5]"))
    assert len(both) == 2
    assert both[0] == (
        'measure.flips.positions = 5: variant "softmax": positions from 0 to 3, those of an input of length 4'
    )
    (bounded,) = problems_of(TINY + measure.format("[1]") + "[bounds]\n")
    assert "all symbols at all positions but the one that is read" in bounded
    trained = f'lengths = [4]{measure.format("[1]")}[[model]]\nname = "a"\nlanguage = "parity"\n'
    refused("measure.flips model[0].language", parse_theorem6_config, trained)


def test_a_point_flips_these_positions_and_no_others():
    sweep = tiny_sweep(
        after='\n[measure]\nflips = { kind = "substitute", positions = ["readout", "0.0:0.5"] }\n'
    )
    point = sweep.points[2]
    assert point.n == 6
    model = point.model()
    result = point.measure.flip_sensitivity(model, point.tokens(), point.seed)
    assert set(result.positions) == {0, 1, 2, 5}
    own = jaxsens.flip_sensitivity(model, point.tokens(), flips=jaxsens.Substitute(positions=[0, 1, 2, 5]))
    np.testing.assert_array_equal(result.norms, own.norms)
    assert point.expanded["measure"]["flips"]["positions"] == ["readout", "0.0:0.5"]


def test_positions_are_part_of_the_key():
    asked = tiny_sweep(after='\n[measure]\nflips = { kind = "substitute", positions = [":"] }\n').points[0]
    assert asked.key != tiny_sweep().points[0].key


def test_a_sample_is_drawn_of_these_positions():
    sweep = parse_sweep_config(
        TINY + '\n[measure]\nflips = { kind = "substitute", positions = [":-1"], sample = 2 }\n'
    )
    point = sweep.points[2]
    result = point.measure.flip_sensitivity(point.source.build(point.n, 0), point.tokens(), point.seed)
    assert (len(result), result.population) == (2, 5)
