"""What a model says of its own output: which coordinates are to be measured, and how far it is exact."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import jaxsens
from jaxsens.core.models.adapters import as_model
from tests.refusals import refused

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
