"""Measures of an output and its change: the digits of small changes, all sizes, and every engine beside plain loops."""

from __future__ import annotations

import dataclasses
from decimal import localcontext
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jaxsens
from jaxsens import InputError, Transformer, load_result
from jaxsens.inputs import MEASURES, NORMS
from jaxsens.models.given import parameters_from_numpy
from jaxsens.precision import numerics
from jaxsens.sensitivity import measures
from jaxsens.sensitivity.functions import FUNCTIONS
from jaxsens.sensitivity.measures import DISTANCES, decision_of, excess, measure_of
from tests import reference
from tests.measure_reference import DIGITS, exact, measured
from tests.sensitivity.conformance import CASES, engine_of
from tests.small_models import small

flip_sensitivity: Any = jaxsens.flip_sensitivity  # `changes` are None only without a function

OUTPUTS = 7
ENGINES = ("vmap", "incremental", "difference")
WORD = np.append(np.random.default_rng(0).integers(0, 3, 8), 3)


def expected(name, y, changes):
    with localcontext(DIGITS):
        before = exact(y)
        return np.array(
            [
                measured(before, [a + d for a, d in zip(before, exact(dy), strict=True)], name)
                for dy in changes
            ]
        )


MEASURED = {
    (name, dtype): jax.jit(lambda y, changes, name=name: measure_of(name, y, changes))
    for name in MEASURES
    for dtype in ("float32", "float64")
}


def found(name, y, changes, dtype):
    with numerics(dtype):
        value = MEASURED[name, dtype](jnp.asarray(y, dtype), jnp.asarray(changes, dtype))
        assert value.dtype == dtype
        return np.asarray(value)


def drawn(seed, size, dtype, spread=1.0, count=5):
    rng = np.random.default_rng(seed)
    y, changes = spread * rng.normal(size=OUTPUTS), size * rng.normal(size=(count, OUTPUTS))
    return y.astype(dtype), changes.astype(dtype)


def test_every_measure_has_one_rule():
    assert {*NORMS, *DISTANCES} == set(MEASURES)
    assert not {*NORMS} & {*DISTANCES}
    with pytest.raises(
        InputError, match="measure_of has no rule for the norm other; it knows l2, l1, linf, cosine"
    ):
        measure_of("other", jnp.zeros(2), jnp.zeros((1, 2)))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("size", [1e-14, 1e-4, 1e-2, 1.0, 30.0])
@pytest.mark.parametrize("name", [name for name in MEASURES if name != "decision"])
def test_changes_of_all_sizes_keep_their_digits(name, size, dtype):
    y, changes = drawn(0, size, dtype)
    np.testing.assert_allclose(
        found(name, y, changes, dtype), expected(name, y, changes), rtol=64 * np.finfo(dtype).eps
    )


def test_subtracting_from_1_and_logarithms_would_keep_none_of_these_digits():
    y, changes = drawn(0, 1e-4, "float32")
    new = (y + changes).astype(np.float32)
    cosine = 1 - new @ y / np.linalg.norm(new, axis=1) / np.linalg.norm(y)
    p, q = (np.asarray(jax.nn.log_softmax(jnp.asarray(value))) for value in (y, new))
    kl = np.sum(np.exp(p) * (p - q), axis=1)
    assert np.median(np.abs(cosine / expected("cosine", y, changes) - 1)) > 0.1
    assert np.median(np.abs(kl / expected("kl", y, changes) - 1)) > 0.1


SIZES = st.floats(-18, 1.5).map(lambda power: 10**power)


@given(st.integers(0, 10**6), SIZES, st.sampled_from([0.1, 1.0, 5.0]), st.sampled_from(["cosine", "kl"]))
@settings(max_examples=100, deadline=None)
def test_any_change_of_any_output(seed, size, spread, name):
    y, changes = drawn(seed, size, "float32", spread, count=3)
    # The part of a change that a measure leaves out (along y, or common to all outputs) costs digits of the rest.
    truth = expected(name, y, changes)
    rest = np.sqrt(np.maximum(truth, 1e-300)) * (np.linalg.norm(y) if name == "cosine" else 1.0)
    lost = np.finfo(np.float32).eps * np.linalg.norm(changes, axis=1) / np.minimum(rest, 1.0)
    value = found(name, y, changes, "float32")
    assert np.all(np.abs(value - truth) <= (2e-5 + 64 * lost) * truth + 1e-37)
    assert np.all(value >= 0)


