"""The signed change of a function of the output."""

from __future__ import annotations

import dataclasses
from functools import partial as bound
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxsens
from jaxsens import InputError, MeasurementInterrupted, Transformer, flip_sensitivity, load_result
from jaxsens.asked.engines import Difference
from jaxsens.asked.flips import Substitute
from jaxsens.asked.measures import Function
from jaxsens.base.precision import numerics
from jaxsens.models.networks.given import parameters_from_numpy
from jaxsens.sensitivity.choice import choose
from jaxsens.sensitivity.engines.engine import FlipBlock
from jaxsens.sensitivity.placement.placement import Placement
from jaxsens.sensitivity.subjects.adapters import measurable
from tests import reference
from tests.sensitivity.conformance import CASES, engine_of
from tests.small_models import random_parameters, small

WORD = np.append(np.random.default_rng(0).integers(0, 3, 8), 3)


def log_probability(y):
    return jax.nn.log_softmax(y)[1]


def step(y):
    return jnp.where(y[0] > 0, 1.0, 0.0) * y[1]


def as_reference(y):
    return y[1] - np.log(np.exp(y - y.max()).sum()) - y.max()


FUNCTIONS = {
    "log-probability": (log_probability, as_reference),
    "one output": (lambda y: y[-1], lambda y: y[-1]),
    "sum of squares": (lambda y: y @ y, lambda y: (y * y).sum()),
}


def expected(model, tokens, result, f, dtype=np.longdouble):
    """f's change under each flip of a result, by plain loops in the widest type."""
    parameters = jax.tree.map(lambda leaf: np.asarray(leaf).astype(dtype), model.parameters)
    before = f(reference.output(model.config, parameters, list(tokens), dtype))
    changed = []
    for position, symbol in zip(result.positions, result.symbols, strict=True):
        flipped = [symbol if i == position else t for i, t in enumerate(tokens)]
        changed.append(f(reference.output(model.config, parameters, flipped, dtype)) - before)
    return np.array(changed, np.float64)


@pytest.mark.quick(1, 3)
@pytest.mark.parametrize("engine", ["vmap", "incremental", "difference"])
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("config", [small(), small(layers=3, layer_norm="pre", logits=4)])
def test_changes_are_those_of_plain_loops_with_their_signs(config, name, engine):
    model, (f, plain) = Transformer(config, seed=1), FUNCTIONS[name]
    result = flip_sensitivity(model, WORD, measure=Function(f), engine=engine)
    truth = expected(model, WORD, result, plain)
    assert (truth > 0).any()
    assert (truth < 0).any()
    np.testing.assert_allclose(result.values, truth, rtol=1e-9, atol=1e-14)
    np.testing.assert_array_equal(result.norms, np.abs(result.values))
    assert (result.measure.kind, result.asked.outputs, result.engine.name) == ("function", None, engine)
    assert result.max == result.argmax.norm == np.abs(result.values).max()
    assert result.mean == np.abs(result.values).mean()
    assert "function: mean=" in repr(result)


CONFORMING = (
    "mask future",
    "average-hard",
    "layer norm after",
    "no layer",
    "one layer",
    "logits of the mean, hard",
    "sharpened much more",
)


@pytest.mark.quick(0, 3)
@pytest.mark.parametrize("name", [n for n in CASES if any(part in n for part in CONFORMING)])
def test_both_engines_agree_on_the_models_that_engines_must_pass(name):
    case = CASES[name]
    parameters, word = case.parameters(), jnp.asarray(case.word, jnp.int32)
    pairs = jnp.asarray(case.flips, jnp.int32)
    found = {}
    for engine in ("vmap", "difference"):
        runner = engine_of(engine, case.config)
        assert runner is not None
        runner = dataclasses.replace(runner, measure=Function(lambda y: jax.nn.logsumexp(y)))
        with numerics("float64"):
            given = parameters_from_numpy(parameters, "float64")
            prepared = jax.jit(runner.prepare)(given, word)
            found[engine] = np.asarray(
                jax.jit(runner.norms)(given, prepared, FlipBlock(pairs[:, 0], pairs[:, 1]))
            )
    declined = np.isnan(found["difference"])
    assert not declined.all()
    np.testing.assert_allclose(
        found["difference"][~declined], found["vmap"][~declined], rtol=1e-9, atol=1e-12
    )


