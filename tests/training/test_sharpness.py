"""Sharpness against closed forms and a loop over the same noise; layer-norm blow-up against the slow reference."""

from __future__ import annotations

import jax
import numpy as np
import pytest

import jaxsens
from jaxsens import InputError, TransformerConfig
from jaxsens.models.transformer import layers
from tests import reference

QUADRATIC = np.array([[3.0, 1.0, 0.0], [1.0, 5.0, -2.0], [0.0, -2.0, 7.0]])
CENTRE = np.array([0.5, -1.0, 2.0])


def quadratic(parameters):
    moved = parameters["w"] - CENTRE
    return 0.5 * moved @ QUADRATIC @ moved + parameters["b"].sum()


def at_centre():
    return {"w": CENTRE.copy(), "b": np.zeros(2)}


def test_the_rise_of_a_quadratic_is_half_the_trace_times_the_squared_noise():
    found = jaxsens.sharpness(quadratic, at_centre(), noise=0.1, draws=20_000)
    assert abs(found.mean - 0.5 * 0.1**2 * np.trace(QUADRATIC)) < 4 * found.standard_error
    assert found.standard_error < 0.002
    assert found.loss == 0
    assert found.perturbed == 5
    assert found.norm == pytest.approx(np.linalg.norm(CENTRE))
    assert found.radius == pytest.approx(0.1 * np.sqrt(5))


@pytest.mark.parametrize("relative", [False, True])
def test_the_rises_are_those_of_a_loop_over_the_draws(relative):
    parameters = {"w": CENTRE + 1, "b": np.array([1.0, -3.0])}
    found = jaxsens.sharpness(quadratic, parameters, 0.2, 6, seed=3, relative=relative)
    with jax.enable_x64(True):
        keys = jax.random.split(jax.random.key(3), 6)
        drawn = [jaxsens.parameter_noise(parameters, key, 0.2, relative) for key in keys]
        rises = [
            float(quadratic({name: parameters[name] + np.asarray(noise[name]) for name in parameters}))
            - quadratic(parameters)
            for noise in drawn
        ]
    np.testing.assert_allclose(found.rises, rises, rtol=1e-12)
    assert found.mean == pytest.approx(np.mean(rises))
    assert found.standard_error == pytest.approx(np.std(rises, ddof=1) / np.sqrt(6))


def test_relative_noise_has_the_scale_of_each_array():
    parameters = {"large": np.full(4000, 30.0), "small": np.full(4000, -0.1), "zero": np.zeros(10)}
    with jax.enable_x64(True):
        noise = jax.tree.map(
            np.asarray, jaxsens.parameter_noise(parameters, jax.random.key(0), 0.5, relative=True)
        )
    assert np.std(noise["large"]) == pytest.approx(15, rel=0.05)
    assert np.std(noise["small"]) == pytest.approx(0.05, rel=0.05)
    assert not np.any(np.asarray(noise["zero"]))
    assert jaxsens.sharpness(lambda p: p["large"].sum(), parameters, relative=True).radius is None


def test_parameters_that_are_left_out_do_not_move():
    with jax.enable_x64(True):
        noise = jaxsens.parameter_noise(at_centre(), jax.random.key(0), 1.0, without=("w",))
    assert not np.any(np.asarray(noise["w"]))
    assert np.all(np.asarray(noise["b"]))
    found = jaxsens.sharpness(lambda p: p["w"] @ p["w"], at_centre(), without=("w",))
    assert (found.rises, found.perturbed) == ((0.0,) * 10, 2)


def config(**changes):
    settings = {
        "alphabet_size": 2, "width": 4, "heads": 2, "layers": 2, "feed_forward": 6, "layer_norm": "post",
        "positions": "learned", "logits": 1, "dtype": "float64",
    }  # fmt: skip
    return TransformerConfig(**{**settings, **changes})


