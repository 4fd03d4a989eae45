"""Sinks whose scores are parameters, one for each head: trained, kept and measured."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxsens
from jaxsens.base.errors import InputError
from jaxsens.base.precision import numerics
from jaxsens.models.parts.initialisation import Normal
from jaxsens.models.parts.weighting import SinkSoftmax
from jaxsens.models.transformer.layered import Attention
from jaxsens.models.transformer.layers import LayeredTransformer, layered_transformer
from jaxsens.models.transformer.parameters import initialise
from jaxsens.training.checkpoints import load_checkpoint
from jaxsens.training.loop import train
from tests import reference
from tests.small_models import random_parameters, small
from tests.training.tiny import tiny

LEARNED = SinkSoftmax(logit=0.5, learned=True)
WORD = [0, 1, 1, 0, 1, 0, 0, 2]


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Any:
    """A transformer after a few steps of training, and where it is kept."""
    directory = tmp_path_factory.mktemp("sinks")
    weighting = {"type": "SinkSoftmax", "logit": 0.5, "learned": True}
    model = {
        "kind": "transformer",
        "width": 8,
        "heads": 2,
        "layers": 3,
        "layer_norm": "pre",
        "dtype": "float64",
    }
    config = tiny(model={**model, "weighting": weighting}, optimiser={"steps": 8, "weight_decay": 0.5})
    return train(config, directory).model, directory


def test_training_moves_every_sink_on_its_own(trained):
    sinks = np.concatenate([layer.sink for layer in trained[0].parameters.layers])
    assert len(set(sinks)) == 6
    assert np.all(np.abs(sinks - 0.5) > 1e-3)


def test_the_gradient_is_that_of_the_specification():
    config = small(weighting=LEARNED, mask="past")
    parameters, step = random_parameters(config), 1e-5

    def moved(by: float) -> Any:
        layer = parameters.layers[0]
        changed = dataclasses.replace(layer, sink=layer.sink + np.array([0.0, by]))
        return dataclasses.replace(parameters, layers=(changed, *parameters.layers[1:]))

    up, down = (np.sum(reference.output(config, moved(by), WORD)) for by in (step, -step))
    with numerics("float64"):
        given, tokens = jax.tree.map(jnp.asarray, parameters), jnp.asarray(WORD)
        model = layered_transformer(config)
        slope = jax.grad(lambda given: jnp.sum(model(given, tokens)))(given)
    assert float(slope.layers[0].sink[1]) == pytest.approx((up - down) / (2 * step), rel=1e-6)


def test_a_checkpoint_keeps_them(trained):
    model, directory = trained
    kept = load_checkpoint(directory).model
    assert kept.config == model.config
    for layer, other in zip(kept.parameters.layers, model.parameters.layers, strict=True):
        np.testing.assert_array_equal(layer.sink, other.sink)


@pytest.mark.parametrize("engine", ["vmap", "incremental", "difference", "first-order"])
def test_after_training_every_engine_measures_what_the_specification_does(trained, engine):
    model = trained[0]
    parameters = jax.tree.map(np.asarray, model.parameters)
    found = jaxsens.flip_sensitivity(model, WORD, engine=engine)
    pairs = list(zip(found.positions.tolist(), found.symbols.tolist(), strict=True))
    true = reference.flip_norms(model.config, parameters, WORD, "l2", None, pairs, np.longdouble)
    off = np.abs(found.norms - np.array(list(true.values()), float)).ravel()
    if engine == "first-order":  # an estimate in three layers
        assert np.median(off / np.array(list(true.values()), float)) < 0.2
    else:
        assert np.all(off <= found.resolution.ravel() + 1e-11 * found.norms.max())


def test_they_start_at_the_logit_and_no_other_parameter_is_drawn_anew():
    config = small(weighting=(LEARNED, "softmax"), initialisation=Normal(2.0))
    model, plain = initialise(config, 3), initialise(config.replace(weighting="softmax"), 3)
    np.testing.assert_array_equal(model.layers[0].sink, [0.5, 0.5])
    assert model.layers[1].sink is None
    bare = dataclasses.replace(model.layers[0], sink=None)
    jax.tree.map(np.testing.assert_array_equal, bare, plain.layers[0])
    fixed = jaxsens.Transformer(small(weighting=SinkSoftmax(logit=0.5)), seed=0)
    same = jaxsens.Transformer(small(weighting=LEARNED), seed=0)
    np.testing.assert_array_equal(same(np.array(WORD)), fixed(np.array(WORD)))


@dataclasses.dataclass(frozen=True)
class Forgetful(LayeredTransformer):
    """A user's model that says its sinks are learned, and does not say where their scores are."""

    def weighting_of(self, parameters, layer, head):
        return self.attention_of(parameters, layer).weighting


def test_a_model_without_the_parameter_is_refused_and_the_logit_is_not_used_for_it():
    config = small(weighting=LEARNED, dtype="float32")
    parameters = initialise(config, 0)
    with pytest.raises(InputError, match="SinkSoftmax: learned = True: its score is a parameter"):
        Forgetful(config, len(WORD))(parameters, jnp.asarray(WORD))
    assert Attention(2, weighting=LEARNED).weighting == LEARNED
    bare = tuple(dataclasses.replace(layer, sink=None) for layer in parameters.layers)
    with pytest.raises(InputError, match="parameters"):
        jaxsens.Transformer(config, parameters=dataclasses.replace(parameters, layers=bare))