def test_a_divergence_of_logits_far_apart():
    y = np.array([0.0, -200.0, -40.0], np.float32)
    changes = np.array([[0, 0, 39], [0, 300, 0], [0, 199, 1], [-1e4, 1e4, 0], [5e3, 5e3, 5e3]], np.float32)
    truth = expected("kl", y, changes)
    np.testing.assert_allclose(found("kl", y, changes, "float32"), truth, rtol=2e-5, atol=1e-30)


def test_the_series_of_the_exponential_has_all_digits():
    for dtype, rtol in (("float32", 4e-7), ("float64", 1e-15)):
        t = np.concatenate([[1e-15, -1e-9], np.linspace(-1.5, 1.5, 31)]).astype(dtype)
        with localcontext(DIGITS), numerics(dtype):
            truth = [float(value.exp() - 1 - value) for value in exact(t)]
            np.testing.assert_allclose(excess(jnp.asarray(t)), truth, rtol=rtol, atol=1e-30)


def test_opposite_and_equal_directions_and_none():
    y = np.array([3.0, 4.0], np.float32)
    changes = np.array([[3, 4], [-6, -8], [-3, -4], [-7, -1], [0, 0]], np.float32)
    np.testing.assert_allclose(found("cosine", y, changes, "float32"), [0, 2, np.nan, 1, 0], rtol=1e-6)
    assert np.isnan(found("cosine", np.zeros(2), changes, "float32")).all()


# (output, change, whether the decision changes)
DECISIONS = [
    ([1, 2], [0, 0], 0),
    ([1, 2], [1, 0], 1),  # a tie after the change: the first of equals
    ([2, 1], [0, 1], 0),
    ([1, 1], [0, 1e-12], 1),  # a tie before, told apart by a change that 1 + 1e-12 loses
    ([1, 1], [1e-12, 0], 0),
    ([1, 1, 3], [0, 5, 1], 1),
    ([1], [-1], 1),
    ([1], [-0.5], 0),
    ([0], [1], 1),
    ([0], [-1], 0),
    ([-1], [1], 0),
    ([1e6], [-1e6 - 1], 1),
]


@pytest.mark.parametrize(("y", "change", "changed"), DECISIONS)
def test_decisions(y, change, changed):
    assert found("decision", y, [change], "float32").tolist() == [changed]
    assert expected("decision", y, [change]).tolist() == [changed]
    if max(map(abs, change)) > 1e-6:
        before, after = (int(decision_of(jnp.asarray(value, float))) for value in (y, np.add(y, change)))
        assert (before != after) == changed


@pytest.mark.parametrize("name", MEASURES)
def test_what_an_engine_declines_stays_declined(name):
    for bad in (np.nan, np.inf):
        value = found(name, [1.0, 2.0], [[bad, 0.0], [1.0, 0.0]], "float32")
        assert not np.isfinite(value[0])
        assert np.isfinite(value[1])


# Engines

MODELS = {
    "one layer": small(layers=1),
    "two layers": small(logits=4),
    "three layers": small(layers=3, layer_norm="pre", logits=4),
    "hard": small(weighting="average-hard", logits=3),
    "one logit": small(layers=1, logits=1),
}


def by_loops(model, word, flips, name, outputs=None):
    """The measure of every flip, from the reference's outputs in the widest type."""
    parameters = jax.tree.map(lambda leaf: np.asarray(leaf).astype(np.longdouble), model.parameters)

    def output(tokens):
        y = reference.output(model.config, parameters, tokens, np.longdouble)
        return exact((y if outputs is None else y[list(outputs)]).astype(np.float64))

    before, values = output(list(word)), []
    for position, symbol in zip(flips.positions, flips.symbols, strict=True):
        values.append(
            measured(before, output([symbol if i == position else t for i, t in enumerate(word)]), name)
        )
    return np.array(values)


