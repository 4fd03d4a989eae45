"""What engines measure, beside plain loops: distances, decisions, and functions of both outputs; Boolean counts."""

from __future__ import annotations

import itertools
import math
from functools import partial
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxsens
from jaxsens import (
    InputError,
    Placement,
    Substitute,
    Transformer,
    TransformerConfig,
    flip_sensitivity,
    load_result,
)
from jaxsens.core.measures import KL, Comparison, Cosine, Decision, Function, Measure
from jaxsens.core.models.parts.initialisation import Uniform
from jaxsens.core.sweeps.inputs import AllWords, Symbols
from tests import reference
from tests.core.flip_sensitivity.conformance import engine_of
from tests.core.flip_sensitivity.test_resuming import interrupted
from tests.measure_reference import exact, measured
from tests.reference import output
from tests.refusals import refused
from tests.small_models import small

ENGINES = ("vmap", "incremental", "difference")
WORD = np.append(np.random.default_rng(0).integers(0, 3, 8), 3)

MODELS = {
    "one layer": small(layers=1),
    "two layers": small(logits=4),
    "three layers": small(layers=3, layer_norm="pre", logits=4),
    "hard": small(weighting="average-hard", logits=3),
    "one logit": small(layers=1, logits=1),
}


def by_loops(model, word, flips, of_both):
    """A function of the output before and after every flip, from the reference's outputs in the widest type."""
    parameters = jax.tree.map(lambda leaf: np.asarray(leaf).astype(np.longdouble), model.parameters)
    y, values = reference.output(model.config, parameters, list(word), np.longdouble), []
    for position, symbol in zip(flips.positions, flips.symbols, strict=True):
        flipped = [symbol if i == position else t for i, t in enumerate(word)]
        values.append(of_both(y, reference.output(model.config, parameters, flipped, np.longdouble)))
    return np.array(values, float)


def of_name(name, outputs: Any = slice(None)):
    """A measure by its name, of chosen outputs, in exact arithmetic."""

    def chosen(output):
        return exact(output[outputs].astype(np.float64))

    return lambda y, new: measured(chosen(y), chosen(new), name)


SERVED = [
    (model, engine, name)
    for model, config in MODELS.items()
    for engine in ENGINES
    if engine_of(engine, config) is not None
    for name in ("cosine", "kl", "decision")
    if config.logits != 1 or name == "decision"
]


@pytest.mark.quick(0, 3)
@pytest.mark.parametrize(("model", "engine", "name"), SERVED)
def test_every_engine_gives_what_plain_loops_do(model, engine, name):
    built = Transformer(MODELS[model], seed=1)
    result = flip_sensitivity(built, WORD, measure=name, engine=engine)
    truth = by_loops(built, WORD, result, of_name(name))
    np.testing.assert_allclose(result.norms, truth, rtol=1e-6, atol=1e-15)
    assert (result.measure.kind, result.engine.name) == (name, engine)
    assert f"{name}: mean=" in repr(result)


def apart(y, new):
    return jnp.sum((new - y) * jnp.arange(1, y.shape[0] + 1)) + jnp.sum(new**2) - jnp.sum(y**2)


@pytest.mark.quick(0, 1)
@pytest.mark.parametrize(
    ("measure", "layers", "tolerance"),
    [
        (KL(), 1, 1e-5),
        (Function(lambda y: jax.nn.log_softmax(y)[1]), 1, 1e-6),
        (Cosine(), 1, 1e-5),
        pytest.param(Function(lambda y: jax.nn.log_softmax(y)[1]), 2, 1e-6, marks=pytest.mark.slow),
    ],
    ids=["kl", "function", "cosine", "function of two layers"],
)
def test_the_difference_engine_keeps_the_digits_that_two_outputs_lose(measure, layers, tolerance):
    # At n = 4096 a change is some 1e-4 of the output; folded for two layers.
    config = jaxsens.TransformerConfig(3, width=8, heads=2, layers=layers, feed_forward=16, logits=5)
    model, tokens = Transformer(config, seed=0), np.random.default_rng(0).integers(0, 3, 4096)
    same = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), model.parameters)
    wide = Transformer(config.replace(dtype="float64"), parameters=same)
    flips = Substitute(sample=24, seed=1)
    truth = flip_sensitivity(wide, tokens, flips, measure, engine="difference")
    errors = {}
    for engine in ("vmap", "difference"):
        values = flip_sensitivity(model, tokens, flips, measure, engine=engine)
        errors[engine] = np.median(np.abs(values.values - truth.values) / truth.norms)
        if engine == "vmap":  # float32 has lost them
            assert dict(values.engine.elsewhere)["a forward pass each in float64"] > 0
        else:
            assert ("folded" in values.engine.reason) == (layers == 2)
    assert errors["difference"] < tolerance
    assert errors["vmap"] < 1e-5


