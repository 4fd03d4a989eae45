"""Sweeps whose flips do more than replace a symbol."""

from __future__ import annotations

import numpy as np
import pytest

import jaxsens
from jaxsens.core.sweeps.config import parse_sweep_config
from jaxsens.core.sweeps.points import Measurement, describe_point
from tests.core.sweeps.tiny import TINY, tiny_sweep
from tests.refusals import refused


def with_flips(table: str, *lines: str) -> str:
    return TINY + "\n".join(["[measure]", f"flips = {table}", *lines])


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    ("table", "flips"),
    [
        ('"delete"', jaxsens.Delete()),
        ('"insert"', jaxsens.Insert()),
        ('{ kind = "repeat", times = 2 }', jaxsens.Repeat(2)),
        ('{ kind = "repeat", positions = ["readout"] }', jaxsens.Repeat(positions=[3])),
        ('{ kind = "neighbours", k = 1 }', jaxsens.Neighbours(1)),
        ("[0]", jaxsens.Substitute([0])),
        ('{ kind = "pairs", flips = [[0, 1], [2, 0]] }', jaxsens.Pairs([(0, 1), (2, 0)])),
    ],
)
def test_a_point_measures_the_flips_that_its_config_names(table, flips):
    point = parse_sweep_config(with_flips(table)).points[0]
    model, tokens = point.model(), point.tokens()
    if isinstance(flips, jaxsens.Pairs):
        tokens = np.array([[0, 0, 1, 2]])
    result = point.measure.flip_sensitivity(model, tokens, point.seed)
    expected = jaxsens.flip_sensitivity(model, tokens, flips)
    np.testing.assert_array_equal(result.norms, expected.norms)
    assert result.positions.tolist() == expected.positions.tolist()
    described = describe_point(point, result, ("mean",), 1.0).point["measure"]
    assert described["flips"] == point.measure.flips.table()


def test_defaults_written_out_keep_the_key_and_every_other_flip_changes_it():
    assert Measurement().expanded(8)["flips"] == {"kind": "substitute"}
    point = tiny_sweep().points[0]
    assert tiny_sweep(after='[measure]\nflips = "substitute"\n').points[0].key == point.key
    tables = ('"repeat"', '{ kind = "repeat", times = 2 }', '"insert"', '"delete"')
    keys = {parse_sweep_config(with_flips(table)).points[0].key for table in tables}
    assert len({point.key, *keys}) == 5
    assert parse_sweep_config(with_flips('{ kind = "repeat", times = 1 }')).points[0].key in keys


@pytest.mark.parametrize(
    ("text", "match"),
    [
        (with_flips('{ kind = "delete", times = 2 }'), "measure.flips.times"),
        (with_flips('"swap"'), "measure.flips"),
        (with_flips('{ kind = "substitute", sample = 3, seed = 1 }'), "measure.flips.seed"),
        (with_flips('"insert"', "exact_up_to = 4"), "measure.exact_up_to"),
        (with_flips('"insert"') + "\n[bounds]\n", "measure.flips"),
        (with_flips('"insert"', 'engine = "difference"'), "measure.engine"),
        (with_flips('"delete"').replace("[model]\n", "[model]\nreadout = 1\n"), "measure.flips"),
        (
            with_flips('{ kind = "repeat", times = 9 }').replace(
                "[model]\n", '[model]\npositions = { type = "Learned", max_length = 12 }\n'
            ),
            "measure.flips",
        ),
    ],
)
@pytest.mark.needs("theory")
def test_what_flips_do_not_go_with_is_an_error_of_the_config(text, match):
    refused(match, parse_sweep_config, text)
