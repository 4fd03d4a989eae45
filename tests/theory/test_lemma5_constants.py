"""Constants of Lemma 5 that the enumerated models are too far from to notice: each against a model that attains it."""

from __future__ import annotations

import dataclasses
import math

import jax
import numpy as np
import pytest

from jaxsens import Transformer, TransformerConfig
from jaxsens.theory.lemma5 import lemma5
from jaxsens.theory.logit_growth import logit_growth
from tests.small_models import random_parameters, small


@pytest.mark.parametrize(("mask", "mirrored"), [("future", "past"), ("strict-future", "strict-past")])
def test_masking_the_past_is_masking_the_future_backwards(mask, mirrored):
    config = small(positions="none", mask=mask)
    parameters = jax.tree.map(lambda p: 0.2 * p, random_parameters(config))
    forwards = lemma5(Transformer(config, parameters=parameters), 9)
    backwards = lemma5(Transformer(config.replace(mask=mirrored, readout=0), parameters=parameters), 9)
    for one, other in zip(forwards.by_layer, backwards.by_layer, strict=True):
        np.testing.assert_allclose(one.log_rows, other.log_rows[::-1], rtol=1e-12)
        assert one.log_own == pytest.approx(other.log_own, rel=1e-12)
    assert np.ptp(forwards.by_layer[-1].log_rows[2:]) > 0.1
    assert forwards.log_bound == pytest.approx(backwards.log_bound, rel=1e-12)


def test_rotary_embedding_turns_queries_and_keys_that_are_orthogonal_to_each_other():
    # W_Q W_K^T = 0, but not with a turn between them.
    config = small(positions="rotary", heads=1, head_width=2, layers=1, feed_forward=0)
    parameters = random_parameters(config)
    query, key = np.zeros((1, 6, 2)), np.zeros((1, 6, 2))
    query[0, 0, 0] = key[0, 0, 1] = 1
    layer = dataclasses.replace(parameters.layers[0], query=query, key=key)
    embedding = np.diag([1.0, 1.0, 1.0, 1.0, 0, 0])[:4]
    embedding[:, 0] = 1
    model = Transformer(
        config, parameters=dataclasses.replace(parameters, embedding=embedding, layers=(layer,))
    )
    found = logit_growth(model, [4, 5, 6])
    assert np.all(found.attained > 0.3)
    assert np.all(found.attained <= found.A)


@pytest.mark.parametrize("layer_norm", ["pre", "post"])
def test_the_map_stretches_small_vectors_by_its_constant(layer_norm):
    # Of entries that are nearly equal, LN makes 1/sqrt(0.01) = 10 times the difference. tanh has slope 1 at 0.
    config = TransformerConfig(
        2, 4, 1, 1, 4, positions="none", layer_norm=layer_norm, layer_norm_epsilon=0.01, activation="tanh",
        end_symbol=False, dtype="float64",
    )  # fmt: skip
    zero = jax.tree.map(lambda p: np.zeros(p.shape), Transformer(config).parameters)
    norm = dataclasses.replace(zero.layers[0].attention_norm, scale=np.ones(4))
    layer = dataclasses.replace(
        zero.layers[0], w1=np.eye(4), w2=np.eye(4), attention_norm=norm, feed_forward_norm=norm
    )
    embedding = np.array([[0, 0, 0, 0], [1e-6, -1e-6, 1e-6, -1e-6]])
    model = Transformer(config, parameters=dataclasses.replace(zero, embedding=embedding, layers=(layer,)))
    one, zeros = (np.asarray(model(np.array([symbol]))) for symbol in (1, 0))
    stretched = np.linalg.norm(one - zeros) / 2e-6
    expected = {"pre": 1 + 10, "post": 10 * (1 + 1) * 10}[layer_norm]
    found = lemma5(model, 1)
    assert stretched == pytest.approx(expected, rel=1e-6)
    assert stretched <= math.exp(found.constants[0].log_map) <= stretched * (1 + 1e-6)
    assert math.exp(found.by_layer[1].log_own) == pytest.approx(2e-6 * expected, rel=1e-6)
