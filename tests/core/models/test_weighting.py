"""Averages under attention weights, and scores relative to the best key: the digits that plain scores lose."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxsens
from jaxsens import Softmax, TransformerConfig
from jaxsens.core.base.programs import numerics
from jaxsens.core.models.parts.positions import Component, Limb
from jaxsens.core.models.parts.schedules import SCHEDULES, Schedule
from jaxsens.core.models.parts.weighting import (
    WEIGHTINGS,
    AdaptiveSoftmax,
    Entmax,
    HardWeighting,
    LeftmostHard,
    Sigmoid,
    SinkSoftmax,
    Sparsemax,
    averages,
    learns_sink,
    weights,
)
from jaxsens.core.models.transformer import layers, trace
from jaxsens.core.models.transformer.trace import centred_scores
from tests import reference
from tests.small_models import WEIGHTINGS_AND_MASKS, WEIGHTINGS_TRIED, random_parameters, small
from tests.tolerances import FORWARD


@pytest.mark.parametrize("exact_rows", [False, True])
@pytest.mark.parametrize("name", ["softmax", "average-hard"])
@pytest.mark.parametrize("n", [10_007, 50_021])
def test_uniform_averages_of_zeros_and_ones_are_correctly_rounded_quotients(name, n, exact_rows):
    rng = np.random.default_rng(n)
    counts = [n // 3, n // 2, n - 1, n]
    values = np.stack([rng.permutation(n) < count for count in counts], axis=-1).astype(np.float32)
    scores, seen = jnp.full((1, 2, n), 0.5), jnp.ones((1, 2, n), bool)
    found = averages(WEIGHTINGS[name], scores, seen, jnp.asarray(values)[None], exact_rows)
    expected = np.array(counts, np.float32) / np.float32(n)
    np.testing.assert_array_equal(found[0], np.stack([expected, expected]))


@pytest.mark.quick(10)
@pytest.mark.parametrize("name", WEIGHTINGS)
def test_averages_are_those_under_the_weights(name):
    rng = np.random.default_rng(0)
    scores = jnp.asarray(rng.integers(0, 3, size=(2, 3, 5)), jnp.float32)
    seen = jnp.asarray(rng.random((2, 3, 5)) < 0.6).at[0, 0].set(False)
    values = jnp.asarray(rng.normal(size=(2, 5, 4)), jnp.float32)
    weight = weights(WEIGHTINGS[name], scores, seen)
    assert not weight[~seen].any()
    found = averages(WEIGHTINGS[name], scores, seen, values, False)
    np.testing.assert_allclose(found, jnp.einsum("hij,hjd->hid", weight, values), rtol=1e-5, atol=1e-6)


def test_equal_fractions_of_different_rows_are_equal_numbers():
    # Row i averages i zeros and ones of which a third are ones.
    values = (jnp.arange(30) % 3 == 0).astype(jnp.float32)[None, :, None]
    lengths = jnp.arange(3, 31, 3)
    seen = (jnp.arange(30) < lengths[:, None])[None]
    compiled = jax.jit(averages, static_argnums=(0, 4))
    for name in ("softmax", "average-hard"):
        found = compiled(WEIGHTINGS[name], jnp.zeros(seen.shape), seen, values, True)
        np.testing.assert_array_equal(found, np.full(found.shape, np.float32(1) / np.float32(3)))


# Each weighting against its formula


@pytest.mark.quick(12)
@pytest.mark.parametrize(("factor", "dtype"), [(1.0, "float64"), (40.0, "float64"), (40.0, "float32")])
@pytest.mark.parametrize("name", WEIGHTINGS_TRIED)
def test_weights_are_those_of_the_formula(name, factor, dtype):
    weighting, (m, n), sink = WEIGHTINGS_TRIED[name], (8, 8), None
    if learns_sink(weighting):
        sink, weighting = -0.4, weighting.at_sink(np.array([[[-0.4]]], dtype))
    rng = np.random.default_rng(0)
    scores = (factor * rng.normal(size=(1, m, n))).astype(dtype)
    seen = rng.random((1, m, n)) < np.arange(m)[:, None] / (
        m - 2
    )  # none in the first row, all in the last two
    with numerics(dtype):
        tempered = weighting.tempered(jnp.asarray(scores), jnp.arange(m), n)
        found = weights(weighting, tempered, jnp.asarray(seen))
        assert str(found.dtype) == dtype
    # A score is rounded by eps |s|, which is the relative error of its weight; here |s| is below 40 * 3 * 512.
    largest = np.abs(np.asarray(tempered, np.float64)).max()
    eps = float(np.finfo(dtype).eps)
    for i in range(m):
        own = list(scores[0, i, seen[0, i]].astype(np.longdouble))
        expected = reference.weights(WEIGHTINGS_TRIED[name], own, i + 1, n, sink)
        atol = 32 * eps * max(1, largest if not weighting.hard else 1)
        np.testing.assert_allclose(found[0, i, seen[0, i]], np.array(expected, float), rtol=0, atol=atol)
        assert not found[0, i, ~seen[0, i]].any()


@pytest.mark.quick(5)
@pytest.mark.parametrize("alpha", [1.001, 1.2, 1.5, 1.9, 2.0])
@pytest.mark.parametrize("factor", [1e-4, 1.0, 1e6])
def test_entmax_at_every_alpha_of_a_long_row(alpha, factor):
    scores = factor * np.random.default_rng(1).normal(size=1000)
    with numerics("float64"):
        found = weights(Entmax(alpha=alpha), jnp.asarray(scores), jnp.ones(1000, bool))
    np.testing.assert_allclose(found, reference.entmax(list(scores), alpha), rtol=1e-9, atol=1e-14)


def differences(weighting, scores):
    """The Jacobian of the weights, by central differences."""
    columns = []
    for j in range(len(scores)):
        step = np.zeros(len(scores))
        step[j] = 1e-6
        up, down = (reference.weights(weighting, list(scores + sign * step), 1, 1) for sign in (1, -1))
        columns.append((np.array(up, float) - np.array(down, float)) / 2e-6)
    return np.stack(columns, axis=1)


@pytest.mark.quick(3)
@pytest.mark.parametrize(
    "weighting",
    [
        *(Entmax(alpha=alpha) for alpha in (1.2, 1.5, 2.0)),
        SinkSoftmax(logit=-0.5),
        AdaptiveSoftmax(),
        Sigmoid(bias=0.5),
    ],
    ids=repr,
)
def test_weights_have_the_derivative_of_the_formula(weighting):
    scores = np.array([0.13, 0.52, -0.2, 0.71, -3.0])

    def of(s):
        return weights(
            weighting, weighting.tempered(s[None, None], jnp.arange(1), 1)[0, 0], jnp.ones(5, bool)
        )

    with numerics("float64"):
        found = jax.jacrev(of)(jnp.asarray(scores))
    np.testing.assert_allclose(found, differences(weighting, scores), atol=1e-8)
    assert np.abs(found).max() > 0.1


def test_the_bound_on_a_sharpening_temperature_is_the_polynomials():
    assert AdaptiveSoftmax().bounded
    assert AdaptiveSoftmax(polynomial=(0.0, -1.0, 1.0)).bounded
    assert not AdaptiveSoftmax(polynomial=(0.5, 0.0)).bounded
    assert not AdaptiveSoftmax(SCHEDULES["log"]).bounded


@pytest.mark.parametrize(
    ("weighting", "told"),
    [
        (Softmax(), "1"),
        (Softmax(SCHEDULES["log"], by="query"), "1/log i"),
        (Softmax(SCHEDULES["linearithmic"], by="query"), "1/(i log i)"),
        (Softmax(SCHEDULES["one-plus-log"]), "1/(1 + log n)"),
        (Softmax(Schedule(4.0)), "1/4"),
        (AdaptiveSoftmax(), "1 and by entropy"),
        (LeftmostHard(), "hard"),
        (Sparsemax(), "none"),
    ],
    ids=str,
)
def test_a_temperature_is_told_as_a_function_of_the_length(weighting, told):
    assert weighting.temperature == told


def test_the_temperature_of_a_model_is_that_of_all_layers_or_of_each():
    assert TransformerConfig(2, layers=3, weighting="temperature-log").temperature == "1/log n"
    assert TransformerConfig(2, weighting=("softmax", "leftmost-hard")).temperature == "1, hard"
    assert TransformerConfig(2, layers=0).temperature == "none"


WORD = np.array([2, 0, 1, 0, 3])
POSITIONS = ("sinusoidal", "alternating", "length")


def centred(**changes) -> jaxsens.TransformerConfig:
    return small(**{"positions": POSITIONS, "centred_scores": True, **changes})


def assert_follows_the_reference(config, parameters, word) -> None:
    with numerics("float64"):
        found = layers.activations(config, jax.tree.map(jnp.asarray, parameters), jnp.asarray(word))
    expected = reference.activations(config, parameters, word)
    np.testing.assert_allclose(found, expected, rtol=FORWARD.relative, atol=FORWARD.absolute)


CENTRED = [
    name
    for name, given in WEIGHTINGS_TRIED.items()
    if isinstance(small(weighting=given).layer(0).weighting, Softmax | HardWeighting)
]


@pytest.mark.quick(8)
@pytest.mark.parametrize(("weighting", "mask"), [pair for pair in WEIGHTINGS_AND_MASKS if pair[0] in CENTRED])
def test_a_model_means_the_same_with_centred_scores(weighting, mask):
    config = centred(weighting=WEIGHTINGS_TRIED[weighting], mask=mask)
    assert_follows_the_reference(config, random_parameters(config, seed=3), WORD)


def test_a_model_means_the_same_in_blocks_of_rows(monkeypatch):
    config = centred(mask="future", weighting="temperature-log")
    monkeypatch.setattr(trace, "SCORES_IN_MEMORY", 2 * len(WORD) * 2)
    assert_follows_the_reference(config, random_parameters(config), WORD)


def test_a_key_that_is_not_a_number_spoils_the_rows_that_see_it_and_no_other():
    keys = jnp.ones((1, 3, 2)).at[0, 2, 0].set(jnp.nan)
    seen = jnp.array([[[True, True, False], [True, True, True]]])
    found = centred_scores(small(head_width=2, heads=1).layer(0), jnp.ones((1, 2, 2)), keys, seen)
    sound, spoilt = np.asarray(averages(Softmax(), found, seen, jnp.ones((1, 3, 2)), False))[0]
    assert np.isfinite(sound).all()
    assert np.isnan(spoilt).all()


@pytest.mark.quick(0, 1)
@pytest.mark.parametrize("weighting", ["temperature-log", "average-hard"])
def test_the_sensitivity_of_a_model_is_that_with_plain_scores(weighting):
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


# Table lookup, Lemma 7 of Yang et al. (2026): queries G (C, 1) / n, keys (2j, -j^2), temperature 1/n, values j. The
# average is C within 3 e^-G. In Theorem 20(b) the factor n is in the keys instead.

SHARPNESS = np.log(24)


def looked_up(n: int, counts: np.ndarray, dtype: str, *, is_centred: bool, limbs: bool, in_keys: bool):
    """The lookup's answer for each count, by one block of scores."""
    linear, square = ("length-index", "length-square") if in_keys else ("index", "square")
    terms = [Limb(linear, 0), Limb(linear, 1), Limb(square, 0), Limb(square, 1)]
    if not limbs:
        terms = [Component(linear), None, Component(square), None]
    columns = [np.zeros(n) if term is None else term.values(n) for term in terms]
    keys = (np.stack(columns, axis=-1) * np.array([2.0, 2.0, -1.0, -1.0])).astype(dtype)
    per_position = np.ones(1, dtype) / np.asarray(n, dtype)
    ratio = counts.astype(dtype) * per_position
    # Scores are divided by sqrt(head_width) = 2.
    ones = np.broadcast_to(per_position, ratio.shape)
    queries = np.asarray(2 * SHARPNESS, dtype) * np.stack([ratio, ratio, ones, ones], axis=-1)
    layer = centred(heads=1, layers=1, weighting=Softmax(Schedule(power=1.0)), dtype=dtype).layer(0)
    with numerics(dtype):
        q, k = jnp.asarray(queries)[None], jnp.asarray(keys)[None]
        seen = jnp.ones((1, len(counts), n), bool)
        s = centred_scores(layer, q, k, seen) if is_centred else jnp.einsum("hid,hjd->hij", q / 2, k)
        if not in_keys:
            s = layer.weighting.tempered(s, jnp.full(len(counts), n - 1), n)
        positions = jnp.arange(1, n + 1, dtype=dtype)[None, :, None]
        found = averages(Softmax(), s, seen, jnp.broadcast_to(positions, (1, n, 4)), False)
    return np.asarray(found, np.float64)[0, :, 0]


