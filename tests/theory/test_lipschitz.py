"""Lipschitz constants and bounds of the parts: never too small, and not much too large."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest

from jaxsens import Transformer
from jaxsens.theory.lemma5 import lemma5
from jaxsens.theory.rules import ACTIVATION_LIPSCHITZ, largest_embedding
from tests import reference
from tests.refusals import refusal
from tests.small_models import POSITIONS_TRIED, random_parameters, small


def test_derivatives_of_activations_stay_below_their_constants_and_come_near():
    x = np.linspace(-12, 12, 2_000_001)
    for name, constant in ACTIVATION_LIPSCHITZ.items():
        y = {
            "relu": np.maximum(x, 0),
            "tanh": np.tanh(x),
            "gelu": 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
            "silu": x * (1 + np.tanh(x / 2)) / 2,
        }[name]
        slope = np.abs(np.diff(y) / np.diff(x)).max()
        assert slope - 1e-9 <= constant <= slope * 1.0001
        assert np.all(np.abs(y) <= np.abs(x))


def test_the_largest_embedding_is_that_of_the_reference():
    for positions in POSITIONS_TRIED.values():
        config = small(positions=positions)
        parameters = random_parameters(config)
        rows = [
            np.linalg.norm(row)
            for symbol in range(config.vocabulary_size)
            for row in reference.embedded(config, parameters, [symbol] * 6, np.float64)
        ]
        assert max(rows) <= largest_embedding(config, parameters, 6) <= max(rows) * (1 + 1e-8)


@pytest.mark.quick(3)
@pytest.mark.parametrize("logits", [None, 3])
@pytest.mark.parametrize("norm", ["l2", "l1", "linf"])
def test_of_chosen_outputs_the_bound_is_that_of_the_model_which_has_no_others(norm, logits):
    config = small(layers=1, logits=logits)
    parameters = random_parameters(config)
    model = Transformer(config, parameters=parameters)
    n: Any = np.int64(6)
    whole, some = (lemma5(model, n, measure={"kind": norm, "outputs": chosen}) for chosen in ("all", [2, 0]))
    assert (whole.outputs, some.outputs) == (None, (0, 2))
    assert type(some.n) is int
    head = np.eye(config.width) if logits is None else np.asarray(parameters.head)
    cut = dataclasses.replace(parameters, head=head[:, [0, 2]], head_bias=np.zeros(2))
    alone = lemma5(Transformer(config.replace(logits=2), parameters=cut), 6, measure=norm)
    np.testing.assert_allclose(some.log_bound, alone.log_bound, rtol=1e-8)
    assert some.log_bound <= whole.log_bound
    # In l2 and linf two outputs may change by as much as all.
    assert some.log_bound < whole.log_bound or norm != "l1"


def test_outputs_that_the_model_does_not_have_are_refused():
    for outputs in ([6], [], 0, "some", [[0], 1]):
        with refusal("measure.outputs"):
            lemma5(Transformer(small()), 4, measure={"kind": "l2", "outputs": outputs})
