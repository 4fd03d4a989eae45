"""What engines measure, beside plain loops: distances, decisions, and functions of both outputs."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import jaxsens
from jaxsens import InputError, Transformer, flip_sensitivity, load_result
from jaxsens.asked.flips import Substitute
from jaxsens.asked.measures import KL, Comparison, Cosine, Measure
from jaxsens.base.precision import numerics
from jaxsens.models.networks.given import parameters_from_numpy
from jaxsens.sensitivity.engines.engine import FlipBlock
from jaxsens.sensitivity.placement.placement import Placement
from tests import reference
from tests.lanes import examples
from tests.measure_reference import exact, measured
from tests.sensitivity.conformance import CASES, engine_of
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


@pytest.mark.quick(2, 6)
@pytest.mark.parametrize(("model", "engine", "name"), SERVED)
def test_every_engine_gives_what_plain_loops_do(model, engine, name):
    built = Transformer(MODELS[model], seed=1)
    result = flip_sensitivity(built, WORD, measure=name, engine=engine)
    truth = by_loops(built, WORD, result, name)
    np.testing.assert_allclose(result.norms, truth, rtol=1e-6, atol=1e-15)
    assert (result.measure.kind, result.engine.name) == (name, engine)
    assert f"{name}: mean=" in repr(result)


@pytest.mark.quick(0, 1)
@pytest.mark.parametrize("name", ["kl", "cosine", "decision"])
def test_chosen_outputs_only(name):
    built = Transformer(MODELS["two layers"], seed=1)
    for engine in ("vmap", "difference"):
        result = flip_sensitivity(built, WORD, measure=Measure.kinds[name](outputs=[3, 1]), engine=engine)
        np.testing.assert_allclose(
            result.norms, by_loops(built, WORD, result, name, (3, 1)), rtol=1e-6, atol=1e-15
        )


def apart(y, new):
    return jnp.sum((new - y) * jnp.arange(1, y.shape[0] + 1)) + jnp.sum(new**2) - jnp.sum(y**2)


CONFORMING = ("mask future", "weighting average-hard", "layer norm after")


@pytest.mark.quick(0, 2)
@pytest.mark.parametrize("measure", [Cosine(), KL(), Comparison(apart)], ids=["cosine", "kl", "comparison"])
@pytest.mark.parametrize("name", CONFORMING)
def test_engines_agree_on_the_models_that_they_must_pass(name, measure):
    case = CASES[name]
    parameters, word = case.parameters(), jnp.asarray(case.word, jnp.int32)
    pairs, values = jnp.asarray(case.flips, jnp.int32), {}
    for engine in ("vmap", "difference"):
        runner = engine_of(engine, case.config)
        assert runner is not None
        runner = dataclasses.replace(runner, measure=measure)
        with numerics("float64"):
            given = parameters_from_numpy(parameters, "float64")
            prepared = jax.jit(runner.prepare)(given, word)
            values[engine] = np.asarray(
                jax.jit(runner.norms)(given, prepared, FlipBlock(pairs[:, 0], pairs[:, 1]))
            )
    declined = np.isnan(values["difference"])
    assert not declined.all()
    np.testing.assert_allclose(
        values["difference"][~declined],
        values["vmap"][~declined],
        rtol=1e-7,
        atol=1e-13 * max(1, np.nanmax(np.abs(values["vmap"]))),
    )


@pytest.mark.quick(0, 1)
@pytest.mark.parametrize("name", ["kl", "cosine"])
def test_the_difference_engine_keeps_the_digits_that_two_outputs_lose(name):
    config = jaxsens.TransformerConfig(alphabet_size=3, width=8, heads=2, layers=1, feed_forward=16, logits=5)
    model, tokens = Transformer(config, seed=0), np.random.default_rng(0).integers(0, 3, 4096)
    same = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), model.parameters)
    wide = Transformer(config.replace(dtype="float64"), parameters=same)
    flips = Substitute(sample=24, seed=1)
    truth = flip_sensitivity(wide, tokens, flips, name, engine="difference")
    errors = {}
    for engine in ("vmap", "difference"):
        values = flip_sensitivity(model, tokens, flips, name, engine=engine)
        errors[engine] = np.median(np.abs(values.norms - truth.norms) / truth.norms)
        if engine == "vmap":  # float32 has lost them
            assert dict(values.engine.elsewhere)["a forward pass each in float64"] > 12
    assert max(errors.values()) < 1e-5


# A function of both outputs


def apart_by_numpy(y, new):
    return np.sum((new - y) * np.arange(1, len(y) + 1)) + np.sum(new**2) - np.sum(y**2)


@pytest.mark.quick(1, 3)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("model", ["two layers", "three layers"])
def test_values_of_a_function_are_those_of_plain_loops_with_their_signs(model, engine):
    built = Transformer(MODELS[model], seed=1)
    result = flip_sensitivity(built, WORD, measure=Comparison(apart), engine=engine)
    parameters = jax.tree.map(lambda leaf: np.asarray(leaf).astype(np.longdouble), built.parameters)
    y, truth = reference.output(built.config, parameters, list(WORD), np.longdouble), []
    for position, symbol in zip(result.positions, result.symbols, strict=True):
        flipped = [symbol if i == position else t for i, t in enumerate(WORD)]
        truth.append(apart_by_numpy(y, reference.output(built.config, parameters, flipped, np.longdouble)))
    assert min(truth) < 0 < max(truth)
    np.testing.assert_allclose(result.values, np.array(truth, float), rtol=1e-9, atol=1e-14)
    np.testing.assert_array_equal(result.norms, np.abs(result.values))
    assert (result.measure.kind, result.asked.outputs) == ("comparison", None)


@pytest.mark.quick(1, 2)
@pytest.mark.parametrize("engine", ENGINES)
def test_a_norm_and_a_comparison_as_functions(engine):
    built = Transformer(MODELS["two layers"], seed=1)
    norms = flip_sensitivity(built, WORD, engine=engine)
    same = flip_sensitivity(
        built, WORD, measure=Comparison(lambda y, new: jnp.linalg.norm(new - y + 1e-300)), engine=engine
    )
    np.testing.assert_allclose(same.norms, norms.norms, rtol=1e-9)
    decided = flip_sensitivity(built, WORD, measure="decision", engine=engine)
    compared = flip_sensitivity(
        built,
        WORD,
        measure=Comparison(lambda y, new: 1.0 * (jnp.argmax(y) != jnp.argmax(new))),
        engine=engine,
    )
    np.testing.assert_array_equal(compared.norms, decided.norms)


MODEL = Transformer(small(layers=1, dtype="float32", logits=3), seed=0)


def of_measure(measure: Any = "l2", **options: Any) -> jaxsens.FlipSensitivity:
    return flip_sensitivity(MODEL, WORD, measure=measure, **options)


@pytest.mark.parametrize(
    ("f", "match"),
    [
        (3, "f = 3: a function from the model's output and that of the flipped input, two vectors"),
        (lambda y: y[0], "f = .*: a function from the model's output and that"),
        (lambda y, new: new - y, r"it returns float32 of shape \(3,\); one floating-point number is needed"),
        (lambda y, new: jnp.argmax(y) != jnp.argmax(new), r"it returns bool of shape \(\)"),
        (lambda y, new: (new - y)[7], "indexes beyond an array .*use indices from 0 to 2"),
        (
            lambda y, new: jnp.log(-(jnp.sum(new**2))),
            r"measure = Comparison\(<lambda>\): it is nan for the output of input 0",
        ),
    ],
)
def test_what_is_no_function_of_two_outputs_is_refused(f, match):
    with pytest.raises(InputError, match=match):
        of_measure(Comparison(f))


def test_a_function_that_is_not_finite_under_a_flip_is_refused():
    with pytest.raises(InputError, match=r"is not finite under \d+ of .*that is finite"):
        of_measure(Comparison(lambda y, new: jnp.where(jnp.all(y == new), 0.0, jnp.nan)))


def test_a_direction_that_a_flip_takes_away_is_refused():
    with pytest.raises(
        InputError, match=r"or its direction, is not finite under 1 of 2 .*of 0 has no direction"
    ):
        flip_sensitivity(lambda t: t[:2] * 1.0, [0, 1, 0], 2, measure="cosine")


@pytest.mark.parametrize("name", ["cosine", "kl"])
def test_measures_of_several_outputs_refuse_a_single_one(name):
    with pytest.raises(InputError, match=f'measure = "{name}": it is 0 for nearly every change of a single'):
        of_measure(Measure.kinds[name](outputs=[1]))
    with pytest.raises(InputError, match="of a single output"):
        flip_sensitivity(lambda t: jnp.sum(t) * 1.0, [0, 1, 0], 2, measure=name)


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
            lambda wrong=wrong: jaxsens.worst_input(MODEL, 4, measure=wrong),
            lambda wrong=wrong: jaxsens.layer_changes(MODEL, WORD, measure=wrong),
            lambda wrong=wrong: jaxsens.theory.lemma5(MODEL, 4, measure=wrong),
            lambda wrong=wrong: jaxsens.theory.certified_bound(MODEL, 4, measure=wrong),
        ):
            with pytest.raises(
                InputError, match=rf"measure = {Measure.kinds[wrong].__name__}\(\): a norm: l2, l1 or linf"
            ):
                call()


def again(y, new):
    return jnp.sum((new - y) * jnp.arange(1, y.shape[0] + 1)) + jnp.sum(new**2) - jnp.sum(y**2)


def test_an_interrupted_measurement_is_completed_with_the_same_function_only(tmp_path):
    def progress(done, total):
        raise KeyboardInterrupt

    options: dict[str, Any] = {"placement": Placement(batch_size=1), "engine": "vmap"}
    with pytest.raises(jaxsens.MeasurementInterrupted) as caught:
        of_measure(Comparison(apart), progress=progress, **options)
    caught.value.partial.save(tmp_path / "partial.parquet")
    partial = load_result(tmp_path / "partial.parquet")
    completed = partial.joined(of_measure(Comparison(again), flips=partial.remaining, **options))
    whole = of_measure(Comparison(apart), **options)
    np.testing.assert_array_equal(completed.values, whole.values)
    with pytest.raises(InputError, match="remaining: measure, its program as SHA-256, = "):
        of_measure(Comparison(lambda y, new: y[0]), flips=partial.remaining, **options)


# The Boolean sensitivity


def majority(tokens):
    return jnp.sum(2 * tokens - 1) * 1.0


def boolean_sensitivities(function, words):
    return [
        sum(function([*w[:i], 1 - w[i], *w[i + 1 :]]) != function(w) for i in range(len(w)))
        for w in (list(word) for word in words)
    ]


# Short words with a single 1 each are measured, with a warning that they look like one-hot rows.
@pytest.mark.filterwarnings("ignore:tokens. .* are measured, each with a single 1")
@pytest.mark.filterwarnings("ignore::jaxsens.PrecisionWarning")  # of a threshold that is met exactly
@pytest.mark.long
@given(st.integers(2, 9), st.integers(1, 4), st.integers(0, 99))
@example(2, 2, 6)
@settings(max_examples=examples(15), deadline=None)
def test_sensitive_flips_are_the_boolean_sensitivity(n, batch, seed):
    words = np.random.default_rng(seed).integers(0, 2, (batch, n))
    result = flip_sensitivity(
        majority, words, flips=Substitute(2, positions=range(n)), measure="decision", readout=None
    )
    truth = boolean_sensitivities(lambda word: 2 * sum(word) > len(word), words)
    assert result.sensitive_flips.tolist() == truth
    assert result.average_sensitivity == pytest.approx(np.mean(truth), rel=1e-12)
    assert result.of_input(0).sensitive_flips.tolist() == truth[:1]


@pytest.mark.long
def test_the_average_sensitivity_of_a_sample_is_an_estimate():
    words = np.random.default_rng(0).integers(0, 2, (6, 9))
    whole = flip_sensitivity(majority, words, 2, measure="decision")
    estimates = [
        flip_sensitivity(majority, words, flips=Substitute(2, sample=20, seed=seed), measure="decision")
        for seed in range(60)
    ]
    found = np.array([one.average_sensitivity for one in estimates])
    assert abs(found.mean() - whole.average_sensitivity) < 4 * found.std() / np.sqrt(len(found))
    assert found.std() > 0
    few = flip_sensitivity(majority, words, flips=Substitute(2, sample=2), measure="decision")
    assert np.isnan(few.sensitive_flips).sum() >= 4


def test_of_other_results_there_is_no_boolean_sensitivity():
    with pytest.raises(
        InputError, match=r'sensitive_flips: this result has measure = "l2"; give measure="dec'
    ):
        _ = of_measure().sensitive_flips
    with pytest.raises(InputError, match="average_sensitivity: this result"):
        _ = of_measure("kl").average_sensitivity
