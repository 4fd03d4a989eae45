"""What configs refuse, all at once, and scores that are not numbers."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import TypeCheckError

from jaxsens import InputError, TransformerConfig
from jaxsens.core.models.config_tables import plain
from jaxsens.core.models.parts.choices import OUTPUT_GATES
from jaxsens.core.models.parts.positions import Learned, Sinusoidal
from jaxsens.core.models.parts.schedules import SCHEDULES, Schedule
from jaxsens.core.models.parts.weighting import (
    WEIGHTINGS,
    AdaptiveSoftmax,
    Entmax,
    Sigmoid,
    SinkSoftmax,
    Softmax,
    weights,
)
from jaxsens.core.models.transformer.parameters import initialise, needed


def refused(**options):
    with pytest.raises(InputError) as caught:
        TransformerConfig(**{"alphabet_size": 2, **options})
    return str(caught.value)


def test_every_problem_is_reported_at_once():
    message = refused(
        alphabet_size=1, heads=5, weighting="hard", mask=["none", "x"], positions="y", dtype="f"
    )
    for name in (
        "alphabet_size = 1",
        "heads = 5",
        "weighting = 'hard'",
        "mask = 'x'",
        "positions = 'y'",
        "dtype = 'f'",
    ):
        assert name in message


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"layer_norm_epsilon": True}, "layer_norm_epsilon = True"),
        ({"mask": (["none"], "none")}, "mask = ['none']"),
        ({"positions": (Learned(8), Learned(4))}, "one term of each kind"),
        ({"positions": Learned(0)}, "max_length"),
        ({"width": np.bool_(True)}, "width"),
        ({"positions": Sinusoidal(base=-1.0)}, "a base above 0"),
        ({"positions": "rotary", "width": 6, "heads": 2}, "even"),
        ({"heads": (1, 2, 4)}, "one per layer (2)"),
    ],
)
def test_values_that_would_fail_later_are_refused(options, named):
    assert named in refused(**options)


def test_whole_numbers_of_numpy_are_kept_as_pythons():
    numbers = {"alphabet_size": 2, "width": 8, "heads": (2, 1), "head_width": [4, 8], "layers": 2}
    numbers |= {"feed_forward": 3, "readout": 1, "logits": 5}
    mine, its = (TransformerConfig(**options) for options in (numbers, jax.tree.map(np.int64, numbers)))
    assert repr(its) == repr(mine)
    assert (its, hash(its)) == (mine, hash(mine))


@pytest.mark.parametrize(
    "fields",
    [
        {"coefficient": float("nan")},
        {"power": "1"},
        {"log_power": -1},
        {"offset": float("inf")},
        {"least": -1},
    ],
)
def test_schedules_that_are_no_inverse_temperature_are_refused(fields):
    with pytest.raises(InputError, match=next(iter(fields))):
        Schedule(**fields)


@pytest.mark.parametrize(
    ("name", "shown", "at_20"),
    [
        ("one-plus-log", "1 + log n", 1 + np.log(20)),
        ("log-from-one", "max(1, log n)", np.log(20)),
        ("root-log", "1.41421 (log n)^0.5", np.sqrt(2 * np.log(20))),
    ],
)
def test_schedules_with_an_offset_a_least_value_and_a_root(name, shown, at_20):
    schedule = SCHEDULES[name]
    assert str(schedule) == shown
    assert not schedule.bounded
    np.testing.assert_allclose(schedule(np.array([1, 20])), [{"root-log": 0}.get(name, 1), at_20], rtol=1e-15)


def test_a_negative_offset_never_turns_the_order_of_keys_around():
    np.testing.assert_array_equal(Schedule(offset=-3.0, power=1.0)(np.array([1, 2, 5])), [0, 0, 2])
    assert str(Schedule(offset=-3.0, power=1.0)) == "max(0, -3 + n)"


def test_fields_at_their_later_defaults_are_left_out_of_keys():
    assert plain(Schedule(2.0)) == {"type": "Schedule", "coefficient": 2.0, "power": 0.0, "log_power": 0.0}
    assert plain(Schedule(offset=1.0))["offset"] == 1.0
    assert "least" not in plain(Schedule(offset=1.0))


def test_tables_of_a_config_file_describe_the_new_weightings():
    tables = [
        {"type": "SinkSoftmax", "logit": 1.5, "inverse_temperature": "one-plus-log"},
        {"type": "AdaptiveSoftmax", "polynomial": [-1.0, 0.5], "least_entropy": 0.0},
        {"type": "Sigmoid", "log_bias": -1.0, "by": "query"},
        {"type": "Entmax", "alpha": 1.25, "inverse_temperature": {"type": "Schedule", "least": 2.0}},
    ]
    config = TransformerConfig(2, layers=4, weighting=tables)  # pyright: ignore[reportArgumentType]
    made = tuple(config.layer(k).weighting for k in range(4))
    assert made == (
        SinkSoftmax(SCHEDULES["one-plus-log"], logit=1.5),
        AdaptiveSoftmax(polynomial=(-1.0, 0.5), least_entropy=0.0),
        Sigmoid(by="query", log_bias=-1.0),
        Entmax(Schedule(least=2.0), alpha=1.25),
    )
    assert plain(made[0])["logit"] == 1.5
    assert "learned" not in plain(made[0])  # the keys of points measured before there were learned sinks
    learned = {"type": "SinkSoftmax", "logit": 1.5, "learned": True}
    config = TransformerConfig(2, layers=1, weighting=learned)  # pyright: ignore[reportArgumentType]
    assert config.layer(0).weighting == SinkSoftmax(logit=1.5, learned=True)
    assert plain(config.layer(0).weighting)["learned"] is True
    assert "learned = 1" in refused(weighting={"type": "SinkSoftmax", "learned": 1})
    assert "alpha" in refused(weighting={"type": "Entmax", "alpha": 3.0})
    assert "polynomial" in refused(weighting={"type": "AdaptiveSoftmax", "polynomial": ["1"]})


@pytest.mark.parametrize("field", ["weighting", "mask", "positions"])
def test_a_table_of_another_family_is_refused(field):
    tables = {
        "weighting": {"type": "Sparsemax"},
        "mask": {"type": "SlidingWindow", "width": 2},
        "positions": {"type": "Rotary"},
    }
    for family, table in tables.items():
        if family != field:
            assert f"{field} = {{'type': '{table['type']}'" in refused(**{field: table})


def test_a_gate_draws_no_other_parameter_anew_and_its_width_is_one_or_the_heads():
    config = TransformerConfig(2, width=8, heads=2, layers=1, feed_forward=3)
    plain_model, *gated = (initialise(config.replace(output_gate=g), 3) for g in OUTPUT_GATES)
    assert plain_model.layers[0].gate is None
    assert [needed(one.layers[0].gate, "gate").shape for one in gated] == [(2, 8, 1), (2, 8, 4)]
    for one in gated:
        same = dataclasses.replace(one.layers[0], gate=None)
        jax.tree.map(np.testing.assert_array_equal, same, plain_model.layers[0])
    assert "output_gate = 'open'" in refused(output_gate="open")
    assert "output_gate" not in plain(config)
    assert plain(config.replace(output_gate="headwise"))["output_gate"] == "headwise"


@pytest.mark.parametrize("kind", ["SinkSoftmax", "AdaptiveSoftmax", "Sigmoid", "Entmax"])
def test_centred_scores_are_for_weightings_that_they_leave_as_they_are(kind):
    assert f"not {kind}" in refused(weighting={"type": kind}, centred_scores=True)


@pytest.mark.parametrize("fields", [{"by": "row"}, {"inverse_temperature": "log"}])
def test_a_softmax_needs_a_schedule_and_knows_two_lengths(fields):
    # In tests the types are checked first, and by a checker that users do not run.
    with pytest.raises((InputError, TypeCheckError)):
        Softmax(**fields)


@pytest.mark.parametrize("name", WEIGHTINGS)
def test_a_score_that_is_not_a_number_spoils_its_row_and_no_other(name):
    scores = jnp.array([[np.nan, 1.0, 2.0], [0.0, 1.0, 2.0]])
    spoilt, sound = weights(WEIGHTINGS[name], scores, jnp.ones((2, 3), bool))
    assert np.isnan(spoilt).any()
    assert np.isfinite(sound).all()
