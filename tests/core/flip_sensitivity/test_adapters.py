"""Models of other libraries are measured like a loop over their own calls; and what a model says of its own output."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jaxsens
from jaxsens.core.models.adapters import as_model
from tests.refusals import refused

TOKENS = np.array([0, 1, 1, 0, 1])


class NnxModel(nnx.Module):
    def __init__(self, rngs, rate=0.0):
        self.embed = nnx.Embed(2, 4, rngs=rngs)
        self.dense = nnx.Linear(4, 3, rngs=rngs)
        self.dropout = nnx.Dropout(rate, rngs=rngs)

    def __call__(self, tokens):
        return self.dense(self.dropout(jnp.tanh(self.embed(tokens)).mean(0)))


class LinenModel(nn.Module):
    @nn.compact
    def __call__(self, tokens):
        return nn.Dense(3)(jnp.tanh(nn.Embed(2, 4)(tokens)).mean(0))


class EquinoxModel(eqx.Module):
    embed: eqx.nn.Embedding
    dense: eqx.nn.Linear
    squash: Callable

    def __init__(self, key):
        one, two = jax.random.split(key)
        self.embed, self.dense = eqx.nn.Embedding(2, 4, key=one), eqx.nn.Linear(4, 3, key=two)
        self.squash = jnp.tanh

    def __call__(self, tokens):
        return self.dense(self.squash(jax.vmap(self.embed)(tokens)).mean(0))


def models():
    nnx_model = NnxModel(nnx.Rngs(0))
    linen = LinenModel()
    variables = linen.init(jax.random.key(0), jnp.asarray(TOKENS))
    equinox = EquinoxModel(jax.random.key(0))
    return {
        "nnx": (nnx_model, nnx_model),
        "linen with variables": ((linen, variables), lambda t: linen.apply(variables, t)),
        "linen bound": (linen.bind(variables), lambda t: linen.apply(variables, t)),
        "equinox": (equinox, equinox),
        "partial": (jax.tree_util.Partial(lambda w, t: w * t.sum(), jnp.arange(3.0)),) * 2,
        "lambda": (lambda t: jnp.sin(t * jnp.arange(1.0, 6.0)).sum(),) * 2,
    }


@pytest.mark.quick(1)
@pytest.mark.parametrize("kind", models())
def test_every_kind_of_model_is_measured_like_a_loop_over_its_own_calls(kind):
    model, call = models()[kind]
    result = jaxsens.flip_sensitivity(model, TOKENS, flips=2)
    base = np.asarray(call(jnp.asarray(TOKENS)))
    for norm, position in zip(result.norms, result.positions, strict=True):
        changed = TOKENS.copy()
        changed[position] ^= 1
        difference = np.asarray(call(jnp.asarray(changed))) - base
        np.testing.assert_allclose(norm, np.linalg.norm(np.atleast_1d(difference)), rtol=1e-4, atol=1e-6)


def test_adapters_of_one_architecture_are_equal_so_that_nothing_compiles_twice():
    one, two = (as_model(EquinoxModel(jax.random.key(k))).apply for k in (0, 1))
    assert one == two
    assert hash(one) == hash(two)
    one, two = (as_model(NnxModel(nnx.Rngs(k))).apply for k in (0, 1))
    assert one == two
    assert hash(one) == hash(two)


def test_active_dropout_is_detected_and_the_users_model_left_as_it_was():
    model = NnxModel(nnx.Rngs(0), rate=0.5)
    before = int(model.dropout.rngs.count.get_value()) if model.dropout.rngs is not None else 0
    assert "two calls on the same input differ" in refused("", jaxsens.flip_sensitivity, model, TOKENS, 2)
    assert model.dropout.rngs is None or int(model.dropout.rngs.count.get_value()) == before
    model.eval()
    assert len(jaxsens.flip_sensitivity(model, TOKENS, 2)) == 4


class NnxLayer(nnx.Module):
    def __init__(self, rngs, rate):
        self.linear, self.dropout = nnx.Linear(4, 4, rngs=rngs), nnx.Dropout(rate, rngs=rngs)

    def __call__(self, x):
        return x + jnp.tanh(self.linear(self.dropout(x)))


class NnxStack(nnx.Module):
    """Layers made by `nnx.vmap`: the counters of their random streams are arrays."""

    def __init__(self, rate):
        rngs = nnx.Rngs(0)
        self.embed = nnx.Embed(3, 4, rngs=rngs)
        made = nnx.vmap(lambda own: NnxLayer(own, rate), in_axes=(0,), out_axes=0)
        self.layers = nnx.split_rngs(splits=2)(made)(rngs)

    def __call__(self, tokens):
        step = nnx.scan(lambda x, layer: layer(x), in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)
        return step(self.embed(tokens), self.layers).mean(0)


class NnxDrawing(nnx.Module):
    """Draws a number at every call; `scale` is what becomes of it, None if it is not used."""

    def __init__(self, scale):
        self.embed, self.rngs, self.scale = nnx.Embed(3, 4, rngs=nnx.Rngs(0)), nnx.Rngs(1), scale

    def __call__(self, tokens):
        y, key = self.embed(tokens).mean(0), self.rngs()
        return y if self.scale is None else y + self.scale * jax.random.normal(key, y.shape)


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("made", "training", "random"),
    [
        (lambda: NnxStack(0.1), False, False),
        (lambda: NnxStack(0.0), True, False),
        (lambda: NnxStack(0.1), True, True),
        (lambda: NnxStack(0.02), True, True),
        (lambda: NnxDrawing(None), True, False),
        (lambda: NnxDrawing(0.0), True, False),
        (lambda: NnxDrawing(1.0), True, True),
    ],
)
def test_random_streams_refuse_a_module_only_if_they_move_its_output(made, training, random):
    model = made()
    if not training:
        model.eval()
    parts = (lambda parts, tokens: nnx.merge(*parts)(tokens), nnx.split(model))
    if random:
        refused("", jaxsens.flip_sensitivity, model, TOKENS, 3)
        return
    changed = [model(jnp.asarray(np.where(np.arange(len(TOKENS)) == 0, s, TOKENS))) for s in (1, 2)]
    expected = [np.linalg.norm(one - model(jnp.asarray(TOKENS))) for one in changed]
    for one in (model, parts):
        np.testing.assert_allclose(jaxsens.flip_sensitivity(one, TOKENS, 3).norms[:2], expected, rtol=1e-5)


def test_modules_without_variables_or_with_a_state_and_what_has_no_hash_are_refused_with_the_remedy():
    model = NnxStack(0.1)
    model.eval()
    said = refused("", jaxsens.flip_sensitivity, lambda tokens: model(tokens), TOKENS, 3)
    assert "nnx.merge(*parts)(tokens), nnx.split(module)" in said
    assert "pass (module, variables)" in refused("", jaxsens.flip_sensitivity, LinenModel(), TOKENS, 2)

    class Unhashable:
        __hash__ = None  # pyright: ignore[reportAssignmentType]

        def __call__(self, tokens):
            return tokens.sum() * 1.0

    refused("model", jaxsens.flip_sensitivity, Unhashable(), TOKENS, 2)


WORD = np.array([0, 1, 1, 0, 1, 0])


class Designating(jaxsens.Transformer):
    outputs = (2, 5)
    exact_length = 5


def model(dtype: Any = "float32", kind: type[jaxsens.Transformer] = Designating):
    # As little as there can be to compile: which outputs are measured is settled before any layer.
    config = jaxsens.TransformerConfig(2, width=8, heads=1, layers=1, feed_forward=0, dtype=dtype)
    return kind(config, seed=0)


@pytest.mark.filterwarnings("ignore::jaxsens.PrecisionWarning")
def test_designated_outputs_are_what_is_measured_unless_others_are_asked_for():
    subject, plain = model(), model(kind=jaxsens.Transformer)
    cases: tuple[Any, ...] = ((None, (2, 5)), ([0], (0,)), (range(3), (0, 1, 2)), ("all", None))
    for asked, expected in cases:
        found = jaxsens.flip_sensitivity(subject, WORD, measure=jaxsens.L2(outputs=asked), engine="vmap")
        assert found.asked.outputs == expected
        same = jaxsens.flip_sensitivity(plain, WORD, measure=jaxsens.L2(outputs=expected), engine="vmap")
        np.testing.assert_array_equal(found.norms, same.norms)
    assert jaxsens.flip_sensitivity(plain, WORD).asked.outputs is None
    assert jaxsens.flip_sensitivity(plain, WORD, measure=jaxsens.L2(outputs="all")).asked.outputs is None


@pytest.mark.filterwarnings("ignore::jaxsens.PrecisionWarning")
def test_designated_outputs_that_the_model_does_not_have_are_refused():
    class Wrong(Designating):
        outputs = (8,)

    refused("measure.outputs", jaxsens.flip_sensitivity, model(kind=Wrong), WORD)


@pytest.mark.quick(0, 1)
@pytest.mark.parametrize(
    ("dtype", "remedy"),
    [
        ("float32", r'dtype="float64".* or under another condition'),
        ("float64", "build the model under another"),
    ],
)
def test_beyond_its_exact_length_one_warning_names_lengths_dtype_and_remedy(dtype, remedy):
    with pytest.warns(jaxsens.PrecisionWarning, match=remedy) as caught:
        jaxsens.flip_sensitivity(model(dtype), np.stack([WORD, WORD]))
    assert len(caught) == 1
    assert f"n = 6: in {dtype} this model is exact only up to n = 5" in str(caught[0].message)
    assert caught[0].filename == __file__


def test_models_of_other_kinds_designate_nothing():
    class Other:
        outputs = (0,)

        def __call__(self, tokens):
            return tokens * 1.0

    assert as_model(Other()).outputs is None
    assert (as_model(model()).outputs, as_model(model()).exact_length) == ((2, 5), 5)
