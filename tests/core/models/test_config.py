"""What configs refuse, all at once; scores that are not numbers; and models that share their programs."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import TypeCheckError

import jaxsens
from jaxsens import InputError, Softmax, TransformerConfig
from jaxsens.core.base.programs import numerics
from jaxsens.core.models.adapters import as_model
from jaxsens.core.models.parts.choices import OUTPUT_GATES
from jaxsens.core.models.parts.initialisation import Normal, Uniform
from jaxsens.core.models.parts.masks import SlidingWindow
from jaxsens.core.models.parts.positions import FunctionComponent, Learned, Limb, Sinusoidal
from jaxsens.core.models.parts.schedules import SCHEDULES, Schedule
from jaxsens.core.models.parts.score_positions import PartialAlibi, PartialRotary, RelativeBias
from jaxsens.core.models.parts.weighting import (
    WEIGHTINGS,
    AdaptiveSoftmax,
    Entmax,
    Sigmoid,
    SinkSoftmax,
    Tempered,
    weights,
)
from jaxsens.core.models.transformer import layers
from jaxsens.core.models.transformer.module import plain
from jaxsens.core.models.transformer.parameters import Stack, initialise, needed, shape_of
from tests.refusals import refused
from tests.small_models import small


@pytest.mark.parametrize(
    ("names", "options"),
    [
        ("layer_norm_epsilon", {"layer_norm_epsilon": True}),
        ("mask", {"mask": (["none"], "none")}),
        ("width", {"width": np.bool_(True)}),
        ("heads", {"heads": (1, 2, 4)}),
        ("output_gate", {"output_gate": "open"}),
        ("width", {"width": 0, "heads": 5}),  # whether heads divide it is not known then
        ("width dtype widht", {"width": True, "dtype": "half", "widht": 3}),
        ("mask.width", {"mask": {"type": "SlidingWindow"}}),
        ("mask.width", {"mask": {"type": "SlidingWindow", "width": 0}}),
        ("mask.width", {"mask": {"type": "SlidingWindow", "width": 2**30 + 1}}),
        ("mask.reach", {"mask": {"type": "TwoSidedWindow", "reach": -1}}),
        ("mask", {"mask": (SlidingWindow(2),) * 3}),
        ("positions.max_length", {"positions": {"type": "Learned", "max_length": 3.0}}),
        ("weighting.type", {"weighting": {}}),
        ("weighting.type", {"weighting": {"type": "Softmx"}}),
        ("weighting.bais", {"weighting": {"type": "Sigmoid", "bais": 1.0}}),
        ("weighting.inverse_temperature", {"weighting": {"type": "Softmax", "inverse_temperature": 3}}),
        (
            "weighting.inverse_temperature.power",
            {"weighting": {"type": "Softmax", "inverse_temperature": {"type": "Schedule", "power": "1"}}},
        ),
        ("positions", {"positions": (Learned(8), Learned(4))}),
        ("positions", {"positions": Learned(0)}),
        ("positions", {"positions": Sinusoidal(base=-1.0)}),
        ("positions", {"positions": Limb("inverse", 0)}),
        ("positions", {"positions": Limb("squares", 0)}),
        ("positions", {"positions": Limb("square", 3)}),
        ("positions", {"positions": Limb("square", True)}),
        ("positions", {"positions": (Limb("square", 0), Limb("square", 0))}),
        ("positions", {"positions": (FunctionComponent("odd", lambda i, n: i % 2), "odd")}),
        ("head_width", {"positions": "rotary", "width": 6, "heads": 2}),
        ("head_width", {"positions": "rotary", "head_width": (4, 5)}),
        ("head_width", {"positions": "partial-rotary", "head_width": 5}),
        ("positions", {"positions": "partial-rotary", "head_width": 6}),
        ("positions", {"positions": PartialRotary(0.3), "head_width": 8}),
        ("positions", {"positions": PartialRotary(1.5)}),
        ("positions", {"positions": PartialRotary(base=0)}),
        ("positions", {"positions": PartialAlibi(0)}),
        ("positions", {"positions": "partial-alibi", "heads": 3, "head_width": 4}),
        ("positions", {"positions": RelativeBias(buckets=2)}),
        ("positions", {"positions": RelativeBias(buckets=1, bidirectional=False)}),
        ("positions", {"positions": RelativeBias(buckets=5)}),
        ("positions", {"positions": RelativeBias(max_distance=8)}),
        ("positions", {"positions": {"type": "RelativeBias", "buckets": 5}}),
        ("positions", {"positions": ("rotary", "partial-rotary")}),
        ("layer_positions", {"positions": "alibi", "layer_positions": ("partial-alibi", "none")}),
        ("layer_positions", {"layer_positions": "rotary"}),
        ("layer_positions", {"layer_positions": ("rotary",) * 3}),
        ("layer_positions", {"layer_positions": ("sinusoidal", "none")}),
        ("layer_positions", {"layer_positions": ("rotery", "none")}),
        ("layer_positions", {"layer_positions": (PartialAlibi(2), "none")}),
        ("layer_positions", {"layer_positions": ("none", "partial-alibi"), "heads": 3, "head_width": 4}),
        ("centred_scores", {"centred_scores": 1}),
        ("centred_scores", {"centred_scores": True, "scores": "additive"}),
        ("centred_scores", {"centred_scores": True, "positions": "rotary"}),
        ("centred_scores", {"centred_scores": True, "positions": ("index", "alibi")}),
        ("centred_scores", {"centred_scores": True, "layer_positions": ("rotary", "none")}),
        *(
            ("centred_scores", {"centred_scores": True, "weighting": ("softmax", {"type": kind})})
            for kind in ("Sparsemax", "SinkSoftmax", "AdaptiveSoftmax", "Sigmoid", "Entmax")
        ),
        ("initialisation", {"initialisation": "xavier"}),
        ("initialisation", {"initialisation": 10}),
        ("initialisation.type", {"initialisation": {"type": "Unifrom", "bound": 1}}),
        ("initialisation.bound", {"initialisation": {"type": "Uniform"}}),
        ("initialisation.bound", {"initialisation": {"type": "Uniform", "bound": -1.0}}),
        ("initialisation.deviation", {"initialisation": {"type": "Normal", "deviation": float("inf")}}),
        ("weighting.learned", {"weighting": {"type": "SinkSoftmax", "learned": 1}}),
        ("weighting.alpha", {"weighting": {"type": "Entmax", "alpha": 3.0}}),
        ("weighting.polynomial", {"weighting": {"type": "AdaptiveSoftmax", "polynomial": ["1"]}}),
        *(
            (field, {field: {"type": kind, **given}})
            for field, of in (("weighting", "Sparsemax"), ("mask", "SlidingWindow"), ("positions", "Rotary"))
            for kind, given in (("Sparsemax", {}), ("SlidingWindow", {"width": 2}), ("Rotary", {}))
            if kind != of
        ),
    ],
)
def test_what_makes_no_config_is_refused(names, options):
    refused(names, TransformerConfig, **{"alphabet_size": 2, **options})


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        *(
            (Schedule, fields)
            for fields in (
                {"coefficient": float("nan")},
                {"power": "1"},
                {"log_power": -1},
                {"offset": float("inf")},
                {"least": -1},
            )
        ),
        (Entmax, {"alpha": 1.0}),
        (Entmax, {"alpha": 2.5}),
        (SinkSoftmax, {"logit": float("inf")}),
        (Sigmoid, {"bias": float("nan")}),
        (Sigmoid, {"log_bias": float("inf")}),
        (AdaptiveSoftmax, {"polynomial": ()}),
        (AdaptiveSoftmax, {"polynomial": (1.0, 0.9)}),
        (AdaptiveSoftmax, {"least_entropy": -1.0}),
        *(
            (kind, {name: value})
            for kind, name in ((Uniform, "bound"), (Normal, "deviation"))
            for value in (0, -1, float("nan"), float("inf"), "1", True)
        ),
    ],
)
def test_what_makes_no_schedule_no_weighting_and_no_distribution_is_refused(kind, fields):
    refused(next(iter(fields)), kind, **fields)


def test_whole_numbers_of_numpy_are_kept_as_pythons():
    numbers = {"alphabet_size": 2, "width": 8, "heads": (2, 1), "head_width": [4, 8], "layers": 2}
    numbers |= {"feed_forward": 3, "readout": 1, "logits": 5}
    mine, its = (TransformerConfig(**options) for options in (numbers, jax.tree.map(np.int64, numbers)))
    assert repr(its) == repr(mine)
    assert (its, hash(its)) == (mine, hash(mine))


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


def test_a_negative_offset_is_cut_off_at_0_and_defaults_that_came_later_are_in_no_key():
    np.testing.assert_array_equal(Schedule(offset=-3.0, power=1.0)(np.array([1, 2, 5])), [0, 0, 2])
    assert str(Schedule(offset=-3.0, power=1.0)) == "max(0, -3 + n)"
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


def test_a_gate_draws_no_other_parameter_anew_and_its_width_is_one_or_the_heads():
    config = TransformerConfig(2, width=8, heads=2, layers=1, feed_forward=3)
    plain_model, *gated = (initialise(config.replace(output_gate=g), 3) for g in OUTPUT_GATES)
    assert plain_model.layers[0].gate is None
    assert [needed(one.layers[0].gate, "gate").shape for one in gated] == [(2, 8, 1), (2, 8, 4)]
    for one in gated:
        same = dataclasses.replace(one.layers[0], gate=None)
        jax.tree.map(np.testing.assert_array_equal, same, plain_model.layers[0])
    assert "output_gate" not in plain(config)
    assert plain(config.replace(output_gate="headwise"))["output_gate"] == "headwise"


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        *((Softmax, fields) for fields in ({"by": "row"}, {"inverse_temperature": "log"})),
        *((FunctionComponent, fields) for fields in ({"name": ""}, {"function": 3}, {"bounded": 1})),
    ],
)
def test_a_softmax_and_a_function_of_positions_need_arguments_of_their_types(kind, fields):
    given = {"name": "p", "function": lambda i, n: i} if kind is FunctionComponent else {}
    # In tests the types are checked first, and by a checker that users do not run.
    with pytest.raises((InputError, TypeCheckError)):
        kind(**{**given, **fields})


@pytest.mark.parametrize("name", WEIGHTINGS)
def test_a_score_that_is_not_a_number_spoils_its_row_and_no_other(name):
    scores = jnp.array([[np.nan, 1.0, 2.0], [0.0, 1.0, 2.0]])
    spoilt, sound = weights(WEIGHTINGS[name], scores, jnp.ones((2, 3), bool))
    assert np.isnan(spoilt).any()
    assert np.isfinite(sound).all()


@pytest.mark.quick(0, 2)
@pytest.mark.parametrize("engine", ["vmap", "incremental", "difference", "first-order"])
def test_a_model_of_equal_layers_is_measured_as_by_forward_passes_of_its_own(engine):
    config = small(alphabet_size=3, layers=5, heads=(2, 1, 1, 1, 2), dtype="float64")
    model, word = jaxsens.Transformer(config, seed=0), np.arange(9) % 3
    assert isinstance(as_model(model).parameters.layers, Stack)
    flips = jaxsens.Substitute(symbols=(0,))
    found = jaxsens.flip_sensitivity(model, word, flips, engine=engine)
    with numerics("float64"):
        flips = zip(found.positions, found.symbols, strict=True)
        flipped = [np.where(np.arange(9) == position, symbol, word) for position, symbol in flips]
        outputs = [np.asarray(model(each)) for each in [word, *flipped]]
    true = np.linalg.norm(np.asarray(outputs[1:]) - outputs[0], axis=-1)
    exact = found.norms if found.estimated is None else found.norms[found.estimated.stratum > 0]
    true = true if found.estimated is None else true[found.estimated.stratum > 0]
    np.testing.assert_allclose(exact, true, rtol=1e-9, atol=1e-14)


LOG = Schedule(log_power=1.0)


@dataclass(frozen=True)
class Windowed(Tempered):
    """One of a user's own: its temperature is that of sixteen symbols at most."""

    def inverse_temperatures(self, query_positions, n, dtype):
        return jnp.full(query_positions.shape, self.inverse_temperature(min(n, 16)), dtype)

    def shares(self, scores, visible):
        return Softmax().shares(scores, visible)


def test_a_class_from_elsewhere_keeps_its_formula_and_a_shape_alone_is_no_model():
    config = small(weighting=Windowed(LOG), layers=1)
    assert shape_of(config).layer(0).weighting == Windowed(LOG)
    model, word = jaxsens.Transformer(config, seed=0), np.arange(30) % 3
    found = jaxsens.flip_sensitivity(model, word, jaxsens.Substitute([0], positions=[4]), engine="vmap").norms
    other = np.where(np.arange(30) == 4, 0, word)
    np.testing.assert_allclose(found, np.linalg.norm(model(other) - model(word)), rtol=1e-9)
    config = small()
    with numerics(config.dtype):
        parameters = initialise(config, 0)
        with pytest.raises(TypeError, match="table 0 of inverse temperatures has no values yet"):
            layers.apply(shape_of(config), parameters, jnp.zeros(5, int))
