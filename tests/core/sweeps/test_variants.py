"""Variants differ in what their table says, and share every weight they have in common."""

from __future__ import annotations

import tomllib

import jax
import numpy as np
import pytest

from jaxsens.core.models.parts.weighting import WEIGHTINGS
from jaxsens.core.models.transformer.config import TransformerConfig
from jaxsens.core.sweeps.config import BUILT_IN, Variant
from tests.core.sweeps.tiny import tiny_sweep

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


def test_only_the_unbounded_variant_is_marked_unbounded(sources):
    assert {name for name, source in sources.items() if not source.bounded} == {"unbounded"}


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