def counts_to_try(n: int) -> np.ndarray:
    """Some at random, both ends, and those whose squares are next to a multiple of 2^24."""
    steps = [int(4096 * np.sqrt(k)) + d for k in (1, 2, 3, 7, 15, 23) for d in (0, 1, 2)]
    chosen = [1, 2, n - 1, n, *np.random.default_rng(n).integers(1, n, 12).tolist(), *steps]
    return np.array(sorted({c for c in chosen if 1 <= c <= n}))


@pytest.mark.quick(1, 3)
@pytest.mark.parametrize("in_keys", [False, True])
@pytest.mark.parametrize("n", [3001, 5000, 20_011])
def test_lookups_in_float32_are_those_in_float64(n, in_keys):
    counts = counts_to_try(n)

    def answers(dtype: str, is_centred: bool, limbs: bool) -> np.ndarray:
        return looked_up(n, counts, dtype, is_centred=is_centred, limbs=limbs, in_keys=in_keys)

    ideal = answers("float64", False, False)
    assert np.abs(ideal - counts).max() < 3 * np.exp(-SHARPNESS)
    # Measured: 0.0003 at the most, or 1.5 units in the last place of the answer, by the processor's order of summation.
    assert np.abs(answers("float32", True, True) - ideal).max() < max(0.002, 2 * np.spacing(np.float32(n)))
    assert np.abs(answers("float64", True, False) - ideal).max() < 1e-6
    # An answer must be within 1/4, two of them in a sum within 1/8 each. Plain scores are not, whatever the keys.
    for limbs in (False, True):
        assert np.abs(answers("float32", False, limbs) - counts).max() > 1 / 8
    # Neither are centred scores of keys that float32 does not hold.
    if n >= 5000:
        assert np.abs(answers("float32", True, False) - counts).max() > 1 / 8


def test_their_operations_are_counted():
    config = small(centred_scores=True)
    more = layers.layer_operations(config, 0, 100) - layers.layer_operations(small(), 0, 100)
    assert more == 2 * 3 * 100**2 * 8
