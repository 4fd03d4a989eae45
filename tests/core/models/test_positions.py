"""Components of positions, limbs that hold whole numbers in float32, and terms that enter attention scores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jaxsens
from jaxsens import InputError, Transformer
from jaxsens.core.base.errors import Problems
from jaxsens.core.models.parts.positions import (
    COMPONENTS,
    LIMB_LENGTH,
    LIMBS,
    Component,
    FunctionComponent,
    Limb,
    ScoreTerm,
)
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
from tests.refusals import refused
from tests.small_models import random_parameters, small
from tests.tolerances import FORWARD

WHOLE = [name for name, component in COMPONENTS.items() if component.integer]


@dataclass(frozen=True)
class Multiple:
    """The numerical predicate "i is a multiple of"."""

    of: int

    def __call__(self, i, n):
        return i % self.of == 0


def modulus(i, n):
    return (i * n) % 3


TERMS = (
    Limb("square", 0),
    "odd",
    FunctionComponent("multiple of 3", Multiple(3)),
    "sinusoidal",
    Limb("square", 1),
    FunctionComponent("modulus", modulus),
    "index",
)


@pytest.mark.parametrize("n", [1, 2, 7, 100])
@pytest.mark.parametrize("name", COMPONENTS)
def test_named_components_are_their_formula(name, n):
    expected = [reference.component(name, i, n) for i in range(1, n + 1)]
    np.testing.assert_allclose(Component(name).values(n), expected, rtol=1e-15)


@pytest.mark.parametrize("name", COMPONENTS)
def test_components_are_bounded_as_they_say(name):
    largest = [np.abs(Component(name).values(n)).max() for n in (2, 1000, 100_000)]
    assert (max(largest) <= 1.5) == Component(name).bounded


@given(
    name=st.sampled_from(WHOLE),
    n=st.integers(2, 200_000),
    where=st.floats(0, 1),
    place=st.integers(0, LIMBS - 1),
)
def test_limbs_are_those_of_arithmetic_in_whole_numbers(name, n, where, place):
    i = 1 + int(where * (n - 1))
    assert Limb(name, place).values(n)[i - 1] == reference.limb(name, place, i, n)


def test_limbs_of_the_largest_component_do_not_overflow_up_to_their_length():
    n = LIMB_LENGTH - 1
    limbs = [Limb("length-square", place).values(n)[-1] for place in range(LIMBS)]
    assert sum(int(limb) for limb in limbs) == n**3
    refused("n", Limb("square", 0).values, LIMB_LENGTH)


OF_LAYERS = small(positions=("index", "alibi"), layer_positions=("none", ("partial-rotary", "relative-bias")))


@pytest.mark.parametrize(
    "config", [small(positions=TERMS, mask="future"), OF_LAYERS], ids=["every kind", "of layers"]
)
def test_terms_of_every_kind_together_and_of_single_layers_follow_the_reference(config):
    parameters, word = random_parameters(config, 3), np.array([2, 0, 1, 0, 2, 2, 3])
    found = Transformer(config, parameters=parameters).activations(word)
    expected = reference.activations(config, parameters, word)
    np.testing.assert_allclose(found, expected, rtol=FORWARD.relative, atol=FORWARD.absolute)


def test_terms_of_a_layer_are_in_no_other_and_bounded_counts_every_term():
    assert [len(OF_LAYERS.layer(k).position_scores) for k in range(2)] == [1, 3]
    assert not OF_LAYERS.bounded
    assert small(positions="none", layer_positions=("rotary", "relative-bias")).bounded
    assert small(positions=(FunctionComponent("odd", Multiple(2)), "inverse")).bounded
    assert not small(positions=FunctionComponent("cube", lambda i, n: i**3, bounded=False)).bounded
    assert not small(positions=Limb("square", 0)).bounded
    assert small(positions=Limb("alternating", 0)).bounded


def test_a_component_draws_its_vector_by_its_name_whatever_else_there_is():
    alone = initialise(small(positions=Limb("square", 1)), 5).components
    among = initialise(small(positions=TERMS), 5).components
    assert alone is not None
    assert among is not None
    np.testing.assert_array_equal(alone[0], among[3])


def test_equal_functions_make_equal_configs_and_one_without_a_hash_is_refused():
    first, second = (small(positions=FunctionComponent("p", Multiple(3))) for _ in range(2))
    assert first == second
    assert hash(first) == hash(second)
    assert first != small(positions=FunctionComponent("p", Multiple(4)))

    @dataclass
    class Unhashable:
        def __call__(self, i, n):
            return i

    refused("function", FunctionComponent, "p", Unhashable())


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda i, n: i[:-1], "at n = 4 returns shape (3,)"),
        (lambda i, n: i + 1j, "complex128; return real numbers"),
        (lambda i, n: np.where(i == 2, np.nan, i), "is nan at i = 2"),
    ],
)
def test_what_a_function_returns_is_checked(function, said):
    with pytest.raises(InputError) as caught:
        FunctionComponent("p", function).values(4)
    assert said in str(caught.value)


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
