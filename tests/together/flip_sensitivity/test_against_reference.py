"""`flip_sensitivity` beside the plain NumPy loop over flips, and on two transformers whose answer is a formula."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from jaxsens import FlipSensitivity, Transformer, TransformerConfig, flip_sensitivity
from jaxsens.core.measures import Measure
from jaxsens.core.models.parts.masks import MASKS
from jaxsens.core.models.transformer.parameters import TransformerParameters
from tests import reference
from tests.small_models import (
    KINDS,
    POSITIONS_TRIED,
    WEIGHTINGS_AND_MASKS,
    WEIGHTINGS_TRIED,
    random_parameters,
    small,
    tying,
)
from tests.tolerances import REFERENCE

# Equal symbols, an end-of-sequence symbol (3) at the end and one in the middle.
WORDS = np.array([[0, 2, 1, 0, 1, 3], [1, 1, 3, 0, 2, 1]])
SCORES = ("dot-product", "additive")
LAYERS = 4


def covering_cases() -> list[tuple[TransformerConfig, dict[str, Any]]]:
    """Configs and arguments that between them have every kind of weighting under every mask, and every other choice.

    A config costs a compilation, and another layer costs little: the pairs of weighting and mask are dealt out four a
    config.
    """
    pairs = WEIGHTINGS_AND_MASKS + WEIGHTINGS_AND_MASKS[: -len(WEIGHTINGS_AND_MASKS) % LAYERS]
    count = len(pairs) // LAYERS
    cases = []
    for k in range(count):
        dealt = pairs[k::count]
        config = small(
            layers=LAYERS,
            weighting=tuple(WEIGHTINGS_TRIED[name] for name, _ in dealt),
            mask=tuple(mask for _, mask in dealt),
            scores=SCORES[(k + k // 4) % 2],
            positions=list(POSITIONS_TRIED.values())[k % len(POSITIONS_TRIED)],
            layer_norm={3: "post", 4: "pre", 9: "pre"}.get(k, "none"),  # "post" takes long to compile
            activation=("relu", "gelu", "silu", "tanh")[k % 4],
            feed_forward=(5, 0, 4, 5),
            readout=("last", "mean", 2, "last", 0)[k % 5],
            logits=(None, 4, None)[k % 7 % 3],
        )
        arguments = {"norm": ("l2", "l1", "linf")[k % 3], "outputs": (None, [3, 0])[k // 2 % 2]}
        cases.append((config, arguments))
    return cases


CASES = covering_cases()


def assert_flips(
    result: FlipSensitivity, config: TransformerConfig, parameters: TransformerParameters, words, **arguments
) -> None:
    """That the result holds the reference's flips, all of them, in order, with its norms."""
    expected = [reference.flip_norms(config, parameters, word, **arguments) for word in words]
    flips = [(row, *flip) for row, norms in enumerate(expected) for flip in norms]
    assert list(zip(result.inputs, result.positions, result.symbols, strict=True)) == flips
    np.testing.assert_allclose(
        result.norms,
        [norm for norms in expected for norm in norms.values()],
        rtol=REFERENCE.relative,
        atol=REFERENCE.absolute,
        err_msg=f"{config} {arguments}",
    )


def test_the_cases_below_leave_nothing_out():
    layers = [config.layer(k) for config, _ in CASES for k in range(LAYERS)]
    tried = {(layer.weighting, layer.mask) for layer in layers}
    assert {(WEIGHTINGS_TRIED[kind], mask) for kind, mask in product(KINDS, MASKS)} <= tried
    assert {weighting for weighting, _ in tried} == set(WEIGHTINGS_TRIED.values())
    scored = {(layer.weighting, layer.scores) for layer in layers}
    assert {(WEIGHTINGS_TRIED[kind], scores) for kind, scores in product(KINDS, SCORES)} <= scored
    positions = {small(positions=value).positions for value in POSITIONS_TRIED.values()}
    assert {config.positions for config, _ in CASES} == positions
    assert {config.layer_norm for config, _ in CASES} == {"none", "pre", "post"}
    assert {config.readout for config, _ in CASES} == {"last", "mean", 0, 2}


@pytest.mark.quick(3, 10)
@pytest.mark.parametrize("case", range(len(CASES)))
def test_every_weighting_mask_score_and_embedding(case):
    config, arguments = CASES[case]
    parameters = random_parameters(config, seed=case)
    measure = Measure.kinds[arguments["norm"]](outputs=arguments["outputs"])
    result = flip_sensitivity(
        Transformer(config, parameters=parameters), WORDS, measure=measure, engine="vmap"
    )
    assert result.engine.name == "vmap"
    assert_flips(result, config, parameters, WORDS, **arguments)


@pytest.mark.quick(1)
@pytest.mark.parametrize("n", [1, 9])
def test_lengths_down_to_one_symbol(n):
    config = small(
        weighting=("temperature-log", "average-hard"), mask=("strict-past", "future"), readout="mean"
    )
    parameters = random_parameters(config, seed=n)
    words = np.random.default_rng(n).integers(0, 3, size=(3, n))
    result = flip_sensitivity(Transformer(config, parameters=parameters), words, engine="vmap")
    assert_flips(result, config, parameters, words)


def test_flips_that_make_and_break_ties():
    config, parameters = tying("dot-product")
    # At n = 7 a library's matrix product was seen to give equal keys scores an ulp apart (float64, CPU).
    words = np.random.default_rng(2).integers(0, 3, size=(3, 7))
    result = flip_sensitivity(Transformer(config, parameters=parameters), words, engine="vmap")
    assert_flips(result, config, parameters, words)