@pytest.mark.slow
@pytest.mark.parametrize("layers", [1, 2])
def test_the_difference_engine_keeps_the_digits_that_two_outputs_lose(layers):
    # At n = 4096 a change is some 1e-4 of the output; folded for two layers.
    config = jaxsens.TransformerConfig(alphabet_size=3, width=8, heads=2, layers=layers, feed_forward=16)
    model, tokens = Transformer(config, seed=0), np.random.default_rng(0).integers(0, 3, 4096)
    same = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), model.parameters)
    wide = Transformer(config.replace(dtype="float64"), parameters=same)
    flips = Substitute(sample=24, seed=1)
    measure = Function(log_probability)
    truth = flip_sensitivity(wide, tokens, flips, measure, engine="difference")
    found = flip_sensitivity(model, tokens, flips, measure, engine="difference")
    assert np.median(np.abs(found.values - truth.values) / np.abs(truth.values)) < 1e-6
    subtracted = flip_sensitivity(model, tokens, flips, measure, engine="vmap")
    assert dict(subtracted.engine.elsewhere)["a forward pass each in float64"] > 0
    if layers == 2:
        assert "folded" in found.engine.reason


@pytest.mark.quick(1)
@pytest.mark.parametrize("engine", ["vmap", "incremental", "difference"])
def test_a_function_with_a_step_is_subtracted(engine):
    model = Transformer(small(), seed=1)
    result = flip_sensitivity(model, WORD, measure=Function(step), engine=engine)
    truth = expected(model, WORD, result, lambda y: (y[0] > 0) * y[1])
    np.testing.assert_allclose(result.values, truth, rtol=1e-9, atol=1e-14)


@pytest.mark.slow
def test_flips_that_an_engine_declines_are_measured_with_the_same_function():
    # Scores too large for float32, and too large for float64 to keep ties.
    for config in (
        small(dtype="float32", weighting="temperature-cubic"),
        small(weighting="temperature-cubic"),
    ):
        model = Transformer(config, parameters=random_parameters(config, 0, len(WORD)))
        found = flip_sensitivity(model, WORD, measure=Function(log_probability), engine="difference")
        truth = expected(model, WORD, found, as_reference)
        np.testing.assert_allclose(found.values, truth, rtol=1e-4, atol=1e-6)


def test_every_fallback_keeps_the_function():
    config = jaxsens.TransformerConfig(alphabet_size=3, width=8, heads=2, layers=2, feed_forward=16)
    measure = Function(log_probability)
    runner, _ = choose(measurable(Transformer(config)), Difference(), Substitute(), measure, 1024)
    assert runner.for_few_flips.measure is measure
    chain = []
    while runner is not None:
        chain.append((type(runner).__name__, runner.measure))
        runner = runner.fallback
    assert [name for name, _ in chain] == [
        "FoldedEngine",
        "DifferenceEngine",
        "DifferenceEngine",
        "VmapEngine",
    ]
    assert {f for _, f in chain} == {measure}


def test_other_models_have_scalars_too():
    w = np.random.default_rng(0).normal(size=9).astype(np.float32)
    result = flip_sensitivity(
        lambda t: jnp.asarray(w) @ t, WORD % 2, 2, measure=Function(lambda y: -2 * y[0])
    )
    signs = np.where(WORD[:8] % 2 == 0, 1, -1)
    np.testing.assert_allclose(result.values, -2 * w[:8] * signs, rtol=1e-4, atol=1e-6)
    rows = flip_sensitivity(
        lambda t: jnp.asarray(w)[:, None] * t[:, None],
        WORD % 2,
        2,
        measure=Function(lambda y: y[0]),
        readout="mean",
    )
    np.testing.assert_allclose(rows.values, w * np.where(WORD % 2 == 0, 1, -1) / 9, rtol=1e-4, atol=1e-6)


MODEL = Transformer(small(layers=1, dtype="float32"), seed=0)
MEASURE = bound(flip_sensitivity, MODEL, WORD, None)


def not_finite(y):
    return jnp.log(y[0] * 0)


class Unhashable(SimpleNamespace):
    __hash__ = None

    def __call__(self, y):
        return y[0]


