"""A config's numbers as arrays: the model is the same, and models that differ in them alone have one shape."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxsens
from jaxsens.core.base.programs import numerics
from jaxsens.core.models.parts.initialisation import Normal
from jaxsens.core.models.parts.schedules import Schedule
from jaxsens.core.models.parts.weighting import SinkSoftmax, Softmax, Tempered
from jaxsens.core.models.transformer import layers
from jaxsens.core.models.transformer.parameters import initialise, shape_of
from tests.small_models import small

LOG, LINEAR = Schedule(log_power=1.0), Schedule(power=1.0, coefficient=0.1)


def test_configs_have_one_shape_if_they_differ_in_temperatures_and_added_positions_alone():
    config = small()
    same = [
        small(weighting="temperature-log"),
        small(weighting=Softmax(LINEAR)),
        small(positions=("sinusoidal", "index")),
        small(positions="none"),
        small(initialisation=Normal(2.0)),
    ]
    others = [
        small(weighting="leftmost-hard"),
        small(weighting=Softmax(LOG, by="query")),
        small(weighting=("softmax", "temperature-log")),
        small(weighting=SinkSoftmax()),
        small(positions="rotary"),
        small(mask="future"),
    ]
    assert {shape_of(one) for one in same} == {shape_of(config)}
    assert len({shape_of(one) for one in (config, *others)}) == 1 + len(others)


def test_an_embedding_of_numpy_parameters_is_computed_without_jax():
    config = small(positions=("sinusoidal", "fraction"), dtype="float64")
    with numerics("float64"):
        parameters = jax.tree.map(np.asarray, initialise(config, 0))
    assert type(parameters.position_embedding(config, 9)) is np.ndarray


@dataclass(frozen=True)
class Windowed(Tempered):
    """One of a user's own: its temperature is that of sixteen symbols at most."""

    def inverse_temperatures(self, query_positions, n, dtype):
        return jnp.full(query_positions.shape, self.inverse_temperature(min(n, 16)), dtype)

    def shares(self, scores, visible):
        return Softmax().shares(scores, visible)


def test_a_class_from_elsewhere_keeps_its_formula():
    config = small(weighting=Windowed(LOG), layers=1)
    assert shape_of(config).layer(0).weighting == Windowed(LOG)
    model, word = jaxsens.Transformer(config, seed=0), np.arange(30) % 3
    found = jaxsens.flip_sensitivity(model, word, jaxsens.Substitute([0], positions=[4]), engine="vmap").norms
    other = np.where(np.arange(30) == 4, 0, word)
    np.testing.assert_allclose(found, np.linalg.norm(model(other) - model(word)), rtol=1e-9)


def test_a_shape_alone_is_no_model():
    config = small()
    with numerics(config.dtype):
        parameters = initialise(config, 0)
        with pytest.raises(TypeError, match="table 0 of inverse temperatures has no values yet"):
            layers.apply(shape_of(config), parameters, jnp.zeros(5, int))
