"""Sinks whose scores are parameters, one for each head; and `LayeredModel`, whose attention is visible."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxsens
from jaxsens import Attention, InputError
from jaxsens.core.base.errors import Problems
from jaxsens.core.models.adapters import as_model
from jaxsens.core.models.parts.initialisation import Normal
from jaxsens.core.models.parts.weighting import SinkSoftmax, learns_sink
from jaxsens.core.models.transformer.layered import LayeredModel
from jaxsens.core.models.transformer.layers import LayeredTransformer, layered_transformer
from jaxsens.core.models.transformer.parameters import initialise
from jaxsens.training.checkpoints import load_checkpoint
from jaxsens.training.loop import train
from tests.refusals import refused
from tests.small_models import small
from tests.training.tiny import tiny

LEARNED = SinkSoftmax(logit=0.5, learned=True)
WORD = [0, 1, 1, 0, 1, 0, 0, 2]


@pytest.mark.long
def test_training_moves_every_sink_on_its_own_and_a_checkpoint_keeps_them(tmp_path):
    weighting = {"type": "SinkSoftmax", "logit": 0.5, "learned": True}
    sizes = {"width": 8, "heads": 2, "layers": 1, "layer_norm": "pre", "dtype": "float64"}
    model = {"kind": "transformer", **sizes, "weighting": weighting}
    found = train(tiny(model=model, optimiser={"steps": 8}, evaluation={"every": 0}), tmp_path).model
    (sinks,) = (layer.sink for layer in found.parameters.layers)
    assert len(set(sinks.tolist())) == 2
    assert np.all(np.abs(np.asarray(sinks) - 0.5) > 1e-3)
    kept = load_checkpoint(tmp_path).model
    assert kept.config == found.config
    np.testing.assert_array_equal(kept.parameters.layers[0].sink, sinks)


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
class Own(jaxsens.Layered):
    """A user's model, with a learned sink in both heads unless it has another weighting."""

    weighting: Any = LEARNED
    layers: int = 2
    alphabet_size: int | None = 3

    def attention(self, layer):
        return Attention(2, weighting=self.weighting)

    def weighting_of(self, parameters, layer, head):
        weighting = self.attention(layer).weighting
        return weighting.at_sink(parameters["sinks"][layer, head]) if learns_sink(weighting) else weighting

    def embed(self, parameters, symbol, position):
        return parameters["embedding"][symbol] + 0.1 * position

    def project(self, parameters, layer, row, position):
        return tuple(row.reshape(2, 3) * (1 + layer) * c for c in (1.0, 0.5, 2.0))

    def merge(self, parameters, layer, row, attended):
        return row + jnp.tanh(attended.reshape(-1) + row)

    def read(self, parameters, row):
        return row


@pytest.mark.long
def test_a_users_model_has_them_too():
    sinks = np.array([[-1.0, 2.0], [0.5, 3.0]])
    parameters = {"embedding": np.random.default_rng(0).normal(size=(3, 6)), "sinks": sinks}
    model = Own(), parameters
    found, exact = (jaxsens.flip_sensitivity(model, WORD, engine=e) for e in ("incremental", "vmap"))
    np.testing.assert_allclose(found.norms, exact.norms, rtol=1e-9)
    total = jaxsens.analysis.attention_statistics((Own(layers=1), parameters), WORD).total
    for head, logit in enumerate(sinks[0]):
        fixed = jaxsens.analysis.attention_statistics(
            (Own(SinkSoftmax(logit=float(logit)), layers=1), parameters), WORD
        ).total
        np.testing.assert_allclose(total[0, head], fixed[0, head], rtol=1e-6)


@dataclasses.dataclass(frozen=True)
class Forgetful(LayeredTransformer):
    """A user's model that says its sinks are learned, and does not say where their scores are."""

    def weighting_of(self, parameters, layer, head):
        return self.attention_of(parameters, layer).weighting


def test_a_model_without_the_parameter_is_refused_and_the_logit_is_not_used_for_it():
    config = small(weighting=LEARNED, dtype="float32")
    parameters = initialise(config, 0)
    refused("learned", Forgetful(config, len(WORD)), parameters, jnp.asarray(WORD))
    assert Attention(2, weighting=LEARNED).weighting == LEARNED
    bare = tuple(dataclasses.replace(layer, sink=None) for layer in parameters.layers)
    refused(
        "parameters", jaxsens.Transformer, config, parameters=dataclasses.replace(parameters, layers=bare)
    )


CONFIG = jaxsens.TransformerConfig(alphabet_size=3, width=8, heads=2, layers=2, feed_forward=8)
TOKENS = [0, 1, 2, 2, 1]


class Named(LayeredModel):
    """A model of words of at most six symbols."""

    @property
    def max_length(self) -> int | None:
        return 6

    @property
    def reserved(self) -> tuple[int, ...]:
        return (2,)

    def tokens(self, ids) -> list[str]:
        return ["abc"[int(k)] for k in ids]


def named() -> Named:
    model = jaxsens.Transformer(CONFIG, seed=1)
    return Named(layered_transformer(CONFIG), model.parameters)


def test_calling_it_returns_the_output_of_every_row():
    model = named()
    rows = model(jnp.asarray(TOKENS))
    assert rows.shape == (5, 8)
    for row in (0, 3):
        np.testing.assert_allclose(
            rows[row],
            as_model(model).reading(row, 0, Problems()).call(jnp.asarray(TOKENS)),
            rtol=1e-5,
            atol=1e-6,
        )


@pytest.mark.long
@pytest.mark.parametrize("readout", ["last", 0, "mean"])
def test_it_is_measured_like_the_pair_of_its_parts(readout):
    model = named()
    pair = model.layered, model.parameters
    asked = {"flips": jaxsens.Substitute(2, positions=[0, 1, 4]), "readout": readout}
    ours, theirs = (jaxsens.flip_sensitivity(one, TOKENS, **asked) for one in (model, pair))
    np.testing.assert_array_equal(ours.norms, theirs.norms)


def test_what_it_knows_of_its_symbols_reaches_the_measurement():
    model = as_model(named())
    assert (model.max_length, model.reserved, model.special, model.embeddings) == (6, (2,), (), None)
    assert model.token_names is not None
    assert model.token_names([0, 2]) == ["a", "c"]


@pytest.mark.parametrize(
    "measure",
    [
        lambda model, word: model(jnp.asarray(word)),
        lambda model, word: jaxsens.flip_sensitivity(model, word, 2, readout="last"),
        lambda model, word: jaxsens.explain(model, len(word), flips=2),
        lambda model, word: jaxsens.theory.worst_input(model, len(word), 2),
    ],
    ids=["call", "flip_sensitivity", "explain", "worst_input"],
)
def test_an_input_longer_than_it_reads_is_refused(measure):
    with pytest.raises(InputError, match="at most 6"):
        measure(named(), [0, 1, 1, 0, 1, 1, 0])
