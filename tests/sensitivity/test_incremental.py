"""The engines that compute only the rows that change, beside whole forward passes, on several blocks of rows."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

import jaxsens
from jaxsens.models import trace
from tests.documented import example
from tests.sensitivity.conformance import engine_of, measured, sharpened
from tests.small_models import random_parameters, small

N = 21


def norms(engine: str, config: jaxsens.TransformerConfig, flips: list[tuple[int, int]]) -> np.ndarray:
    word = np.random.default_rng(0).integers(0, 3, N)
    built = engine_of(engine, config)
    assert built is not None
    return measured(built, random_parameters(config, 0, N), word, flips, "float64", compiled=True)


@pytest.mark.parametrize(
    "options",
    [
        {"mask": "none"},
        {"mask": "future"},
        {"mask": "past", "readout": 0, "positions": "alibi"},
        {"mask": ("future", "past", "none"), "layer_norm": "pre"},
        {"mask": ("past", "strict-future", "future"), "readout": "mean"},
        {"mask": ("none", "future", "future"), "layer_norm": "post", "scores": "additive"},
    ],
)
@pytest.mark.parametrize("at", [[0, 1], [12, 13, 19], [20]])
def test_blocks_that_fill_no_whole_number_of_rows(monkeypatch, options, at):
    monkeypatch.setattr(trace, "SCORES_IN_CACHE", 0)
    monkeypatch.setattr(trace, "CACHED_ROWS", 8)
    monkeypatch.setattr("jaxsens.sensitivity.reach.CACHED_ROWS", 8)
    config = small(layers=3, **options)
    flips = [(position, symbol) for position in at for symbol in (0, 1, 3)]
    expected = norms("vmap", config, flips)
    for engine in ("incremental", "difference"):
        np.testing.assert_allclose(norms(engine, config, flips), expected, rtol=1e-9, atol=1e-13)


def test_a_flip_that_the_readout_does_not_see_changes_nothing():
    config = small(layers=3, mask="future", readout=4)
    assert np.all(norms("incremental", config, [(9, 1), (20, 0)]) <= 1e-14)


@pytest.mark.parametrize("readout", ["last", 0, "mean"])
def test_a_users_model_with_visible_attention_is_measured_as_by_forward_passes(readout):
    names = example()
    pair = names["Decoder"](), names["random_weights"](0)
    tokens = np.random.default_rng(1).integers(0, 100, N)
    options: dict[str, Any] = {"symbols": [5, 9], "readout": readout, "positions": [0, 1, 7, N - 1]}
    found, expected = (jaxsens.flip_sensitivity(pair, tokens, engine=e, **options) for e in ("auto", "vmap"))
    assert (found.engine.name, expected.engine.name) == ("incremental", "vmap")
    np.testing.assert_allclose(found.norms, expected.norms, rtol=1e-4, atol=1e-6)


def test_scores_beyond_float32_are_measured_by_whole_forward_passes():
    sharp = sharpened(random_parameters(small()), 1e4)
    single = jax.tree.map(lambda leaf: leaf.astype(np.float32), sharp)
    model = jaxsens.Transformer(small(dtype="float32"), parameters=single)
    result = jaxsens.flip_sensitivity(model, [0, 1, 2, 1, 0], engine="incremental")
    expected = jaxsens.flip_sensitivity(model, [0, 1, 2, 1, 0], engine="vmap")
    assert result.engine.name == "incremental"
    assert "all flips by a forward pass each" in result.engine.reason
    np.testing.assert_allclose(result.norms, expected.norms, rtol=1e-4)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"layers": 0}, "needs a layer"),
        ({"weighting": ("softmax", "average-hard")}, "AverageHard"),
        ({"weighting": "sparsemax"}, "Sparsemax"),
        ({"centred_scores": True}, "plain scores"),
    ],
)
def test_models_that_it_does_not_serve(options, why):
    model = jaxsens.Transformer(small(**options))
    with pytest.raises(jaxsens.EngineRefusal, match=f'engine = "incremental": .*{why}.*; use engine="vmap"'):
        jaxsens.flip_sensitivity(model, [0, 1, 2, 1], engine="incremental")


def test_a_mask_halves_the_work():
    def operations(mask: str) -> float:
        config = jaxsens.TransformerConfig(2, 16, 2, 4, 32, mask=mask)
        return jaxsens.explain(jaxsens.Transformer(config), 4096, engine="incremental").operations

    assert operations("future") == pytest.approx(operations("none") / 2, rel=0.05)
    assert operations("past") == pytest.approx(operations("none") / 2, rel=0.05)
