"""`flip_sensitivity` beside the plain NumPy loop over flips, and on two transformers whose answer is a formula."""

from __future__ import annotations

import dataclasses
import math
from itertools import product
from typing import Any

import jax
import numpy as np
import pytest

from jaxsens import FlipSensitivity, Transformer, TransformerConfig, flip_sensitivity
from jaxsens.models.masks import MASKS
from jaxsens.models.parameters import TransformerParameters, initialise
from jaxsens.models.positions import Learned
from jaxsens.precision import REFERENCE
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

# Equal symbols, an end-of-sequence symbol (3) at the end and one in the middle.
WORDS = np.array([[0, 2, 1, 0, 1, 3], [1, 1, 3, 0, 2, 1]])
SCORES = ("dot-product", "additive")
LAYERS = 3
ENGINES_TRIED = ("vmap",)


def covering_cases() -> list[tuple[TransformerConfig, dict[str, Any]]]:
    """Configs and arguments that between them have every kind of weighting under every mask, and every other choice.

    A config costs a compilation, and another layer costs little: the pairs of weighting and mask are dealt out three a
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
            positions=list(POSITIONS_TRIED.values())[k % 8],
            layer_norm={3: "post", 4: "pre", 9: "pre"}.get(k, "none"),  # "post" takes long to compile
            activation=("relu", "gelu", "silu", "tanh")[k % 4],
            feed_forward=(5, 0, 4),
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


@pytest.mark.parametrize("engine", ENGINES_TRIED)
@pytest.mark.parametrize("case", range(len(CASES)))
def test_every_weighting_mask_score_and_embedding(case, engine):
    config, arguments = CASES[case]
    parameters = random_parameters(config, seed=case)
    result = flip_sensitivity(Transformer(config, parameters=parameters), WORDS, engine=engine, **arguments)
    assert result.engine.name == engine
    assert_flips(result, config, parameters, WORDS, **arguments)


@pytest.mark.parametrize("engine", ENGINES_TRIED)
@pytest.mark.parametrize("n", [1, 9])
def test_lengths_down_to_one_symbol(n, engine):
    config = small(
        weighting=("temperature-log", "average-hard"), mask=("strict-past", "future"), readout="mean"
    )
    parameters = random_parameters(config, seed=n)
    words = np.random.default_rng(n).integers(0, 3, size=(3, n))
    result = flip_sensitivity(Transformer(config, parameters=parameters), words, engine=engine)
    assert_flips(result, config, parameters, words)


@pytest.mark.parametrize("engine", ENGINES_TRIED)
def test_flips_that_make_and_break_ties(engine):
    config, parameters = tying("dot-product")
    # At n = 7 a library's matrix product was seen to give equal keys scores an ulp apart (float64, CPU).
    words = np.random.default_rng(2).integers(0, 3, size=(3, 7))
    result = flip_sensitivity(Transformer(config, parameters=parameters), words, engine=engine)
    assert_flips(result, config, parameters, words)


# Chiang and Cholak (2022), "Overcoming a theoretical limitation of self-attention". N = n + 1 counts the classification
# symbol, for which the end-of-sequence symbol (2) stands.


def nothing(config: TransformerConfig) -> TransformerParameters:
    """Parameters of the right shapes, all 0, as NumPy arrays that can be written to."""
    return jax.tree.map(lambda leaf: np.zeros(leaf.shape), initialise(config, 0))


def parity_transformer(c: float) -> Transformer:
    """PARITY: the classification symbol last, two layers of two heads.

    Coordinates: 0-2 one-hot symbol, 3 i/N and 4 (-1)^i (i from 1), 5 k/N, k being the number of ones, 6 1/N,
    7 the tent [i - 1 = k]/N, 8 the logit.
    """
    config = TransformerConfig(
        alphabet_size=2,
        width=9,
        heads=2,
        head_width=1,
        feed_forward=(3, 0),
        positions=("fraction", "alternating"),
        dtype="float64",
    )
    parameters = nothing(config)
    embedding, components = np.array(parameters.embedding), np.array(parameters.components)
    embedding[[0, 1, 2], [0, 1, 2]] = 1
    components[[0, 1], [3, 4]] = 1
    count, look_up = (jax.tree.map(np.array, dataclasses.replace(layer)) for layer in parameters.layers)
    count.value[0, 1, 0] = count.output[0, 0, 5] = 1
    count.value[1, 2, 0] = count.output[1, 0, 6] = 1
    # t = (k - (i - 1)) / N = k/N + 1/N - i/N, and the tent is relu(t - 1/N) - 2 relu(t) + relu(t + 1/N).
    count.w1[[5, 6, 3], :] = np.array([[1], [1], [-1]])
    count.w1[6, :] += [-1, 0, 1]
    count.w2[:, 7] = [1, -2, 1]
    for head, sign in enumerate((1, -1)):
        look_up.query[head, 2, 0] = c
        look_up.key[head, 4, 0] = sign
        look_up.value[head, 7, 0] = 1
        look_up.output[head, 0, 8] = sign
    layers = (count, look_up)
    built = dataclasses.replace(parameters, embedding=embedding, components=components, layers=layers)
    return Transformer(config, parameters=built)


@pytest.mark.parametrize("size", [8, 128])
def test_parity_moves_by_the_same_for_every_bit_and_as_one_over_n(size):
    c = 1.3
    bits = np.random.default_rng(size).permutation(np.arange(size - 1) % 2)
    word, model = np.append(bits, 2), parity_transformer(c)
    gap = 4 * math.tanh(c) / size**2
    whole = flip_sensitivity(model, word)
    np.testing.assert_allclose(whole.norms, np.full(size - 1, math.hypot(1 / size, gap)), rtol=1e-10)
    assert whole.positions.tolist() == list(range(size - 1))
    assert abs(size * whole.max - 1) < 8.1 / size**2
    config, parameters = model.config, jax.tree.map(np.asarray, model.parameters)
    if size == 8:
        logit = flip_sensitivity(model, word, outputs=[8])
        np.testing.assert_allclose(logit.norms, np.full(size - 1, gap), rtol=1e-10)
        assert_flips(whole, config, parameters, [word])
        sign = -1 if bits.sum() % 2 == 0 else 1
        assert reference.output(config, parameters, word)[8] == pytest.approx(sign * gap / 2)


def first_transformer(c: float, n: int, weighting: str) -> Transformer:
    """FIRST: the classification symbol first, one head; layer 1 attends to nothing, layer 2 to the first symbol.

    Coordinates: 0-2 one-hot symbol, 3 [second position], 4 the flag "the first symbol is 1", 5 the logit.
    """
    config = TransformerConfig(
        alphabet_size=2,
        width=6,
        heads=1,
        head_width=1,
        feed_forward=(1, 0),
        weighting=("softmax", weighting),
        positions=Learned(max_length=n),
        readout=0,
        dtype="float64",
    )
    parameters = nothing(config)
    embedding, learned = np.array(parameters.embedding), np.array(parameters.learned)
    embedding[[0, 1, 2], [0, 1, 2]] = 1
    learned[1, 3] = 1
    flag, look = (jax.tree.map(np.array, dataclasses.replace(layer)) for layer in parameters.layers)
    flag.w1[[1, 3], 0], flag.b1[0], flag.w2[0, 4] = 1, -1, 1
    look.query[0, 2, 0], look.key[0, 3, 0] = 1, c
    look.value[0, 4, 0], look.value[0, 3, 0], look.output[0, 0, 5] = 1, -0.5, 1
    built = dataclasses.replace(parameters, embedding=embedding, learned=learned, layers=(flag, look))
    return Transformer(config, parameters=built)


@pytest.mark.parametrize(
    ("size", "c", "weighting"),
    [
        (7, 1.3, "softmax"),
        (100, 1.3, "softmax"),
        (100, 0.5, "temperature-log"),
        (100, 2.0, "temperature-log"),
    ],
)
def test_first_moves_by_the_first_symbols_weight_and_by_nothing_else(size, c, weighting):
    word = np.append(2, np.random.default_rng(size).integers(0, 2, size - 1))
    result = flip_sensitivity(first_transformer(c, size, weighting), word)
    boost = math.exp(c) if weighting == "softmax" else size**c
    assert result.positions.tolist() == list(range(1, size))
    assert result.norms[0] == pytest.approx(boost / (boost + size - 1), rel=1e-12)
    assert result.argmax.position == 1
    assert not result.norms[1:].any()
