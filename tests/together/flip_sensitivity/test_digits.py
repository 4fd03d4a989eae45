"""Tiny changes have digits, bounds of rounding hold, and what is not resolved is said: at most so much."""

from __future__ import annotations

import dataclasses
import json
import signal
import warnings
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxsens
from jaxsens import FlipSensitivity, InputError, Placement, PrecisionWarning, TransformerConfig, load_result
from jaxsens.cli.single import at_most_of, summary_of_words
from jaxsens.core.base.programs import RESOLVED, numerics, resolved
from jaxsens.core.engines.vmap import VmapEngine
from jaxsens.core.measures import L2, Decision, Measure
from jaxsens.core.models.adapters import Model, as_model
from jaxsens.core.models.parts.weighting import Sigmoid, SinkSoftmax
from jaxsens.core.results import rounding
from jaxsens.core.results.picture import page
from jaxsens.core.results.plot import draw_profile
from jaxsens.core.results.rounding import ForwardPass, forward_pass, unreliable
from jaxsens.first_order.estimate import Blocks
from tests.made_results import made as result_of
from tests.refusals import refused
from tools.digits import truth

ALIBI = {"mask": "future", "positions": ("alibi",), "weighting": "temperature-linear", "end_symbol": False}


def transformer(seed: int = 0, **options: Any) -> jaxsens.Transformer:
    given = {"alphabet_size": 2, "width": 16, "heads": 1, "layers": 1, "feed_forward": 0, **ALIBI, **options}
    return jaxsens.Transformer(TransformerConfig(**given), seed=seed)


def word(n: int = 32) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 2, n).astype(np.int32)


def compared(model: Any, tokens: np.ndarray, **options: Any) -> tuple[jaxsens.FlipSensitivity, np.ndarray]:
    """A result, and the truth of ten flips or fewer of it: the oracle takes long."""
    found = jaxsens.flip_sensitivity(model, tokens, progress=False, **options)
    return found, truth(
        as_model(model), tokens, *(part[some(found)] for part in (found.positions, found.symbols))
    )


def some(found: jaxsens.FlipSensitivity) -> slice:
    """Which of the flips are compared."""
    return slice(None, None, -(-len(found) // 10))


@pytest.mark.quick(0, 1)
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 2e-5), ("float64", 1e-13)])
def test_changes_far_below_the_rounding_of_the_output_have_digits(dtype, tolerance):
    """Where nearly all weight is on keys of one value: 8e-19, and 2e-35 where scores are too large for float32."""
    for seed, largest in ((0, 8.18e-19), (4, 1.59e-35)):
        found, true = compared(transformer(seed, dtype=dtype), word())
        np.testing.assert_allclose(found.norms[some(found)], true, rtol=tolerance, atol=0)
        assert found.max == pytest.approx(largest, rel=1e-2, abs=0)
        assert found.resolved.all()


CASES: dict[str, dict[str, Any]] = {
    "no positions, all rows see all": {"positions": (), "mask": "none"},
    "places tell rows apart": {"positions": ("sinusoidal",), "weighting": "temperature-quadratic"},
    "nearly equal places": {"positions": ("length",), "weighting": "softmax"},
    "a sink": {"weighting": SinkSoftmax(logit=1.0), "positions": ()},
    "learned sinks": {"weighting": SinkSoftmax(logit=1.0, learned=True), "positions": (), "heads": 2},
    "two heads and a map": {"heads": 2, "feed_forward": 8, "layer_norm": "pre"},
    "the flipped row is read": {"readout": 0, "mask": "past", "layers": 1},
    "two layers of cold heads": {"layers": 2, "width": 8, "feed_forward": 8},
    "three layers of a mean": {"layers": 3, "width": 8, "readout": "mean", "weighting": "temperature-log"},
    "hard, of equal values": {"weighting": "average-hard", "positions": (), "mask": "none"},
    "sigmoid": {"weighting": Sigmoid(), "positions": ("alibi",)},
}


QUICK = (
    "no positions, all rows see all",
    "places tell rows apart",
    "a sink",
    "learned sinks",
    "hard, of equal values",
)


@pytest.mark.quick(0, 1)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in CASES]
)
def test_every_bound_of_rounding_holds_and_nothing_is_off_by_more_than_it_says(name):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrecisionWarning)
        found, true = compared(transformer(1, **CASES[name]), word(10))
    off = np.abs(found.norms - true)
    assert np.all(off <= np.maximum(found.resolution, 1e-300)), name
    assert np.all(off[found.resolved] <= 1.5 * RESOLVED * true[found.resolved])
    assert np.all(found.resolved | (true < 1e-300))  # float64 does not tell an average of equal values from 0