SERVED = [
    (model, engine, name)
    for model, config in MODELS.items()
    for engine in ENGINES
    if engine_of(engine, config) is not None
    for name in ("cosine", "kl", "decision")
    if config.logits != 1 or name == "decision"
]


@pytest.mark.quick(9)
@pytest.mark.parametrize(("model", "engine", "name"), SERVED)
def test_every_engine_gives_what_plain_loops_do(model, engine, name):
    built = Transformer(MODELS[model], seed=1)
    result = flip_sensitivity(built, WORD, engine=engine, norm=name)
    truth = by_loops(built, WORD, result, name)
    np.testing.assert_allclose(result.norms, truth, rtol=1e-6, atol=1e-15)
    assert (result.norm, result.engine.name, result.changes) == (name, engine, None)
    assert f"{name}: mean=" in repr(result)


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", ["kl", "cosine", "decision"])
def test_chosen_outputs_only(name):
    built = Transformer(MODELS["two layers"], seed=1)
    for engine in ("vmap", "difference"):
        result = flip_sensitivity(built, WORD, engine=engine, norm=name, outputs=[3, 1])
        np.testing.assert_allclose(
            result.norms, by_loops(built, WORD, result, name, (3, 1)), rtol=1e-6, atol=1e-15
        )


CONFORMING = ("mask future", "weighting average-hard", "layer norm after")


@pytest.mark.long
@pytest.mark.parametrize("measure", ["cosine", "kl", "change"])
@pytest.mark.parametrize("name", CONFORMING)
def test_engines_agree_on_the_models_that_they_must_pass(name, measure):
    case = CASES[name]
    parameters, word = case.parameters(), jnp.asarray(case.word, jnp.int32)
    pairs, values = jnp.asarray(case.flips, jnp.int32), {}
    for engine in ("vmap", "difference"):
        runner = engine_of(engine, case.config, "l2" if measure == "change" else measure)
        assert runner is not None
        runner = dataclasses.replace(runner, change=apart if measure == "change" else None)
        with jax.disable_jit(not case.compiled), numerics("float64"):
            given = parameters_from_numpy(parameters, "float64")
            prepared = jax.jit(runner.prepare)(given, word)
            values[engine] = np.asarray(jax.jit(runner.norms)(given, prepared, pairs[:, 0], pairs[:, 1]))
    declined = np.isnan(values["difference"])
    assert not declined.all()
    np.testing.assert_allclose(
        values["difference"][~declined],
        values["vmap"][~declined],
        rtol=1e-7,
        atol=1e-13 * max(1, np.nanmax(np.abs(values["vmap"]))),
    )


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", ["kl", "cosine"])
def test_the_difference_engine_keeps_the_digits_that_two_outputs_lose(name):
    config = jaxsens.TransformerConfig(alphabet_size=3, width=8, heads=2, layers=1, feed_forward=16, logits=5)
    model, tokens = Transformer(config, seed=0), np.random.default_rng(0).integers(0, 3, 4096)
    same = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), model.parameters)
    wide = Transformer(config.replace(dtype="float64"), parameters=same)
    where = jaxsens.sample(24, seed=1)
    truth = flip_sensitivity(wide, tokens, positions=where, norm=name, engine="difference")
    errors = {}
    for engine in ("vmap", "difference"):
        values = flip_sensitivity(model, tokens, positions=where, norm=name, engine=engine)
        errors[engine] = np.median(np.abs(values.norms - truth.norms) / truth.norms)
        if engine == "vmap":  # float32 has lost them
            assert dict(values.engine.elsewhere)["a forward pass each in float64"] > 12
    assert max(errors.values()) < 1e-5


# A function of both outputs


def apart(y, new):
    return jnp.sum((new - y) * jnp.arange(1, y.shape[0] + 1)) + jnp.sum(new**2) - jnp.sum(y**2)


def apart_by_numpy(y, new):
    return np.sum((new - y) * np.arange(1, len(y) + 1)) + np.sum(new**2) - np.sum(y**2)