# A function of both outputs


def log_probability(y):
    return jax.nn.log_softmax(y)[1]


def log_probability_by_numpy(y):
    return y[1] - np.log(np.exp(y - y.max()).sum()) - y.max()


def apart_by_numpy(y, new):
    return np.sum((new - y) * np.arange(1, len(y) + 1)) + np.sum(new**2) - np.sum(y**2)


def change_of(f):
    """A function of one output as one of two."""
    return lambda y, new: f(new) - f(y)


FUNCTIONS = {
    "log-probability": (Function(log_probability), change_of(log_probability_by_numpy)),
    "one output": (Function(lambda y: y[-1]), change_of(lambda y: y[-1])),
    "sum of squares": (Function(lambda y: y @ y), change_of(lambda y: (y * y).sum())),
    "step": (
        Function(lambda y: jnp.where(y[0] > 0, 1.0, 0.0) * y[1]),
        change_of(lambda y: (y[0] > 0) * y[1]),
    ),
    "comparison": (Comparison(apart), apart_by_numpy),
}
"""Each measure with its value by NumPy."""


@pytest.mark.quick(0, 3)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("model", ["two layers", "three layers"])
def test_values_of_a_function_are_those_of_plain_loops_with_their_signs(model, name, engine):
    built, (measure, of_both) = Transformer(MODELS[model], seed=1), FUNCTIONS[name]
    result = flip_sensitivity(built, WORD, measure=measure, engine=engine)
    truth = by_loops(built, WORD, result, of_both)
    assert min(truth) < 0 < max(truth)
    np.testing.assert_allclose(result.values, truth, rtol=1e-9, atol=1e-14)
    np.testing.assert_array_equal(result.norms, np.abs(result.values))
    assert (result.measure.kind, result.asked.outputs, result.engine.name) == (measure.kind, None, engine)
    assert result.max == result.argmax.norm == np.abs(result.values).max()
    assert result.mean == np.abs(result.values).mean()
    assert f"{result.measure.kind}: mean=" in repr(result)


MODEL = Transformer(small(layers=1, dtype="float32", logits=3), seed=0)


def of_measure(measure: Any = "l2", **options: Any) -> jaxsens.FlipSensitivity:
    return flip_sensitivity(MODEL, WORD, measure=measure, **options)


def finite_near(first):
    return lambda y: jnp.where(jnp.abs(y[0] - first) < 1e-5, y[0], jnp.nan)


NUMBER: Any = 3


class Unhashable(SimpleNamespace):
    __hash__ = None

    def __call__(self, y):
        return y[0]


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    ("measure", "named"),
    [
        (lambda: Function(NUMBER), "f = 3"),
        (lambda: Function(lambda y, k: y[k]), "f = "),
        (lambda: Function(Unhashable()), "f = 'Unhashable'"),
        (lambda: Function(lambda y: y[:2]), "measure"),
        (lambda: Function(lambda y: jnp.argmax(y)), "measure"),
        (lambda: Function(lambda y: float(y[0])), "measure"),
        (lambda: Function(lambda y: jax.nn.log_softmax(y)[60]), "use indices from 0 to 2"),
        (lambda: Function(lambda y: jnp.log(y[0] * 0)), "output of input 0"),
        (lambda: Function(finite_near(MODEL(jnp.asarray(WORD))[0])), "first at position 0"),
        (lambda: Comparison(lambda y: y[0]), "f = "),
        (lambda: Comparison(lambda y, new: new - y), "measure"),
        (lambda: Comparison(lambda y, new: jnp.log(-jnp.sum(new**2))), "first at position 0"),
    ],
)
def test_what_is_no_function_of_outputs_is_refused(measure, named):
    with pytest.raises(InputError) as caught:
        of_measure(measure())
    assert named in str(caught.value)


