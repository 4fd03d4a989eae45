"""Equal layers are looped over, and models that differ in a config's numbers alone share their programs."""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
import pytest

import jaxsens
from jaxsens.core.base.programs import numerics
from jaxsens.core.models.adapters import as_model
from jaxsens.core.models.parts.schedules import Schedule
from jaxsens.core.models.parts.weighting import Softmax, Tempered
from jaxsens.core.models.transformer import layers
from jaxsens.core.models.transformer.parameters import Stack, initialise, shape_of
from tests.small_models import small


@pytest.mark.quick(1, 2)
@pytest.mark.parametrize("engine", ["vmap", "incremental", "difference", "first-order"])
def test_a_model_of_equal_layers_is_measured_as_by_forward_passes_of_its_own(engine):
    config = small(alphabet_size=3, layers=5, heads=(2, 1, 1, 1, 2), dtype="float64")
    model, word = jaxsens.Transformer(config, seed=0), np.arange(9) % 3
    assert isinstance(as_model(model).parameters.layers, Stack)
    flips = jaxsens.Substitute(symbols=(0,))
    found = jaxsens.flip_sensitivity(model, word, flips, engine=engine)
    with numerics("float64"):
        flips = zip(found.positions, found.symbols, strict=True)
        flipped = [np.where(np.arange(9) == position, symbol, word) for position, symbol in flips]
        outputs = [np.asarray(model(each)) for each in [word, *flipped]]
    true = np.linalg.norm(np.asarray(outputs[1:]) - outputs[0], axis=-1)
    exact = found.norms if found.estimated is None else found.norms[found.estimated.stratum > 0]
    true = true if found.estimated is None else true[found.estimated.stratum > 0]
    np.testing.assert_allclose(exact, true, rtol=1e-9, atol=1e-14)


LOG = Schedule(log_power=1.0)


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