@pytest.mark.long
def test_the_sharpness_of_a_transformer_is_that_of_the_slow_reference():
    model = jaxsens.Transformer(config(), seed=1)
    words = np.array([[0, 1, 1], [1, 0, 1]])
    targets = np.array([0.0, 1.0])

    def loss(parameters, words, targets):
        outputs = jax.vmap(lambda word: layers.apply(model.config, parameters, word))(words)
        return ((outputs[:, 0] - targets) ** 2).mean()

    def slow(parameters):
        outputs = [reference.output(model.config, parameters, word)[0] for word in words]
        return float(np.mean((np.array(outputs) - targets) ** 2))

    found = jaxsens.sharpness(
        loss, model.parameters, 0.02, 3, seed=5, data=(words, targets), without=("learned",)
    )
    with jax.enable_x64(True):
        rises = []
        for key in jax.random.split(jax.random.key(5), 3):
            noise = jaxsens.parameter_noise(model.parameters, key, 0.02, without=("learned",))
            moved = jax.tree.map(lambda a, b: np.asarray(a) + np.asarray(b), model.parameters, noise)
            rises.append(slow(moved) - slow(jax.tree.map(np.asarray, model.parameters)))
    np.testing.assert_allclose(found.rises, rises, rtol=1e-9)


def test_what_cannot_be_used_is_named_together():
    with pytest.raises(InputError) as error:
        jaxsens.sharpness(3, {"a": np.ones(2)}, noise=0, draws=1, without=("b",))  # pyright: ignore[reportArgumentType]
    for name in ("loss = 3", "noise = 0", "draws = 1", "without = ['b']"):
        assert name in str(error.value)
    with pytest.raises(InputError, match="loss returns shape"):
        jaxsens.sharpness(lambda p: p["a"], {"a": np.ones(2)})
    with pytest.raises(InputError, match="at least one array of floats"):
        jaxsens.sharpness(lambda p: 0.0, {"a": np.arange(2)})


def slow_factors(model, word, monkeypatch):
    """1/sqrt(variance + epsilon) of every row that the reference normalises, in its order: (norms, n)."""
    seen = []
    original = reference.layer_norm

    def noted(config, norm, x):
        seen.append(1 / np.sqrt(np.mean((x - np.mean(x)) ** 2) + config.layer_norm_epsilon))
        return original(config, norm, x)

    with monkeypatch.context() as patch:
        patch.setattr(reference, "layer_norm", noted)
        reference.output(model.config, jax.tree.map(np.asarray, model.parameters), word)
    return np.array(seen).reshape(-1, len(word))


@pytest.mark.quick(2)
@pytest.mark.parametrize("layer_norm", ["pre", "post"])
@pytest.mark.parametrize("readout", ["last", 0, "mean"])
def test_the_blowup_is_that_of_the_slow_reference(layer_norm, readout, monkeypatch):
    model = jaxsens.Transformer(config(layer_norm=layer_norm, readout=readout), seed=2)
    words = np.array([[0, 1, 1, 0, 1], [1, 1, 1, 0, 0]])
    found = jaxsens.layer_norm_blowup(model, words)
    assert found.names == (
        "layer 1 attention",
        "layer 1 feed-forward",
        "layer 2 attention",
        "layer 2 feed-forward",
    )
    expected = np.array([slow_factors(model, word, monkeypatch) for word in words])
    if readout != "mean":
        row = 4 if readout == "last" else 0
        for norm in (3,) if layer_norm == "pre" else (2, 3):
            expected[:, norm, np.arange(5) != row] = np.nan
    np.testing.assert_allclose(found.factors, expected, rtol=1e-9)
    np.testing.assert_allclose(found.product, np.prod(np.nanmax(expected, axis=2), axis=1))
    one = jaxsens.layer_norm_blowup((model.config, model.parameters), words[0])
    np.testing.assert_allclose(one.factors, found.factors[:1], rtol=1e-12)


def test_one_layer_without_a_per_position_map_has_one_normalisation():
    model = jaxsens.Transformer(config(layers=1, feed_forward=0), seed=0)
    found = jaxsens.layer_norm_blowup(model, np.array([0, 1, 1]))
    assert found.names == ("layer 1 attention",)
    assert np.isnan(found.factors[0, 0, :2]).all()
    assert found.product == found.factors[0, 0, 2] > 0


def test_models_without_layer_normalisation_are_refused():
    with pytest.raises(InputError, match="layer_norm = 'none'"):
        jaxsens.layer_norm_blowup(jaxsens.Transformer(config(layer_norm="none")), np.array([0, 1]))
    with pytest.raises(InputError, match="layer_norm = 'RNN'"):
        jaxsens.layer_norm_blowup(jaxsens.RNN(jaxsens.RNNConfig(alphabet_size=2)), np.array([0, 1]))
