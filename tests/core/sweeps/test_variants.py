"""Variants differ in what their table says, and share weights; and sweeps whose flips do more than replace a symbol."""

from __future__ import annotations

import tomllib

import jax
import numpy as np
import pytest

from jaxsens.core.models.parts.weighting import WEIGHTINGS
from jaxsens.core.models.transformer.config import TransformerConfig
from jaxsens.core.sweeps.config import BUILT_IN, Variant, parse_sweep_config
from jaxsens.core.sweeps.points import Measurement
from tests.core.sweeps.tiny import TINY, tiny_sweep
from tests.refusals import refused

EVERY = "variants = [{}]".format(", ".join(f'"{name}"' for name in BUILT_IN))


@pytest.fixture(scope="module")
def sources():
    sweep = tiny_sweep('variants = ["softmax", "leftmost-hard"]', EVERY)
    return {variant.name: variant.source for variant in sweep.variants}


def test_each_built_in_variant_changes_one_thing(sources):
    baseline = sources["softmax"].network
    for name, source in sources.items():
        changed = [
            field
            for field in TransformerConfig.__dataclass_fields__
            if getattr(source.network, field) != getattr(baseline, field)
        ]
        assert changed == {"softmax": [], "unbounded": ["positions"]}.get(name, ["weighting"]), name
        if name != "unbounded":
            assert source.network.weighting == WEIGHTINGS[name]


def test_variants_of_one_seed_share_their_weights(sources):
    baseline = sources["softmax"].build(4, 3).parameters
    for source in sources.values():
        own = source.build(4, 3).parameters
        assert jax.tree.all(jax.tree.map(np.array_equal, own.layers, baseline.layers))
        assert np.array_equal(own.embedding, baseline.embedding)
    other = sources["softmax"].build(4, 4).parameters
    assert not np.array_equal(other.embedding, baseline.embedding)


@pytest.mark.parametrize(
    ("positions", "expected"),
    [
        ("", ["Sinusoidal", "Component"]),
        ('positions = "none"', ["Component"]),
        ('positions = ["rotary", "alternating"]', ["Rotary", "Component", "Component"]),
    ],
)
def test_the_unbounded_variant_adds_to_the_positions_that_are_there(positions, expected):
    table = BUILT_IN["unbounded"].table({"alphabet_size": 2, **tomllib.loads(positions)})
    terms = TransformerConfig(**table).position_terms
    assert [type(term).__name__ for term in terms] == expected


NETWORK = {"alphabet_size": 2, "width": 8, "heads": 2, "dtype": "float64"}
FORMULA = {"formula": "Q_1", "alphabet": "01", "condition": "unbounded", "dtype": "float32"}
PARITY = {"construction": "parity", "condition": "unbounded", "kinds": 3}


@pytest.mark.parametrize(
    ("base", "changes", "expected"),
    [
        (NETWORK, {"formula": "Q_1"}, {"dtype": "float64", "formula": "Q_1"}),
        (FORMULA, {"kind": "transformer", "width": 4}, {"dtype": "float32", "kind": "transformer", "width": 4}),
        (PARITY, {"kind": "lstm", "width": 4}, {"kind": "lstm", "width": 4}),
        (PARITY, {"construction": "first"}, {"construction": "first", "condition": "unbounded"}),
        (PARITY, {"construction": "parity", "read": "everything"}, PARITY | {"read": "everything"}),
        (PARITY, {"formula": "Q_1"}, {"condition": "unbounded", "formula": "Q_1"}),
        (FORMULA, {"construction": "parity"},
         {"construction": "parity", "condition": "unbounded", "dtype": "float32"}),
        (NETWORK | {"kind": "lstm"}, {"formula": "Q_1"}, {"dtype": "float64", "formula": "Q_1"}),
        (NETWORK, {"checkpoint": "run"}, {"checkpoint": "run"}),
        ({"checkpoint": "run"}, {"kind": "lstm", "width": 4}, {"kind": "lstm", "width": 4}),
    ],
)  # fmt: skip
@pytest.mark.needs("formal", "training")
def test_a_variant_of_another_kind_of_model_keeps_only_what_that_kind_has_too(base, changes, expected):
    assert Variant("v", changes).table(base) == expected


def with_flips(table: str, *lines: str) -> str:
    return TINY + "\n".join(["[measure]", f"flips = {table}", *lines])


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
