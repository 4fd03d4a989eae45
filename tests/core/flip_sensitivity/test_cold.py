"""Softmax at any temperature: the difference engine is never worse than the specification, by wider arithmetic."""

from __future__ import annotations

import dataclasses
import decimal
import itertools
from decimal import Decimal
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jaxsens
from jaxsens.core.base.programs import LARGEST_TIED, numerics
from jaxsens.core.engines.difference.rules import best_tied, softmax_change
from jaxsens.core.engines.one_key.one_moved_key import sigmoid_change
from jaxsens.core.models.transformer.parameters import initialise
from tests import wide_reference
from tests.lanes import examples
from tools.cold import FLOOR, Model, drawn, errors_of

if np.finfo(np.longdouble).eps > 2e-19:
    pytest.skip("np.longdouble is float64 here: nothing is wider", allow_module_level=True)


# The rule


def true_change(s: np.ndarray, ds: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
    """Weights before and after, their change, and the change of the log-normaliser, in decimal arithmetic of 60 digits.

    All are given in np.longdouble; weights below 1e-4000 are 0.
    """
    with decimal.localcontext(decimal.Context(prec=60, Emax=decimal.MAX_EMAX, Emin=decimal.MIN_EMIN)):
        before = [Decimal(float(x)) for x in s]
        after = [x + Decimal(float(y)) for x, y in zip(before, ds, strict=True)]
        totals = [sum(((x - max(row)).exp() for x in row), Decimal(0)) for row in (before, after)]
        old, new = (
            [(x - max(row)).exp() / total for x in row]
            for row, total in zip((before, after), totals, strict=True)
        )
        moved = max(after) - max(before) + (totals[1] / totals[0]).ln()
        change = [y - x for x, y in zip(old, new, strict=True)]
        first, second, third = (np.array([_longdouble(x) for x in row]) for row in (old, new, change))
        return first, second, third, float(moved)


def _longdouble(x: Decimal) -> np.longdouble:
    return np.longdouble(str(x)) if abs(x) > Decimal("1e-4000") else np.longdouble(0)


@st.composite
def moved_scores(draw: Any) -> tuple[str, np.ndarray, np.ndarray]:
    """A dtype, scores of any size, and changes of any size: of one key, of all alike, or of each by its own."""
    dtype = draw(st.sampled_from(["float32", "float64"]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    keys = draw(st.sampled_from([1, 2, 3, 17, 200]))
    s = rng.normal(size=keys) * 10.0 ** draw(st.integers(-3, 6))
    kind, size = draw(st.sampled_from(["one", "alike", "each", "sparse"])), 10.0 ** draw(st.integers(-12, 6))
    ds = size * (
        rng.normal(size=keys) if kind == "each" else np.ones(keys) if kind == "alike" else np.zeros(keys)
    )
    if kind in ("one", "alike"):
        ds[rng.integers(keys)] += rng.normal() * 10.0 ** draw(st.integers(-12, 6))
    if kind == "sparse":
        ds = np.where(rng.random(keys) < 0.3, size * rng.normal(size=keys), rng.normal(size=keys) * 1e-9)
    return dtype, s.astype(dtype), ds.astype(dtype)


@pytest.mark.long
@given(moved_scores())
@settings(max_examples=examples(300), deadline=None)
def test_weights_and_their_change_are_right_to_the_rounding_of_the_scores(case):
    dtype, s, ds = case
    with numerics(dtype):
        found = jax.jit(softmax_change)(jnp.asarray(s), jnp.asarray(ds))
    new, change = (np.asarray(x, np.longdouble) for x in found)
    old, expected_new, expected, shift = true_change(s, ds)
    # Weights within 1e-50 of 0 or 1 are beyond the digits of the truth.
    eps, tiny = np.finfo(dtype).eps, np.finfo(dtype).tiny * len(s) + 1e-50
    # What is rounded: a key's score after the flip, and what all scores share, which is as large as they move by.
    size = 1 + np.abs(s + ds).max()
    moved = (np.maximum(old, expected_new) * np.minimum(1, np.abs(ds))).sum()
    if abs(shift) > 1:
        moved = np.abs(ds).max()
    np.testing.assert_array_less(np.abs(new - expected_new), 8 * eps * size * expected_new + tiny)
    allowed = 8 * eps * (size * np.abs(expected) + old * (size * np.abs(expected).sum() + moved))
    np.testing.assert_array_less(np.abs(change - expected), allowed + tiny)


def test_a_draw_where_the_logarithm_of_jax_loses_digits():
    s, ds = np.array([7.22748261, 5.40775635]), np.array([-0.47158699, -0.830392])
    with numerics("float64"):
        found = np.asarray(jax.jit(softmax_change)(jnp.asarray(s), jnp.asarray(ds))[1], np.longdouble)
    np.testing.assert_allclose(found, true_change(s, ds)[2], rtol=1e-14)


def test_a_best_key_that_one_other_ties_with_is_told_from_one_that_none_does():
    large = 2 * LARGEST_TIED
    s = np.array([[large, large, 0, -np.inf], [large, large - 1, 0, 0], [large, 1, 0, -np.inf]])
    ds = np.array([[0, 0, 0, 0.0], [0, 1, 0, 0], [0, 0, 1, 0]])
    with numerics("float64"):
        assert best_tied(jnp.asarray(s), jnp.zeros((3, 4)))[:, 0].tolist() == [True, False, False]
        assert best_tied(jnp.asarray(s), jnp.asarray(ds))[:, 0].tolist() == [True, True, False]
        small = np.where(np.isfinite(s), s / 4, s)
        assert not best_tied(jnp.asarray(small), jnp.zeros((3, 4))).any()


# Whole models


def with_factors(config: Any, seed: int, everything: float = 1.0, scores: float = 1.0) -> Any:
    """Default weights times `everything`; queries and keys also times `scores`."""
    plain = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64) * everything, initialise(config, seed))
    layers = tuple(
        dataclasses.replace(own, query=own.query * scores, key=own.key * scores) for own in plain.layers
    )
    return dataclasses.replace(plain, layers=layers)


def binary(weighting: str, **changes: Any) -> jaxsens.TransformerConfig:
    """The shape of the models that showed the problem."""
    sizes = {"alphabet_size": 2, "width": 16, "heads": 4, "layers": 2, "feed_forward": 32}
    return jaxsens.TransformerConfig(**{**sizes, "weighting": weighting, "dtype": "float64", **changes})


FOUND_WRONG = {
    "cubic, 52 % off": (binary("temperature-cubic"), 3, 64, 1, 1, "float32"),
    "cubic, short": (binary("temperature-cubic"), 3, 32, 1, 1, "float32"),
    "a row that sees only itself": (binary("softmax", mask="future"), 1, 16, 1, 30, "float32"),
    "weights times 30": (binary("softmax"), 0, 16, 30, 1, "float64"),
}


@pytest.mark.quick(0, 2)
@pytest.mark.parametrize("name", FOUND_WRONG)
def test_models_that_were_wrong_by_up_to_all_digits(name):
    config, seed, n, everything, scores, dtype = FOUND_WRONG[name]
    word = np.random.default_rng(seed).integers(0, 2, n)
    places = np.sort(np.random.default_rng(0).choice(n - 1, 8, replace=False))
    flips = tuple((int(p), int(1 - word[p])) for p in places)
    model = Model(config, with_factors(config, seed, everything, scores), tuple(word.tolist()), flips, 1)
    errors = errors_of(model, dtype)
    assert errors is not None
    assert errors.difference <= errors.allowed(dtype), errors


@pytest.mark.quick(0, 2)
@pytest.mark.parametrize("dtype", list(FLOOR))
@pytest.mark.parametrize(
    "seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 200))]
)
def test_no_model_is_measured_worse_than_by_the_specification(seed, dtype):
    errors = errors_of(drawn(seed), dtype)
    assert errors is None or errors.difference <= errors.allowed(dtype), errors


def test_the_change_of_a_sigmoid_keeps_its_digits_for_scores_and_changes_of_any_size():
    sizes = [0.0, 1e-30, 1e-9, 1e-3, 0.4, 3.0, 20.0, 60.0, 500.0]
    signed = [sign * size for size in sizes for sign in (1, -1)]
    for dtype in FLOOR:
        s, ds = (np.array(x, dtype) for x in zip(*itertools.product(signed, signed), strict=True))
        with numerics(dtype):
            new, change = map(np.asarray, sigmoid_change(*map(jnp.asarray, (s, s + ds, ds))))
        with decimal.localcontext(decimal.Context(prec=300, Emax=decimal.MAX_EMAX, Emin=decimal.MIN_EMIN)):
            moved = [
                (Decimal(float(x)), Decimal(float(x)) + Decimal(float(y))) for x, y in zip(s, ds, strict=True)
            ]
            before, after = ([1 / (1 + (-pair[k]).exp()) for pair in moved] for k in (0, 1))
            step = np.array([_longdouble(y - x) for x, y in zip(before, after, strict=True)])
            after = np.array([_longdouble(y) for y in after])
        # A score is rounded by eps |s|, which is the relative error of a small weight.
        off = 4 * np.finfo(dtype).eps * (2 + np.abs(s) + np.abs(ds))
        tiny = float(np.finfo(dtype).tiny)
        assert np.all(np.abs(new - after) <= off * after + tiny)
        assert np.all(np.abs(change - step) <= off * np.abs(step) + tiny)


@pytest.mark.long
def test_what_float32_cannot_resolve_is_measured_in_float64_and_said_to_be():
    config = binary("temperature-cubic", dtype="float32", layers=1)
    model, word = jaxsens.Transformer(config, seed=0), [0, 1, 1, 0] * 4
    result = jaxsens.flip_sensitivity(model, word, engine="difference")
    assert "in float64" in result.engine.reason
    assert result.norms.dtype == np.float64  # which holds changes below 1e-38
    assert 0 < result.norms[result.norms > 0].min() < 1e-38


@pytest.mark.quick(0, 1)
@pytest.mark.parametrize("changes", [{}, {"positions": "none", "layer_norm": "pre", "activation": "gelu"}])
def test_three_layers_are_resolved_in_float32_and_no_flip_is_off_by_more_than_its_resolution(changes):
    config = binary("softmax", layers=3, dtype="float32", **changes)
    model, word = jaxsens.Transformer(config, seed=0), np.random.default_rng(0).integers(0, 2, 24)
    found = jaxsens.flip_sensitivity(model, word, engine="difference")
    assert "float64" not in found.engine.reason
    pairs = [(int(p), int(s)) for p, s in zip(found.positions, found.symbols, strict=True)]
    parameters = jax.tree.map(np.asarray, model.parameters)
    off = np.abs(found.norms - wide_reference.flip_norms(config, parameters, word, pairs))
    assert np.all(off <= found.resolution)
    assert np.all(found.resolution <= 1e-2 * found.norms)


# Resolutions


def as_stated(seed, n, engine="vmap", **options):
    """Whether every flip of a float32 model is off by no more than its resolution."""
    config, flips = jaxsens.TransformerConfig(8, **options), jaxsens.Substitute(sample=64)
    model, word = jaxsens.Transformer(config, seed=seed), np.random.default_rng(seed).integers(0, 8, n)
    wide = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), model.parameters)
    exact = jaxsens.Transformer(config.replace(dtype="float64"), parameters=wide)
    asked = {"tokens": np.append(word, 8), "flips": flips, "engine": engine, "progress": False}
    found, true = (jaxsens.flip_sensitivity(one, **asked) for one in (model, exact))
    return np.all(np.abs(found.values - true.values) <= found.resolution + true.resolution)


LARGE = (
    ("softmax", 4, 63, 1, "incremental"),
    ("temperature-linear", 3, 63, 1, "vmap"),
    ("entmax-1.5", 6, 31, 0, "vmap"),
)


@pytest.mark.parametrize(("weighting", "layers", "n", "seed", "engine"), LARGE)
def test_what_is_stated_holds_where_rounding_turns_a_choice(weighting, layers, n, seed, engine):
    assert as_stated(seed, n, engine, width=64, layers=layers, feed_forward=256, weighting=weighting)


def test_what_is_stated_of_the_one_output_of_a_large_model_holds_where_one_run_shows_little_rounding():
    assert as_stated(7, 31, width=256, layers=2, feed_forward=1024, logits=1)