def test_a_single_output_and_a_direction_that_a_flip_takes_away_are_refused():
    for name in ("cosine", "kl"):
        refused("measure", of_measure, Measure.kinds[name](outputs=[1]))
        refused("measure", flip_sensitivity, lambda t: jnp.sum(t) * 1.0, [0, 1, 0], 2, measure=name)
    refused("model", flip_sensitivity, lambda t: t[:2] * 1.0, [0, 1, 0], 2, measure="cosine")


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "function", "other"),
    [
        (Comparison, apart, lambda y, new: y[0]),
        (Function, log_probability, lambda y: jax.nn.log_softmax(y)[2]),
    ],
    ids=["comparison", "function"],
)
def test_an_interrupted_measurement_is_completed_with_the_same_function_only(tmp_path, kind, function, other):
    measure, same, other = kind(function), kind(partial(function)), kind(other)
    options: dict[str, Any] = {"placement": Placement(batch_size=1), "engine": "vmap"}
    interrupted(1, MODEL, WORD, measure=measure, **options).save(tmp_path / "partial.parquet")
    part = load_result(tmp_path / "partial.parquet")
    completed = part.joined(of_measure(same, flips=part.remaining, **options))
    whole = of_measure(measure, **options)
    assert 0 < len(part) < len(whole)
    np.testing.assert_array_equal(completed.values, whole.values)
    for wrong, named in ((other, "remaining.*measure"), ("l2", "measure = ")):
        with pytest.raises(InputError, match=named):
            of_measure(wrong, flips=part.remaining, **options)


@pytest.mark.long
def test_a_saved_result_and_the_part_of_an_input_have_their_signs(tmp_path):
    result = flip_sensitivity(MODEL, np.stack([WORD, WORD[::-1] % 3]), measure=Function(log_probability))
    assert list(result.to_pandas().columns) == ["input", "position", "symbol", "norm", "resolution", "value"]
    result.save(tmp_path / "r.parquet")
    loaded: Any = load_result(tmp_path / "r.parquet")
    np.testing.assert_array_equal(loaded.values, result.values)
    assert loaded.values.dtype == result.values.dtype
    assert loaded.description() == result.description()
    part = result.of_input(1)
    np.testing.assert_array_equal(part.values, result.values[result.inputs == 1])
    np.testing.assert_array_equal(part.norms, np.abs(part.values))


@pytest.mark.long
def test_the_designated_outputs_of_a_model_do_not_matter_to_a_function():
    compiled = jaxsens.construction("parity", condition="temperature")
    result = flip_sensitivity(
        compiled, np.array([0, 1, 1, 0, 1]), measure=Function(lambda y: y[0] + 2 * y[1])
    )
    assert result.asked.outputs is None


# The Boolean sensitivity


def test_engines_and_functions_that_serve_norms_only_refuse_the_others_by_name():
    for measure, engine, match in (
        ("decision", "first-order", 'cannot estimate measure = "decision", which jumps'),
        (Comparison(apart), jaxsens.FirstOrder(sketch=2), "sketch = 2: only for L2"),
    ):
        with pytest.raises(InputError, match=match):
            of_measure(measure, engine=engine)
    for name in ("cosine", "kl", "decision"):
        wrong: Any = name
        for call in (
            lambda wrong=wrong: jaxsens.theory.worst_input(MODEL, 4, measure=wrong),
            lambda wrong=wrong: jaxsens.analysis.layer_changes(MODEL, WORD, measure=wrong),
            lambda wrong=wrong: jaxsens.theory.lemma5(MODEL, 4, measure=wrong),
            lambda wrong=wrong: jaxsens.theory.certified_bound(MODEL, 4, measure=wrong),
        ):
            refused("measure", call)


def every_word(n, size=2):
    return np.array([*itertools.product(range(size), repeat=n)])


def enumerated(decide, words, size=2):
    """The flips that change the decision, by input and position: a loop over flips."""
    found = np.zeros(words.shape, int)
    for k, word in enumerate(words):
        before = decide(word)
        for i in range(len(word)):
            for symbol in set(range(size)) - {int(word[i])}:
                new = word.copy()
                new[i] = symbol
                found[k, i] += decide(new) != before
    return found


def majority(tokens):
    return (2 * jnp.sum(tokens) - tokens.shape[0]).astype(jnp.float32)


def boolean(function, words, flips: Any = 2, threshold=0.0, **options):
    return flip_sensitivity(function, words, flips, Decision(threshold), readout=None, **options)


CONFIGS = (
    TransformerConfig(
        3, width=8, heads=2, layers=1, feed_forward=8, logits=1, dtype="float64", initialisation=Uniform(10)
    ),
    TransformerConfig(3, width=8, heads=2, layers=1, feed_forward=0, logits=3, dtype="float64"),
)


