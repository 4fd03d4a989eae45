"""How random weights are distributed: the default, and others that do not look at the fan-in."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from scipy import stats

from jaxsens import InputError, TransformerConfig
from jaxsens.core.models.parts.initialisation import FAN_IN, Normal, Uniform, draw
from jaxsens.core.models.transformer.module import build, kinds, network, plain
from jaxsens.core.sweeps.config import parse_sweep_config
from jaxsens.training import LSTMConfig
from tests.core.sweeps.tiny import TINY
from tests.refusals import refused

SMALL = {"width": 8, "layers": 1, "logits": 2, "dtype": "float64"}


def leaves(config, seed=0):
    paths, _ = jax.tree_util.tree_flatten_with_path(build(config, seed=seed).parameters)
    return {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in paths}


@pytest.mark.parametrize("kind", kinds())
@pytest.mark.parametrize(
    ("initialisation", "law"),
    [(Uniform(10), stats.uniform(-10, 20)), (Normal(0.3), stats.norm(0, 0.3))],
    ids=["uniform", "normal"],
)
def test_every_random_entry_has_the_distribution_and_no_other_changes(kind, initialisation, law):
    config = network(kind).of(3, **SMALL, initialisation=initialisation)
    default, own = leaves(config.replace(initialisation=FAN_IN)), leaves(config)
    constant = {name for name, leaf in default.items() if np.unique(leaf).size <= 2}
    assert constant
    assert constant < set(own)
    for name in constant:
        np.testing.assert_array_equal(own[name], default[name])
    drawn = np.concatenate([own[name].ravel() for name in own.keys() - constant])
    assert stats.kstest(drawn, law.cdf).pvalue > 1e-4
    assert np.unique(drawn).size == drawn.size


def test_every_parameter_has_a_stream_of_its_own_for_each_seed():
    one, other, next_seed = (
        draw(Uniform(10), seed, name, (2, 3), 0.1, "float64")
        for seed, name in ((0, "query"), (0, "key"), (1, "query"))
    )
    assert not np.array_equal(one, other)
    assert not np.array_equal(one, next_seed)
    np.testing.assert_allclose(one, 10 * draw(Uniform(1), 0, "query", (2, 3), 5.0, "float64"), rtol=1e-13)
    single = draw(Uniform(10), 0, "query", (2, 3), 0.1, "float32")
    np.testing.assert_array_equal(single, one.astype(np.float32))


def test_the_default_is_left_out_of_what_determines_a_model():
    for config in (TransformerConfig(2), LSTMConfig(2)):
        assert config.initialisation == FAN_IN
        assert "initialisation" not in plain(config)
        assert plain(config.replace(initialisation=Uniform(2)))["initialisation"] == {
            "type": "Uniform",
            "bound": 2,
        }
    assert TransformerConfig(2, initialisation="fan-in") == TransformerConfig(2)


def test_a_sweep_reads_it_from_its_table():
    sweep = parse_sweep_config(TINY + 'initialisation = {type = "Uniform", bound = 10}\n')
    plainly = parse_sweep_config(TINY)
    network = sweep.variants[0].source.network
    assert isinstance(network, TransformerConfig)
    assert network.initialisation == Uniform(10)
    assert {point.key for point in sweep.points}.isdisjoint(point.key for point in plainly.points)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("xavier", "initialisation = 'xavier': \"fan-in\", Uniform"),
        ({"type": "Unifrom", "bound": 1}, 'did you mean "Uniform"'),
        ({"type": "Uniform"}, "bound: required"),
        ({"type": "Uniform", "bound": -1.0}, "bound = -1.0: a number above 0"),
        ({"type": "Normal", "deviation": float("inf")}, "deviation"),
        (10, "initialisation = 10"),
    ],
)
def test_what_is_no_initialisation_is_refused(given, message):
    with pytest.raises(InputError) as caught:
        TransformerConfig(2, initialisation=given)
    assert message in str(caught.value)


@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf"), "1", True])
def test_what_is_no_width_of_a_distribution_is_refused(value):
    refused("bound", Uniform, value)
    refused("deviation", Normal, value)
