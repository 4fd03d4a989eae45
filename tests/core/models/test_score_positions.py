"""Position embeddings that enter attention scores: partial rotary and ALiBi, T5's relative bias, and terms by layer."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jaxsens
from jaxsens.core.base.errors import InputError, Problems
from jaxsens.core.models.parts.positions import ScoreTerm
from jaxsens.core.models.parts.score_positions import (
    POSITION_NAMES,
    POSITION_TYPES,
    PartialAlibi,
    PartialRotary,
    RelativeBias,
)
from jaxsens.core.models.transformer.module import plain, read_config
from jaxsens.core.models.transformer.parameters import initialise
from tests import reference
from tests.small_models import random_parameters, small
from tests.tolerances import FORWARD


def config_of(**options: Any) -> jaxsens.TransformerConfig:
    return jaxsens.TransformerConfig(**{"alphabet_size": 2, **options})


@given(
    st.sampled_from([(32, 128), (16, 64), (8, 20), (32, 100), (6, 9), (12, 500)]),
    st.booleans(),
    st.integers(-700, 700),
)
def test_buckets_are_those_of_t5(sizes, bidirectional, ahead):
    term = RelativeBias(sizes[0], sizes[1], bidirectional)
    assert int(term.bucket(np.array(ahead))) == reference.bucket(term, ahead)
    assert int(term.bucket(jnp.asarray(ahead))) == reference.bucket(term, ahead)


def test_every_layer_and_head_has_a_table_of_its_own():
    config = small(positions=RelativeBias(buckets=8, max_distance=5), heads=(2, 3), width=6)
    tables = [layer.relative_bias for layer in initialise(config, 0).layers]
    assert [None if table is None else table.shape for table in tables] == [(2, 8), (3, 8)]
    # What else a model has is drawn by name, so a model without the bias has the same weights.
    bare = initialise(config.replace(positions="none"), 0).layers[1]
    assert bare.relative_bias is None
    np.testing.assert_array_equal(bare.query, initialise(config, 0).layers[1].query)


def test_terms_of_single_layers_follow_the_reference_and_are_of_those_layers_only():
    config = small(
        positions=("index", "alibi"), layer_positions=("none", ("partial-rotary", "relative-bias"))
    )
    assert [len(config.layer(k).position_scores) for k in range(2)] == [1, 3]
    parameters = random_parameters(config, 3)
    word = np.array([2, 0, 1, 0, 2, 2, 3])
    found = jaxsens.Transformer(config, parameters=parameters).activations(word)
    expected = reference.activations(config, parameters, word)
    np.testing.assert_allclose(found, expected, rtol=FORWARD.relative, atol=FORWARD.absolute)
    assert not config.bounded
    assert small(positions="none", layer_positions=("rotary", "relative-bias")).bounded


def test_tables_of_a_file_describe_them_and_what_was_there_before_keeps_its_keys():
    table = {
        "alphabet_size": 2,
        "positions": {"type": "PartialAlibi", "fraction": 0.25},
        "layer_positions": [{"type": "PartialRotary", "fraction": 0.5, "base": 100.0}, "none"],
    }
    problems = Problems("")
    config = read_config(table, "model", problems)
    assert not problems
    assert isinstance(config, jaxsens.TransformerConfig)
    assert config.position_terms == (PartialAlibi(0.25), PartialRotary(0.5, 100.0))
    described = plain(config)
    assert described["layer_positions"] == [[table["layer_positions"][0]], []]
    again = read_config({key: value for key, value in described.items() if key != "type"}, "model", problems)
    assert again == config
    assert "layer_positions" not in plain(config_of())


def test_both_layers_problems_are_told_once():
    with pytest.raises(InputError) as error:
        config_of(positions="rotary", head_width=5, layers=3)
    assert str(error.value).count("an even number") == 1


def test_every_score_term_has_a_name():
    named = {type(term) for term in POSITION_NAMES.values()}
    assert {kind for kind in POSITION_TYPES if issubclass(kind, ScoreTerm)} <= named