def test_what_a_users_model_hides_is_said_to_be_lost():
    table = jnp.asarray(np.random.default_rng(0).normal(size=(2, 4)), jnp.float32)

    def model(tokens: Any) -> Any:  # one large constant, which hides a change of 1e-12
        rows = table[tokens]
        return jnp.asarray([1.0, 3.0]) + 1e-12 * rows.sum(axis=0)[:2] / 3

    with pytest.warns(jaxsens.UnchangedWarning, match="rounded away"):
        found = jaxsens.flip_sensitivity(model, word(8), 2, progress=False)
    assert not found.resolved.any()
    assert np.all(found.resolution >= 1e-12)


def test_what_no_arithmetic_resolves_is_counted_in_one_warning():
    with pytest.warns(
        PrecisionWarning, match=r"n = 32: 31 of 31 flips change the output by less than"
    ) as caught:
        found, true = compared(transformer(0), word(32), engine="vmap")
    assert len(caught) == 1
    assert caught[0].filename == __file__
    assert not found.resolved.any()
    assert np.all(np.abs(found.norms[some(found)] - true) <= found.resolution[some(found)])


def test_a_change_is_resolved_if_it_is_known_to_1_percent_or_taken_for_0():
    values, resolution = (
        np.array([1.0, -1.0, 1.0, 0.0, 1e-310, 1e-299]),
        np.array([0.009, 0.009, 0.011, 0, 1e-301, 1e-300]),
    )
    assert resolved(values, resolution).tolist() == [True, True, False, True, True, True]


@pytest.mark.long
def test_exact_zeros_behind_a_mask_are_resolved_and_not_warned_of():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = jaxsens.flip_sensitivity(transformer(0, readout=3), word(12), progress=False)
    assert np.all(found.norms[found.positions > 3] == 0)
    assert found.resolved.all()


@pytest.mark.quick(1)
@pytest.mark.parametrize("weighting", ["temperature-log", "temperature-linear"])
def test_deletions_and_groups_are_resolved_too(weighting):
    # At the second temperature they go on to float64, and from there to wider numbers.
    model = transformer(0, weighting=weighting)
    for flips in (jaxsens.Delete(), jaxsens.Substitute(groups=[(1, 2), (4,)])):
        found = jaxsens.flip_sensitivity(model, word(10), flips, progress=False)
        assert found.resolved.all()
        assert np.all(found.norms > 0)


@pytest.mark.quick(3)
@pytest.mark.parametrize("name", ["l2", "l1", "linf", "cosine", "kl"])
def test_a_measures_resolution_is_what_an_error_of_the_change_can_do(name):
    measure, rng = Measure.kinds[name](), np.random.default_rng(0)
    with jax.enable_x64(True):
        for scale in (1e-6, 1e-2, 1.0):
            y, dy = jnp.asarray(rng.normal(size=5)), jnp.asarray(scale * rng.normal(size=(20, 5)))
            direction = rng.normal(size=(20, 5))
            direction /= np.linalg.norm(direction, axis=1, keepdims=True)
            error = jnp.asarray(scale * 10.0 ** rng.uniform(-6, -1, 20))
            values, resolution = measure.of_changes(y, dy, error)
            moved = measure.of_changes(y, dy + error[:, None] * direction, error)[0] - values
            assert np.all(np.abs(moved) <= resolution * (1 + 1e-6))
            assert np.max(np.abs(moved) / resolution) > 0.1  # and not much more than that


def test_a_decision_that_an_error_may_turn_is_unresolved():
    y, dy = jnp.asarray([1.0, 0.5]), jnp.asarray([[0.0, 0.499], [0.0, 0.6], [0.0, 0.2]])
    error = jnp.asarray([1e-2, 1e-3, 1e-3])
    assert Decision().of_changes(y, dy, error)[1].tolist() == [1, 0, 0]
    assert Decision(0.5).of_changes(y[:1], jnp.asarray([[-0.5]]), error[:1])[1].tolist() == [1]


@pytest.mark.long
def test_what_computes_in_float32_whatever_its_parameters_are_is_seen_to_round():
    """Its output is in float64 for a parameter in float64, and what cancels before it is not."""
    table = np.random.default_rng(0).normal(size=4).astype(np.float32)

    def model(scale: Any, tokens: Any) -> Any:
        h, large = jnp.asarray(table)[tokens].mean(), (tokens.max() + 30000).astype(jnp.float32)
        for _ in range(210):
            h = (h + large) - large
        return h[None] * scale

    tokens = np.random.default_rng(0).integers(0, 4, 16)
    with pytest.warns(PrecisionWarning):
        found = jaxsens.flip_sensitivity((model, np.float32(1)), tokens, 4, progress=False)
    true = np.abs(table[found.symbols].astype(float) - table[tokens[found.positions]]) / 16
    off = np.abs(found.norms - true)
    assert np.any(off > RESOLVED * true)
    assert np.all(off[found.resolved] <= 1.5 * RESOLVED * true[found.resolved])