@pytest.mark.parametrize(
    ("f", "match"),
    [
        (3, "f = 3: a function from the model's output, a vector, to one number"),
        (lambda y, k: y[k], "f = .*: a function from the model's output"),
        (Unhashable(), r"f = 'Unhashable': it is not hashable.*wrap it: lambda y: f\(y\)"),
        (lambda y: y[:2], r"it returns float32 of shape \(2,\); one floating-point number is needed"),
        (lambda y: y[0] > 0, r"it returns bool of shape \(\); one floating-point"),
        (lambda y: jnp.argmax(y), r"it returns int32 of shape \(\)"),
        (lambda y: (y[0], y[1]), "it returns 2 arrays"),
        (lambda y: None, "it returns 0 arrays"),
        (lambda y: float(y[0]), "raised ConcretizationTypeError: .*write it with jax.numpy"),
        (lambda y: jax.nn.log_softmax(y)[60], "indexes beyond an array .*use indices from 0 to"),
        (not_finite, r"measure = Function\(not_finite\): it is -inf for the output of input 0"),
    ],
)
def test_what_is_no_scalar_function_is_refused(f, match):
    with pytest.raises(InputError, match=match):
        MEASURE(Function(f))


def test_a_function_that_is_not_finite_under_a_flip_is_refused_with_the_position():
    y = np.asarray(MODEL(jnp.asarray(WORD)))[0]
    hit = flip_sensitivity(MODEL, WORD, measure=Function(lambda y: y[0]))
    least = float(y + hit.values.min() / 2)
    with pytest.raises(InputError, match=r"is not finite under \d+ of .* first at position"):
        MEASURE(Function(lambda y: jnp.log(jnp.maximum(y[0] - least, 0))))


@pytest.mark.long
def test_the_designated_outputs_of_a_model_do_not_matter_to_a_scalar():
    compiled = jaxsens.construction("parity", condition="temperature")
    result = flip_sensitivity(
        compiled, np.array([0, 1, 1, 0, 1]), measure=Function(lambda y: y[0] + 2 * y[1])
    )
    assert result.asked.outputs is None


@pytest.fixture(scope="module")
def result():
    words = np.stack([WORD, WORD[::-1] % 3])
    return flip_sensitivity(MODEL, words, measure=Function(log_probability))


def test_a_saved_result_comes_back_with_its_signs(result, tmp_path):
    assert list(result.to_pandas().columns) == ["input", "position", "symbol", "norm", "resolution", "value"]
    result.save(tmp_path / "r.parquet")
    loaded: Any = load_result(tmp_path / "r.parquet")
    np.testing.assert_array_equal(loaded.values, result.values)
    assert loaded.values.dtype == result.values.dtype
    assert loaded.description() == result.description()
    plain = flip_sensitivity(MODEL, WORD)
    plain.save(tmp_path / "p.parquet")
    assert (
        list(load_result(tmp_path / "p.parquet").to_pandas().columns) == list(result.to_pandas().columns)[:-1]
    )


def test_the_part_of_one_input_has_its_changes(result):
    part = result.of_input(1)
    np.testing.assert_array_equal(part.values, result.values[result.inputs == 1])
    np.testing.assert_array_equal(part.norms, np.abs(part.values))


def again(y):
    return jax.nn.log_softmax(y)[1]


def other(y):
    return jax.nn.log_softmax(y)[2]


def test_an_interrupted_measurement_is_completed_with_the_same_function_only(tmp_path):
    def progress(done, total):
        raise KeyboardInterrupt

    options: dict[str, Any] = {"placement": Placement(batch_size=1), "engine": "vmap"}
    with pytest.raises(MeasurementInterrupted) as caught:
        MEASURE(Function(log_probability), progress=progress, **options)
    caught.value.partial.save(tmp_path / "partial.parquet")
    partial = load_result(tmp_path / "partial.parquet")
    whole = MEASURE(Function(log_probability), **options)
    assert 0 < len(partial) < len(whole)
    completed = partial.joined(flip_sensitivity(MODEL, WORD, partial.remaining, Function(again), **options))
    np.testing.assert_array_equal(completed.values, whole.values)
    np.testing.assert_array_equal(completed.norms, whole.norms)
    with pytest.raises(InputError, match=r"remaining: measure, its program as SHA-256, = "):
        flip_sensitivity(MODEL, WORD, partial.remaining, Function(other), **options)
    with pytest.raises(InputError, match=r"(?s)remaining: .*measure = 'function': this call has L2\(\)"):
        flip_sensitivity(MODEL, WORD, partial.remaining, **options)
