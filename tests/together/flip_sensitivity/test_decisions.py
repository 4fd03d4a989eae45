"""Boolean functions by their decisions: every count against plain enumeration."""

from __future__ import annotations

import itertools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxsens
from jaxsens import InputError, TransformerConfig, flip_sensitivity
from jaxsens.core.flips.flips import Substitute
from jaxsens.core.measures import Decision
from jaxsens.core.models.parts.initialisation import Uniform
from jaxsens.core.sweeps.inputs import AllWords, Symbols
from tests.reference import output
from tests.refusals import refused


def every_word(n, size=2):
    return np.array([*itertools.product(range(size), repeat=n)])


def enumerated(decide, words, size=2):
    """The flips that change the decision, by input and position: a loop over flips."""
    found = np.zeros(words.shape, int)
    for k, word in enumerate(words):
        before = decide(word)
        for i in range(len(word)):
            for symbol in set(range(size)) - {int(word[i])}:
                new = word.copy()
                new[i] = symbol
                found[k, i] += decide(new) != before
    return found


def majority(tokens):
    return (2 * jnp.sum(tokens) - tokens.shape[0]).astype(jnp.float32)


def boolean(function, words, flips: Any = 2, threshold=0.0, **options):
    return flip_sensitivity(function, words, flips, Decision(threshold), readout=None, **options)


CONFIGS = (
    TransformerConfig(
        3, width=8, heads=2, layers=1, feed_forward=8, logits=1, dtype="float64", initialisation=Uniform(10)
    ),
    TransformerConfig(3, width=8, heads=2, layers=1, feed_forward=0, logits=3, dtype="float64"),
)


@pytest.mark.quick(1, 2)
@pytest.mark.parametrize(("config", "seed"), [*zip(CONFIGS, (1, 0), strict=True)], ids=["sign", "argmax"])
@pytest.mark.parametrize("engine", ["vmap", "incremental", "difference"])
def test_profiles_of_transformers_over_all_inputs_are_those_of_the_loop(config, seed, engine):
    model = jaxsens.Transformer(config, seed=seed)
    words = AllWords().tokens(Symbols(3, 3), 4, 0)
    parameters = jax.tree.map(np.asarray, model.parameters)

    def decide(word):
        y = output(config, parameters, [*word, 3])
        return y[0] > 0 if config.logits == 1 else int(np.argmax(y))

    truth = enumerated(decide, words[:, :-1], 3)
    result = flip_sensitivity(model, words, measure="decision", engine=engine)
    assert 0 < truth.sum() < 6 * len(words)
    np.testing.assert_array_equal(result.sensitive_flips, truth.sum(axis=1))
    shares = [(truth.sum(axis=1) == s).mean() for s in range(7)]
    np.testing.assert_allclose(result.sensitivity_distribution, shares, rtol=1e-12)
    np.testing.assert_allclose(result.influences[:-1], truth.mean(axis=0), rtol=1e-12)
    assert math.isnan(result.influences[-1])
    assert result.average_sensitivity == pytest.approx(truth.sum(axis=1).mean(), rel=1e-12)
    assert result.average_sensitivity_per_position == pytest.approx(truth.mean(), rel=1e-12)


def test_what_a_result_does_not_say_is_refused_by_name():
    words = every_word(3)
    norms = flip_sensitivity(majority, words[0], 2, readout=None)
    drawn = boolean(majority, words, Substitute(2, sample=9))
    chosen = flip_sensitivity(
        majority, words, flips=Substitute([1], sample=5), measure="decision", readout=None
    )
    groups = flip_sensitivity(
        majority, words, flips=Substitute(2, groups=[(0, 1)]), measure="decision", readout=None
    )
    needs_all = "it needs all flips, and 9 of 24 were drawn; measure all"
    of_norms = 'this result has measure = "l2"; give measure="dec'
    for result, name, why in (
        (norms, "sensitive_flips", of_norms),
        (norms, "average_sensitivity", of_norms),
        (norms, "sensitivity_distribution", of_norms),
        (norms, "influences", of_norms),
        (norms, "average_sensitivity_per_position", of_norms),
        (drawn, "sensitivity_distribution", needs_all),
        (drawn, "influences", needs_all),
        (chosen, "average_sensitivity_per_position", "a sample of flips to chosen symbols does not say"),
        (groups, "influences", "flips of groups"),
    ):
        with pytest.raises(InputError, match=f"{name}: .*{why}"):
            getattr(result, name)


@pytest.mark.quick(1)
@pytest.mark.parametrize("engine", ["vmap", "incremental", "difference"])
def test_a_threshold_is_that_of_the_loop(engine):
    config = CONFIGS[1].replace(logits=2)
    model = jaxsens.Transformer(config, seed=3)
    words = AllWords().tokens(Symbols(3, 3), 4, 0)
    outputs = np.asarray(model(jnp.asarray(words)))[:, 1]
    threshold = float(np.median(outputs)) + 1e-6
    above = dict(zip(map(tuple, words.tolist()), outputs > threshold, strict=True))
    truth = enumerated(lambda word: above[(*word.tolist(), 3)], words[:, :-1], 3)
    decision = Decision(threshold, outputs=[1])
    result = flip_sensitivity(model, words, measure=decision, engine=engine)
    assert truth.any()
    np.testing.assert_array_equal(result.sensitive_flips, truth.sum(axis=1))
    assert result.measure == decision


def test_the_median_threshold_balances_the_outputs_on_the_inputs():
    weights = jnp.asarray([0.3, -1.1, 0.7, 0.2], jnp.float32)
    words = every_word(4)
    result = flip_sensitivity(lambda t: weights @ t, words, 2, Decision("median"), readout=None)
    outputs = words @ np.asarray(weights, np.float64)
    assert isinstance(result.measure, Decision)
    assert (outputs > float(result.measure.threshold)).sum() == 8


def test_a_threshold_is_saved_and_compared(tmp_path):
    words = every_word(3)
    result, other = (boolean(majority, words, threshold=t) for t in (0.5, 0.0))
    result.save(tmp_path / "result.parquet")
    assert jaxsens.load_result(tmp_path / "result.parquet").measure == Decision(0.5)
    refused("measure", result.joined, other)


def test_a_threshold_is_of_the_decision_of_one_output():
    refused("threshold", Decision, float("nan"))
    model = jaxsens.Transformer(CONFIGS[1], seed=0)
    refused("measure.threshold", flip_sensitivity, model, [0, 1, 3], measure=Decision(threshold=0.5))