@pytest.mark.quick(0, 1)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_outputs_that_a_construction_promises_to_be_0_or_1_have_no_rounding(dtype):
    model = jaxsens.construction("first", "temperature", dtype=dtype)
    assert isinstance(model, jaxsens.formal.CompiledTransformer)
    found = jaxsens.flip_sensitivity(model, model.encode("01101001"), engine="vmap", progress=False)
    np.testing.assert_array_equal(found.norms, [1, 0, 0, 0, 0, 0, 0])
    assert found.resolved.all()


@pytest.mark.quick(0, 1)
@pytest.mark.parametrize("kind", ["random numbers", "a callback", "float32 alone"])
def test_where_no_pass_in_float64_is_possible_a_model_is_measured_in_its_own_dtype(kind):
    """A pass in float64 would draw other numbers, call the user's code with another dtype, or fail."""
    table = np.random.default_rng(0).normal(size=(4, 5)).astype(np.float32)

    def called(h: np.ndarray) -> np.ndarray:
        assert h.dtype == np.float32
        return np.asarray(h)

    def model(table: Any, tokens: Any) -> Any:
        h = jnp.asarray(table)[tokens].mean(0)
        if kind == "random numbers":
            h = h + jax.random.normal(jax.random.key(0), (5,))
        if kind == "float32 alone":
            assert h.dtype == jnp.float32
        for _ in range(210):
            h = jnp.tanh(h) * 1.01
        if kind == "a callback":
            shape = jax.ShapeDtypeStruct((5,), jnp.float32)
            h = jnp.asarray(jax.pure_callback(called, shape, h, vmap_method="sequential"))
        return h

    tokens = np.random.default_rng(0).integers(0, 4, 16)
    found = jaxsens.flip_sensitivity((model, table), tokens, 4, progress=False)
    assert found.resolved.all()
    assert np.all(found.resolution > 0)


def test_a_signal_is_heard_between_flips_whose_roundings_are_moved(monkeypatch):
    calls = []

    def moved(*arguments):
        calls.append(arguments)
        signal.raise_signal(signal.SIGINT)
        return np.ones(1)

    monkeypatch.setattr(rounding, "_moved_flips", moved)
    matrix = jnp.eye(512)
    with pytest.raises(jaxsens.MeasurementInterrupted):
        jaxsens.flip_sensitivity(lambda tokens: (matrix[tokens] @ matrix @ matrix).mean(0), [0, 1] * 8, 2)
    assert len(calls) == 1


@pytest.mark.long
def test_the_rounding_of_a_model_of_a_million_numbers_is_that_of_its_dtype():
    """Only one pass, in float64 and with nothing moved, is made of so large a model."""
    config = TransformerConfig(70_000, width=16, heads=2, layers=2, feed_forward=16)
    tokens = np.random.default_rng(0).integers(0, 70_000, 12)
    flips = {i: [(int(tokens[i]) + 1) % 70_000] for i in range(11)}
    found, true = (
        jaxsens.flip_sensitivity(
            jaxsens.Transformer(one, seed=0), tokens, flips, engine="vmap", progress=False
        )
        for one in (config, replace(config, dtype="float64"))
    )
    assert found.resolved.all()
    assert 1e-7 < found.resolution.min() <= found.resolution.max() < 1e-4
    assert np.all(np.abs(found.values - true.values) <= found.resolution)


def made(norms, resolution, **fields) -> FlipSensitivity:
    """A result of one input with a flip a position, and one more position."""
    tokens = np.zeros((1, len(norms) + 1), int)
    return result_of(norms, resolution=resolution, tokens=tokens, readout="last", dtype="float32", **fields)


KNOWN = made([1.0, 0.5, 0.25], [1e-7, 1e-7, 1e-7])
FLOOR = made([1e-8, 3e-8, 0.0], [1e-7, 1e-7, 1e-7])
MIXED = made([1.0, 1e-8, 0.0], [1e-7, 1e-7, 1e-7])


def test_resolved_flips_leave_every_statistic_a_value():
    assert (KNOWN.unresolved, at_most_of(KNOWN, {"q10": 0.1, "q50": 0.5})) == (0, {})
    assert "at most" not in repr(KNOWN) + page(KNOWN.view())
    assert "resolved" not in repr(KNOWN)


