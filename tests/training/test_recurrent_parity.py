"""The hand-set RNN is at the optimum at every length, and its state flips with every 1."""

from __future__ import annotations

import numpy as np
import pytest

import jaxsens
from jaxsens.languages import Parity
from jaxsens.training.evaluation import cross_entropy, logits
from jaxsens.training.theorem6.recurrent_parity import exact_parity_rnn
from tests.refusals import refusal, refused


@pytest.mark.quick(4)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("n", [0, 1, 10, 1000, 10_000])
def test_its_cross_entropy_is_the_optimum(n, dtype):
    for end_probability in (0.1, 0.5):
        found = cross_entropy(exact_parity_rnn(end_probability, dtype), Parity(end_probability), n, words=32)
        assert found.mean == pytest.approx(Parity(end_probability).optimal_cross_entropy(n), abs=1e-6)
        assert found.standard_error < 1e-6


def test_its_predictions_are_the_laws_after_every_prefix_in_both_states():
    learned, model = Parity(0.2), exact_parity_rnn(0.2)
    prefixes = learned.sample_prefixes(16, 2000, np.random.default_rng(0))
    out = logits(model.config, model.parameters, np.concatenate([np.full((16, 1), 2), prefixes], axis=1))
    predicted = np.exp(out - np.logaddexp.reduce(out, axis=-1, keepdims=True))
    laws = learned.last_probabilities(prefixes)
    assert set(laws[:, 2]) == {0.0, 0.2}
    np.testing.assert_allclose(predicted, laws, atol=1e-15)


def test_every_flip_moves_its_prediction_by_as_much_at_any_length():
    model = exact_parity_rnn()
    largest = []
    for n in (5, 50, 500):
        word = np.concatenate([[2], np.random.default_rng(n).integers(0, 2, n)])
        result = jaxsens.flip_sensitivity(model, word)
        assert len(result) == n - 1
        assert result.norms.min() == pytest.approx(result.max, rel=1e-12)
        largest.append(result.max)
    assert largest == pytest.approx([largest[0]] * 3, rel=1e-12)
    assert largest[0] > 1


def test_bad_arguments_are_refused():
    with refusal("end_probability"):
        exact_parity_rnn(1)
    refused("dtype", exact_parity_rnn, 0.1, "float16")
