"""What `auto` takes, and why: seconds by a model that knows no clock, unless digits are at stake."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import jaxsens
from jaxsens import Auto, Substitute
from jaxsens.core.base.programs import PLATFORMS
from jaxsens.core.choose import ROUNDING, choose
from jaxsens.core.engines.options import MANY_CALLS, AskedEngine
from jaxsens.core.measures import L2
from jaxsens.core.models.adapters import as_model
from jaxsens.core.models.parts.weighting import Sigmoid, SinkSoftmax
from tests.refusals import refused


def model(layers: int, width: int = 64, **options) -> jaxsens.Transformer:
    config = jaxsens.TransformerConfig(
        alphabet_size=2, width=width, heads=4, layers=layers, feed_forward=4 * width, **options
    )
    return jaxsens.Transformer(config, seed=0)


def chosen(model: jaxsens.Transformer, n: int, calls: int | None = None, **more):
    return choose(as_model(model), Auto(calls), Substitute(), L2(), n, **more).choice


@pytest.mark.quick(8)
@pytest.mark.parametrize(
    ("layers", "n", "engines"),
    [
        # Of one call, of eight, and of as many as nobody counts: scripts/benchmark_auto.py.
        (1, 64, ("vmap", "vmap", "vmap")),
        (1, 512, ("vmap", "vmap", "difference")),
        (1, 4096, ("difference", "difference", "difference")),
        (2, 128, ("vmap", "vmap", "incremental")),
        (2, 512, ("vmap", "incremental", "difference")),
        (2, 1024, ("incremental", "difference", "difference")),
        (3, 256, ("vmap", "incremental", "incremental")),
        (3, 1024, ("incremental", "incremental", "incremental")),
        (4, 512, ("incremental", "incremental", "incremental")),
        (6, 1024, ("incremental", "incremental", "incremental")),
    ],
)
def test_the_engine_that_is_faster_for_so_many_calls_is_taken(layers, n, engines):
    found = [chosen(model(layers), n, calls) for calls in (1, 8, MANY_CALLS)]
    assert tuple(one.name for one in found) == engines
    assert not any("digits" in one.reason for one in found)
    words = ("for one call, compilation included", "for 8 calls or more", "for many calls")
    assert all(word in one.reason for word, one in zip(words, found, strict=True))


def test_a_number_of_calls_that_grows_within_its_tier_keeps_the_engine():
    found = [chosen(model(2), 512, calls) for calls in (None, 7, 8, 63, 64)]
    assert [one.name for one in found] == [*["vmap"] * 2, *["incremental"] * 2, "difference"]
    assert found[0] == found[1]
    assert found[2] == found[3]


def test_many_inputs_of_a_call_share_its_programs_and_few_flips_are_not_worth_a_long_compilation():
    assert chosen(model(2), 512, inputs=8).name == "incremental"
    assert (chosen(model(2), 1024).name, chosen(model(2), 1024, count=2).name) == ("incremental", "vmap")


@pytest.mark.long
def test_the_second_request_of_a_process_for_a_program_counts_many_and_its_result_says_so():
    subject, word = model(1, width=8), np.append(np.random.default_rng(0).integers(0, 2, 30), 2)
    first = jaxsens.flip_sensitivity(subject, word)
    assert (first.asked.engine, "for one call" in first.engine.why) == (Auto(), True)
    told = jaxsens.explain(subject, 31).engine
    again = jaxsens.flip_sensitivity(jaxsens.Transformer(subject.config, seed=1), word)
    assert told == again.engine
    assert (again.asked.engine, "for many calls" in again.engine.why) == (Auto(MANY_CALLS), True)
    # Another length, measure or kind of flips is another program; and so is what says its number of calls.
    others: list[dict[str, Any]] = [{"measure": "l1"}, {"flips": {0: [0, 1]}, "engine": Auto(1)}]
    for options in others:
        assert "for one call" in jaxsens.flip_sensitivity(subject, word, **options).engine.why
    assert "for one call" in jaxsens.flip_sensitivity(subject, word[1:]).engine.why


def test_the_rates_of_the_platform_decide():
    fast = [chosen(model(2), 1024, platform=PLATFORMS[name]).name for name in ("cpu", "gpu", "tpu")]
    assert fast == ["incremental", "vmap", "vmap"]
    assert chosen(model(2), 16384, platform=PLATFORMS["gpu"]).name == "difference"


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"weighting": "temperature-log"}, "1/temperature"),
        ({"positions": ("index",)}, "unbounded"),
        ({"positions": ("alibi",)}, "unbounded"),
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_digits_decide_where_changes_may_fall_faster_than_1_over_n(options, why, dtype):
    found = chosen(model(4, width=8, dtype=dtype, **options), 16)
    assert found.name == "difference"
    assert "digits" in found.reason
    assert why in found.reason


def test_digits_decide_in_float32_from_the_length_on_where_rounding_takes_the_fourth():
    longest = int(ROUNDING / np.finfo(np.float32).eps)
    single, double = model(3, width=8), model(3, width=8, dtype="float64")
    assert chosen(single, longest).name == "incremental"
    assert "rounds a change of order 1/n by less than 0.1 %" in chosen(single, longest).reason
    assert chosen(single, longest + 1).name == "difference"
    assert "digits" in chosen(single, longest + 1).reason
    assert chosen(double, longest + 1).name == "incremental"


@pytest.mark.parametrize(
    ("weighting", "n"),
    [(Sigmoid(log_bias=-3.0), 64), (Sigmoid(bias=-12.0), 16), (SinkSoftmax(logit=12.0), 16)],
    ids=["falls as n^-3", "a bias", "a sink"],
)
def test_digits_decide_where_every_weight_is_far_smaller_than_1_over_n(weighting, n):
    options = {"width": 8, "layer_norm": "pre", "weighting": ("softmax", weighting)}
    found = chosen(model(2, **options), n)
    assert found.name == "difference"
    assert f"{type(weighting).__name__} has weights of order 1e-5" in found.reason
    assert chosen(model(2, dtype="float64", **options), n).name == "vmap"
    assert chosen(model(2, **{**options, "weighting": "sigmoid-log"}), n).name == "vmap"


def test_the_score_of_a_learned_sink_decides_and_not_the_logit_it_began_with():
    trained = model(2, width=8, layer_norm="pre", weighting=SinkSoftmax(learned=True))
    last = dataclasses.replace(trained.parameters.layers[1], sink=jnp.full(4, 12.0))
    parameters = dataclasses.replace(trained.parameters, layers=(trained.parameters.layers[0], last))
    assert chosen(trained, 16).name == "vmap"
    assert chosen(jaxsens.Transformer(trained.config, parameters=parameters), 16).name == "difference"


def test_hard_attention_that_moves_no_choice_is_exactly_0():
    assert "exactly nothing" in chosen(model(3, weighting="leftmost-hard"), 64).reason


def test_what_remains_of_a_call_goes_on_by_the_engine_with_which_it_began():
    subject, word = model(1, width=8), np.append(np.random.default_rng(1).integers(0, 2, 40), 2)
    whole = jaxsens.flip_sensitivity(subject, word)

    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    for engine in ("auto", Auto(8)):
        with pytest.raises(jaxsens.MeasurementInterrupted) as caught:
            jaxsens.flip_sensitivity(subject, word, engine=engine, progress=stop)
        partial = caught.value.partial
        rest = jaxsens.flip_sensitivity(subject, word, partial.remaining)
        assert rest.asked.engine == partial.asked.engine == (Auto(MANY_CALLS) if engine == "auto" else engine)
        np.testing.assert_allclose(partial.joined(rest).norms, whole.norms, rtol=1e-4)


def test_the_difference_engine_has_one_form_whoever_asks_for_it():
    subject = as_model(model(2))
    for n, count in ((512, None), (4096, None), (4096, 2)):
        named = choose(subject, jaxsens.Difference(), Substitute(), L2(), n, count=count).engine
        auto = choose(subject, Auto(MANY_CALLS), Substitute(), L2(), n, count=count)
        assert auto.engine == named or auto.choice.name != "difference"
    # The matrices of all rows are worth it for many flips.
    forms = {
        count: choose(subject, jaxsens.Difference(), Substitute(), L2(), 4096, count=count).engine
        for count in (2, 4095)
    }
    assert (forms[2].how, forms[4095].how) == ("whole rows", "the folded form")


def test_the_choice_knows_no_clock(monkeypatch):
    models = [model(layers) for layers in (1, 2, 3)]
    before = [chosen(one, n) for one in models for n in (64, 512)]

    def unknown() -> float:
        raise AssertionError("the clock was read")

    for name in ("perf_counter", "monotonic", "process_time"):
        monkeypatch.setattr(time, name, unknown)
    assert [chosen(one, n) for one in models for n in (64, 512)] == before


@pytest.mark.needs("first_order")
def test_an_engine_that_nobody_knows_is_no_other_one():
    class SecondOrder(AskedEngine):
        kind = "second-order"

    model = jaxsens.Transformer(jaxsens.TransformerConfig(2, 8, 2, 1, 8), seed=0)
    known = "auto, vmap, incremental, difference, first-order"
    with pytest.raises(jaxsens.InputError, match=f"no rule for the engine SecondOrder; it knows {known}"):
        choose(as_model(model), SecondOrder(), Substitute(), L2(), 8)
    refused("engine", jaxsens.flip_sensitivity, model, [0, 1, 1], engine="second-order")
