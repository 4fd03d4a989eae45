"""Sweeps whose flips change the length."""

from __future__ import annotations

import re

import numpy as np
import pytest

import jaxsens
from jaxsens.experiments.points import Measurement, describe_point
from jaxsens.experiments.sweep_config import parse_sweep_config
from tests.experiments.test_sweep_config import problems_of
from tests.experiments.tiny import TINY, tiny_sweep


def with_measure(*lines: str) -> str:
    return TINY + "\n".join(["[measure]", *lines])


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    ("edit", "times", "candidates", "positions"),
    [
        ("delete", None, jaxsens.deletion(), None),
        ("insert", None, jaxsens.insertion(), None),
        ("repeat", 2, jaxsens.repetition(2), None),
        ("repeat", None, jaxsens.repetition(), [3]),
    ],
)
def test_a_point_measures_the_edit_that_its_config_names(edit, times, candidates, positions):
    lines = [f'edit = "{edit}"', *([f"times = {times}"] if times else [])]
    lines += ['positions = ["readout"]'] if positions else []
    point = parse_sweep_config(with_measure(*lines)).points[0]
    model, tokens = point.source.build(point.seed), point.tokens()
    result = point.measure.flip_sensitivity(model, tokens, point.seed)
    expected = jaxsens.flip_sensitivity(model, tokens, candidates=candidates, positions=positions)
    np.testing.assert_array_equal(result.norms, expected.norms)
    assert (result.copies, result.positions.tolist()) == (expected.copies, expected.positions.tolist())
    described = describe_point(point, result, ("mean",), 1.0).point["measure"]
    longer = {"delete": -1, "insert": 1, "repeat": times or 1}[edit]
    assert (described["edit"], described["copies"]) == (edit, longer)


def test_points_of_replaced_symbols_keep_their_keys():
    assert "edit" not in Measurement().expanded(8)
    point = tiny_sweep().points[0]
    assert tiny_sweep(after='[measure]\nedit = "replace"\n').points[0].key == point.key
    keys = {
        parse_sweep_config(with_measure(f'edit = "{edit}"', *more)).points[0].key
        for edit, more in (("repeat", ()), ("repeat", ("times = 2",)), ("insert", ()), ("delete", ()))
    }
    assert len({point.key, *keys}) == 5
    once = parse_sweep_config(with_measure('edit = "repeat"', "times = 1")).points[0].key
    assert once in keys


@pytest.mark.parametrize(
    ("text", "match"),
    [
        (with_measure("times = 2"), r"measure.times = 2: only for edit = .repeat."),
        (with_measure('edit = "swap"'), "measure.edit"),
        (
            with_measure('edit = "insert"', "exact_up_to = 4"),
            "measure.edit = 'insert': estimates are of repl",
        ),
        (with_measure('edit = "insert"') + "\n[bounds]\n", r"measure.edit = 'insert': \[bounds\] are those"),
        (
            with_measure('edit = "insert"', 'engine = "difference"'),
            'measure.engine: variant "softmax": engine = "difference": .*flips that insert a symbol',
        ),
        (
            with_measure('edit = "delete"').replace("[model]\n", "[model]\nreadout = 1\n"),
            'measure.edit: variant "softmax": readout = 1: a shorter word has another symbol',
        ),
        (
            with_measure('edit = "repeat"', "times = 9").replace(
                "[model]\n", '[model]\npositions = { type = "Learned", max_length = 12 }\n'
            ),
            'lengths: variant "softmax", with 9 symbols inserted: .*length 13',
        ),
    ],
)
def test_what_an_edit_does_not_go_with_is_an_error_of_the_config(text, match):
    found = problems_of(text)
    assert any(re.search(match, problem) for problem in found), found
