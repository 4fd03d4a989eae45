"""What the arithmetic does not resolve is said: values that are at most so much, scores that tie, and no number."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import jaxsens
from jaxsens.cli.single import at_most_of, summary_of_words
from jaxsens.core.base.errors import InputError
from jaxsens.core.base.programs import numerics
from jaxsens.core.engines.vmap import VmapEngine
from jaxsens.core.measures import L2
from jaxsens.core.models.adapters import Model, as_model
from jaxsens.core.placement.placement import Placement
from jaxsens.core.results.picture import page
from jaxsens.core.results.plot import draw_profile
from jaxsens.core.results.result import FlipSensitivity, load_result
from jaxsens.core.results.rounding import ForwardPass, forward_pass, unreliable
from jaxsens.first_order import run
from tests.made_results import made as result_of
from tests.refusals import refused


def made(norms, resolution, **fields) -> FlipSensitivity:
    """A result of one input with a flip a position, and one more position."""
    tokens = np.zeros((1, len(norms) + 1), int)
    return result_of(norms, resolution=resolution, tokens=tokens, readout="last", dtype="float32", **fields)


RESOLVED = made([1.0, 0.5, 0.25], [1e-7, 1e-7, 1e-7])
FLOOR = made([1e-8, 3e-8, 0.0], [1e-7, 1e-7, 1e-7])
MIXED = made([1.0, 1e-8, 0.0], [1e-7, 1e-7, 1e-7])


def test_resolved_flips_leave_every_statistic_a_value():
    assert (RESOLVED.unresolved, at_most_of(RESOLVED, {"q10": 0.1, "q50": 0.5})) == (0, {})
    assert "at most" not in repr(RESOLVED) + page(RESOLVED.view())
    assert "resolved" not in repr(RESOLVED)


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


def test_a_value_that_rounding_may_lower_is_not_resolved_either():
    # The flip of 1.1 may as well have 0.6: then the median is less.
    result = made([1.1, 1.0, 0.1], [0.5, 0.0, 0.0])
    assert result.at_most(0.5) == 1.0


def test_a_decision_within_rounding_counts_once_at_most():
    result = made([1.0, 0.0, 0.0], [1.0, 1.0, 0.0], measure="decision")
    assert (result.at_most("max"), result.at_most("mean")) == (1.0, pytest.approx(2 / 3))


def test_what_is_below_the_least_double_is_zero_and_not_at_most():
    assert made([0.0, 0.0], [1e-310, 0.0]).at_most("max") is None


def test_another_statistic_is_refused():
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
    assert found["largest"][0] == [1.0]
    values, face = found["below resolution: at most"]
    assert (face, values) == ("none", [pytest.approx(1.1e-7), pytest.approx(1e-7)])
    assert "below resolution: at most" not in drawn(RESOLVED)


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

    monkeypatch.setattr(run, "estimated", overflowing)
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
