"""The batched NumPy pass beside the specification, and beside the model that users run: on every coordinate."""

from __future__ import annotations

import numpy as np
import pytest
from jax import tree

from jaxsens.formal.constructions.compiler import compile_formula
from tests import reference
from tests.formal.constructions.many_words import SUMMED, activations, wrong_values

CASES = [
    ("#L[Q_1] > #R[Y Q_0]", "temperature", False),
    ("X Q_1 U Q_0 & odd(#L[Q_1])", "unbounded", False),
    ("#L[Q_1] = #R[Q_0]", "temperature-bounded", False),
    ("Q_0 S Y Q_1", "temperature", True),
    ("odd(#L[Q_1])", "average-hard", True),
    ("X Q_1 & Q_0 S Q_1", "leftmost-hard", False),
    ("X Q_1 & Q_0 S Q_1", "rightmost-hard", False),
    ("even(#L[Q_1])", "bounded-softmax", False),
]


@pytest.mark.quick(4)
@pytest.mark.parametrize(("text", "condition", "autoregressive"), CASES)
def test_all_passes_agree(text, condition, autoregressive):
    model = compile_formula(text, "01", condition, autoregressive=autoregressive)
    tokens = np.random.default_rng(0).integers(0, 2, size=(2, 9))
    parameters = tree.map(np.asarray, model.parameters)
    batched = activations(model.config, parameters, tokens)
    for word, found in zip(tokens, batched, strict=True):
        np.testing.assert_allclose(
            found, reference.activations(model.config, parameters, word), rtol=1e-10, atol=1e-10
        )
    np.testing.assert_allclose(batched, np.asarray(model.activations(tokens)), rtol=1e-10, atol=1e-10)


def test_what_the_order_of_sums_leaves_is_not_wrong_and_more_is():
    found = np.array([1.4e-14, 1 - 1.4e-14, 2 * SUMMED, 1 - 2 * SUMMED, np.nan])
    assert wrong_values(found[:2], np.array([False, True])) == 0
    assert [wrong_values(found[k:], np.array([0, 1, 0, 1, 0])[k:]) for k in (2, 3, 4)] == [3, 2, 1]
