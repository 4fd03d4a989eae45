"""The two references of attention, loops and whole arrays, are written apart and agree."""

from __future__ import annotations

import numpy as np
import pytest

from tests import reference, wide_reference
from tests.small_models import random_parameters, small

WORD = (0, 2, 1, 0, 1, 3)


@pytest.mark.parametrize(
    "changes",
    [
        {"weighting": "temperature-log", "mask": "future", "activation": "gelu"},
        {"scores": "additive", "layer_norm": "pre", "mask": "strict-past", "activation": "silu"},
        {"positions": ("rotary", "alibi"), "layer_norm": "post", "activation": "tanh", "readout": "mean"},
        {"weighting": ("average-hard", "sparsemax"), "mask": ("past", "strict-future"), "logits": 3},
        {"weighting": ("leftmost-hard", "rightmost-hard"), "feed_forward": (0, 5), "readout": 2},
    ],
)
def test_whole_arrays_give_what_the_loops_give(changes):
    config = small(**changes)
    parameters = random_parameters(config)
    loops = reference.output(config, parameters, WORD, np.longdouble)
    arrays = wide_reference.output(config, parameters, WORD)
    assert arrays.dtype == np.longdouble
    np.testing.assert_allclose(arrays.astype(float), loops.astype(float), rtol=1e-14)
    pairs = reference.flips(config, WORD)
    norms = list(reference.flip_norms(config, parameters, WORD, pairs=pairs, dtype=np.longdouble).values())
    np.testing.assert_allclose(wide_reference.flip_norms(config, parameters, WORD, pairs), norms, rtol=1e-12)