def test_a_floor_of_rounding_is_said_at_most_everywhere():
    assert FLOOR.unresolved == 3
    assert FLOOR.at_most("max") == pytest.approx(1.3e-7)
    assert FLOOR.at_most("mean") == pytest.approx(4e-8 / 3 + 1e-7)
    assert FLOOR.at_most(0.5) == pytest.approx(1.1e-7)
    assert "mean=at most 1.133e-07, max=at most 1.3e-07 at position 1, 3 flips not resolved" in repr(FLOOR)
    shown = page(FLOOR.view())
    assert "largest: at most 1.1e-07" in shown
    assert "no change is resolved" in shown
    assert "3 flips are not resolved" in shown
    assert "3e-08" not in shown


def test_flips_that_cannot_decide_a_statistic_leave_it_a_value():
    assert MIXED.unresolved == 2
    assert (MIXED.at_most("max"), MIXED.at_most("mean")) == (None, None)
    assert MIXED.at_most(0.5) == pytest.approx(1.1e-7)
    assert set(at_most_of(MIXED, {"q10": 0.1, "q50": 0.5})) == {"q10", "q50"}
    assert "max=1 at position 0, 2 flips not resolved" in repr(MIXED)


def test_a_value_is_at_most_what_rounding_may_leave_of_it():
    # The flip of 1.1 may as well have 0.6: then the median is less.
    result = made([1.1, 1.0, 0.1], [0.5, 0.0, 0.0])
    assert result.at_most(0.5) == 1.0
    result = made([1.0, 0.0, 0.0], [1.0, 1.0, 0.0], measure="decision")
    assert (result.at_most("max"), result.at_most("mean")) == (1.0, pytest.approx(2 / 3))
    assert made([0.0, 0.0], [1e-310, 0.0]).at_most("max") is None
    for unusable in ("median", 1.5, None):
        refused("statistic", FLOOR.at_most, unusable)  # type: ignore[arg-type]


def test_the_resolution_is_saved_and_read_with_the_flips(tmp_path):
    MIXED.save(tmp_path / "result.parquet")
    assert load_result(tmp_path / "result.parquet").at_most(0.5) == MIXED.at_most(0.5)


def drawn(result: FlipSensitivity) -> dict[str, tuple[list[float], str]]:
    from matplotlib.figure import Figure

    axes = Figure().subplots()
    draw_profile(result.view(), [axes])
    return {
        str(line.get_label()): (np.asarray(line.get_ydata()).tolist(), str(line.get_markerfacecolor()))
        for line in axes.lines
        if not str(line.get_label()).startswith("_")
    }


def test_a_profile_draws_unresolved_flips_as_hollow_triangles_at_what_they_are_at_most():
    found = drawn(MIXED)
    assert found["change"][0] == [1.0]
    values, face = found["below resolution: at most"]
    assert (face, values) == ("none", [pytest.approx(1.1e-7), pytest.approx(1e-7)])
    assert "below resolution: at most" not in drawn(KNOWN)


def test_the_commands_summary_says_at_most_and_its_json_too(capsys):
    from jaxsens.cli.single import model_source

    source = model_source(None, None, {"alphabet_size": 2})
    run = dataclasses.replace(FLOOR.run, versions={"device": "cpu"})
    summary = summary_of_words(dataclasses.replace(FLOOR, run=run), source, 2)
    assert json.loads(json.dumps(summary.values))["at_most"]["max"] == pytest.approx(1.3e-7)
    assert summary.values["unresolved"] == 3
    summary.print()
    text = capsys.readouterr().out
    for said in ("mean l2", "at most 1.13333e-07", "at most 1.3e-07", "not resolved"):
        assert said in text
    assert "3e-08" not in text.replace("1.3e-07", "")


def test_an_overflowing_estimate_of_a_finite_model_is_told_as_such(monkeypatch):
    def overflowing(given, words, flips, *rest):
        return np.full(len(flips), np.inf)

    monkeypatch.setattr(Blocks, "estimated", overflowing)
    model = jaxsens.Transformer(
        jaxsens.TransformerConfig(alphabet_size=2, width=4, heads=1, layers=1, feed_forward=0), seed=0
    )
    refused("engine", jaxsens.flip_sensitivity, model, np.zeros(4, int), engine=jaxsens.FirstOrder(verify=2))


def model(**changes: Any) -> jaxsens.Transformer:
    sizes = {"alphabet_size": 2, "width": 8, "heads": 2, "layers": 2, "feed_forward": 8}
    return jaxsens.Transformer(jaxsens.TransformerConfig(**{**sizes, **changes}), seed=3)


