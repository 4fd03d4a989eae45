"""The first-order engine: exact where the mathematics says so, close elsewhere, and never n x n in memory."""

from __future__ import annotations

import dataclasses
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxsens
from benchmarks.linear_rivals import gradient_changes
from jaxsens import EngineRefusal, FirstOrder
from jaxsens.core.base.programs import numerics
from jaxsens.core.engines.engine import FlipBlock
from jaxsens.core.engines.vmap import VmapEngine
from jaxsens.core.measures import L2, Measure
from jaxsens.core.models.adapters import TransformerApply
from jaxsens.core.models.parts.masks import MASKS, SlidingWindow
from jaxsens.core.models.parts.schedules import SCHEDULES
from jaxsens.core.models.parts.score_positions import RelativeBias
from jaxsens.core.models.parts.weighting import SinkSoftmax
from jaxsens.core.models.transformer import layered, layers
from jaxsens.core.models.transformer.layered import forward, groups_of
from jaxsens.core.models.transformer.layers import layered_transformer
from jaxsens.core.models.transformer.parameters import initialise
from jaxsens.core.results.statistics import Accuracy
from jaxsens.first_order.engine import FirstOrderEngine
from jaxsens.first_order.estimate import combinations
from tests.documented import documented, example
from tests.refusals import refusal, refused
from tests.small_models import POSITIONS_TRIED, WEIGHTINGS_TRIED, random_parameters, small

ROOT = Path(__file__).resolve().parents[2]


def accuracy_of(result: jaxsens.FlipSensitivity) -> Accuracy:
    assert result.accuracy is not None
    return result.accuracy


def word_of(n: int, seed: int = 0, alphabet: int = 3) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.append(rng.integers(0, alphabet, n - 1), alphabet).astype(np.int32)


