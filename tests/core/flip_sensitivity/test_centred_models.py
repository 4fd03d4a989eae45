"""Models with centred scores are measured by forward passes, and mean what they mean with plain scores."""

from __future__ import annotations

import numpy as np
import pytest

import jaxsens
from jaxsens.core.engines.difference import folded
from tests.small_models import random_parameters, small

WORD = np.array([2, 0, 1, 0, 1, 3])


@pytest.mark.quick(0, 1)
@pytest.mark.parametrize("weighting", ["temperature-log", "average-hard"])
def test_their_sensitivity_is_that_of_the_plain_model(weighting):
    config = small(weighting=weighting, mask="future", positions=("sinusoidal", "length"))
    parameters = random_parameters(config)
    plain, centred = (
        jaxsens.flip_sensitivity(
            jaxsens.Transformer(config.replace(centred_scores=chosen), parameters=parameters),
            WORD,
            engine="auto" if chosen else "difference",
        )
        for chosen in (False, True)
    )
    assert centred.engine.name == "vmap"
    assert "centred scores" in centred.engine.reason
    np.testing.assert_allclose(centred.norms, plain.norms, rtol=1e-9, atol=1e-13)


def test_the_folded_form_is_of_plain_scores():
    assert "plain" in str(folded.refusal(small(feed_forward=20, centred_scores=True)))