@pytest.mark.quick(3)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("model", ["two layers", "three layers"])
def test_values_of_a_function_are_those_of_plain_loops_with_their_signs(model, engine):
    built = Transformer(MODELS[model], seed=1)
    result = flip_sensitivity(built, WORD, engine=engine, change=apart)
    parameters = jax.tree.map(lambda leaf: np.asarray(leaf).astype(np.longdouble), built.parameters)
    y, truth = reference.output(built.config, parameters, list(WORD), np.longdouble), []
    for position, symbol in zip(result.positions, result.symbols, strict=True):
        flipped = [symbol if i == position else t for i, t in enumerate(WORD)]
        truth.append(apart_by_numpy(y, reference.output(built.config, parameters, flipped, np.longdouble)))
    assert min(truth) < 0 < max(truth)
    np.testing.assert_allclose(result.changes, np.array(truth, float), rtol=1e-9, atol=1e-14)
    np.testing.assert_array_equal(result.norms, np.abs(result.changes))
    assert (result.norm, result.outputs) == ("change", None)


@pytest.mark.quick(1)
@pytest.mark.parametrize("engine", ENGINES)
def test_a_norm_and_a_comparison_as_functions(engine):
    built = Transformer(MODELS["two layers"], seed=1)
    norms = flip_sensitivity(built, WORD, engine=engine)
    same = flip_sensitivity(
        built, WORD, engine=engine, change=lambda y, new: jnp.linalg.norm(new - y + 1e-300)
    )
    np.testing.assert_allclose(same.norms, norms.norms, rtol=1e-9)
    decided = flip_sensitivity(built, WORD, engine=engine, norm="decision")
    compared = flip_sensitivity(
        built, WORD, engine=engine, change=lambda y, new: 1.0 * (jnp.argmax(y) != jnp.argmax(new))
    )
    np.testing.assert_array_equal(compared.norms, decided.norms)


MODEL = Transformer(small(layers=1, dtype="float32", logits=3), seed=0)


def measure(**options):
    return flip_sensitivity(MODEL, WORD, **options)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (3, "change = 3: a function from the model's output and that of the flipped input, two vectors"),
        (lambda y: y[0], "change = .*: a function from the model's output and that"),
        (lambda y, new: new - y, r"it returns float32 of shape \(3,\); one floating-point number is needed"),
        (lambda y, new: jnp.argmax(y) != jnp.argmax(new), r"it returns bool of shape \(\)"),
        (lambda y, new: (new - y)[7], "indexes beyond an array .*use indices from 0 to 2"),
        (
            lambda y, new: jnp.log(-(jnp.sum(new**2))),
            "change = <lambda>: it is nan for the output of input 0",
        ),
    ],
)
def test_what_is_no_function_of_two_outputs_is_refused(change, match):
    with pytest.raises(InputError, match=match):
        measure(change=change)


def test_what_a_function_excludes_is_refused_together():
    with pytest.raises(InputError, match=r"(?s)3 errors.*change = .*: not with scalar.*outputs.*outputs"):
        measure(change=apart, scalar=lambda y: y[0], outputs=[0])
    with pytest.raises(InputError, match="norm = 'kl': not with change, which is measured instead"):
        measure(change=apart, norm="kl")


def test_a_function_that_is_not_finite_under_a_flip_is_refused():
    with pytest.raises(
        InputError, match=r"or change of it, is not finite under \d+ of .*change that is finite"
    ):
        measure(change=lambda y, new: jnp.where(jnp.all(y == new), 0.0, jnp.nan))


def test_a_direction_that_a_flip_takes_away_is_refused():
    with pytest.raises(
        InputError, match=r"or its direction, is not finite under 1 of 2 .*of 0 has no direction"
    ):
        flip_sensitivity(lambda t: t[:2] * 1.0, [0, 1, 0], 2, norm="cosine")


@pytest.mark.parametrize("name", ["cosine", "kl"])
def test_measures_of_several_outputs_refuse_a_single_one(name):
    with pytest.raises(InputError, match=f'norm = "{name}": it is 0 for nearly every change of a single'):
        measure(norm=name, outputs=[1])
    with pytest.raises(InputError, match="of a single output"):
        flip_sensitivity(lambda t: jnp.sum(t) * 1.0, [0, 1, 0], 2, norm=name)