def flips_of(word: np.ndarray, readout: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Every position but the last, or with `readout` that one too, with one other symbol each."""
    positions = np.arange(len(word) if readout else len(word) - 1)
    return positions, ((word + 1) % 3)[positions]


def block_of(positions: np.ndarray, symbols: np.ndarray) -> FlipBlock:
    return FlipBlock(positions[:, None], symbols[:, None])


_prepare = jax.jit(lambda engine, *given: engine.prepare(*given), static_argnums=0)
_changes = jax.jit(lambda engine, *given: engine.changes(*given), static_argnums=0)


def estimate(config, parameters, word, positions, symbols) -> np.ndarray:
    """The estimated change of every output under each flip."""
    runner = FirstOrderEngine(L2(), None, layered_transformer(config), config.readout)
    pair = parameters, jnp.eye(config.logits or config.width, dtype=config.dtype)
    return np.asarray(_changes(runner, pair, _prepare(runner, pair, word), block_of(positions, symbols)))


def exact(config, parameters, word, positions, symbols) -> np.ndarray:
    engine = VmapEngine(L2(), None, TransformerApply(config))
    prepared = engine.prepare(parameters, word)
    return np.asarray(_changes(engine, parameters, prepared, block_of(positions, symbols)))


ONE_LAYER: dict[str, dict[str, Any]] = {
    "plain": {},
    **{f"mask {name}": {"mask": name, "feed_forward": 0} for name in MASKS},
    "pre-normalisation, additive scores": {"layer_norm": "pre", "scores": "additive", "activation": "gelu"},
    "post-normalisation, logits": {"layer_norm": "post", "logits": 2, "activation": "silu"},
    "growing 1/temperature": {"weighting": "temperature-quadratic", "positions": "rotary"},
    "temperature of the row": {"weighting": WEIGHTINGS_TRIED["by-query"], "mask": "future"},
    "a sink, a gate": {
        "weighting": SinkSoftmax(SCHEDULES["one-plus-log"], logit=1.5),
        "mask": "strict-past",
        "output_gate": "headwise",
    },
    "learned sinks": {"weighting": WEIGHTINGS_TRIED["learned sink"], "mask": "strict-future", "heads": 3},
    "sigmoids of the row": {"weighting": WEIGHTINGS_TRIED["sigmoid by-query"], "mask": "strict-future"},
    "sigmoids, additive": {"weighting": "sigmoid-log", "scores": "additive", "positions": "alibi"},
    "several positions": {"positions": POSITIONS_TRIED["several"], "activation": "tanh"},
    "a window": {"mask": SlidingWindow(4), "positions": "partial-alibi"},
    "rotations and biases": {"layer_positions": (("partial-rotary", RelativeBias(8, 5)),)},
    "first row read": {"readout": 0, "mask": "past", "positions": "alibi"},
}


@pytest.mark.quick(0, 1)
@pytest.mark.parametrize(("n", "sharpness"), [(9, 1.0), (1, 30.0), (2, 1e3)])
@pytest.mark.parametrize("name", ONE_LAYER)
def test_one_layer_of_which_one_row_is_read_is_exact(name, n, sharpness):
    config = small(layers=1, **ONE_LAYER[name])
    with numerics("float64"):
        drawn = random_parameters(config, 1)
        cold = tuple(dataclasses.replace(layer, query=sharpness * layer.query) for layer in drawn.layers)
        parameters = jax.tree.map(jnp.asarray, dataclasses.replace(drawn, layers=cold))
        word = jnp.asarray(word_of(n))
        positions, symbols = flips_of(np.asarray(word), readout=True)
        found = estimate(config, parameters, word, positions, symbols)
        true = exact(config, parameters, word, positions, symbols)
        output = layers.apply(config, parameters, word)
        np.testing.assert_allclose(
            forward(layered_transformer(config), parameters, word, config.readout), output, 1e-12, 1e-13
        )
    scale = max(np.abs(output).max(), np.abs(true).max()) * sharpness
    np.testing.assert_allclose(found, true, rtol=1e-9, atol=1e-13 * scale)


NEAR_SYMBOLS: dict[str, dict[str, Any]] = {
    "pre": {"layers": 3, "layer_norm": "pre", "activation": "gelu"},
    "masked": {"mask": "strict-future", "positions": "alibi", "activation": "tanh"},
    "additive mean": {"scores": "additive", "readout": "mean", "activation": "silu", "logits": 2},
    "post mean": {"layers": 3, "layer_norm": "post", "readout": "mean", "mask": "past", "activation": "tanh"},
    "sink, gates": {"weighting": SinkSoftmax(logit=1.0), "activation": "tanh", "output_gate": "elementwise"},
    "learned sinks": {
        "layers": 3,
        "weighting": SinkSoftmax(logit=0.7, learned=True),
        "activation": "tanh",
        "readout": "mean",
    },
    "window": {"layers": 3, "mask": SlidingWindow(3), "layer_positions": ("rotary", "none", "relative-bias")},
    "sigmoids": {
        "layers": 3,
        "weighting": ("sigmoid", "sigmoid-log", "softmax"),
        "mask": "past",
        "readout": "mean",
    },
    "sink above sigmoids": {
        "weighting": ("sigmoid", SinkSoftmax(logit=1.0)),
        "output_gate": "headwise",
        "activation": "tanh",
    },
    "sigmoids between sinks": {
        "layers": 3,
        "weighting": ("softmax-off-by-one", "sigmoid", SinkSoftmax(logit=8.0)),
    },
}


@pytest.mark.quick(0, 1)
@pytest.mark.parametrize("name", NEAR_SYMBOLS)
def test_the_estimate_is_the_derivative_for_small_changes(name):
    # As symbol 1 comes closer to symbol 0, what is left out is of second order in their distance.
    config = small(**NEAR_SYMBOLS[name])
    with numerics("float64"):
        parameters = jax.tree.map(jnp.asarray, random_parameters(config, 2))
        word = np.array([0] * 7 + [3], np.int32)
        positions, symbols = np.arange(7), np.ones(7, np.int32)
        model = layered_transformer(config)
        found = []
        for size in (1e-3, 1e-5):
            embedding = np.array(parameters.embedding)
            step = np.random.default_rng(0).normal(size=embedding.shape[1])
            embedding[1] = embedding[0] + size * step
            near = dataclasses.replace(parameters, embedding=jnp.asarray(embedding))
            given = (jnp.asarray(part) for part in (word, positions, symbols))
            slope = gradient_changes(model, near, config.readout, *given)
            off = estimate(config, near, word, positions, symbols) - np.asarray(slope)
            found.append(np.abs(off).max() / np.abs(slope).max())
    assert found[1] < 1e-4
    assert found[1] < found[0] / 30  # proportional to the distance


@pytest.mark.slow
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_the_error_falls_at_least_as_one_over_n(norm):
    config = jaxsens.TransformerConfig(
        alphabet_size=2, width=16, heads=2, layers=3, feed_forward=32, layer_norm=norm, dtype="float64"
    )
    lengths, medians = (32, 96, 288), []
    for n in lengths:
        errors = []
        for seed in range(2):
            with numerics("float64"):
                parameters, word = initialise(config, seed), word_of(n, seed, 2)
                changes = (of(config, parameters, word, *flips_of(word)) for of in (estimate, exact))
                found, true = (np.linalg.norm(change, axis=1) for change in changes)
            errors.append(np.abs(found - true) / true)
        medians.append(np.median(errors))
    slope = np.polyfit(np.log(lengths), np.log(medians), 1)[0]
    assert slope < -0.8
    assert medians[-1] < 0.01


def largest(program: Any) -> int:
    sizes = [value.aval.size for equation in program.eqns for value in equation.outvars]
    inner = [
        largest(part.jaxpr if hasattr(part, "jaxpr") else part)
        for equation in program.eqns
        for given in equation.params.values()
        for part in (given if isinstance(given, tuple | list) else (given,))
        if hasattr(part, "eqns") or hasattr(part, "jaxpr")
    ]
    return max([0, *sizes, *inner])


@pytest.mark.long
def test_no_array_grows_with_the_square_of_n():
    config = jaxsens.TransformerConfig(alphabet_size=2, width=8, heads=1, layers=2, feed_forward=8)
    engine = FirstOrderEngine(L2(), None, layered_transformer(config), "last")
    found = []
    for n in (2**14, 2**16):
        parameters = jax.eval_shape(lambda: initialise(config, 0)), jax.ShapeDtypeStruct((2, 8), np.float32)
        word, flips = jax.ShapeDtypeStruct((n,), np.int32), jax.ShapeDtypeStruct((16, 1), np.int32)
        prepared = jax.eval_shape(engine.prepare, parameters, word)
        programs = (
            jax.make_jaxpr(engine.prepare)(parameters, word),
            jax.make_jaxpr(engine.changes)(parameters, prepared, FlipBlock(flips, flips)),
        )
        found.append(max(largest(program.jaxpr) for program in programs))
    assert found[1] <= 4 * found[0]
    assert found[1] < 2**16 * 2**10


@pytest.mark.long
def test_the_first_example_runs_and_prints_what_it_promises(capsys):
    result = documented("estimating.md")["result"]
    said = capsys.readouterr().out
    assert "largest measured" in said
    assert str(result.accuracy) in said


def test_a_users_model_without_parameters_or_with_numbers_and_wrong_attention_are_refused():
    names = example()
    assert "pass the pair" in refused("", jaxsens.flip_sensitivity, names["Decoder"](), [1, 2, 3])
    weights = {**names["random_weights"](0), "scale": 2.0}
    assert "2.0" in refused("", jaxsens.flip_sensitivity, (names["Decoder"](), weights), [1, 2, 3])
    wrong: dict[str, Any] = {"key_heads": 3, "mask": "backwards", "scale": float("nan")}
    refused("key_heads mask scale", jaxsens.Attention, 4, **wrong)


SMALL = jaxsens.TransformerConfig(
    alphabet_size=2, width=16, heads=2, layers=3, feed_forward=32, layer_norm="pre", logits=8
)


@cache
def measured(measure: Measure, engine: FirstOrder) -> tuple[jaxsens.FlipSensitivity, jaxsens.FlipSensitivity]:
    """An estimate with its verified flips, and the exact result in float64."""
    model = jaxsens.Transformer(SMALL, seed=0)
    with numerics("float64"):
        parameters = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), model.parameters)
        wide = jaxsens.Transformer(SMALL.replace(dtype="float64"), parameters=parameters)
    words = np.stack([word_of(40, seed, 2) for seed in range(2)])
    exact = jaxsens.flip_sensitivity(wide, words, measure=measure, engine="vmap")
    return jaxsens.flip_sensitivity(model, words, measure=measure, engine=engine), exact


def probability(y: jax.Array) -> jax.Array:
    return jax.nn.log_softmax(y)[3]


def moved_probability(y: jax.Array, new: jax.Array) -> jax.Array:
    return jax.nn.softmax(new)[3] - jax.nn.softmax(y)[3]


@pytest.mark.quick(0, 3)
@pytest.mark.parametrize(("dtype", "size"), [("float32", 7), ("float64", 1), ("float64", 64)])
@pytest.mark.parametrize(
    "measure",
    [
        jaxsens.Cosine(),
        jaxsens.KL(outputs=[5, 3, 1]),
        jaxsens.Comparison(lambda y, new: jnp.sum((new - y) ** 3)),
    ],
    ids=["cosine", "kl", "comparison"],
)
def test_distances_are_those_of_the_estimated_changes(monkeypatch, dtype, measure, size):
    """In one layer of which one row is read the estimate is exact, however outputs come in blocks."""
    monkeypatch.setattr("jaxsens.first_order.estimate.LARGEST_BLOCK", size)
    monkeypatch.setattr("jaxsens.first_order.estimate.OUTPUTS_AT_ONCE", 5 * size)
    model = jaxsens.Transformer(
        small(layers=1, weighting="temperature-log", mask="future", dtype=dtype), seed=0
    )
    words = np.stack([np.random.default_rng(seed).integers(0, 3, 9) for seed in range(2)])
    result, exact = (
        jaxsens.flip_sensitivity(model, words, measure=measure, engine=engine)
        for engine in ("first-order", "difference")
    )
    estimated = result.estimated
    assert estimated is not None
    rounding = 1e-3 if dtype == "float32" else 1e-9
    np.testing.assert_allclose(estimated.estimates, exact.values, rtol=rounding, atol=rounding * exact.max)


VERIFIED = {
    "l2": (L2(), FirstOrder(verify=20)),
    "sketch": (L2(), FirstOrder(verify=20, sketch=4)),
    "function": (jaxsens.Function(probability), FirstOrder(verify=20)),
    "comparison": (jaxsens.Comparison(moved_probability), FirstOrder(verify=20)),
    "l1 of two outputs": (jaxsens.L1(outputs=[1, 5]), FirstOrder(verify=20)),
    "linf": (jaxsens.LInf(), FirstOrder(verify=21)),
    "kl": (jaxsens.KL(), FirstOrder(verify=20)),
    "cosine of three outputs": (jaxsens.Cosine(outputs=[0, 2, 5]), FirstOrder(verify=20)),
}


@pytest.mark.filterwarnings("ignore::jaxsens.EstimateWarning")  # of the smallest changes
@pytest.mark.quick(0, 1)
@pytest.mark.parametrize("name", VERIFIED)
def test_verified_flips_are_those_of_a_float64_forward_pass_and_others_are_near(name):
    measure, engine = VERIFIED[name]
    result, exact = measured(measure, engine)
    chosen = result.exact
    assert chosen.sum() == engine.verify
    np.testing.assert_allclose(result.values[chosen], exact.values[chosen], rtol=1e-9)
    assert result.max == result.norms[chosen].max()
    assert accuracy_of(result).count == engine.verify - engine.verify // 2
    near = np.median(np.abs(result.norms - exact.norms) / exact.norms)
    assert near < (0.5 if engine.sketch else 0.1)
    low, high = result.mean_interval()
    assert low <= result.mean <= high
    assert low <= exact.mean <= high
    if measure.signed:
        assert np.mean(np.sign(result.values) == np.sign(exact.values)) > 0.9
    assert len(repr(result).splitlines()) == 4


@pytest.mark.quick(0, 2)
@pytest.mark.parametrize(
    ("outputs", "measure", "sketch"), [(64, "l2", None), (72, "l2", 32), (72, "l1", None)]
)
def test_many_outputs_are_sketched_by_default_and_the_result_says_so(outputs, measure, sketch):
    config = jaxsens.TransformerConfig(2, width=8, heads=2, layers=1, feed_forward=8, logits=outputs)
    model, word = jaxsens.Transformer(config, seed=0), word_of(24, 0, 2)
    result = jaxsens.flip_sensitivity(model, word, measure=measure, engine=FirstOrder(verify=20))
    assert result.estimated is not None
    assert result.estimated.sketch == sketch
    assert ("32 random combinations of the outputs" in result.engine.reason) == (sketch is not None)
    assert ("the sketch itself" in repr(result)) == (sketch is not None)
    told = str(jaxsens.explain(model, word, measure=measure, engine="first-order"))
    assert f"an estimate of {'' if sketch is None else '32 combinations of '}{outputs} outputs" in told
    asked = FirstOrder(verify=20, sketch=outputs if measure == "l2" else None)
    whole = jaxsens.flip_sensitivity(model, word, measure=measure, engine=asked)
    assert whole.estimated is not None
    assert whole.estimated.sketch is None


def test_a_sketch_keeps_the_expected_squared_norm_and_its_error_is_what_it_says():
    ratios = []
    change = np.random.default_rng(0).normal(size=50)
    for seed in range(400):
        engine = FirstOrderEngine(L2(), None, layered_transformer(SMALL), "last")
        rows = combinations(FirstOrder(sketch=8, seed=seed), engine, 50)
        assert rows.shape == (8, 50)
        ratios.append(np.sum((rows @ change) ** 2) / np.sum(change**2))
    assert abs(np.mean(ratios) - 1) < 4 * np.std(ratios) / 20
    assert np.std(np.sqrt(ratios)) < 1.1 / np.sqrt(2 * 8)


@pytest.mark.long
def test_estimates_do_not_depend_on_the_batch_or_the_memory():
    model, word = jaxsens.Transformer(SMALL, seed=0), word_of(40, 0, 2)
    whole = jaxsens.flip_sensitivity(model, word, engine=FirstOrder(verify=2))
    for where in (jaxsens.Placement(batch_size=7), jaxsens.Placement(memory_budget=2**19)):
        part = jaxsens.flip_sensitivity(model, word, engine=FirstOrder(verify=2), placement=where)
        np.testing.assert_allclose(part.norms, whole.norms, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::jaxsens.EstimateWarning")  # of some models; the interval holds even so
def test_the_interval_of_the_mean_covers_the_true_mean_of_at_least_180_of_200_models():
    config = jaxsens.TransformerConfig(
        alphabet_size=2, width=8, heads=2, layers=3, feed_forward=8, dtype="float64"
    )
    covered = 0
    for seed in range(200):
        model, word = jaxsens.Transformer(config, seed=seed), word_of(48, seed, 2)
        result = jaxsens.flip_sensitivity(model, word, engine=FirstOrder(verify=20, seed=seed))
        low, high = result.mean_interval(0.95)
        covered += low <= jaxsens.flip_sensitivity(model, word, engine="vmap").mean <= high
    assert covered >= 180


@pytest.mark.parametrize(
    ("model", "measure", "reason"),
    [
        (jaxsens.Transformer(small(weighting="leftmost-hard")), "l2", "the weighting LeftmostHard"),
        (jaxsens.Transformer(small(weighting="sparsemax")), "l2", "the weighting Sparsemax"),
        (
            jaxsens.Transformer(small(weighting=("softmax", "average-hard"))),
            "l2",
            "the weighting AverageHard",
        ),
        (jaxsens.Transformer(small(centred_scores=True)), "l2", "centred scores"),
        (lambda tokens: tokens[-1] * 1.0, "l2", "its attention is not visible"),
        (jaxsens.Transformer(SMALL), "l1", "sketch = 3: only for L2"),
        (jaxsens.Transformer(SMALL), jaxsens.Function(probability), "sketch = 3: only for L2"),
    ],
)
def test_what_has_no_rule_is_refused_by_name(model, measure, reason):
    with pytest.raises(EngineRefusal) as caught:
        jaxsens.flip_sensitivity(model, [0, 1, 1], [0, 1], measure, engine=FirstOrder(sketch=3))
    assert reason in str(caught.value)


@pytest.mark.long
def test_a_poor_estimate_warns_and_its_accuracy_says_so():
    # Scores five times as sharp in four layers without normalisation: weights stay O(1) from layer to layer.
    config = jaxsens.TransformerConfig(alphabet_size=2, width=16, heads=2, layers=4, feed_forward=32)
    parameters = initialise(config, 0)
    sharp = [
        dataclasses.replace(layer, query=5 * layer.query, output=2 * layer.output)
        for layer in parameters.layers
    ]
    model = jaxsens.Transformer(config, parameters=dataclasses.replace(parameters, layers=tuple(sharp)))
    with pytest.warns(jaxsens.EstimateWarning, match=r"off by \d+% in the median of 32 random flips"):
        result = jaxsens.flip_sensitivity(model, word_of(96, 0, 2), engine="first-order")
    assert accuracy_of(result).median_error > 0.3


@pytest.mark.slow
def test_a_users_model_is_estimated_and_verified_like_any_other():
    """The example of the guide: it is run as it stands there. Small changes are estimated badly."""
    names = documented("layered.md")
    exact, tokens, pair = names["result"], names["tokens"], (names["Decoder"](), names["weights"])
    assert exact.engine.name == "incremental"
    measure = jaxsens.Function(lambda logits: jax.nn.log_softmax(logits)[7])
    with pytest.warns(jaxsens.EstimateWarning, match="in a tenth"):
        result = jaxsens.flip_sensitivity(pair, tokens, measure=measure, engine="first-order")
    verified = result.exact
    np.testing.assert_allclose(result.values[verified], exact.values[verified], rtol=1e-3, atol=1e-6)
    assert accuracy_of(result).rank_correlation > 0.9
    mean = jaxsens.flip_sensitivity(pair, tokens, flips=[5], readout="mean", engine="first-order")
    assert mean.readout == "mean"
    assert len(mean) > len(tokens) - 3


@pytest.mark.long
def test_an_interrupted_estimate_keeps_nothing_and_begins_again():
    model, word = jaxsens.Transformer(SMALL.replace(layers=1), seed=0), word_of(40, 0, 2)

    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(jaxsens.MeasurementInterrupted) as caught:
        jaxsens.flip_sensitivity(model, word, engine="first-order", progress=interrupt)
    partial = caught.value.partial
    assert len(partial) == 0
    assert not partial.complete
    with refusal("remaining.engine"):
        _ = partial.remaining
    exact = jaxsens.flip_sensitivity(model, word, engine="vmap")
    refused("remaining.engine", jaxsens.flip_sensitivity, model, word, exact.remaining, engine="first-order")
    refused("engine", partial.joined, jaxsens.flip_sensitivity(model, word, engine="first-order"))


@pytest.mark.long
def test_layers_that_are_alike_are_traced_together_and_estimate_what_they_do_alone(monkeypatch):
    config = jaxsens.TransformerConfig(
        alphabet_size=3, width=8, heads=(2, 2, 2, 4, 4), layers=5, feed_forward=8
    )
    parameters, word = initialise(config, 0), word_of(12)
    model, flips = layered_transformer(config).at_length(12), flips_of(word)
    assert [(one.start, len(one.layers)) for one in groups_of(model, parameters, 12, range(5))] == [
        (0, 3),
        (3, 2),
    ]
    assert [len(one.layers) for one in groups_of(model, parameters, 12, range(4))] == [3, 1]
    together = estimate(config, parameters, word, *flips)
    monkeypatch.setattr(layered, "LARGEST_STACK", 0)
    unkept: Any = layered._groups_of
    monkeypatch.setattr(layered, "_groups_of", unkept.__wrapped__)
    jax.clear_caches()
    assert [len(one.layers) for one in groups_of(model, parameters, 12, range(5))] == [1] * 5
    np.testing.assert_allclose(estimate(config, parameters, word, *flips), together, rtol=1e-4, atol=1e-7)


@pytest.mark.long
def test_few_outputs_are_estimated_as_all_are():
    """Fewer outputs than a head is wide take other products for queries."""
    config = jaxsens.TransformerConfig(alphabet_size=3, width=16, heads=2, layers=4, feed_forward=8)
    with numerics("float64"):
        parameters, word = initialise(config.replace(dtype="float64"), 0), word_of(300)
        block = block_of(*flips_of(word))
        runner = FirstOrderEngine(L2(), None, layered_transformer(config), config.readout)
        found = []
        for rows in (jnp.eye(16), jnp.eye(16)[:3]):
            pair = parameters, rows.astype("float64")
            found.append(np.asarray(_changes(runner, pair, _prepare(runner, pair, word), block)))
    np.testing.assert_allclose(found[1], found[0][:, :3], rtol=1e-9, atol=1e-12 * np.max(np.abs(found[0])))
