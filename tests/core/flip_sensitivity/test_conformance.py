"""Every engine against the reference in wider arithmetic, on the table of cases; and the two references agree."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from tests import reference, wide_reference
from tests.core.flip_sensitivity.conformance import CASES, ENGINES, assert_conforms, engine_of
from tests.small_models import random_parameters, small

if np.finfo(np.longdouble).eps > 2e-19:
    pytest.skip(
        "np.longdouble is float64 here: there is nothing wider to compare with", allow_module_level=True
    )

SERVED = [
    (name, engine)
    for name, case in CASES.items()
    for engine in ENGINES
    if engine_of(engine, case.config) is not None
]
IN_FLOAT32 = (
    "weighting softmax",
    "weighting average-hard",
    "mask future",
    "layer norm after",
    "sharpened",
    "softmax-off-by-one, sharpened",
    "learned sinks, three layers",
    "sigmoid-log, sharpened",
)


# Every rule of the difference engine, between both. The other cases combine the same rules in other ways.
QUICK = (
    "windows, mean, hard",
    "sharpened, relative bias",
    "layer norm after",
    "sigmoid-log, sharpened",
    "learned sinks, three layers",
    "elementwise gates",
    "norm and outputs",
)
COVERING = (
    "weighting average-hard",
    "activation gelu",
    "additive, rotary, hard",
    "no layer, mean",
    "three layers, mixed weightings",
    "sharpened much more",
    "softmax-off-by-one, sharpened",
    "ties, past",
    "all masked, hard",
    "n = 1",
    "no end of sequence",
)


def with_marks(pairs: Sequence[tuple[str, str]], quick: Sequence[str]) -> list[Any]:
    """The cases, of which some are quick, and long what covers the rules of the engine that serves most parts.

    `test_transformer` has forward passes of every part, `test_incremental` what that engine does differently.
    """
    tried = {
        "vmap": (("weighting softmax",), ("sharpened",)),
        "incremental": ((), IN_FLOAT32),
        "difference": (quick, COVERING),
    }

    def mark(name: str, engine: str) -> Any:
        if name in tried[engine][0]:
            return ()
        return pytest.mark.long if name in tried[engine][1] else pytest.mark.slow

    assert {*quick, *COVERING} <= set(CASES)
    return [pytest.param(*pair, marks=mark(*pair)) for pair in pairs]


@pytest.mark.parametrize(("name", "engine"), with_marks(SERVED, QUICK))
def test_every_engine_gives_the_reference(name, engine):
    assert_conforms(engine, CASES[name])


@pytest.mark.parametrize(
    ("name", "engine"), with_marks([pair for pair in SERVED if pair[0] in IN_FLOAT32], IN_FLOAT32[1:2])
)
def test_float32_too(name, engine):
    assert_conforms(engine, CASES[name], "float32")


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