def words(n: int) -> np.ndarray:
    return np.random.default_rng(3).integers(0, 2, (1, n)).astype(np.int32)


def passed(model: Model, words: np.ndarray) -> ForwardPass:
    engine = VmapEngine(L2(), None, model.apply)
    return forward_pass(model, words, engine, model.parameters, Placement())


def told(model: Model, n: int) -> str | None:
    with numerics(model.dtype):
        return unreliable(model, n, passed(model, words(n)), widens=False)


def test_scores_beyond_the_dtype_are_warned_of_once_with_layer_and_remedy():
    cold = model(weighting="temperature-cubic", layers=1)
    with pytest.warns(
        jaxsens.PrecisionWarning, match=r'layer 0 reach .* float32 .*engine="difference".*dtype="float64"'
    ) as caught:
        jaxsens.flip_sensitivity(cold, words(1024)[0], flips=jaxsens.Substitute(positions=[0]), engine="vmap")
    assert len(caught) == 1
    assert caught[0].filename == __file__


@pytest.mark.long
def test_an_engine_that_measures_in_float64_what_float32_blurs_is_not_warned_of():
    cold = model(weighting="temperature-cubic", layers=1)
    result = jaxsens.flip_sensitivity(
        cold, words(1024)[0], flips=jaxsens.Substitute(positions=[0]), engine="difference"
    )
    assert "float64" in result.engine.reason


@pytest.mark.parametrize(
    ("changes", "n"),
    [
        ({}, 64),
        ({"weighting": "temperature-log"}, 512),
        ({"weighting": "temperature-cubic"}, 32),
        ({"weighting": "temperature-cubic", "dtype": "float64", "layers": 1}, 1024),
        ({"weighting": "leftmost-hard"}, 64),
    ],
)
def test_scores_that_the_dtype_resolves_are_not_warned_of(changes, n):
    assert told(as_model(model(**changes)), n) is None


def test_what_counts_is_the_score_of_keys_that_get_weight():
    # Penalties of distance: far keys have huge negative scores, and no weight.
    assert told(as_model(model(weighting="temperature-quadratic", positions="alibi", layers=1)), 256) is None
    parameters = model().parameters
    first = dataclasses.replace(parameters.layers[0], query=parameters.layers[0].query * 1e7)
    sharp = dataclasses.replace(parameters, layers=(first, parameters.layers[1]))
    assert "layer 0" in (told(as_model(jaxsens.Transformer(model().config, parameters=sharp)), 16) or "")


def test_within_its_exact_length_a_constructed_model_is_not_warned_of():
    subject = as_model(model(weighting="temperature-cubic", layers=1))
    assert told(dataclasses.replace(subject, exact_length=1023), 1024) is not None
    assert told(dataclasses.replace(subject, exact_length=1024), 1024) is None


def with_nan(transformer: jaxsens.Transformer, where: str) -> jaxsens.Transformer:
    parameters = transformer.parameters
    if where == "head_bias":
        bias = jnp.full(3, jnp.nan)
        parameters = dataclasses.replace(parameters, head_bias=bias)
    else:
        last = dataclasses.replace(parameters.layers[-1], b2=jnp.full(8, jnp.nan))
        parameters = dataclasses.replace(parameters, layers=(*parameters.layers[:-1], last))
    return jaxsens.Transformer(transformer.config, parameters=parameters)


@pytest.mark.parametrize("engine", ["auto", "vmap", "difference"])
@pytest.mark.parametrize("where", ["b2", "head_bias"])
def test_a_model_whose_output_is_nan_is_refused_by_every_engine(where, engine):
    # A bias that is NaN leaves every change of the output finite.
    broken = with_nan(model(logits=3), where)
    with pytest.raises(InputError, match="output on input 0 is not finite in float32; look for NaN"):
        jaxsens.flip_sensitivity(broken, words(16), engine=engine)
    search = jaxsens.theory.Search(exact=False, budget=1)
    refused("model", jaxsens.theory.worst_input, broken, 16, search=search, engine=engine)


def test_the_input_that_gives_no_number_is_named():
    transformer = model(layers=1)
    embedding = transformer.parameters.embedding.at[1].set(jnp.nan)
    broken = jaxsens.Transformer(
        transformer.config, parameters=dataclasses.replace(transformer.parameters, embedding=embedding)
    )
    with pytest.raises(InputError, match="output on input 1 is not finite"):
        jaxsens.flip_sensitivity(broken, np.array([[0] * 8, [0] * 7 + [1]]))