@pytest.mark.quick(0, 2)
@pytest.mark.parametrize(("config", "seed"), [*zip(CONFIGS, (1, 0), strict=True)], ids=["sign", "argmax"])
@pytest.mark.parametrize("engine", ["vmap", "incremental", "difference"])
def test_profiles_of_transformers_over_all_inputs_are_those_of_the_loop(config, seed, engine):
    model = jaxsens.Transformer(config, seed=seed)
    words = AllWords().tokens(Symbols(3, 3), 4, 0)
    parameters = jax.tree.map(np.asarray, model.parameters)

    def decide(word):
        y = output(config, parameters, [*word, 3])
        return y[0] > 0 if config.logits == 1 else int(np.argmax(y))

    truth = enumerated(decide, words[:, :-1], 3)
    result = flip_sensitivity(model, words, measure="decision", engine=engine)
    assert 0 < truth.sum() < 6 * len(words)
    np.testing.assert_array_equal(result.sensitive_flips, truth.sum(axis=1))
    shares = [(truth.sum(axis=1) == s).mean() for s in range(7)]
    np.testing.assert_allclose(result.sensitivity_distribution, shares, rtol=1e-12)
    np.testing.assert_allclose(result.influences[:-1], truth.mean(axis=0), rtol=1e-12)
    assert math.isnan(result.influences[-1])
    assert result.average_sensitivity == pytest.approx(truth.sum(axis=1).mean(), rel=1e-12)
    assert result.average_sensitivity_per_position == pytest.approx(truth.mean(), rel=1e-12)


@pytest.mark.long
def test_what_a_result_does_not_say_is_refused_by_name():
    words = every_word(3)
    norms = flip_sensitivity(majority, words[0], 2, readout=None)
    drawn = boolean(majority, words, Substitute(2, sample=9))
    chosen = flip_sensitivity(
        majority, words, flips=Substitute([1], sample=5), measure="decision", readout=None
    )
    groups = flip_sensitivity(
        majority, words, flips=Substitute(2, groups=[(0, 1)]), measure="decision", readout=None
    )
    needs_all = "it needs all flips, and 9 of 24 were drawn; measure all"
    of_norms = 'this result has measure = "l2"; give measure="dec'
    for result, name, why in (
        (norms, "sensitive_flips", of_norms),
        (norms, "average_sensitivity", of_norms),
        (norms, "sensitivity_distribution", of_norms),
        (norms, "influences", of_norms),
        (norms, "average_sensitivity_per_position", of_norms),
        (drawn, "sensitivity_distribution", needs_all),
        (drawn, "influences", needs_all),
        (chosen, "average_sensitivity_per_position", "a sample of flips other than to every symbol"),
        (groups, "influences", "flips of groups"),
    ):
        with pytest.raises(InputError, match=f"{name}: .*{why}"):
            getattr(result, name)


@pytest.mark.long
@pytest.mark.parametrize("engine", ["vmap", "incremental", "difference"])
def test_a_threshold_is_that_of_the_loop(engine):
    config = CONFIGS[1].replace(logits=2)
    model = jaxsens.Transformer(config, seed=3)
    words = AllWords().tokens(Symbols(3, 3), 4, 0)
    outputs = np.asarray(model(jnp.asarray(words)))[:, 1]
    threshold = float(np.median(outputs)) + 1e-6
    above = dict(zip(map(tuple, words.tolist()), outputs > threshold, strict=True))
    truth = enumerated(lambda word: above[(*word.tolist(), 3)], words[:, :-1], 3)
    decision = Decision(threshold, outputs=[1])
    result = flip_sensitivity(model, words, measure=decision, engine=engine)
    assert truth.any()
    np.testing.assert_array_equal(result.sensitive_flips, truth.sum(axis=1))
    assert result.measure == decision


@pytest.mark.parametrize(("rows", "readout"), [(False, None), (True, "last")])
def test_the_median_threshold_balances_the_outputs_on_the_inputs(rows, readout):
    weights = jnp.asarray([0.3, -1.1, 0.7, 0.2], jnp.float32)
    words = every_word(4)

    def model(tokens):
        return jnp.cumsum(weights * tokens)[:, None] if rows else weights @ tokens

    result = flip_sensitivity(model, words, 2, Decision("median"), readout=readout)
    outputs = words @ np.asarray(weights, np.float64)
    assert isinstance(result.measure, Decision)
    assert (outputs > float(result.measure.threshold)).sum() == 8


def test_a_threshold_is_of_the_decision_of_one_output_and_is_saved_and_compared(tmp_path):
    refused("threshold", Decision, float("nan"))
    model = jaxsens.Transformer(CONFIGS[1], seed=0)
    refused("measure.threshold", flip_sensitivity, model, [0, 1, 3], measure=Decision(threshold=0.5))
    one = Decision("median", outputs=[0])
    assert "at least 2 inputs" in refused(
        "measure.threshold", flip_sensitivity, model, [0, 1, 3], measure=one
    )
    assert jaxsens.explain(model, 3, measure=one).flips == 4  # the inputs are not known there
    words = every_word(3)
    result, other = (boolean(majority, words, threshold=t) for t in (0.5, 0.0))
    result.save(tmp_path / "result.parquet")
    assert jaxsens.load_result(tmp_path / "result.parquet").measure == Decision(0.5)
    refused("measure", result.joined, other)