def test_engines_and_functions_that_serve_norms_only_refuse_the_others_by_name():
    for options, match in (
        ({"norm": "decision"}, 'cannot estimate norm = "decision", which jumps'),
        ({"change": apart, "sketch": 2}, "sketch = 2: not with change"),
    ):
        with pytest.raises(InputError, match=match):
            measure(engine="first-order", **options)
    for name in ("cosine", "kl", "decision"):
        wrong: Any = name
        for call in (
            lambda wrong=wrong: jaxsens.worst_input(MODEL, 4, norm=wrong),
            lambda wrong=wrong: jaxsens.layer_changes(MODEL, WORD, norm=wrong),
            lambda wrong=wrong: jaxsens.theory.lemma5(MODEL, 4, norm=wrong),
            lambda wrong=wrong: jaxsens.theory.certified_bound(MODEL, 4, norm=wrong),
        ):
            with pytest.raises(InputError, match=f"norm = '{name}': one of l2, l1, linf"):
                call()


def again(y, new):
    return jnp.sum((new - y) * jnp.arange(1, y.shape[0] + 1)) + jnp.sum(new**2) - jnp.sum(y**2)


def test_an_interrupted_measurement_is_completed_with_the_same_function_only(tmp_path):
    def progress(done, total):
        raise KeyboardInterrupt

    options = {"batch_size": 1, "engine": "vmap"}
    with pytest.raises(jaxsens.MeasurementInterrupted) as caught:
        measure(change=apart, progress=progress, **options)
    caught.value.partial.save(tmp_path / "partial.parquet")
    partial = load_result(tmp_path / "partial.parquet")
    completed, whole = measure(change=again, resume=partial, **options), measure(change=apart, **options)
    np.testing.assert_array_equal(completed.changes, whole.changes)
    with pytest.raises(InputError, match="resume: change, its program as SHA-256, = "):
        measure(change=lambda y, new: y[0], resume=partial, **options)


# The Boolean sensitivity


def majority(tokens):
    return jnp.sum(2 * tokens - 1) * 1.0


def boolean_sensitivities(function, words):
    return [
        sum(function([*w[:i], 1 - w[i], *w[i + 1 :]]) != function(w) for i in range(len(w)))
        for w in (list(word) for word in words)
    ]


@given(st.integers(2, 9), st.integers(1, 4), st.integers(0, 99))
@settings(max_examples=15, deadline=None)
def test_sensitive_flips_are_the_boolean_sensitivity(n, batch, seed):
    words = np.random.default_rng(seed).integers(0, 2, (batch, n))
    result = flip_sensitivity(majority, words, 2, norm="decision", positions=range(n), readout=None)
    truth = boolean_sensitivities(lambda word: 2 * sum(word) > len(word), words)
    assert result.sensitive_flips.tolist() == truth
    assert result.average_sensitivity == pytest.approx(np.mean(truth), rel=1e-12)
    assert result.of_input(0).sensitive_flips.tolist() == truth[:1]


def test_the_average_sensitivity_of_a_sample_is_an_estimate():
    words = np.random.default_rng(0).integers(0, 2, (6, 9))
    whole = flip_sensitivity(majority, words, 2, norm="decision")
    estimates = [
        flip_sensitivity(majority, words, 2, norm="decision", positions=jaxsens.sample(20, seed=seed))
        for seed in range(60)
    ]
    found = np.array([one.average_sensitivity for one in estimates])
    assert abs(found.mean() - whole.average_sensitivity) < 4 * found.std() / np.sqrt(len(found))
    assert found.std() > 0
    few = flip_sensitivity(majority, words, 2, norm="decision", positions=jaxsens.sample(2))
    assert np.isnan(few.sensitive_flips).sum() >= 4


def test_of_other_results_there_is_no_boolean_sensitivity():
    with pytest.raises(
        InputError, match=r'sensitive_flips: this result has norm = "l2"; measure with norm="dec'
    ):
        _ = measure().sensitive_flips
    with pytest.raises(InputError, match="average_sensitivity: this result"):
        _ = measure(norm="kl").average_sensitivity


def test_names_are_those_of_the_measures():
    assert [argument.name for argument in FUNCTIONS] == ["scalar", "change"]
    assert measures.DECISION in MEASURES
