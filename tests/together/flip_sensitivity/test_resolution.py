"""A transformer's scores that its dtype cannot tell apart are warned of, an output that is no number is refused."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import jaxsens
from jaxsens.core.base.errors import InputError
from jaxsens.core.base.programs import numerics
from jaxsens.core.checks.precision import ForwardPass, forward_pass, unreliable
from jaxsens.core.engines.vmap import VmapEngine
from jaxsens.core.measures import L2
from jaxsens.core.models.adapters import Model, as_model
from jaxsens.core.placement.placement import Placement
from tests.refusals import refused


def model(**changes: Any) -> jaxsens.Transformer:
    sizes = {"alphabet_size": 2, "width": 8, "heads": 2, "layers": 2, "feed_forward": 8}
    return jaxsens.Transformer(jaxsens.TransformerConfig(**{**sizes, **changes}), seed=3)


def words(n: int) -> np.ndarray:
    return np.random.default_rng(3).integers(0, 2, (1, n)).astype(np.int32)


def passed(model: Model, words: np.ndarray) -> ForwardPass:
    engine = VmapEngine(L2(), None, model.apply)
    return forward_pass(model, words, engine, model.parameters, Placement())


def told(model: Model, n: int) -> str | None:
    with numerics(model.dtype):
        return unreliable(model, n, passed(model, words(n)), widens=False)


def test_scores_beyond_the_dtype_are_warned_of_once_with_layer_and_remedy():
    cold = model(weighting="temperature-cubic", layers=1)
    with pytest.warns(
        jaxsens.PrecisionWarning, match=r'layer 0 reach .* float32 .*engine="difference".*dtype="float64"'
    ) as caught:
        jaxsens.flip_sensitivity(cold, words(1024)[0], flips=jaxsens.Substitute(positions=[0]), engine="vmap")
    assert len(caught) == 1
    assert caught[0].filename == __file__


@pytest.mark.long
def test_an_engine_that_measures_in_float64_what_float32_blurs_is_not_warned_of():
    cold = model(weighting="temperature-cubic", layers=1)
    result = jaxsens.flip_sensitivity(
        cold, words(1024)[0], flips=jaxsens.Substitute(positions=[0]), engine="difference"
    )
    assert "float64" in result.engine.reason


@pytest.mark.parametrize(
    ("changes", "n"),
    [
        ({}, 64),
        ({"weighting": "temperature-log"}, 512),
        ({"weighting": "temperature-cubic"}, 32),
        ({"weighting": "temperature-cubic", "dtype": "float64", "layers": 1}, 1024),
        ({"weighting": "leftmost-hard"}, 64),
    ],
)
def test_scores_that_the_dtype_resolves_are_not_warned_of(changes, n):
    assert told(as_model(model(**changes)), n) is None


def test_what_counts_is_the_score_of_keys_that_get_weight():
    # Penalties of distance: far keys have huge negative scores, and no weight.
    assert told(as_model(model(weighting="temperature-quadratic", positions="alibi", layers=1)), 256) is None
    parameters = model().parameters
    first = dataclasses.replace(parameters.layers[0], query=parameters.layers[0].query * 1e7)
    sharp = dataclasses.replace(parameters, layers=(first, parameters.layers[1]))
    assert "layer 0" in (told(as_model(jaxsens.Transformer(model().config, parameters=sharp)), 16) or "")


def test_within_its_exact_length_a_constructed_model_is_not_warned_of():
    subject = as_model(model(weighting="temperature-cubic", layers=1))
    assert told(dataclasses.replace(subject, exact_length=1023), 1024) is not None
    assert told(dataclasses.replace(subject, exact_length=1024), 1024) is None


def with_nan(transformer: jaxsens.Transformer, where: str) -> jaxsens.Transformer:
    parameters = transformer.parameters
    if where == "head_bias":
        bias = jnp.full(3, jnp.nan)
        parameters = dataclasses.replace(parameters, head_bias=bias)
    else:
        last = dataclasses.replace(parameters.layers[-1], b2=jnp.full(8, jnp.nan))
        parameters = dataclasses.replace(parameters, layers=(*parameters.layers[:-1], last))
    return jaxsens.Transformer(transformer.config, parameters=parameters)


@pytest.mark.parametrize("engine", ["auto", "vmap", "difference"])
@pytest.mark.parametrize("where", ["b2", "head_bias"])
def test_a_model_whose_output_is_nan_is_refused_by_every_engine(where, engine):
    # A bias that is NaN leaves every change of the output finite.
    broken = with_nan(model(logits=3), where)
    with pytest.raises(InputError, match="output on input 0 is not finite in float32; look for NaN"):
        jaxsens.flip_sensitivity(broken, words(16), engine=engine)
    refused(
        "model",
        jaxsens.theory.worst_input,
        broken,
        16,
        search=jaxsens.theory.Search(exact=False, budget=1),
        engine=engine,
    )


def test_the_input_that_gives_no_number_is_named():
    transformer = model(layers=1)
    embedding = transformer.parameters.embedding.at[1].set(jnp.nan)
    broken = jaxsens.Transformer(
        transformer.config, parameters=dataclasses.replace(transformer.parameters, embedding=embedding)
    )
    with pytest.raises(InputError, match="output on input 1 is not finite"):
        jaxsens.flip_sensitivity(broken, np.array([[0] * 8, [0] * 7 + [1]]))
