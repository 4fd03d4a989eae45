"""Equal layers are looped over, and models that differ in a config's numbers alone share their programs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxsens
from jaxsens.core.base.programs import numerics
from jaxsens.core.models.adapters import as_model
from jaxsens.core.models.parts.initialisation import Normal
from jaxsens.core.models.parts.schedules import Schedule
from jaxsens.core.models.parts.weighting import SinkSoftmax, Softmax, Tempered
from jaxsens.core.models.transformer import layers
from jaxsens.core.models.transformer.parameters import Stack, initialise, over_layers, shape_of
from tests.small_models import small


def test_a_fold_takes_layers_in_order_and_keeps_what_each_gave():
    stack = Stack((jnp.asarray(1.0), jnp.asarray([2.0, 3.0, 4.0]), jnp.asarray(5.0)), (1, 3, 1))
    traced: list[int] = []

    def step(k: int, own: Any, carry: Any) -> tuple[Any, Any]:
        traced.append(k)
        return 10 * carry + own, carry

    carry, before = over_layers(step, stack, jnp.asarray(0.0), range(5))
    assert carry == 12345
    assert [float(before[k]) for k in range(5)] == [0, 1, 12, 123, 1234]
    assert traced == [0, 1, 4]  # a run is traced once
    inner, before = over_layers(step, stack, jnp.asarray(0.0), range(1, 4))
    assert inner == 234
    assert before.lengths == (3,)


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
